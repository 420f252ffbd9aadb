"""What the last words of a training program mean: the texts of its libraries, each with the cause that it stands for.

Pure and read line by line; no text is looked for in what a program says while all is well. A table cannot know every
program: what is not in it and looks like an error is a crash, which claims nothing. A user's bug is claimed only for
what no plan can change, because a campaign stops for it: what its own program may import, open, or be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshtune.runners.failure_cause import Cause


@dataclass(frozen=True, slots=True)
class FailureText:
    """A regular expression that is searched for in one line, and where that text comes from."""

    pattern: str
    cause: Cause
    source: str


# In this order they are tried on a line.
FAILURE_TEXTS: tuple[FailureText, ...] = (
    FailureText(
        "DefaultCPUAllocator: (?:can't allocate|not enough) memory", Cause.OOM, "torch c10/core/impl/alloc_cpu"
    ),
    FailureText("(?:CUDA|HIP|XPU) out of memory", Cause.OOM, "torch c10/cuda/CUDACachingAllocator, c10/xpu"),
    FailureText("(?:CUDA|HIP) error: out of memory", Cause.OOM, "torch c10/cuda/CUDAException"),
    FailureText(r"\bOutOfMemoryError\b", Cause.OOM, "torch.OutOfMemoryError, jaxlib"),
    FailureText(r"^(?:[\w.]+\.)?_?(?:Array)?MemoryError\b", Cause.OOM, "Python, numpy"),
    FailureText(r"\bstd::bad_alloc\b", Cause.OOM, "C++ operator new"),
    FailureText("CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory", Cause.OOM, "the drivers of CUDA and HIP"),
    FailureText("(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED", Cause.OOM, "cuBLAS and cuDNN, creating a handle"),
    FailureText(r"Cuda failure (?:\d+ )?'out of memory'", Cause.OOM, "NCCL src/include/checks.h"),
    FailureText("(?:UR|PI)_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY", Cause.OOM, "oneAPI unified runtime"),
    FailureText("UR_RESULT_ERROR_OUT_OF_RESOURCES|PI_ERROR_OUT_OF_RESOURCES", Cause.OOM, "oneAPI unified runtime"),
    FailureText(r"\boom[-_]kill event", Cause.OOM, "slurmstepd, cgroup plugin"),
    FailureText("Out of memory: Killed process", Cause.OOM, "Linux mm/oom_kill.c"),
    # argparse refuses a value, which is a plan's where the argument has a placeholder.
    FailureText(r"error: argument \S.*: invalid ", Cause.ILLEGAL_SETTING, "Python argparse"),
    FailureText("Watchdog caught collective operation timeout", Cause.HANG, "torch ProcessGroupNCCL.cpp"),
    FailureText("timed out in monitoredBarrier", Cause.HANG, "torch ProcessGroupGloo.cpp"),
    FailureText(r"Timed out waiting \d+ ?ms for (?:recv|send) operation", Cause.HANG, "gloo tcp/unbound_buffer.cc"),
    FailureText(
        "[Cc]onnection (?:was )?(?:closed|reset|refused)", Cause.COMMUNICATION, "errno, gloo tcp/pair.cc, NCCL"
    ),
    FailureText("Broken pipe", Cause.COMMUNICATION, "errno"),
    FailureText("Timed out waiting|Timed out after .* waiting for clients", Cause.COMMUNICATION, "torch c10d store"),
    FailureText(
        "[Ww]ait timeout|Socket Timeout|Socket (?:unexpectedly )?closed", Cause.COMMUNICATION, "torch c10d store"
    ),
    FailureText("Operation timed out|collective operation timeout", Cause.COMMUNICATION, "errno, torch c10d"),
    FailureText("timed out connecting|client socket has (?:timed out|failed)", Cause.COMMUNICATION, "torch c10d, gloo"),
    FailureText("ncclRemoteError|remote process exited", Cause.COMMUNICATION, "torch NCCLUtils"),
    FailureText("ncclSystemError|unhandled system error", Cause.COMMUNICATION, "torch NCCLUtils: sockets and verbs"),
    FailureText("NCCL communicator was aborted", Cause.COMMUNICATION, "torch NCCLUtils"),
    FailureText("[Ff]ailed to recv, got 0 bytes", Cause.COMMUNICATION, "torch c10d TCPStore"),
    FailureText("EADDRINUSE|Address already in use", Cause.COMMUNICATION, "errno: the port of the meeting is taken"),
    FailureText(r"^(?:ModuleNotFound|Import)Error: ", Cause.USER_BUG, "Python"),
    FailureText(r"^(?:Syntax|Indentation|Tab)Error: ", Cause.USER_BUG, "Python"),
    FailureText(r"^(?:FileNotFound|Permission|NotADirectory|IsADirectory)Error: ", Cause.USER_BUG, "Python"),
    FailureText(r"^\S*python\S*: (?:can't open file|No module named|Error while finding)", Cause.USER_BUG, "CPython"),
    FailureText(r"^\S*sh: .*(?:not found|No such file or directory|Permission denied)$", Cause.USER_BUG, "sh, bash"),
    FailureText(r": cd: (?:can't cd to |.*No such file)", Cause.USER_BUG, "sh, bash"),
    FailureText(r"^\S*(?:env|srun|exec\w*): .*(?:No such file|Permission denied)", Cause.USER_BUG, "env, srun"),
    FailureText("error: unrecognized arguments: ", Cause.USER_BUG, "Python argparse"),
    FailureText("error: the following arguments are required: ", Cause.USER_BUG, "Python argparse"),
    FailureText(r"error: (?:ambiguous option: |argument \S.*: expected )", Cause.USER_BUG, "Python argparse"),
    FailureText("Error: (?:No such option|Missing (?:argument|option|parameter))", Cause.USER_BUG, "click, typer"),
    FailureText("Torch not compiled with CUDA enabled", Cause.USER_BUG, "torch/cuda/__init__.py"),
    # What a launcher says of a child whose own words are elsewhere is no word of the program's.
    FailureText(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?:: |$)", Cause.CRASH, "Python: an exception's own line"),
    FailureText("^Fatal Python error: |^Segmentation fault", Cause.CRASH, "CPython, sh"),
)
# Exceptions of launchers, which tell that a child failed and not why.
_LAUNCHERS = re.compile(r"(?:ChildFailed|CalledProcess|ProcessExited|ProcessRaised)(?:Error|Exception)\b")
# Which of several failures in one job the others follow from: what a rank died of itself comes before what its peers
# noticed of it, a known cause before an unknown one, and a hang before connections that were lost when it was ended.
PRECEDENCE: tuple[Cause, ...] = (
    *(Cause.OOM, Cause.ILLEGAL_SETTING, Cause.USER_BUG, Cause.CRASH),
    *(Cause.HANG, Cause.COMMUNICATION),
)
# What every line that is in the table holds one of: most lines of a log hold none, and this is 50 times as fast.
_HINTS = (
    *("rror", "xception", "emory", "alloc", "OUT_OF", "_FAILED", "oom", "out'"),
    *(
        "imed out",
        "imeout",
        "onnection",
        "ipe",
        "ocket",
        "exited",
        "aborted",
        "unhandled",
        "recv",
        "EADDRINUSE",
        "lready in use",
    ),
    *("python", "sh: ", "cd: ", "No such file", "Permission denied", "compiled", "fault"),
)
_TABLE = tuple((re.compile(text.pattern), text.cause) for text in FAILURE_TEXTS)


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

_FRAME = re.compile(r'^ *File "(?P<path>[^"]*)", line \d+, in (?P<function>.+)$')
_BACKWARD = frozenset({"backward", "backward_step", "backward_pass", "run_backward", "_engine_run_backward"})
_FORWARD = frozenset({"forward", "forward_step", "forward_pass", "_call_impl", "_forward_one_chunk"})
_OPTIMIZER = frozenset({"optimizer_step", "_take_model_step"})


def phase_of(lines: Sequence[str]) -> str | None:
    """Where in a step a Python traceback leads to ("init" where in none): its outermost frame that tells.

    None for lines without a traceback. Recomputation is in its backward pass.
    """
    frames = [frame for frame in map(_FRAME.match, lines) if frame is not None]
    for frame in frames:
        function = frame["function"].rpartition(".")[2]
        if function in _BACKWARD:
            return "backward"
        if function in _OPTIMIZER or (function == "step" and "optim" in frame["path"]):
            return "optimizer"
        if function in _FORWARD:
            return "forward"
    return "init" if frames else None
