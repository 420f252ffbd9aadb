import math
from dataclasses import asdict, replace

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Attempt, Choice, Origin, Trial, TrialState
from meshtune.tuner.store import AlreadyExists, IllegalMove, Store

EVERY_FIELD = Plan(
    tp=2,
    pp=3,
    dp=5,
    cp=7,
    ep=11,
    etp=23,
    vpp=13,
    micro_batch_size=17,
    grad_accum_steps=19,
    zero_stage=3,
    zero_group=29,
    recompute=Recompute.FULL,
    schedule=Schedule.INTERLEAVED,
)


def everything(store: Store) -> tuple[object, ...]:
    return (store.campaign("c1"), store.trials("c1"), store.events(None, limit=10_000))


def test_trials_are_numbered_on_and_get_a_planned_first_attempt(store: Store, make):
    store.create_campaign(make.campaign())
    first = store.plan_trials("c1", [Choice(EVERY_FIELD)], Origin.BASELINE, now=200.5)
    first += store.plan_trials("c1", make.choices(2), Origin.SEARCH, now=200.5)
    second = store.plan_trials("c1", make.choices(1, first=9), Origin.SEARCH, now=300.0)
    assert [trial.number for trial in first + second] == [0, 1, 2, 3]
    assert first[0] == Trial(
        campaign_id="c1",
        number=0,
        plan=EVERY_FIELD,
        origin=Origin.BASELINE,
        attempts=(Attempt(number=1, job_name="c1-t0000-a1", state=TrialState.PLANNED, planned_at=200.5),),
    )
    assert store.trials("c1") == first + second
    assert store.trial("c1", 0).plan.schedule is Schedule.INTERLEAVED
    assert [event.kind for event in store.events("c1")] == ["campaign.created"] + 4 * ["trial.planned"]
    assert store.events("c1")[1].data == {
        "number": 0,
        "attempt": 1,
        "state": "planned",
        "plan": EVERY_FIELD.key,
        "origin": "baseline",
    }


def test_a_plan_that_the_campaign_has_leaves_the_whole_list_out(store: Store, make):
    make.running(store, trials=2)
    before = everything(store)
    with pytest.raises(AlreadyExists, match=r"campaign c1 has the plan .* mbs2 .* already, as trial 1"):
        store.plan_trials("c1", make.choices(4, first=5) + make.choices(1, first=2), Origin.SEARCH, now=2.0)
    with pytest.raises(AlreadyExists, match="comes twice"):
        store.plan_trials("c1", make.choices(4, first=5) + make.choices(1, first=7), Origin.SEARCH, now=2.0)
    assert everything(store) == before
    store.create_campaign(make.campaign("c2"))
    assert [trial.number for trial in store.plan_trials("c2", make.choices(2), Origin.SEARCH, now=3.0)] == [0, 1]


def test_what_was_expected_of_a_plan_comes_back_and_is_told(store: Store, make):
    store.create_campaign(make.campaign())
    expected = make.expectation
    planned = store.plan_trials("c1", [Choice(EVERY_FIELD, expected), *make.choices(1)], Origin.SEARCH, now=1.0)
    assert [trial.expectation for trial in planned] == [expected, None]
    assert store.trials("c1") == planned
    told = [event.data.get("expectation") for event in store.events("c1")[1:]]
    assert told == [asdict(expected), None]
    store.finish("c1", 0, make.failed(Verdict.LOST), started_at=None, finished_at=2.0, now=2.0)
    assert store.plan_attempt("c1", 0, now=3.0).expectation == expected


def test_a_confirmation_repeats_a_plan_once_in_each_round(store: Store, make):
    make.running(store, trials=2)
    again = store.plan_trials("c1", make.choices(1, first=2), Origin.CONFIRMATION, round=1, now=2.0)
    assert [(trial.number, trial.origin, trial.plan.micro_batch_size) for trial in again] == [
        (2, Origin.CONFIRMATION, 2)
    ]
    assert store.trials("c1")[-1].round == 1
    before = everything(store)
    with pytest.raises(AlreadyExists, match=r"campaign c1 has the plan .* mbs2 .* already, as trial 2"):
        store.plan_trials("c1", make.choices(2), Origin.CONFIRMATION, round=1, now=3.0)
    for origin in (Origin.SEARCH, Origin.BASELINE):
        with pytest.raises(AlreadyExists, match=r"campaign c1 has the plan .* mbs2 .* already, as trial 1"):
            store.plan_trials("c1", make.choices(1, first=2), origin, now=3.0)
    assert everything(store) == before
    (further,) = store.plan_trials("c1", make.choices(1, first=2), Origin.CONFIRMATION, round=2, now=4.0)
    assert (further.number, further.round) == (3, 2)


def test_the_searchs_word_on_what_is_left_is_kept_with_or_without_plans(store: Store, make):
    store.create_campaign(make.campaign())
    assert store.campaign("c1").chance_left is None
    store.plan_trials("c1", make.choices(1), Origin.SEARCH, chance_left=0.1 + 0.2, now=5.0)
    assert (store.campaign("c1").chance_left, store.campaign("c1").updated_at) == (0.1 + 0.2, 5.0)
    store.plan_trials("c1", make.choices(1, first=2), Origin.SEARCH, now=6.0)
    assert store.campaign("c1").chance_left == 0.1 + 0.2
    assert store.plan_trials("c1", [], Origin.SEARCH, chance_left=0.0, now=7.0) == []
    assert store.campaign("c1").chance_left == 0.0
    told = [event.data for event in store.events("c1") if event.kind == "search.asked"]
    assert told == [{"chance_left": 0.1 + 0.2}, {"chance_left": 0.0}]


def test_why_a_job_waits_is_kept_and_told_until_it_starts(store: Store, make):
    make.running(store)
    store.note_wait("c1", 0, "the runner refuses jobs", now=5.0)
    assert store.trial("c1", 0).last.wait == "the runner refuses jobs"
    store.mark_submitted("c1", 0, "j0", now=6.0)
    assert store.trial("c1", 0).last.wait == ""
    store.note_wait("c1", 0, "JobHeldAdmin", now=7.0)
    assert store.pages.listed("c1")[0].last.wait == "JobHeldAdmin"
    told = store.events("c1")[-1]
    assert (told.kind, told.data) == (
        "trial.waits",
        {"number": 0, "attempt": 1, "state": "submitted", "wait": "JobHeldAdmin"},
    )
    store.mark_running("c1", 0, started_at=8.0, now=8.0)
    before = everything(store)
    store.note_wait("c1", 0, "Priority", now=9.0)
    assert everything(store) == before


def test_what_a_queue_limit_withdrew_is_tried_again(store: Store, make):
    make.running(store)
    store.mark_submitted("c1", 0, "j0", now=6.0)
    withdrawn = Outcome(verdict=Verdict.CANCELLED, cause=Cause.QUEUE_LIMIT, reason="waited too long")
    store.finish("c1", 0, withdrawn, started_at=None, finished_at=9.0, now=9.0)
    assert store.trial("c1", 0).outcome == withdrawn
    assert store.plan_attempt("c1", 0, now=10.0).last.number == 2


def test_only_a_running_campaign_takes_trials_and_attempts(store: Store, make):
    make.running(store)
    store.finish("c1", 0, make.failed(Verdict.LOST), started_at=None, finished_at=2.0, now=2.0)
    store.move_campaign("c1", CampaignState.PAUSED, reason="", now=3.0)
    before = everything(store)
    with pytest.raises(IllegalMove, match="the campaign is paused, not running"):
        store.plan_trials("c1", make.choices(1, first=5), Origin.SEARCH, now=4.0)
    with pytest.raises(IllegalMove, match="the campaign is paused, not running"):
        store.plan_attempt("c1", 0, now=4.0)
    assert everything(store) == before


def test_a_trial_goes_through_all_states_and_each_tells(store: Store, make):
    make.running(store)
    store.mark_submitted("c1", 0, "slurm:17", now=10.0)
    submitted = store.trial("c1", 0)
    assert (submitted.state, submitted.last.job_id, submitted.last.submitted_at) == (
        TrialState.SUBMITTED,
        "slurm:17",
        10.0,
    )
    store.mark_running("c1", 0, started_at=11.5, now=12.0)
    running = store.trial("c1", 0)
    assert (running.state, running.last.started_at) == (TrialState.RUNNING, 11.5)
    store.finish("c1", 0, make.ok(), started_at=None, finished_at=20.0, now=21.0)
    done = store.trial("c1", 0)
    assert done.last == replace(running.last, state=TrialState.DONE, finished_at=20.0, running_s=8.5, outcome=make.ok())
    assert done.last.running_s == 8.5
    assert done == store.trials("c1")[0]
    told = store.events("c1")[2:]
    assert [(event.kind, event.at) for event in told] == [
        ("trial.submitted", 10.0),
        ("trial.running", 12.0),
        ("trial.done", 21.0),
    ]
    assert told[0].data == {"number": 0, "attempt": 1, "state": "submitted", "job_id": "slurm:17"}
    measurement = make.ok().measurement
    assert told[2].data == {
        "number": 0,
        "attempt": 1,
        "state": "done",
        "verdict": "ok",
        "step_time_s": measurement.step_time_s,
        "tokens_per_s_per_device": measurement.tokens_per_s_per_device,
    }


def test_the_start_that_the_finisher_knows_wins(store: Store, make):
    make.running(store)
    store.mark_running("c1", 0, started_at=11.0, now=12.0)
    store.finish("c1", 0, make.ok(), started_at=10.75, finished_at=20.0, now=20.0)
    assert store.trial("c1", 0).last.started_at == 10.75


PROFILE = Profile(
    step_time_s=1 / 3,
    parts_s=({"compute": 0.1 + 0.2, "dp": 0.0}, {"compute": 1 / 7, "dp": 1 / 9}),
    waiting_s=({}, {"dp": 1e-9}),
    own_times_s=((0.3, 0.1), (0.2, 0.7)),
    stages=(0, 0),
)
MEASURED = {
    "exact floats": Measurement(
        step_times_s=(0.1 + 0.2, 1e-9, 1e9, 1 / 3, 0.1 + 0.2),
        tokens_per_step=2**62,
        devices=1,
        warmup_times_s=(2 / 3, 0.1),
        first_losses=(math.inf, -math.inf, 0.1 + 0.2),
        first_gradient_norms=(0.1 + 0.2, 0.0),
        peak_memory_bytes=(2**70, 0),
    ),
    "little": Measurement(step_times_s=(1.0,), tokens_per_step=1, devices=1),
    "everything": Measurement(
        step_times_s=(1.0, 2.0),
        tokens_per_step=1,
        devices=1,
        profile=PROFILE,
        peak_held_bytes=(2**40, 0),
        peak_flops_per_device=1e15 / 3,
        compile_s=20 / 3,
        software={"torch": "2.13.0+cu126", "driver": "535.183.01"},
    ),
}
OUTCOMES = {
    **{
        str(verdict): Outcome(
            verdict=verdict, reason=f"it ended {verdict}", failed_rank=3, phase="backward", log_tail="a\nb"
        )
        for verdict in Verdict
        if verdict is not Verdict.OK
    },
    **{name: Outcome(verdict=Verdict.OK, measurement=measured) for name, measured in MEASURED.items()},
    **{
        f"pruned, {name}": Outcome(verdict=Verdict.PRUNED, partial=measured, reason="given up after 8 steps")
        for name, measured in MEASURED.items()
    },
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_every_outcome_comes_back_as_it_was_given(store: Store, make, outcome: Outcome):
    make.running(store, trials=2)
    store.finish("c1", 1, outcome, started_at=1.0, finished_at=2.0, now=2.0)
    assert [trial.outcome for trial in store.trials("c1")] == [None, outcome]
    assert store.trial("c1", 1).measurement == outcome.measurement
    told = store.events("c1")[-1].data
    assert told["verdict"] == str(outcome.verdict)
    assert ("step_time_s" in told) == (outcome.verdict is Verdict.OK)


def test_what_no_database_can_hold_of_a_log_is_replaced(store: Store, make):
    make.running(store)
    outcome = Outcome(verdict=Verdict.CRASHED, reason="rank\0 3", log_tail="ok \udcff\x00 \u2713 \U0001f600\r\n\x1b[0m")
    store.finish("c1", 0, outcome, started_at=None, finished_at=2.0, now=3.0)
    kept = store.trial("c1", 0).outcome
    assert kept.reason == "rank\ufffd 3"
    assert kept.log_tail.startswith("ok \ufffd")
    assert kept.log_tail.endswith("\ufffd \u2713 \U0001f600\r\n\x1b[0m")


@pytest.mark.parametrize("start", TrialState)
@pytest.mark.parametrize("to", [TrialState.SUBMITTED, TrialState.RUNNING, TrialState.DONE])
def test_a_trial_only_moves_forward(start: TrialState, to: TrialState, make):
    def move(state: TrialState) -> None:
        if state is TrialState.SUBMITTED:
            store.mark_submitted("c1", 0, "j1", now=5.0)
        elif state is TrialState.RUNNING:
            store.mark_running("c1", 0, started_at=5.0, now=5.0)
        else:
            store.finish("c1", 0, make.ok(), started_at=None, finished_at=6.0, now=6.0)

    with Store.open("sqlite://") as store:
        make.running(store)
        if start is not TrialState.PLANNED:
            move(start)
        before = everything(store)
        if start.may_become(to):
            move(to)
            assert store.trial("c1", 0).state is to
        else:
            with pytest.raises(IllegalMove, match=rf"trial 0 of campaign c1 \(attempt 1\) is {start} and cannot"):
                move(to)
            assert everything(store) == before


def test_a_lost_attempt_is_followed_by_another(store: Store, make):
    make.running(store, trials=2)
    store.mark_submitted("c1", 1, "j1", now=3.0)
    store.finish("c1", 1, make.failed(Verdict.LOST), started_at=4.0, finished_at=5.0, now=5.0)
    again = store.plan_attempt("c1", 1, now=6.0)
    assert [attempt.job_name for attempt in again.attempts] == ["c1-t0001-a1", "c1-t0001-a2"]
    assert (again.state, again.verdict, again.last.job_id) == (TrialState.PLANNED, None, None)
    assert again.attempts[0].outcome == make.failed(Verdict.LOST)
    assert store.events("c1")[-1].kind == "trial.planned"
    assert store.events("c1")[-1].data["attempt"] == 2
    store.mark_submitted("c1", 1, "j2", now=7.0)
    store.finish("c1", 1, make.ok(), started_at=8.0, finished_at=9.0, now=9.0)
    done = store.trials("c1")[1]
    assert [attempt.job_id for attempt in done.attempts] == ["j1", "j2"]
    assert done.measurement == make.ok().measurement
    assert store.trial("c1", 1) == done


@pytest.mark.parametrize("verdict", [None, *(verdict for verdict in Verdict if not verdict.retryable)])
def test_nothing_else_is_tried_again(verdict: Verdict | None, make):
    with Store.open("sqlite://") as store:
        make.running(store)
        if verdict is not None:
            store.finish("c1", 0, make.outcome(verdict), started_at=1.0, finished_at=2.0, now=2.0)
        before = everything(store)
        with pytest.raises(
            IllegalMove, match="only what the infrastructure lost, or a queue limit withdrew, is tried again"
        ):
            store.plan_attempt("c1", 0, now=3.0)
        assert everything(store) == before


def test_trials_come_in_the_order_of_their_numbers(store: Store, make):
    make.running(store, trials=5)
    make.running(store, "c2", trials=3)
    store.finish("c1", 3, make.ok(), started_at=1.0, finished_at=2.0, now=2.0)
    assert [trial.number for trial in store.trials("c1", limit=2)] == [0, 1]
    found = store.trials("c1")
    assert [trial.number for trial in found] == [0, 1, 2, 3, 4]
    assert found[3].measurement == make.ok().measurement
    assert store.trials("c1", limit=0) == []


def test_verdicts_are_counted_by_last_attempt_and_unfinished_ones_by_state(store: Store, make):
    make.running(store, trials=6)
    make.running(store, "c2", trials=1)
    store.create_campaign(make.campaign("c3"))
    for number, verdict in ((0, Verdict.OK), (1, Verdict.OK), (2, Verdict.OOM), (3, Verdict.LOST)):
        store.finish("c1", number, make.outcome(verdict), started_at=1.0, finished_at=2.0, now=2.0)
    store.plan_attempt("c1", 3, now=3.0)
    store.mark_submitted("c1", 4, "j", now=3.0)
    assert store.verdict_counts(["c1", "c2", "c3", "c9"]) == {
        "c1": {"ok": 2, "oom": 1, "planned": 2, "submitted": 1},
        "c2": {"planned": 1},
        "c3": {},
        "c9": {},
    }
    assert store.verdict_counts([]) == {}
