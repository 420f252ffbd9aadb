"""The lines of a log as programs write it: without colours, however long, whose they are, and the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from meshtune.search_spaces.checks import Checks, did_you_mean

CHUNK_BYTES = 1 << 20
MAX_LINE = 1 << 16  # characters; of what is longer (a progress bar without any line end) the end is kept
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Who wrote a line: torch and torchrun ("[rank1]: ", "[default1]:"), mpirun --tag-output ("[1,1]<stdout>:").
_TAG = re.compile(r"(?:\[(?:rank|default|trainer|\d+,)(\d+)\](?:<\w+>)?: ?)+")


def untagged(line: str) -> tuple[int | None, str]:
    """The rank that wrote a line, where it begins with that, and the line without it."""
    match = _TAG.match(line)
    return (None, line) if match is None else (int(match[1]), line[match.end() :])


def split_lines(chunks: Iterable[bytes], *, whole: bool = True) -> Iterator[str]:
    """The lines of a log, without colours; a carriage return ends one too. whole: leave out what no line end follows,
    since a number in it may be cut off."""
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk.decode("utf-8", errors="replace")).replace("\r", "\n").split("\n")
        rest = rest[-MAX_LINE:]
        yield from map(_plain, lines)
    if rest and not whole:
        yield _plain(rest)


def lines_of(path: Path) -> Iterator[str]:
    """The whole lines of a file, in little memory however large it is; none where it cannot be read."""
    return split_lines(_chunks(path))


def _plain(line: str) -> str:
    return _COLOUR.sub("", line) if "\x1b" in line else line


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError:
        return


LOG_TAIL_BYTES = 4000


def read_tail(path: Path, most_bytes: int = LOG_TAIL_BYTES) -> str:
    """The end of a log file, from the start of a line where one starts in it; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return text if size <= most_bytes else text.partition("\n")[2] or text


# How long a step took: name -> units per second.
STEP_TIMES: Mapping[str, float] = {"step_time_s": 1, "step_time_ms": 1e3, "step_time_us": 1e6}
# How fast the job went in that step, by which its time follows from what a step is (see LogContext).
RATES = ("steps_per_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_device")
# The most memory that a rank has used so far: name -> bytes per unit.
MEMORY: Mapping[str, float] = {
    "memory_bytes": 1,
    "memory_kb": 1e3,
    "memory_mb": 1e6,
    "memory_gb": 1e9,
    "memory_kib": 2**10,
    "memory_mib": 2**20,
    "memory_gib": 2**30,
}
# What else: the step's number, its loss, and the program's words for a setting that it refuses.
STEP, LOSS, ILLEGAL = "step", "loss", "illegal"
NAMES = (*STEP_TIMES, *RATES, *MEMORY, STEP, LOSS, ILLEGAL)


@dataclass(frozen=True, slots=True)
class Found:
    """A number in a line, in the unit of its pattern. rank: whose, where the line says."""

    value: float
    rank: int | None = None


class Patterns:
    """Which numbers and which refusals a program's log holds, as regular expressions by name, which carries the unit.

    The first group that took part is the number (1,234.5 is understood); a group called `rank` says whose it is. Raises
    InvalidValue, each problem under its pattern's name."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        checks = Checks()
        compiled: dict[str, re.Pattern[str]] = {}
        for name, pattern in patterns.items():
            if not checks.require(name in NAMES, name, f"is no name of a pattern; {did_you_mean(name, NAMES)}"):
                continue
            try:
                compiled[name] = re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                checks.require(False, name, f"is no regular expression: {error}")
                continue
            numbers = compiled[name].groups - ("rank" in compiled[name].groupindex)
            checks.require(numbers > 0 or name == ILLEGAL, name, f"has no group around the number: {pattern!r}")
        timing = [name for name in compiled if name in STEP_TIMES or name in RATES]
        told = f"takes exactly one of {', '.join((*STEP_TIMES, *RATES))}, not {', '.join(timing) or 'none'}"
        checks.require(len(timing) == 1 or len(compiled) < len(patterns), "", told)
        memory = [name for name in compiled if name in MEMORY]
        checks.require(len(memory) <= 1, "", f"takes one pattern of memory, not {', '.join(memory)}")
        checks.done()
        self.timing = timing[0]
        self.memory = memory[0] if memory else None
        self._compiled = compiled

    @property
    def source(self) -> str:
        """The regular expression that the line of every step matches, for people."""
        return self._compiled[self.timing].pattern

    def find(self, name: str, line: str) -> Found | None:
        """The number that the pattern of that name finds in a line; None where it finds none."""
        pattern = self._compiled.get(name)
        if pattern is None or (match := pattern.search(line)) is None:
            return None
        # The first group that took part, but for `rank`; NaN is what a program prints for a loss that is no number.
        named = pattern.groupindex.get("rank")
        texts = (text for index, text in enumerate(match.groups(), 1) if text is not None and index != named)
        rank = match[named] if named else None
        try:
            return Found(float(next(texts).replace(",", "").strip()), None if rank is None else int(rank))
        except (StopIteration, ValueError):
            return None

    def refuses(self, line: str) -> bool:
        """True where the program says that it does not run such a setting."""
        pattern = self._compiled.get(ILLEGAL)
        return pattern is not None and pattern.search(line) is not None


def positive(found: Found | None) -> float | None:
    """The number where it can be a time, a rate or a size."""
    return found.value if found is not None and isfinite(found.value) and found.value > 0 else None
