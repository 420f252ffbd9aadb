"""A search is named by text: what is wrong in it is said with the option, its value and what is known."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from meshtune.tuner.search.base import SearchMisconfigured, UnknownSearch
from meshtune.tuner.search.library.deephyper import DeepHyperOptions, DeepHyperSearch
from meshtune.tuner.search.registry import SEARCHES, create_search


def test_an_unknown_search_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(UnknownSearch, match=r"'deephiper': did you mean 'deephyper'\? .*grid, optuna, physics, random"):
        create_search("deephiper", seed=0, options={})


def test_good_options_reach_the_search() -> None:
    search = create_search("deephyper", seed=3, options={"n_initial": 5, "filter_failures": "mean"})
    assert search == DeepHyperSearch(3, DeepHyperOptions(n_initial=5, filter_failures="mean"))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("deephyper", {"n_inital": 5}, r"deephyper: unknown option 'n_inital' \(5\); did you mean 'n_initial'\?"),
        ("deephyper", {"n_initial": "5"}, r"'n_initial' is '5': .*known options: n_initial, guard, filter_failures"),
        ("deephyper", {"n_initial": True}, r"'n_initial' is True"),
        ("deephyper", {"n_initial": 0}, r"'n_initial' is 0: .*greater than or equal to 1"),
        ("deephyper", {"filter_failures": "ignore"}, r"'filter_failures' is 'ignore': .*'min' or 'mean'"),
        ("deephyper", {"guard": 1.0}, r"'guard' is 1.0: .*less than 1"),
        (
            "optuna",
            {"sampler": "cma"},
            r"'sampler' is 'cma': .*'tpe' or 'gp'.*known options: n_initial, guard, sampler",
        ),
        ("optuna", {"guard": -0.1}, r"'guard' is -0.1: .*greater than or equal to 0"),
        ("random", {"n_initial": 4}, r"random: unknown option 'n_initial' \(4\); it takes no options"),
        ("grid", {"x": 1}, r"it takes no options"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_the_known_ones(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SearchMisconfigured, match=message):
        create_search(kind, seed=0, options=options)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(SearchMisconfigured, match="at least 0, not -1"):
        create_search("random", seed=-1, options={})


@pytest.mark.parametrize("library", ["deephyper", "optuna"])
def test_a_missing_library_breaks_only_its_own_search(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SearchMisconfigured, match=f"pip install 'meshtune.{library}.'"):
        create_search(library, seed=0, options={})
    for kind in SEARCHES.keys() - {library}:
        create_search(kind, seed=0, options={})
