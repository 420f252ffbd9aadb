"""The Job and the Service of a trial, against the models that the official client has, and what each state of a Job and
its pods means: documents as the API's types and the kubelet write them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import cluster

from meshtune.runners.base import Cause, JobSpec, JobState
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note
from meshtune.runners.schedulers.kubernetes.manifests import User, object_name, render_job, render_service
from meshtune.runners.schedulers.kubernetes.options import KubernetesOptions, options_for
from meshtune.runners.schedulers.kubernetes.statuses import _DISRUPTIONS, INDEX, SeenJob, status_of
from meshtune.search_spaces.checks import InvalidValue

SPEC = JobSpec(
    name="c1-t3-a1",
    command=("python", "$(x)"),
    directory=Path("/shared/c1-t3-a1"),
    nodes=2,
    devices_per_node=8,
    time_limit_s=600.5,
    avoid=("bad-node", "worse"),
)
OPTIONS = KubernetesOptions(
    image="registry.example.org/train:1",
    queue="gpu-queue",
    device="amd.com/gpu",
    limits={"memory": "64Gi"},
    claims={"/shared": "team-data"},
    host_paths=("/scratch",),
    node_selector={"pool": "big"},
    tolerations=({"key": "amd.com/gpu", "operator": "Exists"},),
    service_account="trainer",
    container={"imagePullPolicy": "Always", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
    pod={"hostNetwork": True, "priorityClassName": "low"},
)


def test_the_objects_are_as_the_api_documents_them():
    pytest.importorskip("kubernetes")
    from kubernetes_lab import require_as_documented

    require_as_documented("Job", render_job(SPEC, OPTIONS, User(1000, 100)))
    require_as_documented("Service", render_service())


def test_the_objects_say_whose_they_are_by_labels_where_these_may_say_it():
    spec = replace(SPEC, labels={"owner": "ann@site", "campaign": "c1", "trial": "3"})
    job = render_job(spec, OPTIONS, User(1000, 100))
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        told = {name: value for name, value in metadata["labels"].items() if name.startswith("meshtune/")}
        assert told == {"meshtune/campaign": "c1", "meshtune/trial": "3"}
        assert metadata["annotations"]["meshtune/owner"] == "ann@site"


def test_a_job_is_a_pod_per_node_that_is_never_started_again():
    job = render_job(SPEC, OPTIONS, User(1000, 100))
    spec = job["spec"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    assert {
        name: spec[name] for name in ("parallelism", "completions", "completionMode", "backoffLimit", "suspend")
    } == {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "suspend": True,
    }
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"memory": "64Gi", "amd.com/gpu": "8"}}
    assert (pod["restartPolicy"], pod["activeDeadlineSeconds"], pod["hostNetwork"]) == ("Never", 2521, True)
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert pod["securityContext"] == {"runAsUser": 1000, "runAsGroup": 100}
    assert pod["automountServiceAccountToken"] is False
    assert [one["key"] for one in pod["tolerations"]] == [
        "amd.com/gpu",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"shm": "/dev/shm", "claim-0": "/shared", "host-0": "/scratch"}
    assert "podAntiAffinity" in pod["affinity"]
    (away,) = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [field["values"] for field in away["preference"]["matchFields"]] == [["bad-node"], ["worse"]]
    address = next(one["value"] for one in container["env"] if one["name"] == "MASTER_ADDR")
    assert address == f"{job['metadata']['name']}-0.{render_service()['metadata']['name']}"


def test_without_kueue_and_root_and_peers_nothing_is_said_of_them():
    job = render_job(replace(SPEC, nodes=1, avoid=()), KubernetesOptions(image="x"), User(0, 0))
    assert "suspend" not in job["spec"]
    assert not {"affinity", "securityContext", "nodeSelector"} & job["spec"]["template"]["spec"].keys()


@pytest.mark.parametrize("name", ["c1-t3-a1", "C1_t3.a1", "1st", "-", "x" * 200])
def test_names_are_labels_of_their_own_for_each_folder(name):
    specs = [replace(SPEC, name=name, directory=Path(folder)) for folder in ("/a", "/b")]
    first, second = map(object_name, specs)
    assert first != second
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", first)
    assert len(first) <= 46


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "image: is missing"),
        ({"image": "two words"}, "image: must name an image, not 'two words'"),
        ({"namespace": "Team"}, "namespace: must have lower-case letters"),
        ({"queue": "a/b"}, "queue: must have lower-case letters"),
        ({"claims": {"data": "c"}}, "claims: must be paths from the root on, not ['data']"),
        ({"host_paths": ["data"]}, "host_paths: must be paths from the root on"),
        ({"pod": {"containers": [], "volumes": []}}, "pod: must leave containers, volumes to the runner"),
        ({"container": {"image": "y"}}, "container: must leave image to the runner"),
        ({"call_limit_s": 0}, "call_limit_s: must be positive"),
        ({"imagee": "x"}, "imagee: is not a known key; did you mean 'image'?"),
    ],
)
def test_options_that_cannot_be_are_refused(options, problem):
    place = cluster(1, 2, "cuda")
    with pytest.raises(InvalidValue) as error:
        options_for(place, {"image": "x"} | options if options else {})
    assert problem in str(error.value)
    assert options_for(place, {"image": "x"}).device == "nvidia.com/gpu"


DOCUMENTED = JobSpec(name="job", command=("x",), directory=Path("/x"), nodes=2, devices_per_node=1, time_limit_s=60.0)
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
    return status_of(DOCUMENTED, SeenJob(job=document, pods=pods, waits=waits), notes, cancel_asked=cancelled)


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
        return status_of(DOCUMENTED, None, notes, cancel_asked=cancelled).state

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
