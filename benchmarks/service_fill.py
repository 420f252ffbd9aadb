"""Fills a store with campaigns that look lived-in, the same ones for the same numbers: a million trials in minutes.

The first few campaigns are written through the store's own rows; the others are copies of them, a little faster or
slower (`service_copy`). Each campaign has its baseline, trials of a search and three confirmations at the end. Of the
trials 62 % are measured (10 timed steps after 2 of warm-up, 8 ranks, a profile of every rank), 22 % run out of memory,
6 % are pruned, and the rest crash, hang, are lost to a node and tried again, or run out of time. Step times come from
no physics: what is measured with this is the service, not the search.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from typing import Any

from service_copy import copy_campaign, settle
from sqlalchemy import Connection, func, insert, select

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.trial import Attempt, Expectation, Origin, Trial, TrialState, job_name
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store, tables
from meshtune.tuner.store.campaigns import event_row
from meshtune.tuner.store.rows import campaign_row, measurement_row, outcome_columns, step_rows, trial_row

RANKS = 8
STEPS = 10
WARMUP = 2
CONFIRMATIONS = 3
START = 1_700_000_000.0
TRIAL_S = 90.0
# How many campaigns are not copies, and how far in time two neighbours lie apart.
ORIGINALS = 4
APART_S = 3600.0
# One transaction has so many copies.
TOGETHER = 20
PARTS = {"compute": 0.68, "tp": 0.11, "dp": 0.12, "optimizer": 0.09}
EXPECTATION = Expectation(
    step_time_s=0.8, step_time_low_s=0.6, step_time_high_s=1.1, p_fits=0.8, gain=0.03, peak_bytes=5e10
)
DOCUMENT: dict[str, Any] = {
    "model": "gpt-1.4b",
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "global_batch_size": 1024,
    "baseline": {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 1},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed"},
    "runner": "simulated",
    "budget": {"trials": 1000},
    "space": {
        "micro_batch_size": [1, 2, 4, 8, 16, 32],
        "zero_stage": [0, 1, 2, 3],
        "recompute": ["none", "selective", "full"],
        "vpp": [1, 2, 3, 4, 6],
        "schedule": ["1f1b", "gpipe", "interleaved"],
        "sequence_parallel": [True, False],
    },
}
# Where a campaign has more trials than that space has plans.
WIDE: dict[str, Any] = {
    **DOCUMENT,
    "global_batch_size": "free",
    "space": {**DOCUMENT["space"], "grad_accum_steps": [8, 16, 32, 64, 128]},
}
MOST_NARROW = 1200
# Verdict, cause where one is named, share of the trials.
ENDS: tuple[tuple[Verdict, Cause | None, float], ...] = (
    (Verdict.OK, None, 0.62),
    (Verdict.OOM, None, 0.22),
    (Verdict.PRUNED, None, 0.06),
    (Verdict.CRASHED, None, 0.03),
    (Verdict.CRASHED, Cause.HANG, 0.02),
    (Verdict.LOST, Cause.NODE_FAULT, 0.03),
    (Verdict.TIMED_OUT, None, 0.02),
)
LOG = "\n".join(f"[rank{rank}] step {step}: allocating buffers" for rank in range(RANKS) for step in range(3))


@dataclass(frozen=True, slots=True)
class Filled:
    """What a store was filled with."""

    campaign_ids: tuple[str, ...]
    trials_each: int


@dataclass(frozen=True, slots=True)
class _End:
    """One of the ways in which trials end, as rows that lack their keys."""

    outcome: Outcome
    attempt: Mapping[str, Any]
    measurement: Mapping[str, Any] | None
    steps: Sequence[Mapping[str, Any]]


def fill(store: Store, campaigns: int, trials_each: int) -> Filled:
    """Let the store have so many campaigns. It must be empty, or hold what this made of as many trials each."""
    with store._database.reading() as connection:
        there = connection.scalar(select(func.count()).select_from(tables.campaigns)) or 0
    if there < min(ORIGINALS, campaigns):
        _fill_originals(store, range(there, min(ORIGINALS, campaigns)), trials_each)
    for first in range(max(there, ORIGINALS), campaigns, TOGETHER):
        with store._database.writing() as connection:
            for number in range(first, min(first + TOGETHER, campaigns)):
                _copy(connection, number)
    settle(store)
    return Filled(tuple(map(_id, range(campaigns))), trials_each)


def _fill_originals(store: Store, numbers: Iterable[int], trials_each: int) -> None:
    document = DOCUMENT if trials_each <= MOST_NARROW else WIDE
    spec, space = read_spec({**document, "name": "filled", "budget": {"trials": trials_each}}, None)
    assert spec.baseline is not None
    plans = [plan for plan in space if plan != spec.baseline]
    for number in numbers:
        rng = random.Random(number * 1_000_003 + trials_each)
        created_at = START + APART_S * number
        campaign = Campaign(
            id=_id(number),
            spec=replace(spec, name=f"filled {number}"),
            state=CampaignState.COMPLETED,
            created_at=created_at,
            updated_at=created_at + trials_each * TRIAL_S,
            running_since=created_at,
            combinations=space.counts.combinations,
            legal=space.counts.legal,
            elapsed_s=trials_each * TRIAL_S,
            reason=f"the budget of {trials_each} trials is spent",
            search_ended=f"the budget of {trials_each} trials is spent",
            chance_left=0.1,
        )
        chosen = [spec.baseline, *rng.sample(plans, trials_each - 1 - CONFIRMATIONS)]
        ends = [_end(Verdict.OK, None, rng), *(_drawn(rng) for _ in chosen[1:])]
        fastest = sorted(range(1, len(ends)), key=lambda place: _speed(ends[place]))[:CONFIRMATIONS]
        chosen += [chosen[place] for place in fastest]
        ends += [ends[place] for place in fastest]  # a second run is like the first
        with store._database.writing() as connection:
            _write(connection, campaign, chosen, ends)


def _copy(connection: Connection, number: int) -> None:
    """Of one of the originals, in turn."""
    source = number % ORIGINALS
    copy_campaign(
        connection,
        _id(source),
        _id(number),
        name=f"filled {number}",
        later_s=APART_S * (number - source),
        slower=0.9 + 0.2 * random.Random(number).random(),
    )


def _id(number: int) -> str:
    return f"filled-{number:06d}"


def _write(connection: Connection, campaign: Campaign, plans: Sequence[Plan], ends: Sequence[_End]) -> None:
    connection.execute(insert(tables.campaigns), campaign_row(campaign))
    told = {"name": campaign.spec.name, "state": "running"}
    connection.execute(insert(tables.events), event_row(campaign.id, campaign.created_at, "campaign.created", told))
    attempts: list[dict[str, Any]] = []
    trials: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    ended: list[_End] = []
    for number, (plan, end) in enumerate(zip(plans, ends, strict=True)):
        trial = _trial(campaign, number, plan, len(plans))
        trials.append(trial_row(trial))
        lost = end.outcome.verdict is Verdict.LOST
        for attempt in range(1, 3 if lost else 2):
            start = campaign.created_at + TRIAL_S * (number + 0.4 * (attempt - 1))
            attempts.append(_attempt_row(campaign, number, attempt, start, end))
            ended.append(end)
            events += _events(campaign, number, attempt, start, end)
    ids = connection.scalars(insert(tables.trials).returning(tables.trials.c.id, sort_by_parameter_order=True), trials)
    by_number = dict(enumerate(ids.all()))
    for row in attempts:
        row["trial_id"] = by_number[row["trial_id"]]
    keys = connection.scalars(
        insert(tables.attempts).returning(tables.attempts.c.id, sort_by_parameter_order=True), attempts
    ).all()
    pairs = [(key, end) for key, end in zip(keys, ended, strict=True) if end.measurement is not None]
    connection.execute(
        insert(tables.measurements), [{**(end.measurement or {}), "attempt_id": key} for key, end in pairs]
    )
    connection.execute(insert(tables.steps), [{**step, "attempt_id": key} for key, end in pairs for step in end.steps])
    connection.execute(insert(tables.events), events)


def _trial(campaign: Campaign, number: int, plan: Plan, total: int) -> Trial:
    origin = Origin.SEARCH if number else Origin.BASELINE
    if number >= total - CONFIRMATIONS:
        origin = Origin.CONFIRMATION
    attempt = Attempt(number=1, job_name="", state=TrialState.PLANNED, planned_at=campaign.created_at)
    expectation = None if origin is not Origin.SEARCH else EXPECTATION
    return Trial(
        campaign_id=campaign.id, number=number, plan=plan, origin=origin, attempts=(attempt,), expectation=expectation
    )


def _attempt_row(campaign: Campaign, number: int, attempt: int, start: float, end: _End) -> dict[str, Any]:
    name = job_name(campaign.id, number, attempt)
    return {
        **end.attempt,
        "trial_id": number,
        "number": attempt,
        "job_name": name,
        "job_id": name,
        "state": str(TrialState.DONE),
        "nodes": [f"node{number % 7:03d}"],
        "planned_at": start,
        "submitted_at": start + 1.0,
        "wait": "",
        "started_at": start + 2.0,
        "finished_at": start + 2.0 + 0.3 * TRIAL_S,
        "running_s": 0.3 * TRIAL_S,
    }


def _events(campaign: Campaign, number: int, attempt: int, start: float, end: _End) -> list[dict[str, Any]]:
    about = {"number": number, "attempt": attempt}
    planned = event_row(campaign.id, start, "trial.planned", {**about, "state": "planned"})
    submitted = event_row(campaign.id, start + 1.0, "trial.submitted", {**about, "state": "submitted"})
    running = event_row(campaign.id, start + 2.0, "trial.running", {**about, "state": "running"})
    done = {**about, "state": "done", "verdict": str(end.outcome.verdict)}
    return [planned, submitted, running, event_row(campaign.id, start + 30.0, "trial.done", done)]


def _drawn(rng: random.Random) -> _End:
    verdict, cause, _ = rng.choices(ENDS, [share for _, _, share in ENDS])[0]
    return _end(verdict, cause, rng)


def _speed(end: _End) -> float:
    return inf if end.outcome.measurement is None else end.outcome.measurement.step_time_s


def _end(verdict: Verdict, cause: Cause | None, rng: random.Random) -> _End:
    measurement = _measurement(rng) if verdict is Verdict.OK else None
    failed = verdict in (Verdict.OOM, Verdict.CRASHED)
    outcome = Outcome(
        verdict=verdict,
        measurement=measurement,
        partial=replace(_measurement(rng), profile=None) if verdict is Verdict.PRUNED else None,
        reason="" if verdict is Verdict.OK else f"rank 3 ended {verdict} in step 4",
        cause=cause,
        failed_rank=3 if failed else None,
        phase="forward" if failed else None,
        log_tail=LOG if failed else "",
    )
    return _End(
        outcome=outcome,
        attempt=outcome_columns(outcome),
        measurement=None if measurement is None else measurement_row(measurement, 0),
        steps=() if measurement is None else step_rows(measurement, 0),
    )


def _measurement(rng: random.Random) -> Measurement:
    step_s = 0.8 * exp(rng.gauss(0.0, 0.35))
    peak = int(rng.uniform(20, 75) * 2**30)
    peaks = tuple(peak - rng.randrange(2**28) for _ in range(RANKS))
    return Measurement(
        step_times_s=tuple(step_s * exp(rng.gauss(0.0, 0.01)) for _ in range(STEPS)),
        tokens_per_step=1024 * 2048,
        devices=RANKS,
        model_flops_per_token=1e10,
        peak_flops_per_device=989e12,
        warmup_times_s=(3 * step_s, 1.2 * step_s),
        first_losses=tuple(10.8 - 0.01 * step + rng.uniform(-1e-4, 1e-4) for step in range(5)),
        peak_memory_bytes=peaks,
        peak_held_bytes=tuple(value + 2**30 for value in peaks),
        profile=Profile(
            step_time_s=step_s,
            parts_s=tuple({part: share * step_s for part, share in PARTS.items()} for _ in range(RANKS)),
            waiting_s=({"dp": 0.02 * step_s, "tp": 0.01 * step_s},) * RANKS,
            own_times_s=tuple(tuple(0.7 * step_s * rng.uniform(0.98, 1.02) for _ in range(3)) for _ in range(RANKS)),
            stages=(0,) * RANKS,
        ),
        software={"torch": "2.13", "cuda": "13.0"},
    )
