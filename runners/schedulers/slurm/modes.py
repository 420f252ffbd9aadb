"""The Slurm runner of a campaign, by the mode of its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, Runner, Start
from meshtune.runners.schedulers.batch.shared_look import SharedRunner, share
from meshtune.runners.schedulers.slurm.allocation import create_steps
from meshtune.runners.schedulers.slurm.pilot import create_pilots
from meshtune.runners.schedulers.slurm.runner import create_jobs
from meshtune.runners.schedulers.slurm.script import Mode, options_for
from meshtune.search_spaces.cluster import ClusterSpec


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> SharedRunner:
    """Raises InvalidValue."""
    chosen = options_for(cluster, options)
    if chosen.cluster:  # each counts its jobs from 1
        root = root / f"cluster-{chosen.cluster}"
    runner: Runner
    match chosen.mode:
        case Mode.PILOT:
            runner = create_pilots(root, cluster, chosen)
            root = runner.root  # campaigns of other options have pilots of their own
        case Mode.ALLOCATION:
            runner = create_steps(root, cluster, chosen)
        case Mode.JOB:
            runner = create_jobs(root, chosen, cluster, cluster.nodes)
    return share(runner, f"slurm {chosen.mode}", root, chosen.poll_s)


def asked(job: JobSpec, cluster: ClusterSpec, options: Mapping[str, Any]) -> str:
    """What Slurm says to the job that would be sent for this one, which it is not given. Raises RunnerError."""
    chosen, nodes = options_for(cluster, options), cluster.nodes
    if chosen.mode is Mode.ALLOCATION:
        return "trials are steps of the allocation that is there, and no job is sent"
    if chosen.mode is Mode.PILOT:
        nodes = max(nodes, chosen.pilot_nodes or 0)
        devices = cluster.devices_per_node
        job = replace(job, nodes=nodes, devices_per_node=devices, time_limit_s=chosen.pilot_s, start=Start.JOB)
    return create_jobs(job.directory, chosen, cluster, nodes).asked(job)
