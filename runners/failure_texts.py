"""What the last words of a training program mean: the texts of its libraries, each with the cause that it stands for.

What is not in the table and looks like an error is a crash, which claims nothing. A user's bug is claimed only for what
no plan can change, because a campaign stops for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from meshtune.runners.base import Cause
from meshtune.runners.log_lines import read_tail, split_lines, untagged

if TYPE_CHECKING:  # jobs import this in their site's own environment, without RE2
    from meshtune.runners.programs.log_patterns import Patterns

# By cause: see there for the texts and where each comes from.
_LINES = files("meshtune.runners").joinpath("failure_texts.txt").read_text("utf-8").splitlines()
_ROWS = [line.split("\t") for line in _LINES if not line.startswith("#")]
ENGINE_TEXTS, WAITS = ([text for kind, _, text in _ROWS if kind == wanted] for wanted in ("engine", "waits"))
FAILURE_TEXTS = [
    *((Cause.OOM, text) for text in ENGINE_TEXTS),
    *((Cause(kind), text) for kind, _, text in _ROWS if kind not in ("engine", "waits")),
]
# Exceptions of launchers, which tell that a child failed and not why.
_LAUNCHERS = re.compile(r"(?:ChildFailed|CalledProcess|ProcessExited|ProcessRaised)(?:Error|Exception)\b")
# Which of several failures in one job the others follow from: what a rank died of itself comes before what its peers
# noticed of it, a known cause before an unknown one, and a hang before connections that were lost when it was ended.
PRECEDENCE: tuple[Cause, ...] = (
    *(Cause.OOM, Cause.ILLEGAL_SETTING, Cause.STORAGE, Cause.USER_BUG, Cause.CRASH),
    *(Cause.HANG, Cause.COMMUNICATION),
)
# What every line that is in the table holds one of: most lines of a log hold none, and this is 50 times as fast.
_HINTS = (
    *("rror", "xception", "emory", "alloc", "OUT_OF", "_FAILED", "oom", "out'"),
    *("imed out", "imeout", "onnection", "ipe", "ocket", "exited", "aborted", "unhandled", "recv", "EADDRINUSE"),
    *("lready in use", "python", "sh: ", "cd: ", "No such file", "Permission denied", "compiled", "fault"),
    *("No space left", "quota", "ead-only", "tale ", "nput/output"),
)
_ENGINE = re.compile("|".join(ENGINE_TEXTS))
_TABLE = tuple((re.compile(pattern), cause) for cause, pattern in FAILURE_TEXTS)


def cause_of_line(line: str) -> Cause | None:
    """What one line of a log says of the program's end; None where it says nothing of it."""
    if not any(hint in line for hint in _HINTS) or _LAUNCHERS.search(line):
        return None
    return next((cause for pattern, cause in _TABLE if pattern.search(line)), None)


def is_echo(cause: Cause) -> bool:
    """True for what a process says of its peers: that they are gone, or do not answer."""
    return cause in (Cause.HANG, Cause.COMMUNICATION)


def first_in_precedence(causes: Iterable[Cause]) -> Cause | None:
    """The cause that the others follow from; None of none."""
    return min(causes, key=PRECEDENCE.index, default=None)


# sh and exec's own words for a command that is there and cannot be run, and one that is not there (POSIX 2.8.2).
CANNOT_RUN = (126, 127)

# A frame of Python, and the method that Ray ran elsewhere: "ray::WorkerDict.actor_rollout_update_actor() (pid=7, ...".
_FRAME = re.compile(r'^ *File "(?P<path>[^"]*)", line \d+, in (?P<function>.+)$|\bray::(?P<method>[\w.:-]{1,200})\(\)')
_BACKWARD = frozenset({"backward", "backward_step", "backward_pass", "run_backward", "_engine_run_backward"})
_FORWARD = frozenset({"forward", "forward_step", "forward_pass", "_call_impl", "_forward_one_chunk"})
_OPTIMIZER = frozenset({"optimizer_step", "_take_model_step"})
# Of reinforcement learning, by path and function of a frame or by Ray's method. From verl workers/, OpenRLHF
# trainer/ray/, TRL trainer/grpo_trainer.py and generation/, NeMo-RL algorithms/ and models/policy/.
_STEP_PHASE = re.compile(
    r"(?P<refit>(?:update_weights\w*|sync_weights|broadcast_to_vllm|refit_policy_generation|rollout_mode)$)"
    r"|(?P<generation>-packages/(?:vllm|sglang)/|/vllm/vllm/|/sglang/srt/|generate_(?:sequences|samples|async)$"
    r"|:(?:_?generate|wake_up)$)"
    r"|(?P<log_probs>compute_(?:ref_)?log_prob$|get_(?:reference_policy_)?logprobs$|_get_per_token_logps\w*$"
    r"|(?:Policy|Reference)ModelActor\.forward$)"
    r"|(?P<update>update_(?:actor|policy|critic)$|ppo_train$|train_batch$|compute_loss$|models/policy/.*:train$)"
)


def phase_of(lines: Sequence[str]) -> str | None:
    """Where in a step a Python traceback leads to ("init" where in none): its outermost frame that tells, of an update
    the first within it that tells more. None for lines without a traceback. Recomputation is in its backward pass."""
    frames = [frame for frame in map(_FRAME.search, lines) if frame is not None]
    otherwise = "init" if frames else None
    for frame in frames:
        path, function = frame["path"] or "", (frame["function"] or frame["method"]).rpartition(".")[2]
        said = _STEP_PHASE.search(frame["method"] or f"{path}:{function}")
        if said is not None and said.lastgroup == "update":
            otherwise = "update"
        elif said is not None and otherwise != "update":
            return said.lastgroup
        if function in _BACKWARD:
            return "backward"
        if function in _OPTIMIZER or (function == "step" and "optim" in path):
            return "optimizer"
        if function in _FORWARD:
            return "forward"
    return otherwise


MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """Why a program says that it failed. line: the text that tells. rank: who wrote it, where the line says so."""

    cause: Cause
    line: str
    rank: int | None = None
    phase: str | None = None


def read_last_words(text: str, patterns: Patterns | None = None) -> LastWords | None:
    """Why the program whose log ends so failed, by `PRECEDENCE`; None where its words say nothing of it.

    A step that is told after a missing module or an exception shows that the program went on: they were no end."""
    words_of: dict[Cause, LastWords] = {}
    tracebacks: dict[int | str | None, list[str]] = {}
    previous: Cause | None = None
    for line in split_lines([text.encode()], whole=False):
        rank, words = untagged(line)
        writer = line.partition(")")[0] if line.startswith("(") else rank  # Ray's processes share a log
        if words.startswith("Traceback (most recent call last)") or ("ray::" in words and _FRAME.search(words)):
            tracebacks[writer] = [words]
            continue
        if writer in tracebacks and words.startswith(" "):  # source code, which may have the text of any error in it
            tracebacks[writer].append(words)
            continue
        frames = tracebacks.pop(writer, [])
        refused = patterns is not None and patterns.refuses(words)
        cause = Cause.ILLEGAL_SETTING if refused else cause_of_line(words)
        for overtaken in _overtaken(cause, previous, patterns, words):
            words_of.pop(overtaken, None)
        if cause is not None and cause not in words_of:
            phase = "generation" if _ENGINE.search(words) else phase_of(frames) if cause is Cause.OOM else None
            words_of[cause] = LastWords(cause=cause, line=words.strip(), rank=rank, phase=phase)
        previous = cause
    return min(words_of.values(), key=lambda words: PRECEDENCE.index(words.cause), default=None)


def _overtaken(cause: Cause | None, previous: Cause | None, patterns: Patterns | None, line: str) -> Sequence[Cause]:
    """The causes that a line shows to have been none: those that the program got over, by taking a step or by failing
    later of something else; and an exception whose message goes on with what its peers did."""
    if patterns is not None and patterns.find(patterns.timing, line) is not None:
        return (Cause.STORAGE, Cause.USER_BUG, Cause.CRASH)
    if cause is Cause.CRASH:
        return (Cause.USER_BUG,)
    return (Cause.CRASH,) if cause is not None and is_echo(cause) and previous is Cause.CRASH else ()


def read_last_words_of(path: Path, patterns: Patterns | None = None) -> LastWords | None:
    """The last words in the end of a log file. Raises OSError."""
    return read_last_words(read_tail(path, MAX_BYTES), patterns)
