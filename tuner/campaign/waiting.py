"""Jobs that wait in a queue: the runner's reason in one line, the queue limit, and the words for people.

Pure, as `tuner.campaign.decide` is. What an attempt waits for is kept with it (`Attempt.wait`)."""

from __future__ import annotations

from collections.abc import Sequence

from meshtune.runners.base import Cause, JobStatus
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Attempt, Trial, TrialState
from meshtune.tuner.campaign.units import moment

# Characters that are kept of why a job waits.
MAX_WAIT = 500


def wait_of(status: JobStatus) -> str:
    """Why a queued job waits, as it is kept; empty where the runner does not say."""
    printable = "".join(letter if letter.isprintable() else " " for letter in status.reason)
    return " ".join(printable.split())[:MAX_WAIT]


def overdue_reason(campaign: Campaign, trial: Trial, waited_s: float) -> str:
    """Why to withdraw a trial that has been queued for so long; empty where it may wait longer.

    A trial that is found cancelled, and for which this is not empty, was withdrawn by us: a service that was killed
    does not remember it."""
    limit_s, last = campaign.spec.trial.queue_limit_s, trial.last
    if limit_s is None or trial.state is not TrialState.SUBMITTED:
        return ""
    return overdue_text(limit_s, last.wait) if waited_s > limit_s else ""


def overdue_text(limit_s: float, wait: str) -> str:
    return f"waited longer than its queue limit of {limit_s:g} s{f': {wait}' if wait else ''}"


def withdrawn_reason(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """Why the campaign rests: a trial was withdrawn since it was set running. Empty where none was."""
    for trial in trials:
        outcome, ended = trial.outcome, trial.last.finished_at
        if outcome is not None and outcome.cause is Cause.QUEUE_LIMIT and (ended or 0.0) > campaign.running_since:
            return f"trial {trial.number} {outcome.reason}"
    return ""


def wait_text(attempt: Attempt) -> str:
    """Why the attempt has not started, and since when; empty for one that has, or that was not sent and not refused."""
    if attempt.state is TrialState.PLANNED:
        return attempt.wait
    if attempt.state is not TrialState.SUBMITTED or attempt.submitted_at is None:
        return ""
    return f"queued since {moment(attempt.submitted_at)}{f': {attempt.wait}' if attempt.wait else ''}"
