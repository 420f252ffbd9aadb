"""How attempts reach the runner, exactly once, and how they are called back.

The attempt's job name is the key: what was sent and not written down is found by it. Every act may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable

from runners.base import InvalidJob, JobSpec
from runners.outcome import Outcome, Verdict
from tuner.campaign import Campaign
from tuner.store import Store
from tuner.trial import Trial, TrialState
from tuner.work import Work

Clock = Callable[[], float]


def send(store: Store, work: Work, campaign: Campaign, trial: Trial, job: JobSpec, clock: Clock) -> None:
    """Send the planned attempt, unless the runner has it: a crash after sending is healed by finding its name.

    A job that the runner can never run ends here, as ILLEGAL. Raises the other RunnerErrors: then it was not sent.
    """
    try:
        job_id = work.runner.find(job.name) or work.runner.submit(job)
    except InvalidJob as error:
        _end(store, campaign, trial, Outcome(verdict=Verdict.ILLEGAL, reason=str(error)), clock())
        return
    store.mark_submitted(campaign.id, trial.number, job_id, avoid=job.avoid, now=clock())


def call_back(store: Store, work: Work, campaign: Campaign, trial: Trial, reason: str, clock: Clock) -> bool:
    """Ask once for the end of the attempt's job; an attempt that was never sent ends here. False: asked already."""
    name = trial.last.job_name
    job_id = trial.last.job_id or work.runner.find(name)
    if job_id is None:
        _end(store, campaign, trial, Outcome(verdict=Verdict.CANCELLED, reason=reason), clock())
        return True
    if trial.state is TrialState.PLANNED:
        store.mark_submitted(campaign.id, trial.number, job_id, now=clock())
    if name in work.cancelled:
        return False
    work.runner.cancel(job_id)
    work.cancelled.add(name)
    return True


def _end(store: Store, campaign: Campaign, trial: Trial, outcome: Outcome, now: float) -> None:
    store.finish(campaign.id, trial.number, outcome, started_at=None, finished_at=now, now=now)
