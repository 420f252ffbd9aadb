"""A user's own configuration stays as it is, but for the words that a plan sets: those are laid over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshtune.search_spaces.checks import InvalidValue, Problem


def overlaid(base: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `words` laid over it, section by section. None takes the key of the base away."""
    result = dict(base)
    for key, value in words.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            section = overlaid(below if isinstance(below, Mapping) else {}, value)
            # Keys that are only taken away make no section.
            if section or key in result or not value:
                result[key] = section
        else:
            result[key] = value
    return result


def read_base(config: Mapping[str, Any] | str, parse: Callable[[str], Mapping[str, Any]]) -> Mapping[str, Any]:
    """The user's configuration: as it stands in the spec, or in the file of that path. Raises InvalidValue."""
    if not isinstance(config, str):
        return config
    try:
        return parse(Path(config).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue([Problem("config", f"{config} cannot be read: {error.strerror}")]) from error
    except ValueError as error:
        raise InvalidValue([Problem("config", f"{config}: {error}")]) from error
