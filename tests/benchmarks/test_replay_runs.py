from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from replay_cells import Cell, read_cells
from replay_runs import Contender, Rules, parse_contenders, play

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Proposal, proposal_of
from meshtune.tuner.search.base import Observation, Search, SearchError, Task

MakeTable = Callable[..., Path]
Settings = list[dict[str, object]]
RULES = Rules(tolerance=0.05, batch=1, max_trials=100)
RANDOM = Contender("random", "random", {})


@dataclass(frozen=True)
class InOrder(Contender):
    """Proposes the settings in the order of the table, and writes down what it was asked."""

    label: str = "in order"
    kind: str = "in order"
    options: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[Any, ...] = ()
    asked: list[tuple[Task, tuple[Observation, ...], int]] = field(default_factory=list)

    def create(self, seed: int) -> Search:
        return self

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        self.asked.append((task, tuple(seen), n))
        return proposal_of(list(self.order[len(seen) : len(seen) + n]))


@pytest.fixture
def cell(make_table: MakeTable, settings: Settings) -> Cell:
    """The settings in the table's order: two fail, and the best are the 7th (1 s) and the 6th (1.04 s); others 2 s."""
    times = [2.0] * 5 + [1.04, 1.0] + [2.0] * 13
    rows: Settings = [row | {"step_time_s": time} for row, time in zip(settings, times, strict=True)]
    rows[1] |= {"status": "oom", "step_time_s": None}
    rows[2] |= {"status": "fail", "step_time_s": None}
    (found,) = read_cells(make_table(*rows)).cells
    return found


def test_a_run_ends_with_the_first_setting_within_the_tolerance_and_failures_cost_a_trial(cell: Cell) -> None:
    run = play(cell, InOrder(order=tuple(cell.outcomes)), 0, RULES)
    assert run.reached
    assert run.shares == pytest.approx((0.5, 0, 0, 0.5, 0.5, 1 / 1.04))
    assert run.failed == 2
    assert len(run.ask_seconds) == 6


def test_a_search_sees_its_task_and_the_outcomes_of_what_it_chose(cell: Cell) -> None:
    search = InOrder(order=tuple(cell.outcomes))
    play(cell, search, 0, RULES)
    outcomes = tuple(cell.outcomes.values())
    assert [seen for _, seen, _ in search.asked] == [outcomes[:count] for count in range(6)]
    assert [seen.verdict for seen in outcomes[:3]] == [Verdict.OK, Verdict.OOM, Verdict.CRASHED]
    assert {id(task) for task, _, _ in search.asked} == {id(search.asked[0][0])}
    assert set(search.asked[0][0].space) == set(cell.outcomes)


def test_a_search_is_named_with_its_options() -> None:
    assert parse_contenders("random,deephyper:n_initial=4:filter_failures=mean,optuna-tpe:n_initial=null") == (
        RANDOM,
        Contender(
            "deephyper:n_initial=4:filter_failures=mean", "deephyper", {"n_initial": 4, "filter_failures": "mean"}
        ),
        Contender("optuna-tpe:n_initial=null", "optuna", {"sampler": "tpe", "n_initial": None}),
    )
    assert parse_contenders("optuna-gp")[0].options == {"sampler": "gp"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("randam", "no search 'randam': did you mean 'random'?"),
        ("random,", "no search ''"),
        ("random:speed=3", "search random: unknown option 'speed'"),
        ("deephyper:n_initial=0", "search deephyper: option 'n_initial' is 0"),
        ("deephyper:n_initial", "search deephyper:n_initial: 'n_initial' is no option; write NAME:option=value"),
        ("deephyper:n_initial=[", "search deephyper:n_initial=[: '[' is no YAML value"),
        ("random,grid,random", "search random is named twice"),
    ],
)
def test_a_search_that_is_not_there_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(SearchError) as refused:
        parse_contenders(text)
    assert told in str(refused.value)
