"""The lines of a log as programs write it: without colours, however long, and whose they are where they say so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

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
