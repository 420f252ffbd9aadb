"""Measures settings of a campaign once more, by fresh jobs, to see whether their order holds. Stores nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress

from meshtune.runners.base import JobState, JobStatus, Runner, RunnerUnavailable
from meshtune.runners.outcome import Outcome
from meshtune.runners.registry import create_runner
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.space import workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.service.service import Service

# Between two looks: short at first, for jobs that take a second, and gentle to a scheduler whose jobs wait for hours.
LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 2.0


def remeasure(service: Service, campaign: Campaign, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
    """Run each trial's plan again, one after the other; yield each with its new outcome.

    A job that is still there when this is left, by whatever way, is cancelled. Raises RunnerError when a job cannot be
    sent, or its end is not heard of within twice the trial's time limit since it was last seen in a queue.
    """
    spec = campaign.spec
    workload = workload_of(spec)
    runner = create_runner(spec.runner.kind, service.home.runner(spec.runner.kind), spec.cluster, spec.runner.options)
    try:
        for trial in trials:
            name = f"{campaign.id}-t{trial.number:04d}-again-{uuid.uuid4().hex[:6]}"
            job_id = runner.submit(service.job(campaign, trial.plan, name, workload))
            status = _await_end(runner, job_id, 2 * spec.trial.time_limit_s + 60.0)
            yield trial, workload.read(service.home.job(campaign.id, name), status)
    finally:
        runner.close()


def _await_end(runner: Runner, job_id: str, patience_s: float) -> JobStatus:
    """The job's final status. Left in any other way, the job is cancelled."""
    give_up = time.monotonic() + patience_s
    pause_s, trouble = LEAST_PAUSE_S, "it still runs"
    try:
        while time.monotonic() < give_up:
            try:
                status = runner.poll([job_id])[job_id]
            except RunnerUnavailable as error:
                trouble = str(error)
            else:
                if status.state.final:
                    return status
                if status.state is JobState.QUEUED:
                    give_up = time.monotonic() + patience_s
            time.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, 1.2 * pause_s)
        raise RunnerUnavailable(f"{job_id} has not ended within {patience_s:g} s: {trouble}")
    except BaseException:
        with suppress(RunnerUnavailable):
            runner.cancel(job_id)
        raise
