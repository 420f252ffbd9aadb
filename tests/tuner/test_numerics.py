"""Knobs that change what is computed: measured, shown, and recommended only where the spec accepts it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.decide import incumbent_step_time_s
from meshtune.tuner.campaign.eligibility import (
    TrainingCheck,
    changed_numerics,
    check_losses,
    eligible,
    trains_otherwise,
)
from meshtune.tuner.campaign.second_runs import finalists, next_turn
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.results.handover import rival_of
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.results.revalidation import to_measure
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

SPEC = """
model: gpt-micro
cluster: local-cpu
global_batch_size: 8
space: {micro_batch_size: [1, 2], zero_stage: [0, 1]}
workload: {kind: simulated, framework: trainer}
runner: simulated
knobs:
  fp8: {values: [off, mxfp8], env: FP8, omit: off, numerics: changes}
  reduce: {values: [float32, bfloat16], env: REDUCE, when: fp8 == off, numerics: changes}
  threads: {values: [1, 2], env: THREADS}
"""
BASELINE = "baseline: {tp: 1}\n"
ACCEPT = "accept: numerics\n"


def spec_of(more: str = BASELINE) -> CampaignSpec:
    return read_spec(parse_yaml(SPEC + more), None)[0]


def plan(micro_batch_size: int = 1, **knobs: Any) -> Plan:
    values = {"fp8": "off", "threads": 1, **({} if knobs.get("fp8") == "mxfp8" else {"reduce": "float32"}), **knobs}
    return Plan(dp=4, micro_batch_size=micro_batch_size, grad_accum_steps=2 // micro_batch_size, knobs=values)


@pytest.fixture
def trials(make: Any) -> Any:
    """Of plans with their seconds and first losses, the first one the baseline's."""

    def build(*entries: tuple[Plan, float, float]) -> list[Trial]:
        return [
            make.trial(
                number,
                make.measurement(step_s, first_losses=(loss,)),
                plan=each,
                origin=Origin.SEARCH if number else Origin.BASELINE,
            )
            for number, (each, step_s, loss) in enumerate(entries)
        ]

    return build


BASE, FP8, FASTER = plan(), plan(fp8="mxfp8"), plan(2)


def test_a_plan_changes_the_numerics_where_a_knob_that_says_so_is_not_as_in_the_baseline() -> None:
    spec = spec_of()
    assert changed_numerics(spec, plan(threads=2)) == ()
    assert changed_numerics(spec, FP8) == ("fp8 = mxfp8",)
    assert changed_numerics(spec, plan(reduce="bfloat16")) == ("reduce = bfloat16",)


def test_the_baselines_own_values_are_the_reference_and_an_inactive_knob_is_at_its_default() -> None:
    spec = spec_of("baseline: {tp: 1, fp8: mxfp8}\n")
    assert changed_numerics(spec, FP8) == ()
    assert changed_numerics(spec, BASE) == ("fp8 = off",)
    assert changed_numerics(spec, plan(reduce="bfloat16")) == ("fp8 = off", "reduce = bfloat16")


def test_without_a_baseline_the_defaults_are_the_reference() -> None:
    assert changed_numerics(spec_of(""), FP8) == ("fp8 = mxfp8",)
    assert changed_numerics(spec_of(""), BASE) == ()


def test_what_changes_the_numerics_is_not_recommended_and_the_reason_says_how_it_would_be(
    make: Any, trials: Any
) -> None:
    campaign = make.campaign(spec_of())
    found = recommend(campaign, trials((BASE, 1.0, 2.0), (FP8, 0.5, 2.0)))
    assert found.choice is not None
    assert found.choice.trial.number == 0
    told = f"{FP8.key} had a faster first run, but changes the numerics (fp8 = mxfp8), +100.0 % (+99.7 to"
    assert told in found.reason
    assert "`accept: numerics` in the spec would allow it" in found.reason


def test_what_changes_the_numerics_is_recommended_where_the_spec_accepts_it_whatever_its_losses(
    make: Any, trials: Any
) -> None:
    campaign = make.campaign(spec_of(BASELINE + ACCEPT))
    found = recommend(campaign, make.thrice(trials((BASE, 1.0, 2.0), (FP8, 0.5, 2.5))))
    assert found.choice is not None
    assert (found.choice.trial.number, found.better) == (1, True)
    assert "changes the numerics: fp8 = mxfp8" in found.reason
    told = "does not train the same: the losses of step 0 differ by 0.5 from the baseline's"
    assert found.choice.trains_as_baseline == told


def test_other_losses_that_no_knob_declares_are_never_accepted(make: Any, trials: Any) -> None:
    campaign = make.campaign(spec_of(BASELINE + ACCEPT))
    found = recommend(campaign, trials((BASE, 1.0, 2.0), (plan(threads=2), 0.5, 2.5)))
    assert found.choice is not None
    assert found.choice.trial.number == 0
    assert "does not train the same" in found.reason


def test_a_loss_that_is_no_number_is_never_accepted(make: Any, trials: Any) -> None:
    campaign = make.campaign(spec_of(BASELINE + ACCEPT))
    found = recommend(campaign, trials((BASE, 1.0, 2.0), (FP8, 0.5, float("nan"))))
    assert found.choice is not None
    assert found.choice.trial.number == 0
    assert trains_otherwise(check_losses((float("nan"),), (2.0,), 1e-4), ("fp8 = mxfp8",))
    assert not trains_otherwise(TrainingCheck(None), ())


def test_only_what_may_be_recommended_is_measured_again(trials: Any) -> None:
    history = trials((BASE, 1.0, 2.0), (FP8, 0.5, 2.5), (FASTER, 0.8, 2.0))
    for spec, plans in ((spec_of(), [FASTER, BASE]), (spec_of(BASELINE + ACCEPT), [FP8, BASE, FASTER])):
        assert finalists(spec, history, eligible(spec, history)) == plans
    assert next_turn(spec_of(), trials((BASE, 1.0, 2.0), (FP8, 0.5, 2.5))) is None


def test_second_runs_end_with_a_surely_faster_plan_whose_other_losses_are_accepted(make: Any, trials: Any) -> None:
    spec = replace(spec_of(BASELINE + ACCEPT), confirm=1, confirm_rounds=4)
    history = trials((BASE, 1.0, 2.0), (FP8, 0.5, 2.5))
    for number in range(2, 4):
        turn = next_turn(spec, history)
        assert turn is not None
        each = turn.missing[0]
        measured = make.measurement(0.5 if each == FP8 else 1.0, first_losses=(2.5 if each == FP8 else 2.0,))
        history.append(make.trial(number, measured, plan=each, origin=Origin.CONFIRMATION, round=turn.round))
    assert next_turn(spec, history) is None


def test_no_trial_is_given_up_for_being_slower_than_what_is_never_recommended(make: Any, trials: Any) -> None:
    history = trials((BASE, 1.0, 2.0), (FP8, 0.5, 2.5))
    waiting = make.trial(2, plan=FASTER)
    for more, beaten in ((BASELINE, 1.0), (BASELINE + ACCEPT, 0.5)):
        spec = spec_of(more)
        campaign = make.campaign(replace(spec, trial=replace(spec.trial, racing=True)))
        limit = incumbent_step_time_s(campaign, history, waiting)
        tokens = FASTER.global_batch_size * spec.model.seq_len / 1024
        assert limit == pytest.approx(beaten * tokens, rel=0.01)


def test_what_is_never_recommended_is_nobodys_runner_up(make: Any, trials: Any) -> None:
    campaign = make.campaign(spec_of())
    history = trials((BASE, 1.0, 2.0), (FP8, 0.5, 2.0), (FASTER, 0.8, 2.0))
    assert [entry.trial.number for entry in to_measure(campaign, make.thrice(history))] == [2, 0]
    free = make.campaign(spec_of(""))
    history = [replace(trial, origin=Origin.SEARCH) for trial in history]
    winner = next(entry for entry in rank(free, history) if entry.trial.number == 2)
    rival = rival_of(free, history, winner)
    assert rival is not None
    assert rival.trial.number == 0
