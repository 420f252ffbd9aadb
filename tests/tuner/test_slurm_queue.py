"""Campaigns on the real Slurm that refuses or holds their jobs: they wait, say why, and lose no trial."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from command_lab import run_meshtune
from driven import Driven, end
from slurm_lab import SlurmLab, wait_for
from specs import tiny

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.campaign.waiting import wait_text
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.timeout(180)


def document(site: Driven, trials: int, **trial: float) -> dict[str, Any]:
    return tiny(
        name="queue",
        cluster={"preset": "local-cpu", "nodes": 1, "devices_per_node": 2},
        space={"micro_batch_size": [1, 2, 4]},
        workload=site.workload("{grad_accum_steps}", "{micro_batch_size}"),
        search="grid",
        trial={"time_limit_s": 300, **trial},
        runner={"kind": "slurm", "poll_s": 0.2, "partition": "one"},
        budget={"trials": trials},
    )


@pytest.fixture
def partition(slurm: SlurmLab) -> Iterator[SlurmLab]:
    """The cluster, whose partition `one` the test may change."""
    yield slurm
    slurm.run("scontrol", "update", "PartitionName=one", "State=UP", "MaxTime=INFINITE")


@pytest.mark.long
def test_a_campaign_waits_while_slurm_refuses_its_jobs_and_then_measures_them_all(partition, tmp_path):
    site = Driven(tmp_path)
    site.write(document(site, trials=3))
    run = site.start("run", "spec.yaml")
    try:
        wait_for(
            lambda: list(site.home.root.glob("campaigns/*/*-t0000-a1/result.json")), "the first trial does not end"
        )
        partition.run("scontrol", "update", "PartitionName=one", "MaxTime=1")
        refused = re.compile(r"waiting: the runner refuses jobs: \S+ needs \d+ min, but partition one allows 1; tried")
        wait_for(lambda: refused.search(" ".join(site.said.read_text().split())), "it does not say why")
        (campaign,), waiting = site.campaigns(), site.trials()[-1]
        assert (campaign.state, waiting.state) == (CampaignState.RUNNING, TrialState.PLANNED)
        assert waiting.last.wait.startswith("the runner refuses jobs: ")
        partition.run("scontrol", "update", "PartitionName=one", "MaxTime=INFINITE")
        site.finish(run)
    finally:
        end(run)
    assert [campaign.state for campaign in site.campaigns()] == [CampaignState.COMPLETED]
    assert [(trial.verdict, len(trial.attempts)) for trial in site.trials()] == [(Verdict.OK, 1)] * 3


def test_a_dry_run_asks_slurm_and_sends_nothing(partition, tmp_path):
    """When it would start, or why not: the job as it would be sent, or the pilot that would be."""
    jobs, site = partition.jobs(), Driven(tmp_path)

    def answer(*command: str, **runner: object) -> str:
        site.write({**document(site, trials=3), "runner": {"kind": "slurm", **runner}})
        return run_meshtune(tmp_path, *(command or ("run", "spec.yaml")), "--dry-run").out.splitlines()[-1]

    assert re.fullmatch(
        r"slurm was asked: Job \d+ to start at \S+ using 2 .* in partition one", answer(partition="one")
    )
    assert answer(partition="nowhere").startswith("slurm refuses it: error: invalid partition specified: nowhere")
    assert answer(constraint="a100") == "slurm refuses it: allocation failure: Invalid feature specification"
    assert " 4 processors on nodes " in answer(mode="pilot", pilot_nodes=2)
    partition.run("scontrol", "update", "PartitionName=one", "MaxTime=60")
    assert "needs 242 min, but partition one allows 60" in answer(mode="pilot", partition="one")
    assert (partition.jobs(), site.home.root.exists()) == (jobs, False)


def test_a_dry_run_of_sbatch_asks_slurm_too(slurm, tmp_path, capfd):
    jobs = slurm.jobs()
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH -N 1\ntrue @MESHTUNE_TP:-8@\n")
    words = ("--model", "gpt-micro", "--cluster", "hpc", "--url", "http://127.0.0.1:9", "--dry-run", "job.sh")
    for options, code, told in (((), 0, r"sbatch: Job \d+ to start"), (("-p", "nowhere"), 1, "invalid partition")):
        done = run_meshtune(tmp_path, "sbatch", *words, *options)
        said = done.out + done.err + "".join(capfd.readouterr())
        assert (done.code, bool(re.search(told, said))) == (code, True), said
        assert "true 8\n" in said
    assert slurm.jobs() == jobs


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "invalid partition specified: nowhere"),
        ("one", "Required partition not available (inactive or drain)"),
    ],
)
def test_a_partition_that_is_not_there_or_inactive_ends_the_run_with_slurms_words_and_a_status(
    name, words, partition, tmp_path
):
    partition.run("scontrol", "update", "PartitionName=one", "State=INACTIVE")
    site = Driven(tmp_path)
    site.write({**document(site, trials=3), "runner": {"kind": "slurm", "partition": name}})
    said = site.finish(site.start("run", "spec.yaml"), code=1)
    told = r"is failed: the runner takes no such jobs, .* options are wrong: .*"
    assert re.search(told + re.escape(words), said)
    assert [trial.verdict for trial in site.trials()] == [Verdict.CANCELLED]


@pytest.mark.long
def test_a_pilot_that_is_refused_while_trials_wait_for_it_is_counted(partition, tmp_path):
    site = Driven(tmp_path)
    site.home.root.mkdir()
    site.hold("0000-a1")
    pilots = {"kind": "slurm", "mode": "pilot", "poll_s": 0.2, "partition": "one", "pilot_s": 600.0}
    with Store.open(site.home.database_url) as store:
        service = Service(store, site.home)
        id = service.create({**document(site, trials=2), "runner": pilots, "parallel": 2}).id
        refused = service.metrics.refusals.labels("slurm")._value.get

        def drive(until) -> None:
            deadline = time.monotonic() + 60
            while not until():
                assert time.monotonic() < deadline, f"{store.campaign(id)}, {store.trials(id)}"
                if not service.tick(id):
                    time.sleep(0.1)

        try:
            drive(lambda: [trial.state for trial in store.trials(id)] == ["running", "submitted"])
            partition.run("scontrol", "update", "PartitionName=one", "MaxTime=1")
            assert refused() == 0
            partition.cancel_all()
            drive(lambda: refused() == 1)
            service.cancel(id)
            drive(lambda: store.campaign(id).state is CampaignState.CANCELLED)
        finally:
            partition.cancel_all()
            service.close()


def test_a_held_job_says_who_holds_it_and_is_withdrawn_by_the_queue_limit(partition, tmp_path):
    partition.run("scontrol", "update", "PartitionName=one", "State=DOWN")
    site = Driven(tmp_path)
    site.home.root.mkdir()
    with Store.open(site.home.database_url) as store:
        service = Service(store, site.home)
        id = service.create(document(site, trials=1, queue_limit_s=6.0)).id

        def drive(until, complaint: str) -> None:
            deadline = time.monotonic() + 60
            while not until():
                assert time.monotonic() < deadline, f"{complaint}: {store.campaign(id)}, {store.trials(id)}"
                if not service.tick(id):
                    time.sleep(0.1)

        def waits() -> str:
            return wait_text(store.trials(id)[0].last) if store.trials(id) else ""

        drive(lambda: waits().endswith("PartitionDown"), "it does not say that the partition is down")
        partition.run("scontrol", "hold", store.trials(id)[0].last.job_id)
        partition.run("scontrol", "update", "PartitionName=one", "State=UP")
        drive(
            lambda: re.fullmatch(r"queued since .* UTC: .*JobHeld(Admin|User)", waits()), "it does not say who holds it"
        )
        drive(lambda: store.campaign(id).state is CampaignState.PAUSED, "it is not withdrawn")
        reason = store.campaign(id).reason
        assert re.fullmatch(
            r"trial 0 waited longer than its queue limit of 6 s: .*JobHeld\w+; resume it to go on", reason
        )
        service.resume(id)
        drive(lambda: store.campaign(id).state is CampaignState.COMPLETED, "it does not end")
        (trial,) = store.trials(id)
        service.close()
    withdrawn, measured = trial.attempts
    assert (withdrawn.outcome.verdict, withdrawn.outcome.cause) == (Verdict.CANCELLED, Cause.QUEUE_LIMIT)
    assert (withdrawn.started_at, withdrawn.running_s) == (None, 0.0)
    assert measured.outcome.verdict is Verdict.OK
    assert {job: state for job, _, state in partition.jobs() if job == withdrawn.job_id} == {
        withdrawn.job_id: "CANCELLED"
    }


@pytest.mark.long
def test_a_job_whose_node_never_starts_it_is_withdrawn_by_the_queue_limit_and_held_no_devices(
    slurm_of_ones_own, tmp_path
):
    slurm_of_ones_own.kill_node("n0")  # Slurm calls the job running
    site = Driven(tmp_path)
    site.write(document(site, trials=1, queue_limit_s=6.0))
    said = site.finish(site.start("run", "spec.yaml"), code=3)
    told = r"is paused: trial 0 waited longer than its queue limit of 6 s: its nodes have not started it yet: n0"
    assert re.search(told, said)
    (attempt,) = site.trials()[0].attempts
    assert (attempt.outcome.cause, attempt.started_at, attempt.running_s) == (Cause.QUEUE_LIMIT, None, 0.0)
