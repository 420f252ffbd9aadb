"""The benchmark of searches over knobs: its runs, the person who tunes by hand, its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from knob_by_hand import by_hand
from knobs import idle, main, play, world_of

from meshtune.search_spaces.plan import PLAN_FIELDS, Plan


def walk(landscape: str, number: int) -> tuple[list[Plan], list[float]]:
    """All plans that a person tries, with their scores, 0 for a failed one."""
    world = world_of(landscape, number)
    baseline = world.observe(world.baseline)
    assert baseline.score is not None
    plans, scores, person = [baseline.plan], [baseline.score], by_hand(world.task.space, baseline)
    plan = next(person)
    while True:
        seen = world.observe(plan)
        plans.append(plan)
        scores.append(seen.score or 0.0)
        try:
            plan = person.send(seen)
        except StopIteration:
            return plans, scores


@pytest.mark.parametrize("landscape", ["fsdp", "tensor"])
def test_a_person_changes_one_axis_of_the_best_so_far(landscape: str) -> None:
    plans, scores = walk(landscape, 0)
    world = world_of(landscape, 0)
    space = world.task.space
    assert len(set(plans)) == len(plans)
    derived = {"dp", "grad_accum_steps", "first_stage_less_layers", "last_stage_less_layers"}
    for at, plan in enumerate(plans[1:], start=1):
        assert plan in space
        # Of a pass over one axis the best at its start counts, which is one of the best so far.
        bests = {max(range(end), key=lambda one: scores[one]) for end in range(1, at + 1)}

        def changed(best: Plan, plan: Plan = plan) -> int:
            axes = {name for name in PLAN_FIELDS if getattr(best, name) != getattr(plan, name)} - derived
            shared = best.knobs.keys() & plan.knobs.keys()
            return len(axes) + sum(best.knobs[name] != plan.knobs[name] for name in shared)

        assert min(changed(plans[one]) for one in bests) == 1
    best = plans[max(range(len(plans)), key=lambda one: scores[one])]
    # At the end every knob's other values were tried on the best.
    for knob in space.knobs:
        for value in knob.values if knob.name in best.knobs else ():
            wanted = {**best.knobs, knob.name: value}
            # A knob that another one turns off has no value.
            assert any(plan.knobs.get(knob.name) == value and plan.knobs.items() <= wanted.items() for plan in plans)


@pytest.mark.parametrize("search", ["random", "one-at-a-time"])
def test_a_run_is_the_same_each_time_and_stops_at_the_most(search: str) -> None:
    run = play("fsdp", 1, search, 5)
    again = play("fsdp", 1, search, 5)
    assert (run.trials, run.reached, run.failed) == (again.trials, again.reached, again.failed)
    assert run.trials <= 5
    assert run.reached or run.trials == 5


def test_it_prints_a_table_and_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "knobs.json"
    given = ["--seeds", "2", "--landscapes", "fsdp,plain,plain+10 idle,held out: bubble", "--most", "6"]
    assert main([*given, "--searches", "random,one-at-a-time", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert set(figures["summary"]) == {"random", "one-at-a-time"}
    assert {"trials_median", "trials_p90", "reached"} <= set(figures["summary"]["random"])
    assert figures["landscapes"]["fsdp"]["plans"] == world_of("fsdp", 0).task.space.plans
    assert len(figures["runs"]) == 4 * 2 * 2
    assert "trials_per_idle_knob" in figures
    printed = capsys.readouterr().out
    assert "held out" in printed
    assert "one-at-a-time" in printed


def test_unknown_landscapes_and_searches_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--landscapes", "nowhere"), ("--searches", "physisc")):
        with pytest.raises(SystemExit) as stopped:
            main([option, value])
        assert stopped.value.code == 2
        assert value in capsys.readouterr().err


def test_idle_knobs_cost_the_difference_of_the_two_landscapes() -> None:
    from knobs import Run

    runs = [Run("plain", "x", 0, True, 10, 0, 0.0), Run("plain+10 idle", "x", 0, True, 25, 0, 0.0)]
    assert idle(runs, "x") == {"mean": 1.5, "median": 1.5}
    assert idle(runs[:1], "x") == {}
