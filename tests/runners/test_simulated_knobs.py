"""The simulated cluster plays what knobs do, as far as a spec says it, and its jobs say which ones they had."""

from __future__ import annotations

import pytest
from simulated_jobs import CLUSTER, MODEL

from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.programs.workloads.simulated import SimulatedWorkload
from meshtune.runners.schedulers.simulated import HiddenClusterOptions, SimulatedRunner
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.plan import Plan

KNOBS = (
    Knob(name="fast", values=(False, True), argument="--fast", omit=False),
    Knob(name="size", values=(0.5, 2), env="SIZE"),
    Knob(name="idle", values=("a", "b")),
)
EFFECTS = {"fast": {True: {"time": 0.5}}, "size": {2: {"time": 3, "memory": 2}}}


def outcome(folder, **values):
    workload = SimulatedWorkload({"effects": EFFECTS})
    assert (workload.problems_with_knobs(KnobSet(KNOBS)), workload.problems_with_names(KnobSet(KNOBS))) == ([], [])
    runner = SimulatedRunner(folder / "root", HiddenClusterOptions(noise=0.0))
    plan = Plan(knobs={"fast": False, "size": 0.5, "idle": "a"} | values)
    # Residuals are of the layout, which is one.
    spec = workload.materialize("t", MODEL, plan, CLUSTER, folder / "t", seed=0, time_limit_s=1e9, knobs=KNOBS)
    runner.poll([runner.submit(spec)])
    return read_result(folder / "t")


def test_effects_multiply_and_the_result_says_the_knobs(tmp_path):
    plain, both = outcome(tmp_path / "a"), outcome(tmp_path / "b", fast=True, size=2, idle="b")
    assert (plain.verdict, both.verdict) == (Verdict.OK, Verdict.OK)
    assert both.measurement.step_time_s == pytest.approx(1.5 * plain.measurement.step_time_s)
    ratio = both.measurement.peak_memory_bytes[0] / plain.measurement.peak_memory_bytes[0]
    assert ratio == pytest.approx(2.0, rel=1e-6)
    assert both.measurement.knobs == {"fast": True, "idle": "b", "size": 2}
    assert plain.measurement.knobs["fast"] is False


def test_effects_of_what_is_no_knob_or_no_value_are_refused():
    workload = SimulatedWorkload({"effects": {"fats": {"true": {}}, "size": {3: {}}}})
    assert [str(problem) for problem in workload.problems_with_names(KnobSet(KNOBS))] == [
        "effects.fats: is no knob of the spec; did you mean 'fast'?",
        "effects.size.3: is no value of the knob; known: 0.5, 2",
    ]


@pytest.mark.parametrize("effect", [{"time": 0}, {"memory": -1}, {"time": float("inf")}, {"speed": 2}])
def test_an_effect_is_a_positive_factor(effect):
    with pytest.raises(InvalidValue, match=r"effects\.fast\.true"):
        SimulatedWorkload({"effects": {"fast": {True: effect}}})
