"""Values from the rows of pages: pure, no queries. The rest is in `tuner.store.rows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from runners.causes import Cause
from runners.outcome import FAILED, Outcome, Verdict
from runners.reading import read_value
from tuner.brief import Brief
from tuner.digest import Digest
from tuner.expectation import Expectation
from tuner.store.rows import plan_of
from tuner.summary import Tally
from tuner.trial import Attempt, Origin, Trial, TrialState


def brief_of(row: Row[Any]) -> Brief:
    return Brief(
        number=row.number,
        origin=Origin(row.origin),
        state=TrialState(row.state),
        verdict=None if row.verdict is None else Verdict(row.verdict),
        failure=_failure(row),
        reason=row.reason,
        plan=plan_of(row),
        plan_key=row.plan_key,
        measurement=_digest_of(row, ()),
        expectation=None if row.expectation is None else read_value(Expectation, row.expectation),
        held_s=row.held_s,
        attempts=row.attempt,
        nodes=tuple(row.nodes or ()),
        planned_at=row.planned_at,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        value=row.value,
    )


def measured_trial_of(row: Row[Any]) -> Trial:
    """With its last attempt alone, whose outcome has a Digest for a measurement and no log."""
    outcome = Outcome(
        verdict=Verdict(row.verdict),
        measurement=_digest_of(row, row.first_losses or ()),
        reason=row.reason,
        cause=None if row.cause is None else Cause(row.cause),
    )
    attempt = Attempt(
        number=row.attempt,
        job_name=row.job_name,
        state=TrialState(row.state),
        planned_at=row.planned_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        nodes=tuple(row.nodes or ()),
        outcome=outcome,
    )
    return Trial(
        campaign_id=row.campaign_id,
        number=row.number,
        plan=plan_of(row),
        origin=Origin(row.origin),
        attempts=(attempt,),
    )


def tally_of(row: Row[Any]) -> Tally:
    return Tally(
        state=TrialState(row.state),
        verdict=None if row.verdict is None else Verdict(row.verdict),
        failure=_failure(row),
        last=bool(row.last),
        count=row.alike,
        held_s=row.held_s,
    )


def _digest_of(row: Row[Any], losses: Sequence[Any]) -> Digest | None:
    if row.measured is None:
        return None
    return Digest(
        step_times_s=(),
        tokens_per_step=row.tokens_per_step,
        devices=row.devices,
        model_flops_per_token=row.model_flops_per_token,
        peak_flops_per_device=row.peak_flops_per_device,
        first_losses=tuple(float(loss) for loss in losses),
        peak_memory_bytes=_known(row.most_memory_bytes),
        peak_held_bytes=_known(row.most_held_bytes),
        median_s=row.median_step_time_s,
        low_s=row.step_time_low_s,
        high_s=row.step_time_high_s,
    )


def _failure(row: Row[Any]) -> Cause | None:
    """As `Outcome.failure`."""
    if row.cause is not None:
        return Cause(row.cause)
    return None if row.verdict is None else FAILED.get(Verdict(row.verdict))


def _known(peak: int | None) -> tuple[int, ...]:
    return () if peak is None else (peak,)
