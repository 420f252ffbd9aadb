"""Values from the rows of pages: pure, no queries. The rest is in `tuner.store.rows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import FAILED, Outcome, Verdict
from meshtune.search_spaces.plan import PLAN_FIELDS
from meshtune.tuner.campaign.digest import Digest
from meshtune.tuner.campaign.summary import Tally
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial, TrialState
from meshtune.tuner.campaign.trial_brief import Brief
from meshtune.tuner.store.rows import plan_with

# The places of columns: number, origin and plan_key, the plan's fields, one more, the last attempt's, the digest's.
_PLAN = slice(3, 3 + len(PLAN_FIELDS))
_AFTER_PLAN = _PLAN.stop
_ATTEMPT = slice(_AFTER_PLAN + 1, _AFTER_PLAN + 12)
_DIGEST = slice(_ATTEMPT.stop, _ATTEMPT.stop + 10)
_FAILURES = {str(verdict): str(cause) for verdict, cause in FAILED.items()}


def brief_of(row: Sequence[Any]) -> Brief:
    """From columns in the order of `Pages.briefs`. By their places: an attribute of a row takes as long as a value."""
    number, origin, plan_key = row[:3]
    attempt, _, state, verdict, cause, reason, nodes, planned_at, submitted_at, started_at, finished_at = row[_ATTEMPT]
    return Brief(
        number=number,
        origin=origin,
        state=state,
        verdict=verdict,
        failure=cause or _FAILURES.get(verdict),
        reason=reason,
        plan=dict(zip(PLAN_FIELDS, row[_PLAN], strict=True)),
        plan_key=plan_key,
        measurement=_digest_of(row[_DIGEST], ()),
        expectation=row[_AFTER_PLAN],
        held_s=row[-2],
        attempts=attempt,
        nodes=tuple(nodes or ()),
        planned_at=planned_at,
        submitted_at=submitted_at,
        started_at=started_at,
        finished_at=finished_at,
        value=row[-1],
    )


def measured_trial_of(row: Sequence[Any]) -> Trial:
    """From columns in the order of `Pages.measured`. With its last attempt alone, whose outcome has a Digest for a
    measurement and no log."""
    number, origin, _ = row[:3]
    attempt, job_name, state, verdict, cause, reason, nodes, planned_at, _, started_at, finished_at = row[_ATTEMPT]
    outcome = Outcome(
        verdict=Verdict(verdict),
        measurement=_digest_of(row[_DIGEST], row[-1] or ()),
        reason=reason,
        cause=None if cause is None else Cause(cause),
    )
    ended = Attempt(
        number=attempt,
        job_name=job_name,
        state=TrialState(state),
        planned_at=planned_at,
        started_at=started_at,
        finished_at=finished_at,
        nodes=tuple(nodes or ()),
        outcome=outcome,
    )
    return Trial(
        campaign_id=row[_AFTER_PLAN],
        number=number,
        plan=plan_with(*row[_PLAN]),
        origin=Origin(origin),
        attempts=(ended,),
    )


def tally_of(row: Row[Any]) -> Tally:
    return Tally(
        state=TrialState(row.state),
        verdict=None if row.verdict is None else Verdict(row.verdict),
        failure=_failure(row.verdict, row.cause),
        last=bool(row.last),
        count=row.alike,
        held_s=row.held_s,
    )


def _digest_of(columns: Sequence[Any], losses: Sequence[Any]) -> Digest | None:
    measured, tokens_per_step, devices, flops_per_token, peak_flops, median_s, low_s, high_s, memory, held = columns
    if measured is None:
        return None
    return Digest(
        step_times_s=(),
        tokens_per_step=tokens_per_step,
        devices=devices,
        model_flops_per_token=flops_per_token,
        peak_flops_per_device=peak_flops,
        first_losses=tuple(float(loss) for loss in losses),
        peak_memory_bytes=_known(memory),
        peak_held_bytes=_known(held),
        median_s=median_s,
        low_s=low_s,
        high_s=high_s,
    )


def _failure(verdict: str | None, cause: str | None) -> Cause | None:
    """As `Outcome.failure`."""
    if cause is not None:
        return Cause(cause)
    return None if verdict is None else FAILED.get(Verdict(verdict))


def _known(peak: int | None) -> tuple[int, ...]:
    return () if peak is None else (peak,)
