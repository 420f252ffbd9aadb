"""A campaign on a real Slurm of four nodes, and everything that goes wrong on a cluster, one thing after the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from driven import Driven, end
from slurm_lab import SlurmLab
from specs import tiny

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def lab(slurm_cluster: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """Slurm notices within seconds that a node is dead. slurm_cluster: skips where there can be no Slurm."""
    with SlurmLab(nodes=4, cpus=2, frail=True) as lab:
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        yield lab


def test_a_campaign_survives_what_happens_on_a_cluster_and_loses_and_doubles_nothing(lab, tmp_path):
    site = Driven(tmp_path)
    spec = tiny(
        cluster={"preset": "local-cpu", "nodes": 2, "devices_per_node": 1},
        global_batch_size=16,
        space={"micro_batch_size": [1, 2, 4]},
        baseline={"micro_batch_size": 1, "zero_stage": 0},
        workload=site.workload("{micro_batch_size}", "{zero_stage}", "{grad_accum_steps}"),
        search="grid",
        trial={"time_limit_s": 60},
        runner={"kind": "slurm", "poll_s": 0.2},
        budget={"trials": 7},
    )
    site.write(spec)
    site.hold("0001-a1", "0002-a1", "0003-a1", "0004-a1", "0005-a1")
    service = site.start("run", "spec.yaml")
    try:
        site.await_ranks("0000-a1", 2)
        _, ranks = site.await_ranks("0001-a1", 2)
        os.kill(ranks[1], signal.SIGKILL)
        name, _ = site.await_ranks("0002-a1", 2)
        nodes, comment = lab.run("squeue", "-h", f"--name={name}", "-o", "%N|%k").strip().split("|")
        assert comment == f"campaign={site.campaigns()[0].id},trial=2"
        lost = lab.run("scontrol", "show", "hostnames", nodes).split()[0]
        lab.kill_node(lost)
        site.await_ranks("0002-a2", 2)
        site.await_ranks("0003-a1", 2)
        lab.restart_controller()
        site.let_go("0003-a1")
        site.await_ranks("0004-a1", 2)
        end(service)
        site.let_go("0004-a1")
        service = site.start("resume", "last")
        name, _ = site.await_ranks("0005-a1", 2)
        lab.run("scancel", f"--name={name}")
        site.finish(service)
    finally:
        end(service)
    (campaign,), trials = site.campaigns(), site.trials()
    assert campaign.state is CampaignState.COMPLETED, site.said.read_text()
    assert [trial.verdict for trial in trials] == [
        *(Verdict.OK, Verdict.CRASHED, Verdict.OK, Verdict.OK, Verdict.OK, Verdict.CANCELLED, Verdict.OK)
    ]
    assert trials[1].outcome.reason == "rank 1 was killed by SIGKILL"
    first, second = trials[2].attempts
    assert (first.outcome.verdict, first.outcome.failure) == (Verdict.LOST, Cause.NODE_FAULT)
    assert first.failed_nodes == (lost,)
    assert lost in first.nodes
    assert lost not in second.nodes
    attempts = {attempt.job_name: attempt.job_id for trial in trials for attempt in trial.attempts}
    assert {name: id for id, name, _ in lab.jobs()} == attempts
    assert len({id for id, _, _ in lab.jobs()}) == len(attempts)
    assert site.noted() == dict.fromkeys(attempts, 1)
