"""What the Ray runner promises beyond the contract: on real clusters, and judged without Ray."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from ray_jobs import RayLaboratory
from ray_lab import RayLab

from meshtune.runners.base import Cause, JobSpec, JobState, RunnerUnavailable, Start
from meshtune.runners.processes.gang import log_path
from meshtune.runners.schedulers.ray.job import (
    JobRun,
    PlacementRequest,
    RayJob,
    RayNode,
    ranks_of,
    request_of,
    why_waiting,
)

slow, long = pytest.mark.slow, pytest.mark.long

FOREVER = "exec sleep 300"


def laboratory(folder: Path, cluster: RayLab) -> Iterator[RayLaboratory]:
    lab = RayLaboratory(folder, cluster)
    yield lab
    lab.close()
    lab.wait_nothing_left()


@pytest.fixture
def lab(tmp_path: Path, ray_cluster: RayLab) -> Iterator[RayLaboratory]:
    yield from laboratory(tmp_path, ray_cluster)


@pytest.fixture(scope="module")
def two_nodes(ray_cluster: RayLab, turn) -> Iterator[RayLab]:
    """A head without devices, and two nodes of 2 CPUs; one has two pretended GPUs as well."""
    with turn(fcntl.LOCK_EX):
        cluster = RayLab(cpus=0)
        cluster.add_node("n1", cpus=2, gpus=2)
        cluster.add_node("n2", cpus=2)
    with cluster:
        yield cluster


@pytest.fixture
def wide(tmp_path: Path, two_nodes: RayLab) -> Iterator[RayLaboratory]:
    yield from laboratory(tmp_path, two_nodes)


def kill(process: int) -> None:
    """One that has been idle for long enough may have ended since it was seen."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def parent_of(lab: RayLaboratory, job: str) -> int:
    return int(lab.wait_text(job, "parent").strip())


@slow
def test_jobs_of_one_shape_share_warm_agents_and_each_gets_fresh_processes(lab):
    script = "echo $PPID > parent; echo $$ > own"
    for name, idle_s in (("one", 60.0), ("two", 3.0)):
        lab.runner = lab.open(idle_s=idle_s)
        assert lab.wait(lab.submit(name, script)).state is JobState.SUCCEEDED
    assert parent_of(lab, "one") == parent_of(lab, "two")
    assert lab.wait_text("one", "own") != lab.wait_text("two", "own")


@slow
def test_the_trainer_is_imported_once_and_forked_from_then_on(lab):
    command = (sys.executable, "-m", "meshtune.runners.trainer", "--help")
    took_s = []
    for processes in (1, 2, 3):  # each has an agent of its own, which imports anew
        for name in (f"cold{processes}", f"warm{processes}"):
            status = lab.wait(lab.submit(name, "", command=command, processes=processes))
            assert status.state is JobState.SUCCEEDED
            assert "python -m meshtune.runners.trainer" in log_path(lab.folder / "work" / name, 0).read_text()
            took_s.append(status.finished_at - status.started_at)
        # Its import takes seconds, and was over before the first job was called running; one may be held up.
        if max(took_s[-2:]) < 1.0:
            return
    pytest.fail(f"in none of three pairs both were started warm: {took_s} s")


@long
def test_idle_agents_give_their_devices_back(lab):
    first = lab.open(namespace="first", idle_s=0.5)
    second = lab.open(namespace="second", idle_s=0.5)
    for name, lab.runner in (("a", first), ("b", second)):
        assert lab.wait(lab.submit(name, "true", processes=4)).state is JobState.SUCCEEDED


@long
def test_a_killed_service_loses_nothing(lab):
    script = "touch started; while [ ! -e go ]; do sleep 0.05; done; exit 4"
    service = """
import sys, time
from pathlib import Path
from meshtune.runners.base import JobSpec
from meshtune.runners.schedulers.ray.runner import RayOptions, RayRunner
address, root, directory, script = sys.argv[1:]
runner = RayRunner(Path(root), RayOptions(address=address), devices="CPU")
runner.submit(JobSpec(name="job", command=("sh", "-c", script), directory=Path(directory), time_limit_s=60))
time.sleep(300)"""
    arguments = [lab.place.address, str(lab.folder / "spool"), str(lab.folder / "work" / "job"), script]
    killed = subprocess.Popen([sys.executable, "-c", service, *arguments])
    lab.wait_file("job", "started")
    killed.kill()
    killed.wait()
    id = lab.runner.find("job")
    assert lab.status(id).state is JobState.RUNNING
    (lab.folder / "work" / "job" / "go").touch()
    assert lab.wait(id).exit_code == 4


@pytest.mark.parametrize(
    "address", [pytest.param("127.0.0.1:1", marks=slow), pytest.param("nowhere.invalid:6379", marks=long)]
)
def test_a_cluster_that_is_not_there_is_told_soon(address, lab, tmp_path):
    runner = lab.place.runner(tmp_path, address=address)
    before = time.monotonic()
    with pytest.raises(RunnerUnavailable, match=f"^Ray: {address}: "):
        runner.find("job")
    assert time.monotonic() - before < 50  # Ray itself waits a minute
    runner.close()


@long
def test_each_node_gets_its_share_of_a_job_and_the_ranks_know(wide):
    # The first node is done before the second, which is on the same machine here.
    script = "echo $NODE_RANK $LOCAL_RANK $NNODES $MASTER_ADDR $PPID > rank-$RANK.txt; sleep $NODE_RANK"
    spec = wide.spec("job", script, nodes=2, processes=2)
    status = wide.wait(wide.runner.submit(spec))
    assert (status.state, sorted(status.nodes)) == (JobState.SUCCEEDED, ["n1", "n2"])
    said = [(spec.directory / f"rank-{rank}.txt").read_text().split() for rank in range(4)]
    # Both nodes are this machine, where the processes meet at home.
    assert [words[:4] for words in said] == [[n, r, "2", "127.0.0.1"] for n in "01" for r in "01"]
    assert said[0][4] == said[1][4] != said[2][4] == said[3][4]


@long
def test_nodes_are_avoided_where_there_are_others(wide):
    for avoided, other in (("n1", "n2"), ("n2", "n1")):
        # The warm agent of the first job leaves room on the wrong node only.
        for name, processes in (("two", 2), ("one", 1)):
            id = wide.submit(f"{name}-{other}", "true", processes=processes, avoid=(avoided,))
            assert wide.wait(id).nodes == (other,)
    status = wide.wait(wide.submit("all", "true", nodes=2, processes=2, avoid=("n1",)))
    assert (status.state, sorted(status.nodes)) == (JobState.SUCCEEDED, ["n1", "n2"])


@long
def test_every_process_of_a_node_sees_all_of_the_jobs_gpus_there(wide):
    wide.runner = wide.open(devices="GPU")
    spec = wide.spec("job", "echo $CUDA_VISIBLE_DEVICES > rank-$RANK.txt", processes=2)
    assert wide.wait(wide.runner.submit(spec)).nodes == ("n1",)
    assert {(spec.directory / f"rank-{rank}.txt").read_text() for rank in range(2)} == {"0,1\n"}
    waits(wide, "big", "needs 2 x {CPU: 1, GPU: 1}, the living nodes have ", nodes=2)


def waits(lab: RayLaboratory, name: str, told: str, **changes) -> str:
    """Submit a job that waits, and says why; return its id."""
    id = lab.submit(name, "true", **changes)
    lab.wait_for(lambda: told in lab.status(id).reason)
    assert lab.status(id).state is JobState.QUEUED
    return id


@long
def test_a_small_job_starts_while_a_large_one_waits_and_gets_no_warm_agents_before_it(wide):
    wide.runner = wide.open(idle_s=60.0)
    first = wide.submit("first", "touch started; while [ ! -e go ]; do sleep 0.05; done")
    wide.wait_file("first", "started")
    large = waits(wide, "large", "waits for devices: needs 2 x {CPU: 2}, which are not free", nodes=2, processes=2)
    assert wide.wait(wide.submit("small", "true", processes=2)).state is JobState.SUCCEEDED
    assert wide.wait(wide.submit("like-first", "true")).state is JobState.SUCCEEDED
    assert wide.status(large).state is JobState.QUEUED
    (wide.folder / "work" / "first" / "go").touch()
    assert wide.wait(first).state is JobState.SUCCEEDED
    assert wide.wait(large, limit_s=20.0).state is JobState.SUCCEEDED  # idle agents would be kept for 60 s


@long
@pytest.mark.parametrize(
    "title",
    [
        pytest.param("ray::Agent", id="agent"),
        pytest.param(f"{sys.executable}\0-m\0meshtune.runners.schedulers.ray.fork_server", id="fork server"),
    ],
)
def test_a_killed_agent_loses_its_job_and_the_next_gets_another(title, wide):
    id = wide.submit("job", f"touch started; {FOREVER}", processes=2)
    wide.wait_file("job", "started")
    (node,) = wide.status(id).nodes
    for process in wide.place.processes(title):
        kill(process)
    status = wide.wait(id)
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, (node,))
    wide.wait_nothing_left()
    assert wide.wait(wide.submit("next", "true", processes=2)).state is JobState.SUCCEEDED
    for process in wide.place.processes(title):  # idle now: no job is hurt
        kill(process)
    assert wide.wait(wide.submit("last", "true", processes=2)).state is JobState.SUCCEEDED


@long
def test_a_killed_job_manager_loses_its_jobs_and_ends_them(wide):
    id = wide.submit("job", f"touch started; {FOREVER}", processes=2)
    wide.wait_file("job", "started")
    (manager,) = wide.place.processes("ray::JobManager")
    os.kill(manager, signal.SIGKILL)
    wide.wait_nothing_left()
    wide.wait_for(lambda: lost(wide, id))
    assert wide.wait(wide.submit("again", "true", processes=2)).state is JobState.SUCCEEDED


def lost(lab: RayLaboratory, id: str) -> bool:
    try:
        return lab.status(id).state is JobState.LOST
    except RunnerUnavailable:
        return False


@long
def test_a_lost_node_is_noticed_and_named_and_what_needs_it_waits_until_it_is_back(wide):
    # What a peer says of the silence comes before Ray's word, and is not believed.
    script = "touch started-$RANK; [ $NODE_RANK = 0 ] && exec sleep 300; sleep 300"
    id = wide.submit("job", script, nodes=2, processes=2)
    for rank in range(4):
        wide.wait_file("job", f"started-{rank}")
    waiting = wide.runner.submit(wide.spec("waiting", "true", nodes=2, processes=2))
    before = time.monotonic()
    wide.place.remove_node("n2")
    status = wide.wait(id)
    assert time.monotonic() - before < 60
    assert not status.reason.startswith("node n2: TimeoutError")  # by Ray's word, before our own patience has ended
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n2",))
    assert sorted(status.nodes) == ["n1", "n2"]
    wide.wait_nothing_left()
    told = "waits for nodes: needs 2 x {CPU: 2}, the living nodes have 1 x {CPU: 0}, 1 x {CPU: 2}"
    wide.wait_for(lambda: wide.status(waiting).reason == told)
    after = wide.wait(wide.submit("after", "true", processes=2))
    assert (after.state, after.nodes) == (JobState.SUCCEEDED, ("n1",))
    wide.place.add_node("n2", cpus=2)
    status = wide.wait(waiting)
    assert (status.state, sorted(status.nodes)) == (JobState.SUCCEEDED, ["n1", "n2"])


@long
def test_a_job_that_needs_more_nodes_than_there_are_has_the_autoscaler_add_them(tmp_path, ray_cluster, turn):
    with turn(fcntl.LOCK_EX):
        cluster = RayLab(cpus=0, growing=2)
    with cluster:
        lab = RayLaboratory(tmp_path, cluster)
        told = "needs 2 x {CPU: 2}, the living nodes have 1 x {CPU: 0}"
        id = waits(lab, "job", told, nodes=2, processes=2)
        status = lab.wait(id, limit_s=240.0)
        assert (status.state, len(status.nodes)) == (JobState.SUCCEEDED, 2)  # all have this machine's name
        lab.close()


def job(*, nodes: int = 1, per_node: int = 2, devices: str = "CPU", **changes) -> RayJob:
    fields = {
        "name": "job",
        "command": ("sh",),
        "directory": Path("/jobs/job"),
        "nodes": nodes,
        "devices_per_node": per_node,
        "time_limit_s": 60.0,
    }
    return RayJob(spec=JobSpec(**fields | changes), devices=devices, idle_s=30.0)


def run(**changes) -> JobRun:
    return JobRun(job(nodes=2, **changes), started_at=1.0, began=50.0, nodes=("n1", "n2"))


@pytest.mark.parametrize(
    ("start", "shares"), [(Start.DEVICE, [[0, 1], [2, 3]]), (Start.NODE, [[0], [1]]), (Start.JOB, [[0], []])]
)
def test_each_node_starts_its_share_of_the_processes(start, shares):
    spec = job(nodes=2, start=start).spec
    assert [list(ranks_of(spec, node)) for node in range(2)] == shares
    assert sum(len(share) for share in shares) == spec.processes


@pytest.mark.parametrize(
    ("changes", "state", "reason", "code", "cause"),
    [
        ({"deaths": [(0, 0), (1, 0), (2, 0), (3, 0)]}, JobState.SUCCEEDED, "", 0, None),
        ({"deaths": [(3, 0), (2, 7), (1, 5)]}, JobState.FAILED, "rank 2 exited with code 7", 7, None),
        ({"deaths": [(2, 1), (1, -9)]}, JobState.FAILED, "rank 1 was killed by SIGKILL", -9, None),
        ({"ending": JobState.TIMED_OUT}, JobState.TIMED_OUT, "ran longer than its time limit of 60 s", None, None),
        ({"ending": JobState.CANCELLED, "deaths": [(0, 1)]}, JobState.CANCELLED, "cancelled", None, None),
        ({"faults": {"n2": "gone"}}, JobState.LOST, "node n2: gone", None, Cause.NODE_FAULT),
        ({"faults": {"n1": "gone", "n2": "too"}}, JobState.LOST, "node n1: gone; node n2: too", None, Cause.NODE_FAULT),
    ],
)
def test_how_a_gang_ended(changes, state, reason, code, cause):
    ended = run()
    ended.note([(rank, code, -place) for place, (rank, code) in enumerate(changes.pop("deaths", []))], 50.0)
    for name, value in changes.items():
        setattr(ended, name, value)
    assert ended.over
    status = ended.status(9.0, 51.5)
    assert (status.state, status.reason, status.exit_code, status.cause) == (state, reason, code, cause)
    assert (status.started_at, status.finished_at, status.nodes) == (1.0, 9.0, ("n1", "n2"))
    assert status.elapsed_s == 1.5  # whatever the clock on the wall says
    assert status.failed_nodes == tuple(ended.faults)


def test_the_first_of_two_nodes_to_fail_is_blamed_whichever_tells_first():
    ended = run()
    ended.note([(2, 5, 0.1), (3, 5, 0.0)], 51.0)  # its processes noticed that a peer was gone
    ended.note([(0, 7, 0.5), (1, 5, 0.1)], 51.2)
    assert ended.status(9.0, 52.0).reason == "rank 0 exited with code 7"


@pytest.mark.parametrize("changes", [{"ends": [(51.0, 0, 1), (51.0, 1, 1)]}, {"ending": JobState.TIMED_OUT}])
def test_a_lost_node_outdoes_what_its_peers_and_the_clock_say(changes):
    ended = replace(run(), faults={"n2": "gone"}, **changes)
    assert ended.status(9.0, 58.0).state is JobState.LOST


def nodes(*counts: float, gpus: tuple[float, ...] = ()) -> list[RayNode]:
    """Nodes n1, n2 ... of so many CPUs; of 8 CPUs and so many GPUs."""
    resources = [{"CPU": count} for count in counts] + [{"CPU": 8.0, "GPU": count} for count in gpus]
    return [RayNode(f"id{number}", f"n{number}", each) for number, each in enumerate(resources, 1)]


@pytest.mark.parametrize(
    ("wanted", "living", "strategy", "avoided"),
    [
        (job(), nodes(2), "PACK", ()),
        (job(nodes=2), nodes(2, 2), "STRICT_SPREAD", ()),
        # CPU processes play several nodes on one where there are too few ...
        (job(nodes=2), nodes(4, 1), "PACK", ()),
        # ... but where that is no help either, and for GPUs, it waits for nodes.
        (job(nodes=3), nodes(4, 1), "STRICT_SPREAD", ()),
        (job(nodes=2), [], "STRICT_SPREAD", ()),
        (job(nodes=2, devices="GPU"), nodes(gpus=(4, 0)), "STRICT_SPREAD", ()),
        # Nodes are avoided only where the others are enough.
        (job(avoid=("n1",)), nodes(2, 2), "PACK", ("id1",)),
        (job(avoid=("n1",)), nodes(2, 1), "PACK", ()),
        (job(nodes=2, avoid=("n1",)), nodes(2, 4), "STRICT_SPREAD", ()),
        (job(nodes=2, avoid=("n1",)), nodes(2, 2, 2), "STRICT_SPREAD", ("id1",)),
    ],
)
def test_what_ray_is_asked_for_while_these_nodes_live(wanted, living, strategy, avoided):
    assert request_of(wanted, living) == PlacementRequest(strategy, avoided)


@pytest.mark.parametrize(
    ("wanted", "living", "told"),
    [
        (job(), nodes(2, 2), "waits for devices: needs 1 x {CPU: 2}, which are not free"),
        (job(nodes=2), nodes(4), "waits for devices: needs 2 x {CPU: 2}, which are not free"),
        (
            job(nodes=2, per_node=4),
            nodes(2, 0, 2),
            "waits for nodes: needs 2 x {CPU: 4}, the living nodes have 1 x {CPU: 0}, 2 x {CPU: 2}",
        ),
        (
            job(nodes=2, devices="GPU"),
            nodes(gpus=(8,)),
            "waits for nodes: needs 2 x {CPU: 2, GPU: 2}, the living nodes have 1 x {CPU: 8, GPU: 8}",
        ),
        (job(), [], "waits for nodes: needs 1 x {CPU: 2}, the living nodes have nothing"),
    ],
)
def test_why_a_job_waits_is_told_with_the_numbers(wanted, living, told):
    assert why_waiting(wanted, living) == told
