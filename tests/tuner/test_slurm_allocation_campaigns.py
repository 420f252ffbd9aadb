"""Campaigns inside one allocation of the real Slurm that loses a node, or ends: no trial is burnt by it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allocation_jobs import AllocationLaboratory
from driven import Driven, end
from slurm_lab import SlurmLab
from specs import tiny

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(180)]


def document(site: Driven, **changes: Any) -> dict[str, Any]:
    return tiny(
        cluster={"preset": "local-cpu", "nodes": 1, "devices_per_node": 2},
        space={"micro_batch_size": [1, 2, 4]},
        workload=site.workload("{grad_accum_steps}", "{micro_batch_size}"),
        search="grid",
        trial={"time_limit_s": 300},
        runner={"kind": "slurm", "mode": "allocation", "poll_s": 0.2},
        budget={"trials": 3},
        **changes,
    )


class Inside(Driven):
    """Its commands run inside an allocation of two nodes of two CPUs, n1 and n2."""

    def __init__(self, folder, slurm: SlurmLab) -> None:
        super().__init__(folder)
        self.slurm = AllocationLaboratory(folder, slurm)
        self.number = self.slurm.allocate(2).id
        self.environment = {"SLURM_JOB_ID": self.number, "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}


@pytest.fixture
def site(slurm_of_ones_own, tmp_path):
    inside = Inside(tmp_path, slurm_of_ones_own)
    yield inside
    inside.slurm.close()


def test_trials_whose_node_is_dead_are_repeated_on_the_others(site):
    site.slurm.place.kill_node("n2")
    site.write(document(site, parallel=2))
    said = site.finish(site.start("run", "spec.yaml"))
    trials = site.trials()
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 3, said
    lost = [one.outcome for trial in trials for one in trial.attempts if one.outcome.verdict is not Verdict.OK]
    assert lost
    assert {(one.verdict, one.cause, one.reason) for one in lost} == {
        (Verdict.LOST, Cause.NODE_FAULT, "a node failed: n2")
    }
    assert {node for trial in trials for node in trial.last.nodes} == {"n1"}
    assert "a node failed: n2" in site.finish(site.start("show", "last"))


def test_a_campaign_whose_allocation_ends_is_paused_with_a_code_of_its_own(site):
    site.write(document(site))
    site.hold("0001-a1")
    run = site.start("run", "spec.yaml")
    try:
        site.await_ranks("0001-a1", 2)
        site.slurm.place.run("scancel", site.number)
        said = site.finish(run, code=3)
    finally:
        end(run)
    (campaign,), (first, second) = site.campaigns(), site.trials()
    assert campaign.state is CampaignState.PAUSED
    assert re.search(rf"is paused: allocation {site.number} is over; resume it to go on", said)
    assert (first.verdict, second.attempts[0].outcome.cause) == (Verdict.OK, Cause.PREEMPTION)
    assert second.outcome is None
    site.environment = {}  # from outside of any allocation
    assert "is cancelled" in site.finish(site.start("cancel", "last"))
    assert site.trials()[1].outcome.verdict is Verdict.CANCELLED


def test_outside_of_the_allocation_a_cancelled_campaign_whose_trial_may_run_says_where_it_is_ended(site):
    site.write(document(site))
    site.hold("0000-a1")
    run = site.start("run", "spec.yaml")
    job, _ = site.await_ranks("0000-a1", 2)
    run.kill()
    run.wait()
    inside, site.environment = site.environment, {}
    said = site.finish(site.start("cancel", "last"), code=2)
    (campaign,) = site.campaigns()
    assert f"{job} may still run where it was sent, where `meshtune cancel {campaign.id}` ends it" in said
    assert campaign.state is CampaignState.CANCELLING
    site.environment = inside
    assert "is cancelled" in site.finish(site.start("cancel", "last"))
    assert [trial.outcome.verdict for trial in site.trials()] == [Verdict.CANCELLED]
