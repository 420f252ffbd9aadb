"""Measures settings of a campaign once more, by fresh jobs, to see whether their order holds. Stores nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

from runners.base import RunnerUnavailable
from runners.outcome import Outcome
from runners.registry import create_runner, create_workload
from tuner.campaign import Campaign
from tuner.service import Service
from tuner.trial import Trial


def remeasure(service: Service, campaign: Campaign, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
    """Run each trial's plan again, one after the other; yield each with its new outcome.

    Raises RunnerError when a job cannot be sent, or its runner does not answer for twice the trial's time limit.
    """
    spec = campaign.spec
    workload = create_workload(spec.workload.kind, spec.workload.options)
    runner = create_runner(spec.runner.kind, service.home.runner(spec.runner.kind), spec.cluster, spec.runner.options)
    try:
        for trial in trials:
            name = f"{campaign.id}-t{trial.number:04d}-again-{uuid.uuid4().hex[:6]}"
            job_id = runner.submit(service.job(campaign, trial.plan, name, workload))
            give_up = time.monotonic() + 2 * spec.trial.time_limit_s + 60.0
            while not (status := runner.poll([job_id])[job_id]).state.final:
                if time.monotonic() > give_up:
                    runner.cancel(job_id)
                    raise RunnerUnavailable(f"{name} is still {status.state} long after its time limit")
                time.sleep(0.05)
            yield trial, workload.read(service.home.job(campaign.id, name), status)
    finally:
        runner.close()
