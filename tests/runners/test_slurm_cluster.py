"""On a real Slurm of several nodes, jobs are sent, placed, lost and forgotten, and none is lost to us or doubled. What
goes wrong is told as it was, and blamed on no node or plan that had no part in it; each part of the launch template
arrives where it belongs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from allocation_jobs import AllocationLaboratory
from jobs import processes_where, wait_for
from places import cluster
from slurm_jobs import SlurmLaboratory
from slurm_lab import SlurmLab

from meshtune.runners.base import Cause, JobSpec, JobState, Refused, RunnerUnavailable, Start
from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.registry import create_runner, create_workload
from meshtune.search_spaces.cluster import LinkSpec
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
    wide.runner = create_runner("slurm", wide.folder / "records", cluster(1, 2, "cuda"), {"poll_s": 0.1})
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
def test_a_job_says_whose_it_is_unless_the_site_has_another_use_for_the_comment(lab):
    labels = {"owner": "ann@site", "campaign": "demo-1a2b3c", "trial": "7"}
    own = lab.open(extra_lines=("#SBATCH --comment=project-42",))
    ids = [runner.submit(lab.spec(name, "true", labels=labels)) for name, runner in (("job", lab.runner), ("own", own))]
    said = [lab.place.run("squeue", "-h", "--states=all", "-j", id, "-o", "%k").strip() for id in ids]
    assert said == ["owner=ann@site,campaign=demo-1a2b3c,trial=7", "project-42"]


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


@slow
def test_a_script_that_a_dying_nodes_daemon_was_about_to_start_dies_too(slurm_of_ones_own):
    environment = {**os.environ, "SLURMD_NODENAME": "n1"}
    script = subprocess.Popen(["sleep", "10"], env=environment)
    slurm_of_ones_own.kill_node("n0")
    assert script.poll() is None
    slurm_of_ones_own.kill_node("n1")
    assert script.wait(20) == -signal.SIGKILL


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
def test_a_job_that_slurm_puts_back_since_its_first_node_is_dead_is_lost_and_never_ran(slurm_of_ones_own, tmp_path):
    """Before Slurm notices, which takes minutes: it starts the job once more in spite of --no-requeue."""
    lab = SlurmLaboratory(tmp_path, slurm_of_ones_own)
    lab.runner = lab.open(partition="main", nodes=3)
    slurm_of_ones_own.kill_node("n0")
    id = lab.submit("job", "touch ran")
    seen = []
    wait_for(lambda: seen.append(lab.status(id)) or seen[-1].state.final)
    assert {status.state for status in seen[:-1]} == {JobState.QUEUED}
    assert "its nodes have not started it yet: n0" in {status.reason for status in seen}
    assert (seen[-1].state, seen[-1].cause, seen[-1].failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n0",))
    assert seen[-1].started_at is None
    again = lab.wait(lab.submit("again", "true", avoid=seen[-1].failed_nodes))
    assert (again.state, again.nodes) == (JobState.SUCCEEDED, ("n1",))
    assert not lab.ran("job")
    lab.close()


@long
def test_a_node_that_its_prolog_finds_sick_is_blamed_and_the_job_lost(slurm_cluster, monkeypatch, tmp_path):
    """Slurm drains the node, and cancels what may not be requeued."""
    with SlurmLab(nodes=2, prolog='#!/bin/sh\n[ "$SLURMD_NODENAME" != n0 ]\n') as place:
        monkeypatch.setenv("SLURM_CONF", place.environment["SLURM_CONF"])
        lab = SlurmLaboratory(tmp_path, place)
        lab.runner = lab.open(partition="main", nodes=2)
        lost = lab.wait(lab.submit("job", "touch ran", nodes=2))
        assert (lost.state, lost.cause, lost.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n0",)), lost
        again = lab.wait(lab.submit("again", "true", avoid=lost.failed_nodes))
        assert (again.state, again.nodes, lab.ran("job")) == (JobState.SUCCEEDED, ("n1",), False)
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
    place = cluster(2, 1, link=link, memory_bytes=2**31, peak_flops={"float32": 1e10})
    model = ModelSpec(name="m", layers=2, hidden=64, heads=2, ffn=128, vocab=256, seq_len=64)
    measuring = {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 4, "profile_steps": 0}
    workload = create_workload("torch", {"measuring": measuring})
    directory = wide.folder / "work" / "trial"
    spec: JobSpec = workload.materialize(
        JobRequest("trial", model, Plan(dp=2), place, directory, seed=0, time_limit_s=120.0)
    )
    assert (spec.nodes, spec.devices_per_node, spec.command[0]) == (2, 1, sys.executable)
    id = wide.runner.submit(replace(spec, env={**spec.env, "GLOO_SOCKET_IFNAME": "lo"}))
    status = wide.wait(id, limit_s=150)
    outcome = workload.read(Path(directory), status)
    assert (outcome.verdict, len(status.nodes)) == (Verdict.OK, 2), outcome
    assert read_result(directory).measurement.devices == 2


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


@pytest.mark.parametrize("steps", [False, True], ids=["job", "step of an allocation"])
@slow
def test_a_rank_that_never_reported_makes_a_measurement_suspect(slurm, tmp_path, steps):
    laboratory = AllocationLaboratory(tmp_path, slurm) if steps else SlurmLaboratory(tmp_path, slurm)
    try:
        measured = {"step_times_s": [0.5, 0.6], "tokens_per_step": 512, "devices": 2}
        result = json.dumps({"version": 1, "verdict": "ok", "measurement": measured})
        both = "until [ -e result.json ]; do sleep 0.1; done; "
        script = f"if [ $RANK = 0 ]; then echo '{result}' > new; mv new result.json; fi; {both}"
        for name, more in (("whole", "true"), ("silent", "[ $RANK = 0 ] || kill -9 $PPID")):
            status = laboratory.wait(laboratory.submit(name, script + more, processes=2), limit_s=60)
            found = outcome(laboratory, name, status)
            assert found.verdict is Verdict.OK, (status, found)
            assert found.reason == ("suspect: rank 1 never reported its end" if name == "silent" else "")
    finally:
        laboratory.close()


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
    lab.runner = lab.open(setup=("export FINE=1", "unset -f module; module load nosuch"))
    status = lab.wait(lab.submit("job", "touch ran"))
    assert (status.state, status.cause) == (JobState.FAILED, Cause.USER_BUG)
    assert status.reason == "setup line 2 (unset -f module; module load nosuch) returned 127"
    told = outcome(lab, "job", status)
    assert "module: command not found" in told.log_tail
    assert told.reason.startswith(f"{status.reason}; `module` is no command in that shell: have the setup source")
    assert not (lab.folder / "work" / "job" / "ran").exists()


def test_a_script_of_ranks_that_misses_module_is_told_what_to_do(lab):
    status = lab.wait(lab.submit("job", "unset -f module; module load nosuch || exit 9"))
    assert status.state is JobState.FAILED
    assert "login_shell: true of runner slurm or pbs" in outcome(lab, "job", status).reason


@pytest.mark.parametrize("mode", ["job", "login", "allocation"])
def test_modules_are_loaded_before_the_ranks(slurm, modules, tmp_path, mode):
    """The setup's by the job's shell, and those of a program's own script, which the ranks start."""
    lab = (AllocationLaboratory if mode == "allocation" else SlurmLaboratory)(tmp_path, slurm)
    try:
        lab.runner = lab.open(setup=(f"module use {modules}", "module load greeting"), login_shell=mode == "login")
        script = "echo $GREETING > said; unset GREETING; bash launch.sh"
        launch = f"set -e\nmodule use {modules}\nml greeting\necho $GREETING >> said\n"
        spec = lab.spec("job", script)
        spec = replace(spec, files={**spec.files, "launch.sh": launch})
        status = lab.wait(lab.runner.submit(spec))
        assert status.state is JobState.SUCCEEDED, status
        assert (spec.directory / "said").read_text() == "hello\nhello\n"
    finally:
        lab.close()


@pytest.mark.long
def test_what_srun_complains_of_is_told(lab):
    lab.runner = lab.open(setup=("export SLURM_DISTRIBUTION=sideways",))
    status = lab.wait(lab.submit("job", "true"))
    told = outcome(lab, "job", status)
    assert (status.state, told.verdict) == (JobState.FAILED, Verdict.CRASHED)
    assert status.reason.endswith("(NonZeroExitCode): srun: error: Invalid --distribution specification")
    assert told.log_tail == "srun: error: Invalid --distribution specification\n"


TEARDOWN = ('echo "$LEFT" >> torn-down', "false")
TEMPLATE = {
    "setup": ("export LEFT='of the setup'", "HELD=4"),
    "teardown": TEARDOWN,
    "environment": {"FI_PROVIDER": "cxi 'quoted' $HOME", "OWN": "of the site"},
    "prefix": "env WRAPPED=$HELD",
    "extra_lines": ("#SBATCH --comment=seen-by-sbatch", "#DW jobdw capacity=10GB access_mode=striped type=scratch"),
    "mpi": "none",
    "cpu_bind": "verbose,none",
    "srun_arguments": ("--distribution=cyclic", "--epilog=/bin/true"),
}


def test_each_option_arrives_and_the_teardown_runs_after_the_ranks(lab):
    lab.runner = lab.open(partition="main", nodes=2, **TEMPLATE)
    script = (
        '[ ! -e torn-down ] || exit 9; echo "$WRAPPED|$FI_PROVIDER|$OWN|$SLURM_DISTRIBUTION|'
        '$SLURM_CPU_BIND_TYPE|$RANK" > said-$RANK; exit $((3 * RANK))'
    )
    spec = lab.spec("template", script, nodes=2, env={"OWN": "of the workload"})
    id = lab.runner.submit(spec)
    status = lab.wait(id)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3), status
    said = (spec.directory / "said-0").read_text().strip().split("|")
    assert said == ["4", "cxi 'quoted' $HOME", "of the workload", "cyclic", "none", "0"]
    wait_for(lambda: (spec.directory / "torn-down").is_file())
    assert (spec.directory / "torn-down").read_text() == "of the setup\n"
    assert "Comment=seen-by-sbatch" in lab.place.run("scontrol", "show", "job", id)


def test_a_cancelled_job_and_one_whose_setup_fails_are_torn_down_too(lab):
    lab.runner = lab.open(teardown=TEARDOWN)
    long = lab.submit("long", "touch started-$RANK; exec sleep 300")
    lab.wait_file("long", "started-0")
    lab.runner.cancel(long)
    assert lab.wait(long).state is JobState.CANCELLED
    wait_for(lambda: (lab.folder / "work" / "long" / "torn-down").is_file())
    lab.runner = lab.open(setup=("LEFT=half", "nosuch load"), teardown=TEARDOWN)
    status = lab.wait(lab.submit("unset", "touch ran"))
    assert (status.state, status.reason) == (
        JobState.FAILED,
        "setup line 2 (nosuch load) returned 127",
    )
    assert (lab.folder / "work" / "unset" / "torn-down").read_text() == "half\n"
    assert not (lab.folder / "work" / "unset" / "ran").exists()


@pytest.mark.long
def test_steps_of_an_allocation_take_the_template_too(slurm, tmp_path):
    lab = AllocationLaboratory(tmp_path, slurm)
    try:
        template = {name: value for name, value in TEMPLATE.items() if name not in ("extra_lines", "teardown")}
        lab.runner = lab.open(nodes=2, teardown=('echo "$LEFT" >> torn-down',), **template)
        script = 'echo "$WRAPPED|$FI_PROVIDER|$SLURM_DISTRIBUTION" > said; exit 3'
        status = lab.wait(lab.submit("step", script, nodes=2))
        assert (status.state, status.exit_code) == (JobState.FAILED, 3), status
        assert lab.wait_text("step", "said") == "4|cxi 'quoted' $HOME|cyclic\n"
        assert lab.wait_text("step", "torn-down") == "of the setup\n"
    finally:
        lab.close()
