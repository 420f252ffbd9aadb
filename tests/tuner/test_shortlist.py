"""A ranking of the shortlist says of the choice, the first places and the front what the ranking of all trials says."""

from __future__ import annotations

import random

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import Objective
from meshtune.tuner.campaign.summary import Score
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import front_of, recommend_among
from meshtune.tuner.results.shortlist import shortlist

GIB = 2**30
CLUSTER = {"preset": "local-cpu", "device": {"memory_bytes": 64 * GIB, "peak_flops": {"float32": 1e12}}}
LOSSES = [(10.0, 9.0)] * 8 + [(10.0, 9.5), ()]
DIFFERENT = [(10.0, 9.0), (10.0, 9.5)]


@pytest.fixture
def campaign(lab, make):
    return lambda **over: make.campaign(lab.spec(**{"baseline": {"tp": 1}, "cluster": CLUSTER, **over}))


@pytest.fixture
def history(make):
    """Many measured trials, some of them alike, and confirmations of some, of which some fail."""

    def build(seed: int, baseline: float | None, again: int, otherwise: bool = False):
        rng = random.Random(seed)

        def measured(step_s: float):
            # What is slower needs less, so that the front goes far down.
            gib = 60 - int(25 * step_s) + rng.randrange(-8, 8)
            peaks = rng.choice([(), (GIB * gib,), (GIB * gib, GIB)])
            losses = rng.choice(DIFFERENT if otherwise else LOSSES)
            spread = rng.choice([0.001, 0.2])
            return make.measurement(step_s, spread=spread, peak_held_bytes=peaks, first_losses=losses)

        trials = []
        for number in range(120):
            plan = Plan(tp=1 + number % 3, pp=1 + number // 3)
            step_s = baseline if number == 0 else round(rng.uniform(0.2, 2.0), 1)
            origin = Origin.SEARCH if number else Origin.BASELINE
            outcome = Verdict.OOM if step_s is None else measured(step_s)
            trials.append(make.trial(number, outcome, origin=origin, plan=plan))
        for number, first in enumerate(rng.sample(trials, again), start=120):
            outcome = Verdict.OOM if rng.random() < 0.3 else measured(rng.uniform(0.2, 2.0))
            trials.append(make.trial(number, outcome, origin=Origin.CONFIRMATION, plan=first.plan))
        return trials

    return build


def few_of(campaign, trials, top, asked=None):
    ended = [trial for trial in trials if trial.measurement is not None or trial.origin is Origin.CONFIRMATION]
    by_number = {trial.number: trial for trial in ended}

    def load(numbers):
        if asked is not None:
            asked.append(sorted(numbers))
        return [by_number[number] for number in sorted(numbers) if number in by_number]

    return shortlist(campaign, [score_of(trial) for trial in ended], top, load)


def score_of(trial) -> Score:
    measured, named = trial.measurement, (trial.number, trial.origin, trial.plan.key)
    if measured is None:
        return Score(*named, *(None,) * 5)
    speed = (measured.tokens_per_step, measured.devices, measured.model_flops_per_token, measured.step_time_s)
    return Score(*named, *speed, measured.fullest_rank_bytes)


@pytest.mark.parametrize("pareto", [False, True])
@pytest.mark.parametrize("again", [0, 1, 6])
@pytest.mark.parametrize("baseline", [None, 0.2, 0.4, 1.0, 2.0])
def test_a_shortlist_says_what_all_trials_say(campaign, history, baseline, again, pareto):
    for seed, objective in enumerate([Objective.COST, Objective.MFU, Objective.STEP_TIME]):
        found = campaign(objective=objective, pareto=pareto)
        trials = history(seed, baseline, again, otherwise=seed > 0)
        every, few = rank(found, trials), few_of(found, trials, 5).ranking
        assert few[:5] == every[:5]
        assert front_of(few) == front_of(every)
        assert recommend_among(found.spec, few) == recommend_among(found.spec, every)
        assert set(map(repr, few)) <= set(map(repr, every))


def test_most_trials_are_not_looked_at_where_the_choice_is_among_the_first(campaign, make):
    steps = [1.0] + [0.2 + 0.01 * number for number in range(200)]
    trials = [
        make.trial(number, make.measurement(step), origin=Origin.SEARCH if number else Origin.BASELINE)
        for number, step in enumerate(steps)
    ]
    asked: list[list[int]] = []
    few = few_of(campaign(), trials, 10, asked)
    assert asked == [list(range(21))]
    assert [trial.number for trial in few.trials] == asked[0]
    assert few.ranking[-1].rank == 81


def test_nothing_measured_has_an_empty_shortlist(campaign):
    few = few_of(campaign(), [], 10)
    assert (few.trials, few.ranking) == ((), [])
