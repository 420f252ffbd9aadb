"""The searches by name, each imported on first use: a missing library breaks only its own search.

The options of a search are a frozen dataclass, which `parse_options` reads from a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from meshtune.runners.registry import MissingExtra, require_extra
from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.search.base import Search, SearchMisconfigured, UnknownSearch

T = TypeVar("T")

# Name -> "module:function"; the function takes (seed, options) and raises SearchMisconfigured.
SEARCHES: Mapping[str, str] = MappingProxyType(
    {
        "physics": "meshtune.tuner.search.physics.search:create",
        "deephyper": "meshtune.tuner.search.library.deephyper:create",
        "optuna": "meshtune.tuner.search.library.optuna:create",
        "random": "meshtune.tuner.search.baseline:create_random",
        "grid": "meshtune.tuner.search.baseline:create_grid",
    }
)


def create_search(kind: str, *, seed: int, options: Mapping[str, Any]) -> Search:
    """The search of that name. Raises UnknownSearch, and SearchMisconfigured for an option or a missing library."""
    if kind not in SEARCHES:
        raise UnknownSearch(
            f"no search {kind!r}: {did_you_mean(kind, SEARCHES)} (known: {', '.join(sorted(SEARCHES))})"
        )
    if seed < 0:
        raise SearchMisconfigured(f"search {kind}: the seed must be at least 0, not {seed}")
    module, function = SEARCHES[kind].split(":")
    return cast(Search, getattr(import_module(module), function)(seed, options))


def parse_options(search: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """`given` as a `kind`; each value must have its field's type, nothing is converted. Raises SearchMisconfigured."""
    types = get_type_hints(kind, include_extras=True)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every kind of options is a dataclass
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(str(name), known) if known else "it takes no options"
            raise SearchMisconfigured(f"search {search}: unknown option {name!r} ({value!r}); {_listed(known, hint)}")
        try:
            TypeAdapter(types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise SearchMisconfigured(
                f"search {search}: option {name!r} is {value!r}: {message}; known options: {', '.join(known)}"
            ) from None
    return kind(**given)


def require_library(search: str, extra: str) -> None:
    """Check that the library of an extra is installed. Raises SearchMisconfigured."""
    try:
        require_extra(extra, f"the search {search}")
    except MissingExtra as missing:
        raise SearchMisconfigured(str(missing)) from None


def _listed(known: list[str], hint: str) -> str:
    return f"{hint} (known options: {', '.join(known)})" if known else hint
