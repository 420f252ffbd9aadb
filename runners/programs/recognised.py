"""Programs whose name stands in a text that is not read, which is refused with the next step. A program that is
recognised is a folder with a table:

[program]    title; starts_ranks: true where one process of a `script` says nothing of devices
[recognise]  ways: of each way the patterns that are all found in a configuration or a start
[spec]       start: a pattern of the line that starts it, and what stands in its place"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from meshtune.runners.programs.table import PROGRAMS, programs, table_of

# Lines that start nothing, though they may name the program.
_NO_START = re.compile(r"\s*(?:(?:export\s+)?\w+=(?:\"[^\"]*\"|'[^']*'|\S*)\s*$|(?:cd|echo|source|conda|pip|mkdir)\b)")
_COMMENTS = re.compile(r"(?m)^\s*#.*$")


@cache
def tables() -> Mapping[str, Mapping[str, Any]]:
    """By folder, those of all programs that are recognised."""
    lists = {name: table_of(f"{PROGRAMS}.{name}").lists for name in programs()}
    return {name: document for name, document in lists.items() if "recognise" in document}


def starts_ranks(script: str) -> bool:
    """Whether a program starts its ranks itself, so that one process of it says nothing of devices."""
    lists = (table_of(f"{PROGRAMS}.{name}").lists for name in programs())
    own = (each for each in lists if each.get("command", {}).get("start") or "starts_ranks" in each.get("program", {}))
    return any(re.fullmatch(each["program"]["script"], script) for each in own)


def recognised(text: str) -> str:
    """The folder of such a program in a configuration or a script, "" for none."""
    code = _COMMENTS.sub("", text)
    for name, table in tables().items():
        if any(all(re.search(mark, code) for mark in way) for way in table["recognise"]["ways"]):
            return name
    return ""


def not_read(name: str, text: str) -> str:
    """The refusal of such a program, with the next step. text: of the configuration or of the script."""
    table = tables()[name]
    told = f"names {table['program']['title']}, whose start is not found by reading"
    line = shlex.quote(_line(table, text))
    return f"{told}. Next: meshtune import --capture -- bash SCRIPT ARGUMENTS; or meshtune import --command {line}"


def _line(table: Mapping[str, Any], text: str) -> str:
    """The line that starts the program, with the words that the script has behind it."""
    code = re.sub(r"\\[ \t]*(?:\n|$)", " ", _COMMENTS.sub("", text))
    line = next((line.strip() for line in code.splitlines() if _starts(table, line)), "PROGRAM ARGUMENTS")
    pattern, instead = table.get("spec", {}).get("start", ("(?!)", ""))
    return " ".join(re.sub(pattern, instead, line).split())


def _starts(table: Mapping[str, Any], line: str) -> bool:
    return not _NO_START.match(line) and any(
        len(way) == 1 and re.search(way[0], line) for way in table["recognise"]["ways"]
    )
