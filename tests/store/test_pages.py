"""Pages and listed trials say what the whole trials say, whatever happened to them, in every order and filter."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.outcome import FAILED, Measurement, Outcome, Verdict
from meshtune.search_spaces.model import NO_MODEL
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.tuner.access.tokens import Ownership, Rights, Scope, Token
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.listing import (
    DEVICE_SECONDS,
    NUMBER,
    STEP_TIME,
    CampaignKey,
    CampaignsWanted,
    Cursor,
    Order,
    TrialKey,
    TrialsWanted,
)
from meshtune.tuner.campaign.objective import Objective, yardstick_of
from meshtune.tuner.campaign.spec import Backend, CampaignSpec
from meshtune.tuner.campaign.trial import Choice, Origin, Trial, TrialState
from meshtune.tuner.results.quantities import QUANTITIES, SORT_KEYS, numbers_of
from meshtune.tuner.store import NotFound, Store

WORKLOAD = Backend(kind="torch", options={"dtype": "bfloat16"})
LONG_LOG = "a line of a log\n" * 50


def random_outcome(rng: random.Random) -> Outcome:
    verdict = rng.choice([Verdict.OK] * 6 + [verdict for verdict in Verdict if verdict is not Verdict.OK])
    if verdict is not Verdict.OK:
        cause = rng.choice([None, Cause.HANG, Cause.USER_BUG]) if verdict in FAILED else None
        return Outcome(verdict=verdict, reason=f"ended {verdict}", cause=cause, log_tail=LONG_LOG)
    peaks = tuple(rng.randrange(10**9, 10**11) for _ in range(rng.choice([0, 1, 4])))
    return Outcome(
        verdict=verdict,
        measurement=Measurement(
            # Of few values, so that some are equal.
            step_times_s=tuple(rng.choice([0.1, 0.2, 0.3, 0.7]) for _ in range(rng.choice([1, 3, 8, 21]))),
            tokens_per_step=rng.choice([2**20, 2**21]),
            devices=8,
            model_flops_per_token=rng.choice([None, 1e9 / 3]),
            peak_flops_per_device=rng.choice([None, 989e12]),
            warmup_times_s=(9.0,) * rng.choice([0, 2]),
            first_losses=rng.choice([(), (10.5, 9.25), (10.5, 9.0), (float("nan"), 3.0)]),
            peak_memory_bytes=peaks,
            peak_held_bytes=rng.choice([(), tuple(peak + 5 for peak in peaks)]),
        ),
    )


def random_history(store: Store, make, seed: int) -> None:
    """Campaign c1: a baseline, a search, confirmations; some attempts lost and tried again, some trials under way."""
    rng = random.Random(seed)
    store.create_campaign(make.campaign())
    recompute = list(Recompute)
    plans = [
        Plan(tp=1 + n % 4, pp=1 + n // 4, recompute=recompute[n % 3], sequence_parallel=n % 2 == 0) for n in range(20)
    ]
    store.plan_trials("c1", [Choice(plans[0])], Origin.BASELINE, now=1.0)
    chosen = [Choice(plan, rng.choice([None, make.expectation])) for plan in plans[1:]]
    store.plan_trials("c1", chosen, Origin.SEARCH, now=2.0)
    again = [Choice(plan) for plan in rng.sample(plans, 4)]
    store.plan_trials("c1", again, Origin.CONFIRMATION, now=3.0)
    for number in range(24):
        if rng.random() < 0.15:
            continue  # stays planned
        store.mark_submitted("c1", number, f"job{number}", now=10.0 + number)
        if rng.random() < 0.9:
            store.mark_running("c1", number, started_at=11.0 + number, nodes=("a", "b"), now=11.0 + number)
        if rng.random() < 0.9:
            ran_s = rng.choice([0.5, 30.0, -1.0])  # clocks of other machines go backwards
            started_at = rng.choice([None, 12.0])
            outcome = random_outcome(rng)
            store.finish("c1", number, outcome, started_at=started_at, finished_at=12.0 + ran_s, now=50.0)
            if outcome.verdict.retryable and rng.random() < 0.7:
                store.plan_attempt("c1", number, now=60.0)


def in_order(spec: CampaignSpec, trials: list[Trial], order: Order[TrialKey]) -> list[int]:
    values, yardstick = {}, yardstick_of(spec)
    for trial in trials:
        own = {NUMBER: trial.number, DEVICE_SECONDS: trial.device_s}
        values[trial.number] = {**own, **numbers_of(yardstick, trial.measurement, QUANTITIES)}[order.key]
    sign = -1 if order.descending else 1
    known = [number for number, value in values.items() if value is not None]
    known.sort(key=lambda number: (sign * values[number], number))
    return known + [number for number, value in values.items() if value is None]


def with_workload(store: Store, **changes: object) -> CampaignSpec:
    """The spec of c1 with a workload that computes in bfloat16, and these changes."""

    def change(campaign: Campaign, _: object) -> Campaign:
        return replace(
            campaign, spec=replace(campaign.spec, workload=WORKLOAD, objective=Objective.STEP_TIME, **changes)
        )

    return store.change_campaign("c1", change, now=1.0).spec


@pytest.mark.parametrize("seed", range(3))
def test_pages_in_every_order_are_the_trials_in_that_order(store: Store, make, seed: int):
    random_history(store, make, seed)
    cluster = make.campaign().spec.cluster
    no_peak = replace(cluster, device=replace(cluster.device, peak_flops={}))
    spec = with_workload(store, **({}, {"model": NO_MODEL}, {"cluster": no_peak})[seed])
    trials = store.trials("c1")
    for order in [Order(key, descending) for key in SORT_KEYS for descending in (False, True)]:
        found, after = [], None
        while page := store.pages.trials("c1", TrialsWanted(order=order, after=after, limit=5)):
            found += [trial for _, trial, _ in page]
            after = Cursor(page[-1][2], page[-1][0])
        assert [trial.number for trial in found] == in_order(spec, trials, order), order
        found.sort(key=lambda trial: trial.number)
        assert repr(found) == repr(trials)  # NaN is not equal to itself


def listed(trial: Trial) -> Trial:
    """The whole trial without what lists leave out."""
    attempts = []
    for attempt in trial.attempts:
        outcome = attempt.outcome and replace(attempt.outcome, log_tail="", partial=None)
        if outcome and (measured := outcome.measurement):
            left_out = {"step_times_s": (), "warmup_times_s": (), "peak_memory_bytes": (), "peak_held_bytes": ()}
            summary = replace(measured.summary, coverage=0.0)
            few = replace(measured, **left_out, profile=None, software={}, stored_summary=summary)
            outcome = replace(outcome, measurement=few)
        attempts.append(replace(attempt, outcome=outcome))
    return replace(trial, attempts=tuple(attempts))


@pytest.mark.parametrize("seed", range(3))
def test_listed_trials_say_what_the_whole_trials_say(store: Store, make, seed: int):
    random_history(store, make, seed)
    trials, few = store.trials("c1"), store.pages.listed("c1")
    assert repr(few) == repr([listed(trial) for trial in trials])
    assert repr([trial for _, trial, _ in store.pages.trials("c1", TrialsWanted(), listed=True)]) == repr(few)
    for measured, short in ((trial.measurement, other.measurement) for trial, other in zip(trials, few, strict=True)):
        if measured is None:
            assert short is None
            continue
        assert short.summary == replace(measured.summary, coverage=0.0)
        for name in ("step_time_s", "tokens_per_s_per_device", "fullest_rank_bytes", "max_memory_bytes"):
            assert getattr(short, name) == getattr(measured, name), name
        own, other = measured.step_time_interval_s, short.step_time_interval_s
        assert (own.low, own.high) == (other.low, other.high)


@pytest.mark.parametrize("seed", range(3))
def test_an_overview_counts_what_the_whole_trials_say_and_has_the_first_of_an_order(store: Store, make, seed: int):
    random_history(store, make, seed)
    trials, order = store.trials("c1"), Order(STEP_TIME)
    found = store.pages.overview("c1", order, 3)
    kinds: Counter[object] = Counter()
    for tally in found.tallies:
        kinds[tally.origin, tally.state, tally.verdict, tally.failure, tally.last] += tally.attempts
    expected = Counter(
        (
            trial.origin,
            attempt.state,
            attempt.outcome and attempt.outcome.verdict,
            attempt.outcome and attempt.outcome.failure,
            attempt is trial.last,
        )
        for trial in trials
        for attempt in trial.attempts
    )
    assert kinds == expected
    device_s = sum(trial.plan.world_size * attempt.running_s for trial in trials for attempt in trial.attempts)
    assert sum(tally.device_s for tally in found.tallies) == pytest.approx(device_s)
    ranked = [trial for trial in trials if trial.measurement and trial.origin is not Origin.CONFIRMATION]
    assert found.first == in_order(with_workload(store), ranked, order)[:3]
    again = {trial.plan for trial in trials if trial.origin is Origin.CONFIRMATION}
    wanted = [
        listed(trial)
        for trial in trials
        if trial.number in found.first or trial.plan in again or trial.origin is Origin.BASELINE
    ]
    assert repr(found.trials) == repr(wanted)


FILTERS = {
    "a verdict": (TrialsWanted(verdict=(Verdict.OK,)), lambda trial: trial.verdict is Verdict.OK),
    "two verdicts": (
        TrialsWanted(verdict=(Verdict.OOM, Verdict.LOST)),
        lambda trial: trial.verdict in (Verdict.OOM, Verdict.LOST),
    ),
    "a state": (TrialsWanted(state=(TrialState.PLANNED,)), lambda trial: trial.state is TrialState.PLANNED),
    "an origin": (
        TrialsWanted(origin=(Origin.CONFIRMATION,)),
        lambda trial: trial.origin is Origin.CONFIRMATION,
    ),
    "a cause that was named": (
        TrialsWanted(failure=(Cause.HANG,)),
        lambda trial: trial.outcome is not None and trial.outcome.failure is Cause.HANG,
    ),
    "a cause that is the verdict's own": (
        TrialsWanted(failure=(Cause.CRASH, Cause.OOM)),
        lambda trial: trial.outcome is not None and trial.outcome.failure in (Cause.CRASH, Cause.OOM),
    ),
    "numbers": (TrialsWanted(number=(3, 7, 99)), lambda trial: trial.number in (3, 7)),
    "values of a dimension": (TrialsWanted(plan={"tp": (1, 3)}), lambda trial: trial.plan.tp in (1, 3)),
    "a value that is a word, and a flag": (
        TrialsWanted(plan={"recompute": (Recompute.FULL,), "sequence_parallel": (False,)}),
        lambda trial: trial.plan.recompute is Recompute.FULL and not trial.plan.sequence_parallel,
    ),
}


def test_limits_of_each_number_leave_the_trials_within_and_none_that_lack_it(store: Store, make):
    random_history(store, make, 0)
    yardstick, trials = yardstick_of(with_workload(store)), store.trials("c1")
    for key in SORT_KEYS:
        values = {}
        for trial in trials:
            own = {NUMBER: trial.number, DEVICE_SECONDS: trial.device_s}
            values[trial.number] = {**own, **numbers_of(yardstick, trial.measurement, QUANTITIES)}[key]
        known = sorted(value for value in values.values() if value is not None)
        low, high = known[len(known) // 3], known[2 * len(known) // 3]
        wanted = TrialsWanted(at_least={key: low}, at_most={key: high})
        found = [trial.number for _, trial, _ in store.pages.trials("c1", wanted)]
        assert found == [number for number, value in values.items() if value is not None and low <= value <= high], key
        assert found


def test_filters_leave_the_trials_that_fit(store: Store, make):
    random_history(store, make, 0)
    trials = store.trials("c1")
    for name, (wanted, fits) in FILTERS.items():
        found = [trial.number for _, trial, _ in store.pages.trials("c1", wanted)]
        assert found == [trial.number for trial in trials if fits(trial)], name


OWN = (
    {"fp8": "off"},
    {"fp8": "Off", "budget": 0.5},
    {"fp8": True},
    {"budget": 1.0},
    {"a_budget": 0.5},
    {"x": "50%_<&"},
)


def with_knobs(store: Store, make) -> list[Trial]:
    """Trials of one layout, which differ in their knobs; the first has none."""
    store.create_campaign(make.campaign())
    plans = [Plan(tp=2, knobs=knobs) for knobs in ({}, *OWN)]
    return store.plan_trials("c1", [Choice(plan) for plan in plans], Origin.SEARCH, now=1.0)


def test_the_values_of_knobs_come_back_as_they_were_each_of_its_type(store: Store, make):
    planned = with_knobs(store, make)
    assert store.trials("c1") == planned == store.pages.listed("c1")
    shown = [trial.plan.knobs for trial in store.trials("c1")]
    assert shown == [{}, *OWN]  # a truth value equals no number
    assert [repr(dict(knobs)) for knobs in shown] == [repr(dict(sorted(knobs.items()))) for knobs in ({}, *OWN)]


@pytest.mark.parametrize(
    ("knobs", "numbers"),
    [
        ({"fp8": ("off",)}, [1]),
        ({"fp8": ("off", "Off")}, [1, 2]),
        ({"fp8": (True,)}, [3]),
        ({"fp8": (1,)}, []),
        ({"fp8": (None,)}, [0, 4, 5, 6]),
        ({"fp8": (None, "off"), "budget": (None,)}, [0, 1, 5, 6]),
        ({"budget": (0.5,)}, [2]),
        ({"budget": (1,)}, [4]),
        ({"fp8": ("Off",), "budget": (0.5, 1.0)}, [2]),
        ({"x": ("50%_<&",)}, [6]),
        ({"x": ("50%_<",)}, []),
        ({"x": ("%",)}, []),
        ({"none": ("off",)}, []),
        ({"none": ()}, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_knobs_filter_by_whole_values(store: Store, make, knobs, numbers):
    with_knobs(store, make)
    assert [trial.number for _, trial, _ in store.pages.trials("c1", TrialsWanted(knobs=knobs))] == numbers


def names(store: Store, **wanted) -> list[str]:
    return [stamp.id for stamp in store.pages.stamps(CampaignsWanted(**wanted))]


def test_campaigns_are_filtered_by_their_names_models_and_owners(store: Store, make):
    for number, (name, owner) in enumerate([("Big run", "ann"), ("100% run", ""), ("small", "bob")]):
        store.create_campaign(replace(make.campaign(f"c{number}", created_at=float(number), name=name), owner=owner))
    store.move_campaign("c2", CampaignState.PAUSED, reason="", now=9.0)
    assert names(store) == ["c2", "c1", "c0"]
    assert names(store, name="RUN") == ["c1", "c0"]
    assert names(store, name="0%") == ["c1"]
    assert names(store, name="_") == []
    assert names(store, owner="ann") == ["c0"]
    assert names(store, owner="") == ["c1"]
    assert names(store, state=(CampaignState.PAUSED,)) == ["c2"]
    assert names(store, model="tiny", cluster="lab") == ["c2", "c1", "c0"]
    assert names(store, model="tin") == names(store, cluster="other") == []


def test_every_list_leaves_out_what_its_reader_may_not_read(store: Store, make):
    """`Rights.reads`, which decides for one campaign, and its SQL say the same of every reader and campaign."""
    owned = {f"c{number}": Ownership(*each) for number, each in enumerate(product(("", "ann", "bob"), ("", "p", "q")))}
    for id, of in owned.items():
        campaign = make.campaign(id, created_at=float(id[1:]))
        store.create_campaign(replace(campaign, owner=of.owner, spec=replace(campaign.spec, project=of.project)))
    assert store.ownerships([*owned, "nothing"]) == owned
    device = make.spec.cluster.device.name, make.spec.workload.kind
    projects = [frozenset(some) for some in ((), ("p",), ("p:read",), ("p", "q:read"))]
    scopes = [frozenset(some) for some in ((), (Scope.READ,), (Scope.READ_ALL,), (Scope.ADMIN,))]
    for name, of, may in product(("", "ann", "eve"), projects, scopes):
        reader = Rights(name=name, projects=of, scopes=may)
        wanted = [id for id in reversed(owned) if reader.reads(owned[id])]
        assert [stamp.id for stamp in store.pages.stamps(CampaignsWanted(), reader)] == wanted, reader
        assert [each.id for each in store.campaigns(limit=99, reader=reader)] == wanted
        assert [each.id for each in store.campaigns(limit=99, reader=reader)] == wanted
        assert [each.id for each in store.campaigns_on(*device, limit=99, reader=reader)] == wanted
        assert [each.campaign_id for each in store.events(None, reader=reader)] == wanted[::-1]
        assert [bool(store.events(id, reader=reader)) for id in owned] == [id in wanted for id in owned]
    assert names(store, project="p", owner="ann") == ["c4"]
    store.access.create(
        Token(name="ann", sha256="", scopes={Scope.READ}, projects={"p"}, created_at=0, expires_at=None)
    )
    assert store.access.rights("ann").reads(Ownership("bob", "p"))
    assert not store.access.rights("bob").reads(Ownership("ann", ""))


def test_pages_of_campaigns_go_on_where_the_last_one_ended(store: Store, make):
    for number in range(7):
        store.create_campaign(make.campaign(f"c{number}", created_at=float(number // 2), name=f"n{number % 3}"))
    for order in [Order(key, descending) for key in CampaignKey for descending in (False, True)]:
        seen, after = [], None
        while page := store.pages.stamps(CampaignsWanted(order=order, after=after, limit=2)):
            seen += [(stamp.value, stamp.id) for stamp in page]
            after = Cursor(page[-1].value, page[-1].id)
        assert len(seen) == 7
        assert seen == sorted(seen, reverse=order.descending), order


def test_an_unknown_campaign_has_no_newest_event_and_no_trials(store: Store, make):
    make.running(store)
    assert store.newest_event("c1") == store.events("c1")[-1].id
    with pytest.raises(NotFound):
        store.newest_event("c9")
    assert store.pages.trials("c9", TrialsWanted()) == store.pages.listed("c9") == []
