from __future__ import annotations

from io import StringIO

import pytest
from replay_latency import Case, make_task, seen_of, show_latency
from replay_runs import Contender
from rich.console import Console

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.space import Bounds
from meshtune.tuner.search.base import Task

RANDOM = Contender("random", "random", {})


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(Case(2, 64, Bounds(), (10,)))


def test_plans_seen_are_distinct_and_what_became_of_them_follows_the_physics_with_noise(task: Task) -> None:
    seen, again, other = seen_of(task, 100, 0), seen_of(task, 100, 0), seen_of(task, 100, 1)

    assert seen == again != other
    assert len({one.plan for one in seen}) == 100
    assert all(one.plan in task.space for one in seen)
    ran = [one for one in seen if one.verdict is Verdict.OK]
    assert 20 < len(ran) < 90
    assert {one.verdict for one in seen} == {Verdict.OK, Verdict.OOM}
    assert all(one.score == pytest.approx(64 * 8192 / (one.step_time_s or 0)) for one in ran)
    times = {one.plan: one.step_time_s for one in other}
    both = [(one.step_time_s, times[one.plan]) for one in ran if times.get(one.plan)]
    assert both
    assert all(one != another and one == pytest.approx(another, rel=1.0) for one, another in both)


@pytest.mark.slow
def test_the_table_has_a_line_for_every_case() -> None:
    console = Console(width=140, file=StringIO())
    show_latency(RANDOM, console)
    assert isinstance(console.file, StringIO)
    lines = [line.split("│") for line in console.file.getvalue().splitlines() if line.startswith("│")]
    legal = [int(line[1].replace(",", "")) for line in lines]
    assert all(2_000 <= plans < 2_100 for plans in legal[:4])
    assert 10_000 < legal[4] < 20_000
    assert all(100_000 <= plans < 110_000 for plans in legal[5:])
    assert [line[2].strip() for line in lines] == ["10", "100", "500", "1,000", "10,000", "10", "500", "10,000"]
    assert all(float(line[3]) <= float(line[4]) and float(line[5]) <= float(line[6]) for line in lines)
