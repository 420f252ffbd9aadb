"""What an analysis says of knobs beyond the layout: effects in pairs, importance, failures, why the best win."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.cli.render.analysis import analysis_parts
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.results.analysis.analysis import analyse, count_failures
from meshtune.tuner.results.analysis.knob_effects import alike_but, measured_effects, predicted_effects
from meshtune.tuner.results.analysis.knob_importance import sensitivity
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

SPEC = """
model: gpt-micro
cluster:
  preset: local-cpu
  node_link: {latency_s: 1.0e-6, bandwidth_bytes_per_s: 1.0e+10}
  device: {peak_flops: {float32: 1.0e+12}, memory_bandwidth_bytes_per_s: 1.0e+11}
global_batch_size: 8
space: {micro_batch_size: [1, 2], zero_stage: [0, 1], tp: [1, 2], pp: [1]}
workload: {kind: simulated, framework: trainer}
runner: simulated
baseline: {tp: 1}
knobs:
  fp8: {values: [off, on], env: FP8, omit: off, numerics: changes}
  recipe: {values: [row, block], env: RECIPE, when: fp8 == on}
  threads: {values: [1, 2, 4], env: THREADS}
  devices: {values: [2, 4]}
"""


@pytest.fixture(scope="module")
def lab() -> tuple[CampaignSpec, Space]:
    return read_spec(parse_yaml(SPEC), None)


@pytest.fixture
def plan(lab: Any) -> Any:
    return lambda tp=1, devices=4, micro_batch_size=1, **knobs: lab[1].complete(
        tp=tp, micro_batch_size=micro_batch_size, knobs={"devices": devices, **knobs}
    )


def test_pairs_that_differ_in_one_knob_alone_say_what_it_is_worth(lab: Any, plan: Any) -> None:
    measured = {plan(): 1.0, plan(threads=2): 1.2, plan(threads=4): 1.1, plan(tp=2, threads=2): 1.3, plan(tp=2): 1.0}
    words = [effect.words for effect in measured_effects(lab[1], measured)]
    assert words == [
        "threads 1 -> 2: +25 % (measured, 2 pairs, +20 to +30 %)",
        "threads 1 -> 4: +10 % (measured, 1 pair)",
        "threads 4 -> 2: +9.1 % (measured, 1 pair)",
        "tp 1 -> 2: +4.1 % (measured, 2 pairs, +0.0 to +8.3 %)",
    ]


def test_a_knob_that_becomes_active_follows_and_a_change_of_the_numerics_is_marked(lab: Any, plan: Any) -> None:
    measured = {plan(): 1.0, plan(fp8="on"): 1.5, plan(fp8="on", recipe="block"): 1.6, plan(threads=2, fp8="on"): 9.0}
    found = {effect.words: effect for effect in measured_effects(lab[1], measured)}
    first = found["fp8 off -> on with recipe inactive -> block: +60 % (measured, 1 pair, changes the numerics)"]
    assert (first.numerics, [one.knob for one in first.followers]) == (True, ["recipe"])
    assert "fp8 off -> on with recipe inactive -> row: +50 % (measured, 1 pair, changes the numerics)" in found
    block = found["recipe row -> block: +6.7 % (measured, 1 pair)"]
    assert block.numerics is False
    assert not any(one.knob == "fp8" and one.gain.value > 1 for one in found.values())


def test_plans_that_differ_in_several_knobs_of_one_condition_are_not_compared() -> None:
    names = ("one", "two", "three", "four")
    knobs = "".join(f"  {name}: {{values: [1, 2, 4, 8], env: {name.upper()}, when: fp8 == on}}\n" for name in names)
    space = read_spec(parse_yaml(SPEC + knobs), None)[1]
    values = product((1, 2, 4, 8), repeat=len(names))
    plans = [space.complete(knobs={"fp8": "on", **dict(zip(names, each, strict=True))}) for each in values]
    groups = alike_but(space, dict.fromkeys(plans, 1.0), "two")
    assert (len(plans), {len(group) for group in groups}) == (256, {4})


def test_the_size_of_the_job_is_a_knob_like_others(lab: Any, plan: Any) -> None:
    (effect,) = measured_effects(lab[1], {plan(): 1.0, plan(devices=2): 1.2})
    assert effect.words == "devices 4 -> 2: +20 % (measured, 1 pair)"


def test_predicted_are_effects_of_axes_alone_at_the_best_plans_knobs(lab: Any, plan: Any) -> None:
    spec, space = lab
    found = predicted_effects(space, training_of(spec), UNCALIBRATED, plan(threads=2, devices=2), {})
    assert {effect.knob for effect in found} == {"micro_batch_size", "zero_stage", "tp"}
    assert all(effect.followers == () for effect in found)


def test_the_importance_of_knobs_counts_an_inactive_one_as_its_default(lab: Any, plan: Any) -> None:
    speeds = {
        plan(threads=threads, fp8=fp8): 1.0 + 0.5 * (fp8 == "on") + 0.01 * threads
        for threads in (1, 2, 4)
        for fp8 in ("off", "on")
    }
    speeds |= {plan(tp=2, fp8=fp8): 1.02 + 0.5 * (fp8 == "on") for fp8 in ("off", "on")}
    found = sensitivity(lab[1], speeds)
    assert found.importances[0].knob == "fp8"
    assert {one.knob for one in found.importances} == {"fp8", "threads", "tp"}


def test_failures_are_counted_by_the_values_of_knobs_with_their_causes(lab: Any, plan: Any, make: Any) -> None:
    trials = [
        make.trial(0, Verdict.OOM, plan=plan(threads=4)),
        make.trial(1, Verdict.CRASHED, plan=plan(threads=4, fp8="on")),
        make.trial(2, make.measurement(1.0), plan=plan()),
        make.trial(3, Verdict.CANCELLED, plan=plan(threads=4)),
    ]
    found = count_failures(trials, lab[1].knobs)
    told = {(one.knob, one.value): (one.trials, one.failed, dict(one.causes)) for one in found.by_value}
    assert told["threads", 4] == (2, 2, {Cause.OOM: 1, Cause.CRASH: 1})
    assert told["threads", 1][:2] == (1, 0)
    assert told["recipe", "row"][:2] == (1, 1)
    assert told["recipe", "block"][:2] == (0, 0)


def test_an_analysis_names_the_winners_knobs_and_shows_sizes_and_failures(lab: Any, plan: Any, make: Any) -> None:
    spec, space = lab
    campaign = make.campaign(spec)
    given: list[tuple[Plan, Any]] = [
        (plan(), make.measurement(1.0)),
        (plan(threads=2), make.measurement(0.8)),
        (plan(devices=2), make.measurement(1.5, devices=2)),
        (plan(threads=4), Verdict.OOM),
    ]
    trials = [
        make.trial(number, outcome, plan=each, origin=Origin.SEARCH if number else Origin.BASELINE)
        for number, (each, outcome) in enumerate(given)
    ]
    found = analyse(campaign, space, trials)
    assert found.winners[0].words.startswith(
        "+33.3 % (+33.1 to +33.5 %; first run, not confirmed) against the baseline (trial 0) with devices 4 -> 2"
    )
    assert found.winners[1].words.startswith(
        "+25.0 % (+24.8 to +25.2 %; first run, not confirmed) against the baseline (trial 0) with threads 1 -> 2"
    )
    assert [point.devices for point in found.scaling] == [2, 4]
    shown = "\n".join(str(part) if not hasattr(part, "columns") else _texts(part) for part in analysis_parts(found))
    assert "Best of each size" in shown
    assert "Failures by value of a knob" in shown


def _texts(table: Any) -> str:
    return "\n".join([str(table.title), *(str(cell) for column in table.columns for cell in column.cells)])
