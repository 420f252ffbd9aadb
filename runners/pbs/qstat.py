"""Reads `qstat -f -F json`, also where it is not JSON: servers up to 23.06 write numbers such as 005 (openpbs issue
1255), unescaped quotes (pull 830, issue 2541) and escapes such as \\, and \\' (pull 2049), one item per line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# An item of an object: its indent, its key, its value and the comma after it.
_ITEM = re.compile(r'(\s*)"((?:[^"\\]|\\.)*)"\s*:\s*(.*?)(,?)\s*')
_OPENING, _CLOSING = re.compile(r'\s*("(?:[^"\\]|\\.)*"\s*:\s*)?[{\[]\s*'), re.compile(r"\s*[}\]]+,?\s*")


class Unreadable(ValueError):
    """Not JSON and not to be set right."""


def read_jobs(text: str) -> Mapping[str, Mapping[str, Any]]:
    """The attributes of each job that qstat's answer lists, by its id. Raises Unreadable."""
    try:
        document = json.loads(text)
    except ValueError:
        try:
            document = json.loads(_repaired(text), strict=False)
        except ValueError as error:
            raise Unreadable(f"qstat's answer is not JSON: {error}") from None
    jobs = document.get("Jobs", {}) if isinstance(document, dict) else None
    if not isinstance(jobs, dict):
        raise Unreadable("qstat's answer must be an object with the key Jobs")
    return {id: job for id, job in jobs.items() if isinstance(job, dict)}


def _repaired(text: str) -> str:
    """Every item on a line of its own made JSON; what is no item, as the rest of a value, is left out."""
    lines = []
    for line in text.splitlines():
        item = _ITEM.fullmatch(line)
        if _OPENING.fullmatch(line) or _CLOSING.fullmatch(line):
            lines.append(line)
        elif item is not None:
            indent, key, value, comma = item.groups()
            lines.append(f'{indent}"{key}":{_repaired_value(value)}{comma}')
    return "\n".join(lines)


def _repaired_value(value: str) -> str:
    try:
        json.loads(value, strict=False)
    except ValueError:
        return json.dumps(value.removeprefix('"').removesuffix('"'))
    return value
