"""The lines of a log as programs write it: without colours, cut where they are too long, and whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from meshtune.runners.job_files import UnfitFile, open_file

MAX_LINE = 1 << 14  # characters; of what is longer (a progress bar without any line end) the end is kept
# So much of a job's logs is searched for steps: of each at most, of each at least, and else of all of them.
MAX_LOG_BYTES, MIN_LOG_BYTES, ALL_LOGS_BYTES = 64 << 20, 1 << 20, 256 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Who wrote a line: torch and torchrun ("[rank1]: ", "[default1]:"), mpirun --tag-output ("[1,1]<stdout>:"), Ray and
# vLLM ("(WorkerDict pid=7, ip=10.0.0.1) "); vLLM's logger in tracebacks ("ERROR 06-10 10:55:03 [core.py:459] ").
_TAG = re.compile(
    r"(?:\[(?:rank|default|trainer|\d+,)(\d+)\](?:<\w+>)?: ?|\([^()]{1,80} pid=\d+(?:, ip=[^()]{1,60})?\) ?"
    r"|ERROR \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\] ?)+"
)


def untagged(line: str) -> tuple[int | None, str]:
    """The rank that wrote a line, where it begins with that, and the line without it."""
    match = _TAG.match(line)
    if match is None:
        return None, line
    return None if match[1] is None else int(match[1]), line[match.end() :]


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


def lines_of(path: Path, logs: int = 1) -> Iterator[str]:
    """The whole lines of the beginning of one of a job's `logs` logs, in little memory; none where there is no such
    file, or none that is read. Raises OSError."""
    most_bytes = min(MAX_LOG_BYTES, max(MIN_LOG_BYTES, ALL_LOGS_BYTES // logs))
    with suppress(FileNotFoundError, UnfitFile), closing(open_file(path)) as file:
        yield from split_lines(file.read(0, min(file.size_bytes, most_bytes)))


def _plain(line: str) -> str:
    line = line[-MAX_LINE:]
    return _COLOUR.sub("", line) if "\x1b" in line else line


LOG_TAIL_BYTES = 4000


def read_tail(path: Path, most_bytes: int = LOG_TAIL_BYTES) -> str:
    """The end of a log file, from the start of a line where one starts in it; empty where there is none, and in the
    place of what is not read, what it is. Raises OSError."""
    try:
        with closing(open_file(path)) as file:
            first = max(0, file.size_bytes - most_bytes)
            text = b"".join(file.read(first, most_bytes)).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except UnfitFile as error:
        return f"({error})"
    return text if first == 0 else text.partition("\n")[2] or text
