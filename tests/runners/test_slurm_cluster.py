"""On a real Slurm of several nodes, jobs are sent, placed, lost and forgotten, and none is lost to us or doubled."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import wait_for
from slurm_jobs import SlurmLaboratory

from meshtune.runners.base import Cause, JobSpec, JobState, Refused, RunnerUnavailable, Start
from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.registry import create_runner, create_workload
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

slow, long = pytest.mark.slow, pytest.mark.long

FOREVER = "touch started-$RANK; exec sleep 300"


@pytest.fixture
def lab(slurm, tmp_path):
    laboratory = SlurmLaboratory(tmp_path, slurm)
    yield laboratory
    laboratory.close()


@pytest.fixture
def wide(lab):
    lab.runner = lab.wide()
    return lab


def count(lab, name: str) -> int:
    return len((lab.folder / "work" / name / "count").read_text().splitlines())


@slow
def test_every_way_to_start_finds_its_place_in_a_folder_with_an_odd_name(wide):
    odd = wide.folder / '50% "it\'s" $HOME `x` \u00e9'
    wide.runner = wide.open(partition="main", nodes=4, setup=("export FROM_SETUP='a b'",))
    script = (
        'echo "$RANK $WORLD_SIZE $LOCAL_RANK $NODE_RANK $NNODES $SLURMD_NODENAME $FROM_SETUP" > said-$RANK; env > env'
    )
    specs = [
        wide.spec(start, script, nodes=2, processes=2, start=start, directory=odd / start, env={"OWN": "1 = 2"})
        for start in Start
    ]
    ids = [wide.runner.submit(spec) for spec in specs]
    statuses = [wide.wait(id) for id in ids]
    assert [status.state for status in statuses] == [JobState.SUCCEEDED] * 3, statuses
    assert all(len(status.nodes) == 2 for status in statuses)
    said = [[path.read_text().split() for path in sorted(spec.directory.glob("said-*"))] for spec in specs]
    device, node, job = said
    assert [line[:5] for line in device] == [[str(rank), "4", str(rank % 2), str(rank // 2), "2"] for rank in range(4)]
    assert [line[:5] for line in node] == [["0", "2", "0", "0", "2"], ["1", "2", "0", "1", "2"]]
    assert [line[:5] for line in job] == [["0", "1", "0", "0", "2"]]
    assert [line[5] for line in device] == [statuses[0].nodes[rank // 2] for rank in range(4)]
    assert all(line[6:] == ["a", "b"] for lines in said for line in lines)
    for spec in specs:
        seen = dict(line.split("=", 1) for line in (spec.directory / "env").read_text().splitlines() if "=" in line)
        assert seen["OWN"] == "1 = 2"
        assert seen["MASTER_ADDR"].startswith("127.0.1.")
        assert 20_000 <= int(seen["MASTER_PORT"]) < 32_000
        assert "SLURM_GET_USER_ENV" not in seen  # nobody's login environment was loaded


@slow
def test_ranks_of_a_node_are_consecutive_where_slurm_deals_tasks_out_in_turn(wide):
    wide.runner = wide.open(partition="main", nodes=4, extra_lines=("#SBATCH --distribution=cyclic",))
    script = 'echo "$RANK $LOCAL_RANK $NODE_RANK $SLURM_LOCALID $SLURMD_NODENAME $SLURM_PROCID" > said-$RANK'
    spec = wide.spec("cyclic", script, nodes=2, processes=2)
    status = wide.wait(wide.runner.submit(spec))
    assert status.state is JobState.SUCCEEDED
    said = [(spec.directory / f"said-{rank}").read_text().split() for rank in range(4)]
    places = [[str(rank), str(rank % 2), str(rank // 2)] for rank in range(4)]
    assert [line[:3] for line in said] == places
    assert [line[3:5] for line in said] == [[str(rank % 2), status.nodes[rank // 2]] for rank in range(4)]
    assert [line[5] for line in said] == ["0", "2", "1", "3"]


@pytest.mark.slow
def test_devices_are_the_schedulers_and_not_the_submitters(wide, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    device = DeviceSpec(name="gpu", kind=DeviceKind.CUDA, memory_bytes=2**30, peak_flops={"float32": 1e12})
    cluster = ClusterSpec(name="c", nodes=1, devices_per_node=2, device=device)
    wide.runner = create_runner("slurm", wide.folder / "records", cluster, {"poll_s": 0.1})
    id = wide.submit("gpu", "echo $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK > seen-$RANK", processes=2)
    assert wide.wait(id).state is JobState.SUCCEEDED
    assert [(wide.folder / "work" / "gpu" / f"seen-{rank}").read_text() for rank in (0, 1)] == [
        "0,1 2\n"
    ] * 2  # of two devices and four CPUs


@long
def test_nodes_to_avoid_are_avoided_where_others_can_be_had(wide):
    first, second, third = (
        wide.submit(name, "true", nodes=nodes, avoid=avoid)
        for name, nodes, avoid in (
            ("others", 2, ("n0", "n2")),
            ("none-left", 3, ("n0", "n2")),
            ("unknown", 1, ("host-of-another-cluster",)),
        )
    )
    assert wide.wait(first).nodes == ("n1", "n3")
    assert len(wide.wait(second).nodes) == 3
    assert wide.wait(third).state is JobState.SUCCEEDED


@long
def test_what_slurm_does_not_take_is_refused_in_its_own_words(lab):
    before = len(lab.place.jobs())
    refused = {
        "invalid partition specified: nowhere": {"partition": "nowhere"},
        "Invalid feature specification": {"constraint": "teleport"},
        "Requested reservation is invalid": {"reservation": "none"},
        "job needs 2 nodes, but partition one has 1": {"nodes": 2},
    }
    for words, options in refused.items():
        runner = lab.open(**options)
        spec = lab.spec("job", "true", nodes=options.get("nodes", 1))
        with pytest.raises(Refused, match=words):
            runner.submit(spec)
        assert runner.find("job") is None
    assert len(lab.place.jobs()) == before


@long
def test_a_waiting_job_says_why_and_one_cancelled_by_hand_says_so(lab):
    id, queued = lab.submit("long", FOREVER, processes=4), lab.submit("queued", "true")
    lab.wait_file("long", "started-0")
    lab.place.run("scancel", id)
    status = lab.wait(id)
    assert (status.state, status.reason, status.nodes) == (JobState.CANCELLED, "cancelled from outside", ("n0",))
    assert lab.wait(queued).state is JobState.SUCCEEDED
    lab.place.run("scontrol", "update", "partition=one", "state=down")
    try:
        held = lab.submit("held", "true")
        wait_for(lambda: lab.status(held).reason == "waits in Slurm's queue: PartitionDown")
        assert lab.status(held).state is JobState.QUEUED
    finally:
        lab.place.run("scontrol", "update", "partition=one", "state=up")
    assert lab.wait(held).state is JobState.SUCCEEDED


@slow
def test_a_restarted_controller_loses_nothing(lab):
    runner = lab.open(call_limit_s=1.0)
    id = lab.submit("long", "echo ran >> count; touch started; while [ ! -e go ]; do sleep 0.05; done; exit 4")
    lab.wait_file("long", "started")
    lab.place.stop_controller()
    try:
        for attempt in (lambda: runner.poll([id]), lambda: runner.submit(lab.spec("next", "true"))):
            with pytest.raises(RunnerUnavailable, match="did not answer within 1 s"):
                attempt()
        assert runner.find("long") == id
        with pytest.raises(RunnerUnavailable):
            runner.cancel(lab.runner.find("long"))
    finally:
        lab.place.restart_controller()
    lab.runner = lab.open()
    assert lab.status(id).state is JobState.RUNNING
    assert lab.runner.find("next") is None
    (lab.folder / "work" / "long" / "go").touch()
    assert lab.wait(id).exit_code == 4
    assert lab.wait(lab.submit("next", "true")).state is JobState.SUCCEEDED
    assert count(lab, "long") == 1


def shim(lab, monkeypatch, text: str) -> None:
    """A program called sbatch that stands before the real one."""
    folder = lab.folder / "shims"
    folder.mkdir(exist_ok=True)
    (folder / "sbatch").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@long
def test_a_request_that_arrives_after_it_was_sent_again_ends_at_once(lab, monkeypatch):
    hasty = lab.open(call_limit_s=4.0)
    path, sent_again = os.environ["PATH"], lab.folder / "sent-again"
    late = f'(PATH="{path}"; while [ ! -e {sent_again} ]; do sleep 0.1; done; sbatch "$@") </dev/null >/dev/null 2>&1'
    # Out of reach of whoever ends the command that did not answer, as what is under way to the controller is.
    shim(lab, monkeypatch, f"setsid sh -c '{late} &' sh \"$@\"; exec sleep 30")
    spec = lab.spec("twice", "echo ran >> count; sleep 1")
    with pytest.raises(RunnerUnavailable, match=r"^twice may not have been sent: sbatch did not answer within 4 s$"):
        hasty.submit(spec)
    monkeypatch.setenv("PATH", path)
    id = lab.runner.submit(spec)
    sent_again.touch()
    wait_for(lambda: [name for _, name, _ in lab.place.jobs()].count("twice") == 2)
    assert lab.wait(id).state is JobState.SUCCEEDED
    wait_for(lambda: all(state in ("COMPLETED", "FAILED") for _, name, state in lab.place.jobs() if name == "twice"))
    assert count(lab, "twice") == 1


@long
def test_a_dead_node_is_named_and_the_next_job_goes_elsewhere(frail_slurm, tmp_path):
    lab = SlurmLaboratory(tmp_path, frail_slurm)
    lab.runner = lab.open(partition="main", nodes=3)
    early = lab.submit("early", "exit 3")
    lost = lab.submit("lost", FOREVER, nodes=2)
    for rank in (0, 1):
        lab.wait_file("lost", f"started-{rank}")
    frail_slurm.kill_node("n1")
    status = lab.wait(lost, limit_s=60)
    assert (status.state, status.cause, status.nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n0", "n1"))
    assert (status.failed_nodes, status.reason) == (("n1",), "a node failed: n1")
    wait_for(lambda: "early" not in [name for _, name, _ in frail_slurm.jobs()])
    # Slurm has forgotten it before anybody looked; its ranks have not.
    assert (lab.status(early).exit_code, lab.status(early).reason) == (3, "rank 0 exited with code 3")
    again = lab.wait(lab.submit("again", "true", nodes=2, avoid=status.failed_nodes))
    assert (again.state, again.nodes) == (JobState.SUCCEEDED, ("n0", "n2"))
    lab.close()


@long
def test_a_job_that_another_one_displaces_is_lost_by_preemption(lab):
    humble = lab.submit("humble", FOREVER, processes=4)
    lab.wait_file("humble", "started-0")
    lab.place.run("scontrol", "create", "PartitionName=proud", "Nodes=n0", "PriorityTier=9", "State=UP")
    try:
        proud = lab.open(partition="proud")
        other = proud.submit(lab.spec("proud", "true", processes=4))
        assert lab.wait(other).state is JobState.SUCCEEDED
    finally:
        lab.place.run("scontrol", "delete", "PartitionName=proud")
    status = lab.wait(humble)
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.PREEMPTION, ())
    assert status.reason == "preempted by another job"


@long
def test_the_trainer_measures_over_two_nodes(wide):
    link = LinkSpec(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    device = DeviceSpec(name="cpu", kind=DeviceKind.CPU, memory_bytes=2**31, peak_flops={"float32": 1e10})
    cluster = ClusterSpec(name="c", nodes=2, devices_per_node=1, device=device, node_link=link, network_link=link)
    model = ModelSpec(name="m", layers=2, hidden=64, heads=2, ffn=128, vocab=256, seq_len=64)
    measuring = {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 4, "profile_steps": 0}
    workload = create_workload("torch", {"measuring": measuring})
    directory = wide.folder / "work" / "trial"
    spec: JobSpec = workload.materialize("trial", model, Plan(dp=2), cluster, directory, seed=0, time_limit_s=120.0)
    assert (spec.nodes, spec.devices_per_node, spec.command[0]) == (2, 1, sys.executable)
    id = wide.runner.submit(replace(spec, env={**spec.env, "GLOO_SOCKET_IFNAME": "lo"}))
    status = wide.wait(id, limit_s=150)
    outcome = workload.read(Path(directory), status)
    assert (outcome.verdict, len(status.nodes)) == (Verdict.OK, 2), outcome
    assert read_result(directory).measurement.devices == 2
