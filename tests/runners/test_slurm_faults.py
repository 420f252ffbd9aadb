"""On a real Slurm: nodes that are drained, a launcher that is killed, a job that an administrator requeues, setup that
fails. Each is told as it was, and none is blamed on a node or a plan that had no part in it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from jobs import processes_where, wait_for
from slurm_jobs import SlurmLaboratory

from meshtune.runners.base import Cause, JobState
from meshtune.runners.outcome import Verdict
from meshtune.runners.registry import create_workload

FOREVER = "touch started-$RANK; exec sleep 300"


@pytest.fixture
def lab(slurm, tmp_path):
    laboratory = SlurmLaboratory(tmp_path, slurm)
    yield laboratory
    laboratory.close()


@pytest.fixture
def drained(slurm):
    """Drains nodes of the cluster until the test is over."""
    nodes: list[str] = []

    def drain(node: str) -> None:
        nodes.append(node)
        slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")

    yield drain
    for node in nodes:
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
    slurm.wait_idle()


def outcome(lab, name: str, status):
    return create_workload("torch", {}).read(lab.folder / "work" / name, status)


@pytest.mark.long
def test_drained_nodes_are_no_room_for_a_job_that_keeps_away_from_others(lab, drained):
    for node in ("n1", "n2"):
        drained(node)
    lab.runner = lab.wide()
    status = lab.wait(lab.submit("job", "true", nodes=2, avoid=("n0",)), limit_s=20)
    assert (status.state, status.nodes) == (JobState.SUCCEEDED, ("n0", "n3"))


@pytest.mark.long
def test_a_waiting_job_may_use_the_nodes_it_kept_away_from_once_others_are_drained(lab, drained):
    # Held by a batch script alone: the ranks of a step may fail to start on a busy machine, and would free the nodes.
    hold = ("--partition=main", "--nodelist=n1,n2", "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
    holder = lab.place.run("sbatch", "--parsable", *hold).strip()
    lab.place.wait_job(holder, "RUNNING")
    sent_by = lab.open(partition="main", nodes=4, exclude=("n3",))
    id = sent_by.submit(lab.spec("job", "true", nodes=2, processes=4, avoid=("n0",)))
    number = max(int(job[0]) for job in lab.place.jobs())
    excluded = lambda: lab.place.run("scontrol", "show", "job", str(number))  # noqa: E731
    assert "ExcNodeList=n[0,3]" in excluded()
    # A runner of another campaign, with other options, looks at it.
    looking = lab.open(partition="one", poll_s=0.0)
    assert looking.poll([id])[id].state is JobState.QUEUED
    assert "ExcNodeList=n[0,3]" in excluded()
    drained("n1")
    assert looking.poll([id])[id].state is JobState.QUEUED, lab.place.jobs()
    assert "ExcNodeList=n3" in excluded()
    lab.place.run("scancel", holder)
    status = lab.wait(id, limit_s=20)
    assert (status.state, status.nodes) == (JobState.SUCCEEDED, ("n0", "n2"))


@pytest.mark.long
def test_a_launcher_that_is_killed_is_blamed_on_no_node(lab):
    lab.runner = lab.wide()
    id = lab.submit("job", FOREVER, nodes=2)
    lab.wait_file("job", "started-1")
    folder = lab.folder / "work" / "job"

    def is_srun(process: Path) -> bool:
        return (process / "comm").read_text() == "srun\n" and (process / "cwd").resolve() == folder.resolve()

    for pid in processes_where(is_srun):
        os.kill(pid, signal.SIGKILL)
    status = lab.wait(id, limit_s=60)
    assert (status.state, status.failed_nodes, status.cause) == (JobState.LOST, (), None)
    assert "its ranks had started" in status.reason


@pytest.mark.long
def test_a_job_that_an_administrator_requeues_is_lost_with_the_seconds_that_it_held_its_devices(lab):
    id = lab.submit("job", "echo ran >> count; touch started; exec sleep 300")
    lab.wait_file("job", "started")
    time.sleep(1.0)
    lab.place.run("scontrol", "update", f"jobid={id}", "requeue=1")
    lab.place.run("scontrol", "requeue", id)
    status = lab.wait(id)
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.PREEMPTION, ())
    assert "requeued" in status.reason
    assert 1.0 <= status.elapsed_s < 10.0
    # It does not come back.
    wait_for(lambda: [job[2] for job in lab.place.jobs() if job[0] == id] == ["CANCELLED"])
    assert (lab.folder / "work" / "job" / "count").read_text() == "ran\n"
    assert outcome(lab, "job", status).verdict is Verdict.LOST


def test_a_setup_line_that_fails_fails_the_trial_for_good_and_is_named(lab):
    lab.runner = lab.open(setup=("export FINE=1", "module load nosuch"))
    status = lab.wait(lab.submit("job", "touch ran"))
    assert (status.state, status.cause) == (JobState.FAILED, Cause.USER_BUG)
    assert status.reason == "setup line 2 (module load nosuch) returned 127"
    assert "module: command not found" in outcome(lab, "job", status).log_tail
    assert not (lab.folder / "work" / "job" / "ran").exists()


@pytest.mark.long
def test_what_srun_complains_of_is_told(lab):
    lab.runner = lab.open(setup=("export SLURM_DISTRIBUTION=sideways",))
    status = lab.wait(lab.submit("job", "true"))
    told = outcome(lab, "job", status)
    assert (status.state, told.verdict) == (JobState.FAILED, Verdict.CRASHED)
    assert status.reason.endswith("(NonZeroExitCode): srun: error: Invalid --distribution specification")
    assert told.log_tail == "srun: error: Invalid --distribution specification\n"
