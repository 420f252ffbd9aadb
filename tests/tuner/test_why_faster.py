"""Why a plan wins: the parts of its step against the baseline's, measured or else predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toy

from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.prediction.predict import Basis, training_of
from meshtune.tuner.results.analysis.knob_effects import Evidence
from meshtune.tuner.results.analysis.why_faster import explain_winners
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.specs.read import read_spec

SPEC = toy.SPEC | {
    "model": "gpt-micro",
    "cluster": toy.CLUSTER | {"nodes": 1},
    "global_batch_size": 8,
    "space": {"tp": [1, 2, 4], "pp": [1], "zero_stage": [0, 1]},
    "baseline": {"tp": 4, "pp": 1},
}
PLANS = [Plan(tp=4, grad_accum_steps=8), Plan(tp=2, dp=2, grad_accum_steps=4), Plan(dp=4, grad_accum_steps=2)]


def profile(**parts_s):
    return Profile(
        step_time_s=sum(parts_s.values()),
        parts_s=(parts_s, parts_s),
        waiting_s=({}, {}),
        own_times_s=((1.0,), (1.0,)),
        stages=(0, 0),
    )


@pytest.fixture(scope="module")
def spec():
    return read_spec(SPEC, None)[0]


@pytest.fixture
def winners(spec, make):
    """The winners of trials that took so long, with their parts; the first is the baseline unless told otherwise."""

    def build(*measured, baseline=True, basis=None):
        trials = [
            make.trial(
                number,
                make.measurement(step_s, profile=None if parts is None else profile(**parts)),
                origin=Origin.BASELINE if baseline and number == 0 else Origin.SEARCH,
                plan=PLANS[number],
            )
            for number, (step_s, parts) in enumerate(measured)
        ]
        ranking = rank(make.campaign(spec, CampaignState.COMPLETED), trials)
        return explain_winners(training_of(spec), ranking, basis)

    return build


def test_the_part_that_shrank_most_comes_first_in_seconds(winners):
    first, second = winners(
        (10.0, {"compute": 6.0, "tp": 3.0, "bubble": 1.0}),
        (8.0, {"compute": 5.5, "tp": 1.0, "bubble": 1.5}),
        basis=Basis(),
    )
    assert first.words == (
        "+25 % against the baseline (trial 0): 2.0 s less tensor-parallel communication, 500.0 ms less computation, "
        "500.0 ms more pipeline bubble (measured)"
    )
    assert [part.share for part in first.parts] == pytest.approx([5.5 / 8, 1 / 8, 1.5 / 8])
    assert first.savings_s == pytest.approx({"tp": 2.0, "compute": 0.5, "bubble": -0.5})
    assert (first.rank, first.trial, first.plan_key, first.evidence) == (1, 1, PLANS[1].key, Evidence.MEASURED)
    assert second.words == "nothing slower was measured to compare it with"


def test_without_a_baseline_each_is_compared_with_the_next(winners):
    found = winners((9.0, None), (8.0, None), baseline=False)
    assert [(one.trial, one.rival_trial) for one in found] == [(1, 0), (0, None)]
    assert found[0].words == "+12 % against the next best (trial 0); where the time goes is not known"
    assert found[1].words == "nothing slower was measured to compare it with"


def test_a_plan_without_a_profile_is_explained_by_the_physics_and_says_so(winners):
    found = winners((10.0, {"compute": 10.0}), (8.0, None), basis=Basis())
    assert found[0].evidence is Evidence.PREDICTED
    assert found[0].words.endswith("(predicted)")
    assert "tensor-parallel communication" in found[0].words
    assert sum(part.share for part in found[0].parts) == pytest.approx(1.0)


def test_steps_of_another_batch_are_scaled_to_the_winners(spec, make):
    plans = [PLANS[0], replace(PLANS[1], grad_accum_steps=8)]
    assert plans[1].global_batch_size == 2 * plans[0].global_batch_size
    trials = []
    for number, (plan, compute_s, tokens) in enumerate(zip(plans, (10.0, 16.0), (1024, 2048), strict=True)):
        measured = replace(make.measurement(compute_s, profile=profile(compute=compute_s)), tokens_per_step=tokens)
        origin = Origin.SEARCH if number else Origin.BASELINE
        trials.append(make.trial(number, measured, plan=plan, origin=origin))
    ranking = rank(make.campaign(spec, CampaignState.COMPLETED), trials)
    found = explain_winners(training_of(spec), ranking, None)[0]
    assert found.words == "+25 % against the baseline (trial 0): 4.0 s less computation (measured)"
