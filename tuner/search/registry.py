"""The searches by name, each imported on first use: a missing library breaks only its own search."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.search.base import Search, SearchMisconfigured, UnknownSearch

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
