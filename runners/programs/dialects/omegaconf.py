"""OmegaConf's two notations: `${a.b}` in the values of a file, and `a.b=value` on the command line.

Interpolations of keys are followed; those of resolvers (`${oc.env:X}`, `${multiply:...}`) stay as they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshtune.runners.documents import merged
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.bash.expansion import is_known
from meshtune.runners.programs.dialects.config_import import at, holds
from meshtune.runners.untrusted_text import UnreadableText, read_yaml

_REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_][\w.-]*)\}")
# References that lead to references; and characters of a text with references, and of what one becomes in it.
_MAX_DEPTH = 8
_MAX_TEXT = 1_000
# Hydra's marks before a key: added, added or changed. One of deletion is not followed.
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
# YAML 1.1, which PyYAML reads, has no 1e-4 among its floats; OmegaConf has.
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the values that its references lead to; what leads nowhere stays as it is."""
    return {key: _resolved(value, config, (key,), 0) for key, value in config.items()}


def _resolved(value: Any, root: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolved(inner, root, (*path, str(key)), depth) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, root, path, depth) for inner in value]
    if not isinstance(value, str) or depth >= _MAX_DEPTH:
        return value
    if alone := _REFERENCE.fullmatch(value):
        # Each leading dot is one level up, from the holder of the value.
        dots = len(alone[1])
        target = (*(path[: len(path) - dots] if dots else ()), *alone[2].split("."))
        found = at(root, ".".join(target))
        # Whole sections are not copied, so that a text costs no more than its length.
        left = not holds(root, ".".join(target)) or isinstance(found, Mapping | list)
        return value if left else _resolved(found, root, target, depth + 1)
    if _FLOAT.fullmatch(value):
        return float(value)

    def text(match: re.Match[str]) -> str:
        found = str(_resolved(match[0], root, path, depth + 1))
        return found if len(found) <= _MAX_TEXT else match[0]

    plain = depth > 0 or "${" not in value or len(value) > _MAX_TEXT
    return value if plain else _REFERENCE.sub(text, value)


def overridden(config: Mapping[str, Any], words: Sequence[str], place: str) -> tuple[dict[str, Any], list[str]]:
    """The configuration with `key=value` words laid over it, and those of the words that are not known here. Raises
    CannotRead for another word."""
    result = dict(config)
    for word in filter(is_known, words):
        match = OVERRIDE.fullmatch(word)
        if match is None:
            raise CannotRead(f"{place}: {word[:80]!r} is no key=value")
        try:
            value: Any = read_yaml(match[2]) if match[2] else None
        except UnreadableText as error:
            raise CannotRead(f"{place}: the value of {match[1]} {error}") from None
        for key in reversed(match[1].split(".")):
            value = {key: value}
        result = merged(result, value)
    return result, [word for word in words if not is_known(word)]
