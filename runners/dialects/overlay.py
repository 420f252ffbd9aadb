"""A user's own configuration with the words of a plan laid over it, and TOML, which the standard library only reads."""

from __future__ import annotations

import json
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


def render_toml(document: Mapping[str, Any]) -> str:
    """The text of a document; `tomllib.loads` gives it back. Raises TypeError for a value that TOML has no word for."""
    return "\n".join(_table(document, ())).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    inner = [(key, value) for key, value in table.items() if isinstance(value, Mapping)]
    head = ["", f"[{'.'.join(map(_key, path))}]"] if path and (plain or not inner) else []
    return [*head, *plain, *(line for key, value in inner for line in _table(value, (*path, key)))]


def _key(key: str) -> str:
    bare = key and all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in key)
    return key if bare else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no word for {value!r}")


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for pairs of surrogates, and for DEL, which JSON leaves.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
