"""Pilots on a real Slurm: one allocation for many trials, another when it ends, and none that nobody needs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pilot_jobs import OPTIONS, PilotLaboratory
from places import cluster
from recorded_programs import Recorded
from slurm_lab import wait_for

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Refused, RunnerUnavailable
from meshtune.runners.schedulers.batch.script import CLAIM_FILE
from meshtune.runners.schedulers.slurm.allocation import note_failed
from meshtune.runners.schedulers.slurm.pilot import PilotRunner, create_pilots


@pytest.fixture
def pilots(slurm, tmp_path):
    laboratory = PilotLaboratory(tmp_path, slurm)
    try:
        yield laboratory
    finally:
        laboratory.close()


def test_one_allocation_serves_many_trials_and_is_given_back(pilots):
    pilots.runner = pilots.open(pilot_idle_s=2.0)
    ids = [pilots.submit(f"trial{number}", "echo $SLURM_JOB_ID > job", processes=2) for number in range(5)]
    assert pilots.status(ids[0]).reason.startswith("waits for ")
    for id in ids:
        assert pilots.wait(id).state is JobState.SUCCEEDED
    (pilot,) = pilots.pilots()
    assert {pilots.wait_text(id, "job").strip() for id in ids} == {pilot[0]}
    pilots.place.wait_job(pilot[0])  # nobody asked it to end
    later = pilots.submit("later", "true")
    assert pilots.wait(later).state is JobState.SUCCEEDED
    assert len(pilots.pilots()) == 2


def test_a_pilot_whose_setup_fails_is_not_sent_again(pilots):
    pilots.runner = pilots.open(setup=("true", "no_such_program --load cuda"))
    id = pilots.submit("trial", "true")
    ended = pilots.wait(id)
    assert (ended.state, ended.cause) == (JobState.FAILED, Cause.USER_BUG), ended
    assert "setup line 2 (no_such_program --load cuda) returned 127" in ended.reason
    pilots.status(id)
    assert len(pilots.pilots()) == 1
    assert pilots.wait(pilots.submit("later", "true")).state is JobState.FAILED
    assert len(pilots.pilots()) == 2


def test_a_pilot_says_for_whom_it_was_sent(pilots):
    labels = {"owner": "ann", "campaign": "demo-1a2b3c", "trial": "7"}
    pilots.runner.submit(pilots.spec("labelled", "touch started; exec sleep 300", labels=labels))
    pilots.wait_file("labelled", "started")
    ((pilot, _, _),) = pilots.pilots()
    said = pilots.place.run("squeue", "-h", "-j", pilot, "-o", "%k").strip()
    assert said == "owner=ann,campaign=demo-1a2b3c"


@pytest.mark.long
def test_of_many_allocations_the_last_three_leave_files(pilots):
    pilots.runner = pilots.open(pilot_idle_s=0.2)
    for number in range(5):
        assert pilots.wait(pilots.submit(f"trial{number}", "true")).state is JobState.SUCCEEDED
        pilots.place.wait_job(pilots.pilots()[-1][0])
    root = pilots.runner.root
    for found in (root.glob("pilot-*"), root.glob("pilots/jobs/*.json")):
        assert sorted(path.stem.rpartition("-")[2] for path in found) == ["3", "4", "5"]


@pytest.mark.long
def test_a_cancelled_allocation_loses_what_ran_and_the_next_one_runs_what_waited(pilots):
    long = pilots.submit("long", "touch started; exec sleep 300", processes=4)
    waiting = pilots.submit("waiting", "true", processes=4)
    pilots.wait_file("long", "started")
    assert pilots.status(waiting).reason == "waits for free nodes of its pilot allocation"
    (first,) = pilots.pilots()
    pilots.place.run("scancel", first[0])
    lost = pilots.wait(long)
    assert (lost.state, lost.cause) == (JobState.LOST, Cause.PREEMPTION)
    assert "pilot allocation ended" in lost.reason or "its allocation ended" in lost.reason
    assert pilots.wait(waiting).state is JobState.SUCCEEDED
    assert [job[2] for job in pilots.pilots()] == ["CANCELLED", "RUNNING"]


@pytest.mark.long
def test_no_trial_starts_that_its_allocation_would_not_outlast(pilots):
    """Of 90 s, a trial of up to 60 s (and 20 s to write) fits once."""
    pilots.runner = pilots.open(pilot_s=90.0)
    first = pilots.submit("first", "sleep 12", time_limit_s=60.0, processes=4)
    second = pilots.submit("second", "true", time_limit_s=60.0, processes=4)
    for id in (first, second):
        assert pilots.wait(id).state is JobState.SUCCEEDED
    assert len(pilots.pilots()) == 2
    with pytest.raises(Refused, match=r"pilot_s\(90\): a trial takes up to 80 s"):
        pilots.submit("longer", "true", time_limit_s=80.0)


@pytest.mark.long
def test_an_allocation_that_waits_for_nobody_leaves_the_queue(pilots):
    pilots.place.run("scontrol", "update", "PartitionName=one", "State=DOWN")
    try:
        id = pilots.submit("early", "true")
        wait_for(lambda: "PartitionDown" in pilots.status(id).reason, "no reason")
        pilots.runner.cancel(id)
        assert pilots.wait(id).state is JobState.CANCELLED
        wait_for(lambda: [job[2] for job in pilots.pilots()] == ["CANCELLED"], "the pilot waits on")
    finally:
        pilots.place.run("scontrol", "update", "PartitionName=one", "State=UP")


@pytest.mark.long
def test_a_refused_allocation_is_a_refused_trial(pilots, tmp_path):
    runner = create_pilots(tmp_path / "none", cluster(1, 2), replace(OPTIONS, partition="nosuch"))
    with pytest.raises(Refused, match=r"[Ii]nvalid partition"):
        runner.submit(pilots.spec("job", "true"))
    assert runner.find("job") is None
    pilots.place.run("scontrol", "update", "PartitionName=one", "MaxTime=5")
    try:
        told = r"needs 12 min, but partition one allows 5; a pilot lasts pilot_s\(600\)$"
        with pytest.raises(Refused, match=told):
            pilots.submit("long", "true")
    finally:
        pilots.place.run("scontrol", "update", "PartitionName=one", "MaxTime=INFINITE")


@pytest.mark.long
def test_while_the_next_allocation_is_refused_jobs_wait_say_why_and_can_be_cancelled(pilots):
    """Nothing holds up the news of jobs that ended with the last one."""
    long = pilots.submit("long", "touch started; exec sleep 300", processes=4)
    waiting = pilots.submit("waiting", "true", processes=4)
    pilots.wait_file("long", "started")
    pilots.place.run("scontrol", "update", "PartitionName=one", "MaxTime=5")
    try:
        pilots.place.run("scancel", pilots.pilots()[0][0])
        assert pilots.wait(long).cause is Cause.PREEMPTION
        assert pilots.status(waiting).state is JobState.QUEUED
        assert (pilots.runner.refusals(), pilots.runner.refusals()) == (1, 0)
        told = "needs 12 min, but partition one allows 5; a pilot lasts pilot_s(600)"
        with pytest.raises(Refused, match=r"a pilot lasts pilot_s\(600\)$"):
            pilots.submit("another", "true")
        assert pilots.status(waiting).warning.startswith("the next pilot could not be sent: ")
        assert pilots.status(waiting).reason.endswith(told)
        pilots.runner.cancel(waiting)
        assert pilots.wait(waiting).state is JobState.CANCELLED
    finally:
        pilots.place.run("scontrol", "update", "PartitionName=one", "MaxTime=INFINITE")
    assert pilots.wait(pilots.submit("later", "true")).state is JobState.SUCCEEDED
    assert [name.rpartition("-")[2] for _, name, _ in pilots.pilots()] == ["1", "2"]


@pytest.mark.long
def test_a_job_that_needs_more_nodes_than_are_left_of_its_pilot_runs_in_the_next_one_elsewhere(
    slurm_of_ones_own, tmp_path
):
    lab = PilotLaboratory(tmp_path, slurm_of_ones_own)
    try:
        lab.runner = lab.wide()
        lab.lose_node(first=False)
        lost = lab.wait(lab.submit("lost", "true", nodes=2))
        assert (lost.cause, lost.failed_nodes) == (Cause.NODE_FAULT, ("n1",))
        again = lab.wait(lab.submit("again", "true", nodes=2, avoid=lost.failed_nodes))
        assert (again.state, again.nodes) == (JobState.SUCCEEDED, ("n0", "n2"))
        assert len(lab.pilots()) == 2
    finally:
        lab.close()


@pytest.mark.long
def test_a_pilot_whose_first_node_dies_loses_what_ran_and_the_next_one_runs_what_waited(frail_slurm, tmp_path):
    """The server of the jobs dies with it."""
    lab = PilotLaboratory(tmp_path, frail_slurm)
    try:
        lab.runner = lab.wide()
        long = lab.submit("long", "touch started-$RANK; exec sleep 300", nodes=2, processes=2)
        lab.wait_file("long", "started-3")
        waiting = lab.submit("waiting", "true", nodes=2)
        frail_slurm.kill_node("n0")
        lost = lab.wait(long)
        assert (lost.state, lost.cause, lost.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n0",)), lost
        done = lab.wait(waiting)
        assert (done.state, done.nodes) == (JobState.SUCCEEDED, ("n1", "n2")), done
    finally:
        lab.close()


class RecordedPilots:
    """Pilots of two nodes, which never run, on a Slurm that says what the test wants."""

    def __init__(self, folder: Path, programs: Recorded) -> None:
        self.folder, self.calls, self.set = folder, programs.calls, programs.script
        self.set("scontrol", "echo 'PartitionName=one Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=n[0-3]'")
        for program in ("squeue", "sacct", "sinfo", "scancel"):
            self.set(program, "true")

    def open(self) -> PilotRunner:
        return create_pilots(self.folder / "pilots", cluster(2, 1), OPTIONS)

    def spec(self, name: str) -> JobSpec:
        return JobSpec(name=name, command=("true",), directory=self.folder / name, nodes=2, time_limit_s=60.0)

    def shows(self, number: int, words: str) -> None:
        """Of a pilot whose script has begun."""
        self.set("squeue", f"echo '{number}|{words}'")
        (self.open().root / f"pilot-{number}" / CLAIM_FILE).write_text(str(number))


@pytest.fixture
def shown(tmp_path, recorded) -> RecordedPilots:
    return RecordedPilots(tmp_path, recorded)


def test_a_campaign_that_knows_the_last_pilot_alone_leaves_the_next_one_of_all_to_run(shown):
    """Of campaigns that share their pilots one looks for all."""
    one, other = shown.open(), shown.open()
    shown.set("sbatch", "echo 1")
    one.submit(shown.spec("first"))
    shown.shows(1, "RUNNING|n[0-1]|1000|N/A|None")
    one.submit(shown.spec("second"))
    note_failed(one.root, ["n0"])
    shown.shows(1, "NODE_FAIL|n[0-1]|1000|1010|NodeDown")
    shown.set("sbatch", "echo 2")
    other.poll(["first"])
    shown.shows(2, "RUNNING|n[1-2]|1020|N/A|None")
    one.submit(shown.spec("third"))
    assert len(shown.calls("sbatch")) == 2
    assert shown.calls("scancel") == []


def test_a_pilot_that_was_taken_after_all_keeps_what_it_has_started_meanwhile(shown):
    """Its request had no answer, and Slurm starts it while we look for it."""
    runner = shown.open()
    shown.set("sbatch", "echo 1")
    runner.submit(shown.spec("job"))
    shown.shows(1, "NODE_FAIL|n[0-1]|1000|1010|NodeDown")
    shown.set("sbatch", "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1")
    with pytest.raises(RunnerUnavailable):
        runner.poll(["job"])
    started = json.dumps(asdict(JobStatus(state=JobState.RUNNING, started_at=1020.0)))
    status = runner.root / "jobs" / "job" / "status.json"
    shown.set("sacct", f"[ -e {status} ] || echo '{started}' > {status}")
    with pytest.raises(RunnerUnavailable):
        runner.poll(["job"])
    assert json.loads(status.read_text())["state"] == JobState.RUNNING
