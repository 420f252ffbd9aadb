"""What a job asks of a Ray cluster, why it waits, and what becomes of it, judged without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshtune.runners.base import Cause, JobSpec, JobState, Start
from meshtune.runners.schedulers.ray.job import (
    JobRun,
    PlacementRequest,
    RayJob,
    RayNode,
    ranks_of,
    request_of,
    why_waiting,
)


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
