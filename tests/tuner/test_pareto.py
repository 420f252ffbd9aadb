"""The front of speed and memory left over, by hand and against the definition, and how a recommendation uses it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.pareto import alternatives, front_of
from meshtune.tuner.results.ranking import Ranked, rank
from meshtune.tuner.results.recommendation import recommend

GIB = 2**30
CLUSTER = {"preset": "local-cpu", "device": {"memory_bytes": 64 * GIB}}


@pytest.fixture
def campaign(lab, make):
    given = {"baseline": {"tp": 1}, "cluster": CLUSTER, "pareto": True}
    return lambda **over: make.campaign(lab.spec(**{**given, **over}))


@pytest.fixture
def trials(make):
    """By (seconds of a step, GiB at the fullest rank or None), the first the baseline."""

    def build(*given, **more):
        return [
            make.trial(
                number,
                make.measurement(step, peak_held_bytes=() if peak is None else (GIB, int(peak * GIB)), **more),
                origin=Origin.SEARCH if number else Origin.BASELINE,
            )
            for number, (step, peak) in enumerate(given)
        ]

    return build


def numbers(entries):
    return [entry.trial.number for entry in entries]


def test_the_front_is_what_nothing_beats_in_both_speed_and_memory_the_fastest_first(campaign, trials):
    ranking = rank(campaign(), trials((1.0, 20), (0.5, 40), (0.6, 45), (0.7, 30), (2.0, 10), (3.0, 10)))
    assert numbers(front_of(ranking)) == [1, 3, 0, 4]


@pytest.mark.parametrize("objective", Objective)
def test_the_front_is_the_same_for_every_objective(campaign, trials, objective):
    cluster = {**CLUSTER, "device": {**CLUSTER["device"], "peak_flops": {"float32": 1e12}}}
    ranking = rank(campaign(objective=objective, cluster=cluster), trials((1.0, 20), (0.5, 40), (0.6, 45), (0.7, 30)))
    assert numbers(front_of(ranking)) == [1, 3, 0]


def test_a_plan_of_unknown_memory_is_not_on_the_front(campaign, trials):
    assert numbers(front_of(rank(campaign(), trials((1.0, 20), (0.5, None))))) == [0]


def test_what_is_never_recommended_is_not_on_the_front(campaign, trials, make):
    measured = trials((1.0, 20), (0.5, 10), (0.6, 15))
    measured.append(make.trial(3, Verdict.OOM, origin=Origin.CONFIRMATION, plan=measured[1].plan))
    assert numbers(front_of(rank(campaign(), measured))) == [2]


def entry_of(make, position, speed, headroom):
    return Ranked(
        rank=position + 1,
        trial=make.trial(position),
        measurement=make.measurement(1.0),
        objective=Estimate(speed, speed, speed),
        tokens_per_s=Estimate(speed, speed, speed),
        memory_bytes=None,
        headroom_bytes=headroom,
        tflops_per_device=1.0,
        mfu=None,
        gain=None,
    )


@settings(max_examples=200, deadline=None)
@given(points=st.lists(st.tuples(st.integers(1, 6), st.none() | st.integers(-2, 4)), max_size=12))
def test_the_front_is_its_definition(make, points):
    ranking = [entry_of(make, n, *point) for n, point in enumerate(sorted(points, key=lambda point: -point[0]))]
    known = [(entry.tokens_per_s.value, entry.headroom_bytes) for entry in ranking if entry.headroom_bytes is not None]
    unbeaten = {
        one for one in known if not any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in known)
    }
    front = [(entry.tokens_per_s.value, entry.headroom_bytes) for entry in front_of(ranking)]
    assert front == sorted(unbeaten, reverse=True)


def test_alternatives_give_up_speed_and_gain_headroom(campaign, trials):
    ranking = rank(campaign(), trials((1.0, 20), (0.46, 48), (0.5, 36)))
    found = alternatives(front_of(ranking), ranking[0])
    assert numbers(one.entry for one in found) == [2, 0]
    assert (found[0].slower, found[0].more_headroom_bytes) == (pytest.approx(0.08), 12 * GIB)
    assert str(found[0]) == f"{ranking[1].trial.plan.key}: 8.0 % slower, 12 GiB more headroom"
    assert alternatives(front_of(ranking), ranking[2]) == []


def test_a_choice_off_the_front_is_told_no_faster_alternative(campaign, trials):
    ranking = rank(campaign(), trials((1.0, 20), (0.5, 30), (0.6, 40)))
    assert numbers(one.entry for one in alternatives(front_of(ranking), ranking[1])) == [0]


# The recommendation


def test_the_fastest_of_the_front_is_recommended_with_what_the_others_give_up_and_gain(campaign, trials):
    measured = trials((1.0, 20), (0.46, 48), (0.5, 36), (0.6, 60))
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (1, True)
    key, baseline = measured[2].plan.key, measured[0].plan.key
    assert found.reason.endswith(
        f" faster than the baseline; or {key}: 8.0 % slower, 12 GiB more headroom; "
        f"or {baseline}: 54.0 % slower, 28 GiB more headroom"
    )


def test_a_faster_plan_whose_memory_is_unknown_is_not_on_the_front_and_so_not_recommended(campaign, trials):
    measured = trials((1.0, 20), (0.4, None), (0.5, 36))
    assert recommend(campaign(), measured).choice.trial.number == 2
    assert recommend(campaign(pareto=False), measured).choice.trial.number == 1


def test_a_long_front_is_cut_in_the_reason(campaign, trials):
    found = recommend(campaign(), trials((2.0, 10), *((0.5 + number / 10, 40 - number) for number in range(6))))
    assert found.reason.count("more headroom") == 3
    assert found.reason.endswith("; 3 more on the front")


def test_without_the_wish_for_two_objectives_the_front_is_not_mentioned(campaign, trials):
    assert "headroom" not in recommend(campaign(pareto=False), trials((1.0, 20), (0.46, 48), (0.5, 36))).reason
