"""Sends attempts to the runner, exactly once, and calls them back.

The attempt's job name is the key: a job that was sent and not written down is found by it. Every act may be repeated.

A process that is stopped in the middle may wake up after another one has its campaign. Its writes are refused; jobs
that it sends are not, so an attempt is marked before it is sent (`Leases.mark_sending`). The process that takes over
looks for a marked attempt once: where it is not to be found, it gives the name up, and the one that wakes calls its job
back.
"""

from __future__ import annotations

from collections.abc import Callable

from meshtune.runners.base import InvalidJob, JobSpec
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.campaign.trial import Trial, TrialState
from meshtune.tuner.service.session import Session
from meshtune.tuner.store import LeaseLost

Clock = Callable[[], float]
VANISHED = "its service vanished while sending it"


def send(session: Session, trial: Trial, job: JobSpec, clock: Clock) -> None:
    """Send the planned attempt, unless the runner has it: a crash after sending is healed by finding its name.

    A job that the runner can never run ends here, as ILLEGAL; one that another process may still send, as LOST. Raises
    the other RunnerErrors: then it was not sent. Raises LeaseLost: then it is another process's to send.
    """
    try:
        job_id = session.runner.find(job.name)
        if job_id is None:
            if not session.store.leases.mark_sending(session.hold.lease, job.name):
                _withdraw(session, trial, Outcome(verdict=Verdict.LOST, reason=VANISHED), clock)
                return
            session.hold.confirm()
            job_id = session.runner.submit(job)
    except InvalidJob as error:
        _end(session, trial, Outcome(verdict=Verdict.ILLEGAL, reason=str(error)), clock())
        return
    try:
        session.store.mark_submitted(trial.campaign_id, trial.number, job_id, avoid=job.avoid, now=clock())
    except LeaseLost:
        _recall(session, trial, job_id)
        raise


def call_back(session: Session, trial: Trial, reason: str, clock: Clock) -> bool:
    """Ask once for the end of the attempt's job; an attempt that was never sent ends here. False: asked already."""
    name = trial.last.job_name
    job_id = trial.last.job_id or session.runner.find(name)
    if job_id is None:
        _withdraw(session, trial, Outcome(verdict=Verdict.CANCELLED, reason=reason), clock)
        return True
    if trial.state is TrialState.PLANNED:
        session.store.mark_submitted(trial.campaign_id, trial.number, job_id, now=clock())
    if name in session.cancelled:
        return False
    session.hold.confirm()
    session.runner.cancel(job_id)
    session.cancelled.add(name)
    return True


def _withdraw(session: Session, trial: Trial, outcome: Outcome, clock: Clock) -> None:
    """End an attempt that was not sent. A process that sent it before it could see this end is found out here; one
    that sends it later sees the end (`_recall`)."""
    _end(session, trial, outcome, clock())
    late = session.runner.find(trial.last.job_name)
    if late is not None:
        session.runner.cancel(late)


def _recall(session: Session, trial: Trial, job_id: str) -> None:
    """Cancel a job that was sent while another process ended its attempt as never sent. An attempt that is still
    planned is left alone: the other process finds its job."""
    attempt = session.store.trial(trial.campaign_id, trial.number).attempts[trial.last.number - 1]
    if attempt.state.final and attempt.job_id is None:
        session.runner.cancel(job_id)


def _end(session: Session, trial: Trial, outcome: Outcome, now: float) -> None:
    session.store.finish(trial.campaign_id, trial.number, outcome, started_at=None, finished_at=now, now=now)
