"""A spec as it is sent: as its text, which the service keeps with its comments, wherever the text stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshtune.runners.untrusted_text import SLOW_LIMITS, read_file
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.named_files import with_local_files


def body_of(spec: Mapping[str, Any] | str | Path) -> Mapping[str, Any] | str:
    """spec: a document, a text in YAML, or a file: a Path, or a text of one line that ends in .yaml, .yml or .json.
    Files that it names beside itself are read into it. Raises OSError, UnreadableText, InvalidSpec and InvalidValue."""
    if isinstance(spec, Mapping):
        return spec
    if isinstance(spec, str) and not is_file_name(spec):
        return spec
    path = Path(spec)
    text = read_file(path, SLOW_LIMITS.max_bytes, regular=False)
    document = parse_yaml(text)
    if not isinstance(document, dict):
        return text
    whole = with_local_files(document, path.parent)
    return text if whole is document else whole


def document_of(spec: Mapping[str, Any] | str | Path) -> Any:
    """The same as a document. Raises as `body_of`."""
    body = body_of(spec)
    return parse_yaml(body) if isinstance(body, str) else body


def is_file_name(text: str) -> bool:
    return "\n" not in text and text.endswith((".yaml", ".yml", ".json"))
