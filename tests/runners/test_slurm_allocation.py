"""Inside one allocation: what it is read from, how a step is started, and when it has no time or node left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from allocation_jobs import AllocationLaboratory
from jobs import processes_where
from places import cluster

from meshtune.runners.base import Cause, InvalidJob, JobSpec, JobState, NoTimeLeft, Refused, Start
from meshtune.runners.schedulers.slurm.allocation import (
    Allocation,
    AllocationRunner,
    create_steps,
    read_allocation,
    render_step,
)
from meshtune.runners.schedulers.slurm.script import SlurmOptions
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import DeviceKind

ALLOCATION = Allocation(id="7", nodes=3, devices_per_node=4, cpus_per_node=16)
FACTS = "allocation=7 cpus_on_node=16\n"


def job(**changes) -> JobSpec:
    fields = {"name": "job", "command": ("train",), "directory": Path("/work"), "time_limit_s": 60.0}
    return JobSpec(**fields | {"nodes": 2, "devices_per_node": 4} | changes)


@pytest.mark.parametrize(
    ("cpus", "per_device", "nodes", "devices", "least"),
    [("4(x3)", None, 3, 4, 4), ("8(x2),4", 2, 3, 2, 4), ("16", 4, 1, 4, 16)],
)
def test_an_allocation_is_read_from_slurms_variables(cpus, per_device, nodes, devices, least):
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": cpus}
    found = read_allocation(environment, cluster(1, 1), per_device)
    assert found == Allocation(id="7", nodes=nodes, devices_per_node=devices, cpus_per_node=least)


def test_the_gpus_of_a_node_are_slurms_or_else_the_specs():
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "64(x2)"}
    gpus = cluster(2, 4, DeviceKind.CUDA)
    assert read_allocation(environment, gpus, 1).devices_per_node == 4
    assert read_allocation({**environment, "SLURM_GPUS_ON_NODE": "8"}, gpus, 1).devices_per_node == 8


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8"}, r"nodes\(1\) of allocation 7 are too few for the 2"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}, r"devices_per_node\(2\) .* too few for the 4"),
    ],
)
def test_an_allocation_that_cannot_hold_a_trial_is_told(environment, message, monkeypatch, tmp_path):
    for name in ("SLURM_JOB_ID", "SLURM_JOB_CPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidValue, match=message):
        create_steps(tmp_path, cluster(2, 4), SlurmOptions())


def test_a_step_asks_for_its_part_of_the_allocation_alone():
    options = SlurmOptions(gres="gpu", cpus_per_device=2, setup=("module load cuda",))
    lines = render_step(job(avoid=("n2",)), options, ALLOCATION, FACTS).splitlines()
    assert "module load cuda" in lines
    assert next(line for line in lines if line.startswith("exec")).startswith(
        'exec srun --jobid="$allocation" $([ "$cpus_on_node" -lt 4 ] && echo --overcommit) '
        "${keep_away:+--exclude=$keep_away} --cpus-per-task=$((2 * 4 / 4)) "
        "--job-name=job --exact --input=none --nodes=2 --ntasks=8 --ntasks-per-node=4 "
        "--time=3 --chdir=/work --export=ALL --kill-on-bad-exit=1 --wait=0 --mem=0 --gres=gpu:4 bash -c "
    )
    assert lines[-1].endswith("-m meshtune.runners.schedulers.batch.launch_wrapper")


def started(options: SlurmOptions, cpus_on_node: int) -> str:
    """The words of the step's srun, as the script's shell makes them."""
    script = render_step(job(), options, ALLOCATION, f"allocation=7 cpus_on_node={cpus_on_node}\n")
    shown = script.replace("exec srun", "echo srun")
    return subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout


def test_a_device_has_its_share_of_the_allocations_cpus_unless_the_options_say_more():
    for options, cpus in (
        (SlurmOptions(gres="gpu"), 4),
        (SlurmOptions(gres=""), 4),
        (SlurmOptions(cpus_per_device=3), 3),
    ):
        assert f"--jobid=7 --cpus-per-task={cpus} " in started(options, 16)


def test_steps_share_cpus_where_the_allocation_has_fewer_than_devices():
    assert " --overcommit --cpus-per-task=1 " in started(SlurmOptions(gres="gpu"), 1)
    assert " --overcommit " not in started(SlurmOptions(gres="gpu"), 16)


def test_what_does_not_fit_the_allocation_is_refused(tmp_path):
    runner = AllocationRunner(tmp_path, SlurmOptions(), ALLOCATION)
    for changes, error, message in (
        ({"nodes": 4}, Refused, "needs 4 nodes, but the allocation has 3"),
        ({"devices_per_node": 5}, Refused, "needs 5 devices on a node, but the allocation has 4"),
        ({"start": Start.JOB}, InvalidJob, "launches by itself"),
    ):
        with pytest.raises(error, match=message):
            runner.submit(job(**changes))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def inside(slurm, tmp_path):
    laboratory = AllocationLaboratory(tmp_path, slurm)
    try:
        yield laboratory
    finally:
        laboratory.close()


@pytest.mark.long
@pytest.mark.slurm
def test_what_a_site_says_before_and_after_squeues_answer_is_no_answer(inside, tmp_path, monkeypatch):
    real, wrapper = shutil.which("squeue"), tmp_path / "bin" / "squeue"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "hello|you"\n{real} "$@"\necho "see you|soon"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    assert inside.wait(inside.submit("job", "true", avoid=("n9",))).state is JobState.SUCCEEDED


@pytest.mark.long
@pytest.mark.slurm
def test_a_trial_that_would_outlast_the_allocation_is_not_started(inside):
    with pytest.raises(NoTimeLeft, match=r"ends in 3[0-9]{3} s, and a trial takes up to 3600 s"):
        inside.submit("late", "true", time_limit_s=3600.0)
    assert inside.runner.find("late") is None
    assert not (inside.folder / "work" / "late").exists()
    inside.wait(inside.submit("early", "true", time_limit_s=60.0))


@pytest.mark.long
@pytest.mark.slurm
def test_a_step_whose_srun_is_killed_is_blamed_on_no_node_and_leaves_nothing(inside):
    id = inside.submit("job", "touch started-$RANK; exec sleep 300", processes=2)
    inside.wait_file("job", "started-1")
    folder = (inside.folder / "work" / "job").resolve()
    for pid in processes_where(
        lambda process: (process / "comm").read_text() == "srun\n" and (process / "cwd").resolve() == folder
    ):
        os.kill(pid, signal.SIGKILL)
    status = inside.wait(id)
    assert (status.state, status.failed_nodes, status.cause) == (JobState.LOST, (), None)
    assert status.reason == "its srun ended before its ranks, whose nodes answer"
    inside.wait_nothing_left(20.0)


@pytest.mark.long
@pytest.mark.slurm
def test_the_end_of_the_allocation_loses_what_runs_and_the_next_one_knows_nothing_of_it(inside):
    script = "touch started-$RANK; exec sleep 300"
    id = inside.submit("long", script, processes=4)
    inside.wait_file("long", "started-1")
    waiting = inside.submit("waiting", "true", processes=4)
    inside.place.run("scancel", inside.runner._allocation.id)
    status = inside.wait(id)
    waited = inside.wait(waiting)  # the local server starts it, and srun finds that its allocation has expired
    assert (waited.state, waited.cause, waited.reason) == (JobState.LOST, Cause.PREEMPTION, "its allocation ended")
    with pytest.raises(NoTimeLeft, match=r"^allocation [0-9]+ is over$"):
        inside.submit("late", "true")
    assert (status.state, status.cause, status.nodes) == (JobState.LOST, Cause.PREEMPTION, ("n0",))
    assert status.reason == "its allocation ended"
    inside.allocations.clear()
    later = inside.open()
    assert later.find("long") is None
    assert later.poll([id])[id].state is JobState.LOST
    assert "earlier allocation" in later.poll([id])[id].reason


@pytest.mark.long
@pytest.mark.slurm
def test_a_job_that_needs_more_nodes_than_are_left_of_the_allocation_waits_for_another_one(slurm_of_ones_own, tmp_path):
    """n2 is dead, and Slurm has not noticed: each step there would be lost."""
    lab = AllocationLaboratory(tmp_path, slurm_of_ones_own)
    try:
        lab.runner = lab.wide()
        lab.lose_node(first=False)
        assert lab.wait(lab.submit("lost", "true", nodes=2)).failed_nodes == ("n2",)
        lab.runner = lab.wide()  # another process finds the same
        with pytest.raises(NoTimeLeft, match=r"^allocation 2 has 2 nodes, of which failed: n2; a trial takes 2$"):
            lab.submit("again", "true", nodes=2)
        assert lab.wait(lab.submit("narrow", "true")).nodes == ("n1",)
    finally:
        lab.close()
