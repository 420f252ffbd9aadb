"""Runs a program until its output tells enough steps, and ends it: `python -m meshtune.runners.watch -- COMMAND`.

The output is passed on unchanged. Whatever counts in it (a progress bar, `step 12`) has the time when it arrives, and a
step takes the time between two arrivals over the steps between them, so that no word of time is needed. A program of
torch has its optimizer steps told by `runners.report`, which its interpreter finds in PYTHONPATH; they count more than
what it prints. Elsewhere a number counts optimizer steps (passes of one, where a program that accumulates gradients
prints those: that is seen only where it prints both).

With the standard library alone, but for a spec's own patterns."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from meshtune.runners import report
from meshtune.runners.json_files import write_whole
from meshtune.runners.log_lines import MAX_LINE, split_lines, untagged
from meshtune.runners.measuring import WATCH_FILE, WATCH_SAYS, is_settled
from meshtune.runners.outcome import RESULT_FILE
from meshtune.runners.processes.gang import die_with_parent, kill_marked, kill_tree
from meshtune.runners.trainer.job import Measuring

_SOUGHT = (
    'looked for are progress bars ("12/100 [00:10<01:15, 1.2it/s]"), "step 12", "iteration 12/100", "[12/100]", lines '
    "with a time per step, what the option log names, and a Reporter (meshtune.runners.report)"
)
# Fewer intervals do not show which are warm-up.
_LEAST = 3
GRACE_S, _PERIOD_S, _LOOK_S = 5.0, 0.05, 1.0
# Forms of a count, by level: those of the lowest that there are count alone. Groups: the number, empty where each line
# is a step; its total. What a program prints as its loss is mostly that of one rank's last pass, which no two plans
# share: a Reporter's and that of a spec's own pattern are kept.
_STEP = r"\b(?:(?:global|train)[_ ]?)?(?:step|iter(?:ation)?)s?[\"']?\s*[:=#[(]{0,2}\s*(\d{1,15})(?![.\d])"
_FORMS: Sequence[tuple[int, re.Pattern[str]]] = [
    (level, re.compile(pattern, re.IGNORECASE))
    for level, pattern in (
        (0, r"\[meshtune\] step (\d{1,15})()(?: loss (\S+))?"),
        (1, r"\[meshtune\] optimizer step (\d{1,15})()"),
        (2, r"\|\s*(\d{1,15})/(\d+) \[[^]]*(?:(?:it|step|batch|iter)\w*/s|s/(?:it|step|batch|iter))"),  # tqdm
        (2, r"(?:^|: )(\d{1,15})()it \[\d+:\d"),  # tqdm without a total
        (2, rf"{_STEP}(?:\s*/\s*(\d+))?"),
        (2, r"(?<!epoch )\[\s*(\d{1,15})\s*/\s*(\d+)\s*\]"),
        (3, r"()()(?:(?:step|iteration)[ _]?time|time[ _/]per[ _](?:step|iter)|\ds/(?:it|step)|\d ?(?:it|steps?)/s)"),
        (3, r"()()['\"]loss['\"]\s*:"),
    )
]
# Before a count: what else a program counts; but for the name of a file.
_OTHER = re.compile(
    r"(?i)(?<![\w./])(?:eval|valid|test|sanity|load|download|tokeniz|map\b|val\b|filter|generat|sav)"
    r"\w*(?![\w./-]*\.py)[^]]*$"
)
_MEMORY = re.compile(r"(?i)(?:max|peak)[\w ]{0,20}?mem[^\d,;|]{0,20}(\d+(?:\.\d+)?) ?([KMG])(i?)B")
# Characters before a count that say what it is; and names of counts that are kept.
_BEFORE, _MOST = 80, 1000


@dataclass(slots=True)
class Counter:
    """A number that grows in the output. spans: of each time that it grew, the seconds and by how much; of lines that
    arrived at once one together. stride: the most from one line to the next. losses: by number, as far as told."""

    level: int
    number: int
    at: float
    spans: list[tuple[float, int]] = field(default_factory=list)
    stride: int = 0
    losses: dict[int, float] = field(default_factory=dict)

    def take(self, number: int, now: float) -> None:
        grown = number - self.number
        self.stride = max(self.stride, grown)
        if grown > 0 and now > self.at:
            self.spans.append((now - self.at, grown))
        elif grown > 0 and self.spans:  # what is written in blocks arrives at once
            self.spans[-1] = self.spans[-1][0], self.spans[-1][1] + grown
        # Far below it: it began anew, and the time between is no step's. A little: of a rank that is behind.
        if grown > 0 or 2 * number <= self.number:
            self.number, self.at = number, now

    def seconds(self) -> float:
        return sum(seconds for seconds, _ in self.spans)

    def grown(self) -> int:
        return sum(number for _, number in self.spans)

    def times_s(self) -> list[float]:
        """Of every time that it grew, the mean of the steps between."""
        return [seconds / grown for seconds, grown in self.spans]

    def first_losses(self) -> list[float]:
        """Of the first steps, where it grew by one from line to line: of several steps programs tell the mean."""
        first = min(self.losses, default=2)
        found = [self.losses.get(first + step) for step in range(report.MAX_LOSSES)]
        one_by_one = first <= 1 and self.stride <= 1
        return [loss for loss in found if loss is not None] if one_by_one else []


class Output:
    """The steps that the lines of a program tell. plan: of the job. patterns: of the spec's own, which count alone."""

    def __init__(self, plan: Mapping[str, int], patterns: Mapping[str, str]) -> None:
        self.counters: dict[object, Counter] = {}
        # The most that was told, by rank.
        self.memory: dict[int, int] = {}
        # Whether the optimizers of a process of torch are timed.
        self.has_reporter = False
        self._passes = plan["grad_accum_steps"]
        self._patterns: Any = None
        if patterns:
            from meshtune.runners.programs.log_patterns import Patterns  # of jobs that have it, for RE2

            self._patterns = Patterns(patterns, timed=False)

    def take(self, line: str, now: float) -> None:
        rank, words = untagged(line)
        self.has_reporter = self.has_reporter or report.TIMES in words
        for level, number, name, loss in self._counts(words):
            if len(self.counters) == _MOST and (rank, name) not in self.counters:
                continue
            if (counter := self.counters.get((rank, name))) is None:
                counter = self.counters[rank, name] = Counter(level, number or 0, now)
            else:
                counter.take(counter.number + 1 if number is None else number, now)
            if loss:
                counter.losses[counter.number] = float(loss)
        if (own := self.counters.get((rank, "log"))) and (found := self._patterns.find("loss", words)):
            own.losses[own.number] = found.value
        if memory := _MEMORY.search(words):
            unit = (1024 if memory[3] else 1000) ** ("KMG".index(memory[2].upper()) + 1)
            self.memory[rank or 0] = max(self.memory.get(rank or 0, 0), round(float(memory[1]) * unit))

    def _counts(self, words: str) -> Iterator[tuple[int, int | None, object, str | None]]:
        """What counts in a line: its level, its number (None: each line is a step), its name, a Reporter's loss."""
        if self._patterns is not None:
            if found := self._patterns.find(self._patterns.counting, words):
                yield 0, int(found.value) if self._patterns.counting == "step" else None, "log", None
            return
        for form, (level, pattern) in enumerate(_FORMS):
            for match in pattern.finditer(words):
                before = words[: match.start()][-_BEFORE:] if level > 1 else ""
                if not _OTHER.search(before):
                    name = form, match[2], re.sub("[^A-Za-z]+", "", before)
                    yield level, int(match[1]) if match[1] else None, name, match[3] if level == 0 else None

    def steps(self) -> Counter | None:
        """What counts the steps: of the lowest level, what grows most often of what grows most of the time. Of two, one
        of which is as much slower as a step has passes, the slower. None: nothing grows; and where a Reporter is there
        to tell optimizer steps, what is printed may be passes until it has grown by two steps of them without one."""
        level = min((counter.level for counter in self.counters.values()), default=0)
        least = 2 * self._passes if self.has_reporter and level > 1 else 0
        grown = [counter for counter in self.counters.values() if counter.spans and counter.grown() >= least]
        longest = max((counter.seconds() for counter in grown if counter.level == level), default=0.0)
        there = [counter for counter in grown if counter.level == level and 2 * counter.seconds() >= longest]
        paces = [counter.grown() / counter.seconds() for counter in there]
        for counter, pace in zip(there, paces, strict=True):
            if self._passes > 1 and abs(max(paces) / pace / self._passes - 1) < 0.1:
                return counter
        return max(there, key=lambda counter: len(counter.spans), default=None)


@dataclass(slots=True)
class Stream:
    """One of a program's two outputs. rest: of a line that has not ended, and when that began."""

    source: int
    target: int
    rest: bytes = b""
    began: float = 0.0

    def pass_on(self, output: Output) -> bool:
        """Pass on what has arrived; False at the end. A line has the time of its first byte: the end of a bar comes
        with the next one."""
        chunk, now = os.read(self.source, 1 << 16), time.monotonic()
        os.write(self.target, chunk)
        began = self.began if self.rest else now
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        for line in split_lines([self.rest + chunk[:end]] if end else []):
            output.take(line, began)
            began = now
        self.rest, self.began = (chunk[end:] if end else self.rest + chunk)[-MAX_LINE:], began
        return bool(chunk)


def main(words: Sequence[str]) -> int:
    """Run the command after `--` and return its exit code, 0 where its steps are measured."""
    folder = Path(os.environ[report.DIRECTORY])
    settings, context = (json.loads((folder / name).read_text()) for name in (WATCH_FILE, "brief.json"))  # noqa: TID251
    output, command, received = Output(context["plan"], settings["log"]), words[words.index("--") + 1 :], list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    mark, limit_s = f"{os.uname().nodename}-{os.getpid()}", settings["time_limit_s"]
    say_at = time.monotonic() + limit_s - min(10.0, 1.0 + limit_s / 20)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    try:
        env = _environment(folder, settings["unset"], mark)
        child = subprocess.Popen(command, env=env, preexec_fn=die_with_parent, **pipes)
    except OSError as error:
        raise SystemExit(f"{type(error).__name__}: {error}: {command[0]!r}") from None
    streams = {pipe.fileno(): Stream(pipe.fileno(), to) for to, pipe in ((1, child.stdout), (2, child.stderr)) if pipe}
    measuring = Measuring(min_seconds=1.0 if context["device"] == "cpu" else 3.0)
    look_at, end, measured = 0.0, None, False
    while not (received or measured or end):
        ready = select.select(list(streams), [], [], _PERIOD_S)[0]
        for source in ready:
            if not streams[source].pass_on(output):
                del streams[source]
        now, end = time.monotonic(), None if ready else _end_of(child)
        measured = bool(ready) and _report(context, output, measuring)
        if not measured and (now >= look_at or end):
            look_at, measured = now + _LOOK_S, RESULT_FILE in os.listdir(folder)
        if not measured and (now >= say_at or (end and end.si_status == 0)):
            say_at, measured = float("inf"), _report(context, output, measuring, at_once=True)
            if not measured:
                few = len(steps.spans) if (steps := output.steps()) else 0
                told = f"{few} times of steps, not {_LEAST}" if few else "no steps"
                os.write(2, f"\n{WATCH_SAYS}its output tells {told}: {_SOUGHT}\n".encode())
    _end_all(child, mark)
    if received or measured:
        return 128 + received[0] if received else 0
    if child.returncode < 0:  # as it ended, so do we
        os.kill(os.getpid(), -child.returncode)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _environment(folder: Path, unset: Sequence[str], mark: str) -> dict[str, str]:
    """The command's: without the variables that its user does not have, and with what lets torch tell its steps."""
    (place := folder / ".watch").mkdir(exist_ok=True)
    # The site's own stands behind it.
    text = f"""{report.TIME_STEPS}
import sys, importlib.machinery, importlib.util
own = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != {str(place)!r}])
if own:
    own.loader.exec_module(importlib.util.module_from_spec(own))
"""
    write_whole(place / "sitecustomize.py", text)
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    own = {name: value for name, value in os.environ.items() if name not in unset}
    return {**own, "PYTHONPATH": path, report.WATCHED: mark}


def _report(context: Any, output: Output, measuring: Measuring, *, at_once: bool = False) -> bool:
    """Write what is measured, unless another has; False where it is not enough. at_once: what there is, if that is at
    least two steps after what stands out in the beginning."""
    steps, reason = output.steps(), ""
    times = steps.times_s() if steps else []
    # By the rules a step is what the output tells at once.
    whole_s, summed_s = (steps.seconds(), sum(times)) if steps else (0.0, 1.0)
    told = [seconds * whole_s / summed_s for seconds in times]
    warmup = measuring.warmup(told)
    if at_once and len(times) >= _LEAST:
        if warmup is None or len(times) - warmup < 2:
            warmup = next(start for start in range(len(times)) if is_settled(told[start:], measuring.precision))
        reason = f"it ended with {len(times) - warmup} timed intervals between steps that its output told"
    elif warmup is None or not measuring.enough(told[warmup:]):
        return False
    losses = steps.first_losses() if steps else []
    if wrong := [loss for loss in losses if not isfinite(loss)]:
        report.report_failure("crash", f"a loss of the first steps is {wrong[0]}")
        return True
    more = {"first_losses": losses, "peak_memory_bytes": list(output.memory.values())}
    with suppress(FileExistsError):
        report.write_measurement(context, times, warmup, os.link, reason, **more)
    return True


def _end_of(child: subprocess.Popen[bytes]) -> Any:
    """How it ended, None where it lives. Its number stays its own, until it is waited for."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _end_all(child: subprocess.Popen[bytes], mark: str) -> None:
    """Ask the command's processes to end, and kill those that do not."""
    os.killpg(child.pid, signal.SIGTERM)
    end = time.monotonic() + GRACE_S
    while not _end_of(child) and time.monotonic() < end:
        time.sleep(_PERIOD_S)
    kill_tree(child.pid)
    child.wait()
    kill_marked(mark, report.WATCHED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
