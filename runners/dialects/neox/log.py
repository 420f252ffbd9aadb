"""The arguments that gpt-neox prints at its start: `name .... value.........updated`, one per line.

megatron/neox_arguments/arguments.py, NeoXArgs.print, at ea7aefd8. A launcher may put a host or rank before a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtune.runners.dialects.base import CannotRead
from meshtune.runners.untrusted_text import UnreadableText, read_literal

_HEAD = "-------------------- arguments --------------------"
_END = "---------------- end of arguments ----------------"
_LINE = re.compile(r"  (?P<name>[a-z]\w*) \.*(?: |$)(?P<value>.*?)\.*(?P<how>default|updated)?\s*$")
_VOCAB = re.compile(r"> padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: \d+\)")


@dataclass(frozen=True, slots=True)
class Resolved:
    """values: all arguments. updated: those that differ from their defaults, the user's own among them."""

    values: Mapping[str, Any]
    updated: Mapping[str, Any]


def is_log(text: str) -> bool:
    # Megatron-LM has another head, of 24 dashes.
    return "NeoXArgs." in text and (_HEAD in text or "NeoXArgs.from_ymls()" in text)


def resolved_arguments(text: str) -> tuple[Resolved, Mapping[str, str]]:
    """The last whole list of arguments, and the texts of the user's files in it. Raises CannotRead."""
    lines, found = list[str](), list[str]()
    inside = False
    for line in text.splitlines():
        if _HEAD in line:
            inside, lines = True, []
        elif _END in line:
            inside, found = False, lines or found
        elif inside:
            lines.append(line)
    if not found:
        told = "a log of gpt-neox without its list of arguments (`end of arguments`)"
        raise CannotRead(f"{told}; import the YAML files instead: `meshtune import FILE.yml`")
    values, updated = dict[str, Any](), dict[str, Any]()
    for line in found:
        match = _LINE.search(line)
        if match is None:
            continue
        values[match["name"]] = value = _value(match["value"])
        if match["how"] == "updated":
            updated[match["name"]] = value
    # Without the padding, which follows from each plan.
    if entries := _VOCAB.findall(text):
        values["padded_vocab_size"] = int(entries[-1])
    files = updated.pop("config_files", None)
    values.pop("config_files", None)
    texts = {str(name): str(content) for name, content in files.items()} if isinstance(files, dict) else {}
    return Resolved(values, updated), texts


def _value(text: str) -> Any:
    """A value as `str` prints it. A text with commas (`split`) is a text, no tuple."""
    try:
        value = read_literal(text)
    except UnreadableText:
        return text
    return text if isinstance(value, tuple | set | bytes) else value
