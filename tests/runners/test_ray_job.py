"""What becomes of a job on a Ray cluster, and which it refuses, judged without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshtune.runners.base import JobSpec, JobState, Start
from meshtune.runners.failure_cause import Cause
from meshtune.runners.ray.job import JobRun, RayJob, ranks_of, refusal, shares_node


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
    for name, value in changes.items():
        setattr(ended, name, value)
    assert ended.over
    status = ended.status(9.0, 51.5)
    assert (status.state, status.reason, status.exit_code, status.cause) == (state, reason, code, cause)
    assert (status.started_at, status.finished_at, status.nodes) == (1.0, 9.0, ("n1", "n2"))
    assert status.elapsed_s == 1.5  # whatever the clock on the wall says
    assert status.failed_nodes == tuple(ended.faults)


@pytest.mark.parametrize("changes", [{"deaths": [(0, 1), (1, 1)]}, {"ending": JobState.TIMED_OUT}])
def test_a_lost_node_outdoes_what_its_peers_and_the_clock_say(changes):
    ended = replace(run(), faults={"n2": "gone"}, **changes)
    assert ended.status(9.0, 58.0).state is JobState.LOST


def test_a_job_has_nodes_to_itself_where_there_are_enough():
    assert not shares_node(job(nodes=2), [2.0, 2.0])
    assert shares_node(job(nodes=2), [4.0, 1.0])


@pytest.mark.parametrize(
    ("wanted", "capacities", "told"),
    [
        (job(per_node=4), [4.0], ""),
        (job(per_node=5), [4.0], "job needs 5 processes, but the runner has 4 slots"),
        (job(per_node=0), [4.0], "job needs 0 processes, but the runner has 4 slots"),
        (job(per_node=2, command=()), [4.0], "job has an empty command"),
        # CPU processes play several nodes; those of one node stay together.
        (job(nodes=2), [4.0], ""),
        (job(nodes=3), [4.0, 2.0], ""),
        (job(per_node=3), [2.0, 2.0], "job needs 1 nodes of 3 CPU, but Ray's nodes have 2, 2"),
        (job(nodes=2, per_node=3), [4.0, 2.0], "job needs 2 nodes of 3 CPU, but Ray's nodes have 4, 2"),
        (job(nodes=2, devices="GPU"), [2.0, 4.0], ""),
        (job(nodes=2, devices="GPU"), [8.0], "job needs 2 nodes of 2 GPU, but Ray's nodes have 8"),
        (job(nodes=2, devices="GPU"), [8.0, 1.0], "job needs 2 nodes of 2 GPU, but Ray's nodes have 8, 1"),
        (job(devices="GPU"), [0.0], "job needs 2 processes, but the runner has 0 slots"),
        (job(), [], "job needs 2 processes, but the runner has 0 slots"),
    ],
)
def test_what_no_cluster_of_these_nodes_can_run_is_refused(wanted, capacities, told):
    assert refusal(wanted, capacities) == told
