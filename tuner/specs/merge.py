"""Changes to a document by another one, as RFC 7396 (JSON Merge Patch) has it."""

from __future__ import annotations

from collections.abc import Mapping

from meshtune.tuner.specs.json_limits import Unbounded, find_foreign
from meshtune.tuner.specs.read import InvalidSpec


def changed_document(document: object, changes: object) -> object:
    """`document` with the changes laid over it. Raises InvalidSpec for changes too deep or too many to be followed."""
    try:
        find_foreign(changes)
    except Unbounded as error:
        raise InvalidSpec([error.problem]) from None
    return _merged(document, changes)


def _merged(document: object, changes: object) -> object:
    if not isinstance(changes, Mapping):
        return changes
    merged = dict(document) if isinstance(document, Mapping) else {}
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
