"""Patterns that find the numbers of a program's steps in the lines of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import re2

from meshtune.runners.step_breakdown import StepPhase
from meshtune.search_spaces.checks import Checks, did_you_mean
from meshtune.search_spaces.knob_values import KNOB_NAME

# How long a step took: name -> units per second.
STEP_TIMES: Mapping[str, float] = {"step_time_s": 1, "step_time_ms": 1e3, "step_time_us": 1e6}
# The mean over the steps since the start, of which a step's own time is what it adds.
MEAN = "mean_step_time_s"
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
# What else: the step's number, its loss, the norm of its gradient, and the program's words for a setting that it
# refuses.
STEP, LOSS, GRADIENT_NORM, ILLEGAL = "step", "loss", "gradient_norm", "illegal"
# Where steps have different ones: the tokens of a step, of a row of it on average, or of all steps so far, of which a
# step's own are what it adds.
COUNTS = (TOKENS, ROW_TOKENS, TOTAL_TOKENS) = ("tokens", "row_tokens", "total_tokens")
# Seconds of a step's phases, by the pattern's name.
PHASES: Mapping[str, StepPhase] = {f"{phase}_s": phase for phase in StepPhase}
NAMES = (*STEP_TIMES, MEAN, *RATES, *MEMORY, STEP, LOSS, GRADIENT_NORM, ILLEGAL, *COUNTS, *PHASES)
# Before the name of a knob: the value that the program says it runs with.
KNOB = "knob_"
# Of a compiled pattern, in RE2's instructions: the most time per character of a line.
MAX_PROGRAM = 2000
# Characters of a knob's value that are kept.
MAX_KNOB = 200
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False  # what is wrong with a pattern is told to whoever sent it


@dataclass(frozen=True, slots=True)
class Found:
    """A number in a line, in the unit of its pattern. rank: whose, where the line says."""

    value: float
    rank: int | None = None


class Patterns:
    """Which numbers and which refusals a program's log holds, as regular expressions by name, which carries the unit.

    RE2 searches a line in a time that grows with its length alone, whatever the pattern. The first group that took part
    is the number (1,234.5 is understood); a group called `rank` says whose it is. Raises InvalidValue, each problem
    under its pattern's name. timed: one of them gives a time or speed; else the number of a step will do."""

    def __init__(self, patterns: Mapping[str, str], *, timed: bool = True) -> None:
        checks = Checks()
        compiled: dict[str, Any] = {}
        for name, pattern in patterns.items():
            known = name in NAMES or (name.startswith(KNOB) and KNOB_NAME.fullmatch(name[len(KNOB) :]) is not None)
            if not checks.require(known, name, f"is no name of a pattern; {did_you_mean(name, NAMES)}"):
                continue
            try:
                compiled[name] = re2.compile(pattern, _OPTIONS)
            except (re2.error, UnicodeEncodeError) as error:
                checks.require(False, name, f"is no regular expression that RE2 takes: {_words(error)}")
                continue
            size = compiled[name].programsize
            checks.require(size <= MAX_PROGRAM, name, f"is too large: {size} instructions of at most {MAX_PROGRAM}")
            numbers = compiled[name].groups - ("rank" in compiled[name].groupindex)
            told = "value" if name.startswith(KNOB) else "number"
            checks.require(numbers > 0 or name == ILLEGAL, name, f"has no group around the {told}: {pattern!r}")
        timing = [name for name in compiled if name in (*STEP_TIMES, MEAN, *RATES)]
        told = f"takes exactly one of {', '.join((*STEP_TIMES, MEAN, *RATES))}, not {', '.join(timing) or 'none'}"
        counts = len(timing) == 1 or (not timed and not timing and STEP in compiled)
        checks.require(counts or len(compiled) < len(patterns), "", told)
        memory, tokens = ([name for name in compiled if name in names] for names in (MEMORY, COUNTS))
        checks.require(len(memory) <= 1, "", f"takes one pattern of memory, not {', '.join(memory)}")
        checks.require(len(tokens) <= 1, "", f"takes one pattern of tokens, not {', '.join(tokens)}")
        checks.done()
        self.timing = timing[0] if timing else ""
        # Whose lines are the steps.
        self.counting = STEP if STEP in compiled else self.timing
        self.memory = memory[0] if memory else None
        self.tokens = tokens[0] if tokens else TOKENS
        # The names of the knobs whose values it reads.
        self.knobs = tuple(name.removeprefix(KNOB) for name in compiled if name.startswith(KNOB))
        self._compiled = compiled
        # By name: the group of the rank, 0 for none, and the groups that may be the number.
        self._groups: dict[str, tuple[int, list[int]]] = {}
        for name, pattern in compiled.items():
            rank = pattern.groupindex.get("rank", 0)
            self._groups[name] = rank, [group for group in range(1, pattern.groups + 1) if group != rank]

    @property
    def source(self) -> str:
        """The regular expression that the line of every step matches, for people."""
        return str(self._compiled[self.timing].pattern)

    def find(self, name: str, line: str) -> Found | None:
        """The number that the pattern of that name finds in a line, of a phase the sum of all there; None of none."""
        if (match := self._search(name, line)) is None:
            return None
        # The first group that took part, but for `rank`; NaN is what a program prints for a loss that is no number.
        named, numbers = self._groups[name]
        matches = self._compiled[name].finditer(line.encode("utf-8", errors="replace")) if name in PHASES else (match,)
        texts = [text for one in matches for group in numbers if (text := one[group]) is not None]
        rank = match[named] if named else None
        try:
            values = [float(text.replace(b",", b"").strip()) for text in (texts if name in PHASES else texts[:1])]
            return Found(sum(values), None if rank is None else int(rank)) if values else None
        except ValueError:
            return None

    def knob(self, name: str, line: str) -> str | None:
        """The text that the pattern of this knob finds in a line; None where it finds none."""
        match = self._search(f"{KNOB}{name}", line)
        texts = [] if match is None else [match[group] for group in self._groups[f"{KNOB}{name}"][1]]
        found = next((text for text in texts if text is not None), None)
        return None if found is None else str(found.decode("utf-8", errors="replace")).strip()[:MAX_KNOB]

    def refuses(self, line: str) -> bool:
        """True where the program says that it does not run such a setting."""
        return self._search(ILLEGAL, line) is not None

    def _search(self, name: str, line: str) -> Any:
        pattern = self._compiled.get(name)
        return None if pattern is None else pattern.search(line.encode("utf-8", errors="replace"))


def positive(found: Found | None) -> float | None:
    """The number where it can be a time, a rate or a size."""
    return found.value if found is not None and isfinite(found.value) and found.value > 0 else None


def _words(error: Exception) -> str:
    told = error.args[0] if error.args else ""
    words = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
    lacks = words.startswith(("invalid perl operator", "invalid escape sequence"))
    return f"{words} (it has neither look-around nor back-references)" if lacks else words
