"""The state of a job from what the API server shows of its Job and pods, and from the notes of its ranks; pure.

The notes beat the pods' exit codes; a disruption of a pod (eviction, preemption, a lost node) beats the notes of ranks
that failed, which may only have lost a peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus
from meshtune.runners.schedulers.batch.launch_wrapper import (
    End,
    Note,
    forgotten_status,
    noted_elapsed_s,
    noted_end,
    noted_hosts,
    noted_start,
    noted_status,
)
from meshtune.runners.schedulers.batch.script import CLAIMED_CODE

Document = Mapping[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"
# Reasons of the condition DisruptionTarget: k8s.io/api/core/v1/types.go and the pages on disruptions.
_DISRUPTIONS = {
    "PreemptionByScheduler": (Cause.PREEMPTION, "preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": (Cause.PREEMPTION, "evicted, as by a drain of its node"),
    "DeletionByTaintManager": (Cause.NODE_FAULT, "its node did not answer or would not have it any more"),
    "DeletionByPodGC": (Cause.NODE_FAULT, "its node is gone"),
    "TerminationByKubelet": (Cause.NODE_FAULT, "ended by its node"),
}
# Reasons of a failed pod by which its node, not its program, failed it.
_OF_THE_NODE = ("Evicted", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", "UnexpectedAdmissionError")
# Of a container that waits: it will not start, however long one waits.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError")
_PULLS = ("ErrImagePull", "ImagePullBackOff")
# What registries say of an image that is not there or not for us; of anything else the kubelet tries again.
_NO_IMAGE = ("not found", "manifest unknown", "does not exist", "unauthorized", "denied", "forbidden")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """What the API server shows of one job."""

    job: Document
    pods: Sequence[Document] = ()
    # Why it has no pods, or its pods no containers, in the words of Kueue and of events.
    waits: str = ""

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in self.job["metadata"]

    @property
    def suspended(self) -> bool:
        return bool(self.job["spec"].get("suspend"))

    @property
    def started(self) -> bool:
        """A container of it has run."""
        return any(read_pod(pod).started_at is not None for pod in self.pods)

    @property
    def ended(self) -> bool:
        """Kubernetes does nothing more for it."""
        return any(condition_of(self.job, kind) for kind in ("Complete", "Failed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPod:
    """The part of a pod's document that says what became of it."""

    name: str
    index: int
    node: str
    # It was alive for longer than its own limit.
    overdue: bool
    # Its container has run, or runs.
    started_at: float | None = None
    finished_at: float | None = None
    # Negative for a signal.
    exit_code: int | None = None
    # OOMKilled, Error, Completed, StartError ...; and the end of the log, where it failed.
    ended_by: str = ""
    said: str = ""
    # Why its container does not start, or why it has no node.
    waits_for: str = ""
    waits: str = ""
    # Who took it away, and the words about it.
    taken: Cause | None = None
    taken_by: str = ""


def read_pod(document: Document) -> SeenPod:
    metadata, status = document["metadata"], document.get("status") or {}
    index = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}.get(INDEX, "0")
    container: Document = next(iter(status.get("containerStatuses") or []), {})
    state = container.get("state") or {}
    waiting, running, ended = (state.get(kind) or {} for kind in ("waiting", "running", "terminated"))
    scheduled = condition_of(document, "PodScheduled", "False") or {}
    taken, taken_by = _taken(document)
    code = ended.get("exitCode")
    return SeenPod(
        name=metadata["name"],
        index=int(index) if str(index).isdecimal() else 0,
        node=(document.get("spec") or {}).get("nodeName") or "",
        overdue=status.get("phase") == "Failed" and status.get("reason") == "DeadlineExceeded",
        started_at=_seconds(running.get("startedAt") or ended.get("startedAt")),
        finished_at=_seconds(ended.get("finishedAt")),
        exit_code=code if code is None or code <= 128 else 128 - code,
        ended_by=ended.get("reason") or "",
        said=ended.get("message") or "",
        waits_for=waiting.get("reason") or scheduled.get("reason") or "",
        waits=waiting.get("message") or scheduled.get("message") or "",
        taken=taken,
        taken_by=taken_by,
    )


def _taken(document: Document) -> tuple[Cause | None, str]:
    status = document.get("status") or {}
    message, reason = status.get("message") or "", status.get("reason") or ""
    if (disrupted := condition_of(document, "DisruptionTarget")) is not None:
        kind = disrupted.get("reason") or ""
        cause, words = _DISRUPTIONS.get(kind, (Cause.PREEMPTION, f"disrupted ({kind})"))
        return cause, f"{words}: {message or disrupted.get('message') or kind}"
    if status.get("phase") == "Failed" and (reason in _OF_THE_NODE or reason.lower().startswith("outof")):
        return Cause.NODE_FAULT, f"{reason}: {message}" if message else reason
    return None, ""


def status_of(spec: JobSpec, seen: SeenJob | None, notes: Sequence[Note], *, cancel_asked: bool) -> JobStatus:
    """seen: None where there is no such Job any more. A final status of a Job that has not `ended` means that it is
    hopeless: it is to be deleted."""
    end = noted_end(notes, spec)
    if seen is None:
        return forgotten_status(end, notes, "Kubernetes", cancel_asked=cancel_asked)
    pods = sorted(map(read_pod, seen.pods), key=lambda pod: pod.index)
    run = _Run(pods, notes)
    if not seen.deleting and (seen.ended or not cancel_asked):
        if condition_of(seen.job, "Complete"):
            return noted_status(end, notes, run.nodes) if end else run.timed(_SUCCEEDED)
        if failure := condition_of(seen.job, "Failed"):
            return _failed(failure, end, run, spec)
        if seen.suspended and notes:
            return run.lost(Cause.PREEMPTION, "suspended after it had started, as Kueue does to preempt")
        if gone := next((pod for pod in pods if pod.taken is Cause.NODE_FAULT and pod.exit_code is None), None):
            # A node that does not answer does not end its pods either.
            return _taken_away(gone, run)
        if hopeless := next((pod for pod in pods if _is_hopeless(pod)), None):
            reason = f"{hopeless.waits_for}: {_line(hopeless.waits)}"
            return JobStatus(state=JobState.FAILED, reason=reason, cause=Cause.USER_BUG, nodes=run.nodes)
    if notes or any(pod.started_at is not None for pod in pods):
        status = JobStatus(state=JobState.RUNNING, reason=_why_waiting(seen, pods), nodes=run.nodes)
        return replace(status, started_at=run.started_at)
    return JobStatus(state=JobState.QUEUED, reason=_why_waiting(seen, pods))


_SUCCEEDED = JobStatus(state=JobState.SUCCEEDED, exit_code=0)


@dataclass(frozen=True, slots=True)
class _Run:
    """What the pods of a job and its ranks' notes say of where and when it ran."""

    pods: Sequence[SeenPod]
    notes: Sequence[Note]

    @property
    def nodes(self) -> tuple[str, ...]:
        # Pods that were ended with their peers are gone.
        return tuple(dict.fromkeys((*noted_hosts(self.notes), *(pod.node for pod in self.pods if pod.node))))

    @property
    def started_at(self) -> float | None:
        starts = (pod.started_at for pod in self.pods if pod.started_at is not None)
        return noted_start(self.notes, min(starts, default=None))

    def lost(self, cause: Cause | None, reason: str, failed_nodes: tuple[str, ...] = ()) -> JobStatus:
        return self.timed(JobStatus(state=JobState.LOST, reason=reason, cause=cause, failed_nodes=failed_nodes))

    def timed(self, status: JobStatus) -> JobStatus:
        """With the notes' times, else the kubelets'."""
        started_at, elapsed_s = self.started_at, noted_elapsed_s(self.notes)
        ends = (*(pod.finished_at for pod in self.pods), *(note.finished_at for note in self.notes))
        finished_at = max((end for end in ends if end is not None), default=None)
        if finished_at is not None and started_at is not None:
            finished_at = max(finished_at, started_at)
            elapsed_s = finished_at - started_at if elapsed_s is None else elapsed_s
        return replace(status, nodes=self.nodes, started_at=started_at, finished_at=finished_at, elapsed_s=elapsed_s)


def _failed(failure: Document, end: JobStatus | None, run: _Run, spec: JobSpec) -> JobStatus:
    pods, notes = run.pods, run.notes
    if end is not None and end.state in (JobState.SUCCEEDED, JobState.TIMED_OUT):
        return noted_status(end, notes, run.nodes)
    if any(pod.exit_code == CLAIMED_CODE for pod in pods):
        return run.lost(Cause.PREEMPTION, "its pods were taken away, and started a second time")
    if taken := next((pod for pod in pods if pod.taken is not None), None):
        return _taken_away(taken, run)
    full = next((pod for pod in pods if pod.ended_by == "OOMKilled"), None)
    if end is not None:
        if full is None:
            return noted_status(end, notes, run.nodes)
        reason = f"{end.reason}; out of host memory, by Kubernetes' word"
        return replace(noted_status(end, notes, run.nodes, Cause.OOM), reason=reason)
    if full is not None:
        reason = f"pod {full.index} on {full.node} was out of host memory (OOMKilled)"
        return run.timed(JobStatus(state=JobState.FAILED, reason=reason, exit_code=full.exit_code, cause=Cause.OOM))
    if len(notes) == spec.processes and all(note.end is End.TOLD for note in notes):
        return run.lost(Cause.PREEMPTION, "told to end before its time")
    if overdue := next((pod for pod in pods if pod.overdue), None):
        return _overdue(overdue, run)
    if bad := next((pod for pod in pods if pod.exit_code), None):
        words = f": {_line(bad.said)}" if bad.said else ""
        reason = f"pod {bad.index} ended with {bad.ended_by or 'an error'}, exit code {bad.exit_code}{words}"
        return run.timed(JobStatus(state=JobState.FAILED, reason=reason, exit_code=bad.exit_code))
    words = f"{failure.get('reason', 'Failed')}: {_line(failure.get('message') or '')}"
    return run.lost(None, f"its pods are gone; {words}")


def _taken_away(pod: SeenPod, run: _Run) -> JobStatus:
    blamed = (pod.node,) if pod.taken is Cause.NODE_FAULT and pod.node else ()
    reason = f"pod {pod.index} on {pod.node or 'no node'} was taken away: {_line(pod.taken_by)}"
    return run.lost(pod.taken, reason, blamed)


def _overdue(pod: SeenPod, run: _Run) -> JobStatus:
    """The limit of the pod itself leaves time for an image: its ranks, or its node, were silent."""
    if pod.started_at is not None:
        reason = f"pod {pod.index} on {pod.node} was ended by Kubernetes long after its time limit"
        return run.timed(JobStatus(state=JobState.TIMED_OUT, reason=reason))
    wait = f": {pod.waits_for} {_line(pod.waits)}".rstrip(": ")
    reason = f"pod {pod.index} did not start on {pod.node}{wait}"
    return run.lost(Cause.NODE_FAULT, reason, (pod.node,) if pod.node else ())


def _is_hopeless(pod: SeenPod) -> bool:
    absent = any(text in pod.waits.lower() for text in _NO_IMAGE)
    return pod.waits_for in _HOPELESS or (pod.waits_for in _PULLS and absent)


def _why_waiting(seen: SeenJob, pods: Sequence[SeenPod]) -> str:
    if seen.deleting:
        return "is being deleted"
    waiting = next((pod for pod in pods if pod.waits_for and pod.started_at is None), None)
    if waiting is not None:
        # A volume that cannot be mounted is told by an event alone.
        return f"{waiting.waits_for}: {_line(waiting.waits or seen.waits)}".rstrip(": ")
    if seen.waits:
        return _line(seen.waits)
    return "suspended" if seen.suspended else ""


def condition_of(document: Document, kind: str, status: str = "True") -> Document | None:
    conditions: Sequence[Document] = (document.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind and one.get("status") == status), None)


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _line(text: str) -> str:
    """Its last line: a log's end has the error there, and the messages of Kubernetes are one line."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""
