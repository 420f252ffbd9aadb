"""What each state of a Job and its pods means for a trial: documents as the API's types and the kubelet write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshtune.runners.base import Cause, JobSpec, JobState
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note
from meshtune.runners.schedulers.kubernetes.statuses import _DISRUPTIONS, INDEX, SeenJob, status_of

SPEC = JobSpec(name="job", command=("x",), directory=Path("/x"), nodes=2, devices_per_node=1, time_limit_s=60.0)
T0 = "2026-11-24T03:00:00Z"
FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached its limit"}


def job(*conditions: dict[str, str], suspend: bool = False, **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": "job", **metadata}, "spec": {"suspend": suspend}, "status": {"conditions": conditions}}


def pod(index: int = 0, phase: str = "Pending", **state: Any) -> dict[str, Any]:
    """conditions, reason, message: of the pod's status; running, waiting, terminated: of its container."""
    of_pod = {name: state.pop(name) for name in ("conditions", "reason", "message") if name in state}
    containers = [{"name": "job", "state": state}] if state else []
    return {
        "metadata": {"name": f"job-{index}-abcde", "labels": {INDEX: str(index)}},
        "spec": {"nodeName": f"n{index}"},
        "status": {"phase": phase, "containerStatuses": containers, **of_pod},
    }


def note(rank: int = 0, end: End | None = None, code: int | None = None) -> Note:
    return Note(
        rank=rank, host=f"n{rank}", started_at=10.0, finished_at=end and 20.0, elapsed_s=10.0, end=end, exit_code=code
    )


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "message": message, "startedAt": T0, "finishedAt": T0}


def look(document: dict[str, Any], *pods: dict[str, Any], notes: tuple[Note, ...] = (), cancelled=False, waits=""):
    return status_of(SPEC, SeenJob(job=document, pods=pods, waits=waits), notes, cancel_asked=cancelled)


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/4 nodes are available",
}


@pytest.mark.parametrize(
    ("document", "pods", "reason"),
    [
        (job(suspend=True), (), "Kueue: insufficient quota"),
        (job(), (), "Kueue: insufficient quota"),
        (job(), (pod(conditions=[UNSCHEDULABLE]),), "Unschedulable: 0/4 nodes are available"),
        (
            job(),
            (pod(waiting={"reason": "ContainerCreating"}),),
            "ContainerCreating: Kueue: insufficient quota",
        ),
        (job(), (pod(waiting={"reason": "ErrImagePull", "message": "i/o timeout"}),), "ErrImagePull: i/o timeout"),
        (job(deletionTimestamp=T0), (pod(),), "is being deleted"),
    ],
)
def test_a_job_that_waits_is_queued_with_the_words_of_who_lets_it_wait(document, pods, reason):
    status = look(document, *pods, waits="Kueue: insufficient quota")
    assert (status.state, status.reason) == (JobState.QUEUED, reason)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("InvalidImageName", "couldn't parse image reference"),
        ("CreateContainerConfigError", 'secret "x" not found'),
        ("ErrImagePull", "rpc error: code = NotFound desc = failed to pull: docker.io/library/x:1: not found"),
        ("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: pull access denied, repository does not exist'),
    ],
)
def test_an_image_that_cannot_be_had_fails_the_job_as_a_mistake_of_the_user(reason, message):
    status = look(job(), pod(running={"startedAt": T0}), pod(1, waiting={"reason": reason, "message": message}))
    assert (status.state, status.cause) == (JobState.FAILED, Cause.USER_BUG)
    assert status.reason == f"{reason}: {message}"


def test_a_job_runs_once_one_of_its_containers_does():
    unscheduled = pod(1, conditions=[UNSCHEDULABLE])
    status = look(job(), pod(phase="Running", running={"startedAt": T0}), unscheduled)
    assert (status.state, status.reason) == (JobState.RUNNING, "Unschedulable: 0/4 nodes are available")
    assert status.started_at == 1795489200.0


def test_a_complete_job_has_succeeded_even_where_its_notes_were_lost():
    complete = job({"type": "Complete", "status": "True"})
    status = look(complete, pod(phase="Succeeded", terminated=ended(0)), notes=())
    assert (status.state, status.exit_code, status.elapsed_s) == (JobState.SUCCEEDED, 0, 0.0)


def test_the_notes_of_ranks_beat_the_exit_codes_of_pods():
    notes = (note(0, End.ITSELF, 7), note(1, End.TOLD))
    status = look(job(FAILED), pod(phase="Failed", terminated=ended(1)), notes=notes)
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, 7, "rank 0 exited with code 7")
    assert status.nodes == ("n0", "n1")
    late = look(
        job(FAILED), pod(phase="Failed", terminated=ended(1)), notes=(note(0, End.TIME_LIMIT), note(1, End.TOLD))
    )
    assert late.state is JobState.TIMED_OUT


@pytest.mark.parametrize("notes", [(), (note(0, End.ITSELF, -9), note(1, End.TOLD))])
def test_a_pod_without_memory_is_an_oom_with_or_without_notes(notes):
    status = look(job(FAILED), pod(phase="Failed", terminated=ended(137, "OOMKilled")), notes=notes)
    assert (status.state, status.cause, status.exit_code) == (JobState.FAILED, Cause.OOM, -9)
    assert "out of host memory" in status.reason


@pytest.mark.parametrize("reason", [*_DISRUPTIONS, "SomethingNew"])
def test_a_disrupted_pod_is_lost_whatever_its_peers_noted(reason):
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why it was"}
    lost = pod(1, phase="Failed", terminated=ended(143), conditions=[target])
    status = look(job(FAILED), pod(phase="Failed", terminated=ended(1)), lost, notes=(note(0, End.ITSELF, 1),))
    cause, words = _DISRUPTIONS.get(reason, (Cause.PREEMPTION, "disrupted (SomethingNew)"))
    assert (status.state, status.cause) == (JobState.LOST, cause)
    assert status.reason == f"pod 1 on n1 was taken away: {words}: why it was"
    assert status.failed_nodes == (("n1",) if cause is Cause.NODE_FAULT else ())


@pytest.mark.parametrize(
    "reason", ["UnexpectedAdmissionError", "OutOfcpu", "Outofnvidia.com/gpu", "NodeLost", "Evicted"]
)
def test_a_pod_that_its_node_would_not_have_is_lost_on_that_node(reason):
    status = look(job(FAILED), pod(phase="Failed", reason=reason, message="no"))
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n0",))


def test_a_pod_beyond_its_own_limit_was_late_or_its_node_could_not_start_it():
    late = {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}
    status = look(job(FAILED), pod(phase="Failed", terminated=ended(137), **late), notes=(note(0),))
    assert status.state is JobState.TIMED_OUT
    pulling = {"reason": "ImagePullBackOff", "message": "i/o timeout"}
    status = look(job(FAILED), pod(phase="Failed", waiting=pulling, **late))
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n0",))
    assert status.reason == "pod 0 did not start on n0: ImagePullBackOff i/o timeout"


def test_a_job_that_kueue_suspends_after_its_start_was_preempted():
    status = look(job(suspend=True), notes=(note(0), note(1, End.TOLD)))
    assert (status.state, status.cause) == (JobState.LOST, Cause.PREEMPTION)
    told = look(job(FAILED), pod(phase="Failed", terminated=ended(1)), notes=(note(0, End.TOLD), note(1, End.TOLD)))
    again = look(job(FAILED), pod(phase="Failed", terminated=ended(75)), notes=(note(0, End.ITSELF, 1),))
    assert [told.cause, again.cause] == [Cause.PREEMPTION] * 2
    assert again.reason == "its pods were taken away, and started a second time"


def test_a_pod_that_cannot_start_its_ranks_says_the_last_line_of_its_log():
    said = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'meshtune'\n"
    status = look(job(FAILED), pod(phase="Failed", terminated=ended(1, "Error", said)))
    told = "pod 0 ended with Error, exit code 1: ModuleNotFoundError: No module named 'meshtune'"
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, 1, told)


def test_a_job_that_is_gone_is_lost_unless_we_deleted_it_or_its_notes_tell():
    def gone(*notes: Note, cancelled: bool):
        return status_of(SPEC, None, notes, cancel_asked=cancelled).state

    well = (note(0, End.ITSELF, 0), note(1, End.ITSELF, 0))
    assert gone(cancelled=False) is JobState.LOST
    assert gone(cancelled=True) is JobState.CANCELLED
    assert gone(*well, cancelled=True) is JobState.SUCCEEDED
    assert look(job(FAILED)).state is JobState.LOST  # its pods were deleted


def test_a_job_that_is_to_be_cancelled_is_not_final_before_it_is_gone():
    assert look(job(suspend=True), notes=(note(0),), cancelled=True).state is JobState.RUNNING
    assert look(job(FAILED), pod(phase="Failed", terminated=ended(3)), cancelled=True).state is JobState.FAILED


def test_a_job_on_a_node_that_does_not_answer_is_lost_though_its_pod_cannot_end():
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "deleting"}
    status = look(job(), pod(phase="Running", running={"startedAt": T0}, conditions=[target]), notes=(note(0),))
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n0",))
    drained = {**target, "reason": "EvictionByEvictionAPI"}
    status = look(job(), pod(phase="Running", running={"startedAt": T0}, conditions=[drained]), notes=(note(0),))
    assert status.state is JobState.RUNNING
