"""The last words of a program that failed: which of its log's lines tells why, and from where in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshtune.runners.failure_cause import Cause
from meshtune.runners.logs.failure_texts import PRECEDENCE, cause_of_line, is_echo, phase_of
from meshtune.runners.logs.lines import read_tail, split_lines, untagged
from meshtune.runners.logs.patterns import Patterns

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

    A step that is told after a missing module or an exception shows that the program went on: they were no end.
    """
    found: dict[Cause, LastWords] = {}
    tracebacks: dict[int | None, list[str]] = {}
    previous: Cause | None = None
    for line in split_lines([text.encode()], whole=False):
        rank, words = untagged(line)
        if words.startswith("Traceback (most recent call last)"):
            tracebacks[rank] = []
            continue
        if rank in tracebacks and words.startswith(" "):  # source code, which may have the text of any error in it
            tracebacks[rank].append(words)
            continue
        frames = tracebacks.pop(rank, [])
        refused = patterns is not None and patterns.refuses(words)
        cause = Cause.ILLEGAL_SETTING if refused else cause_of_line(words)
        for overtaken in _overtaken(cause, previous, patterns, words):
            found.pop(overtaken, None)
        if cause is not None and cause not in found:
            phase = phase_of(frames) if cause is Cause.OOM else None
            found[cause] = LastWords(cause=cause, line=words.strip(), rank=rank, phase=phase)
        previous = cause
    return min(found.values(), key=lambda words: PRECEDENCE.index(words.cause), default=None)


def _overtaken(cause: Cause | None, previous: Cause | None, patterns: Patterns | None, line: str) -> Sequence[Cause]:
    """The causes that a line shows to have been none: those that the program got over, by taking a step or by failing
    later of something else; and an exception whose message goes on with what its peers did."""
    if patterns is not None and patterns.find(patterns.timing, line) is not None:
        return (Cause.USER_BUG, Cause.CRASH)
    if cause is Cause.CRASH:
        return (Cause.USER_BUG,)
    return (Cause.CRASH,) if cause is not None and is_echo(cause) and previous is Cause.CRASH else ()


def read_last_words_of(path: Path, patterns: Patterns | None = None) -> LastWords | None:
    """The last words in the end of a log file."""
    return read_last_words(read_tail(path, MAX_BYTES), patterns)
