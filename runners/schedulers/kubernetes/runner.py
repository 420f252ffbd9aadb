"""The Kubernetes runner: one indexed Job per trial, found again by its name, watched with two requests for all. The
folder of the jobs must be on a volume that the pods share with this service. Not covered: volumes of one node."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobState, JobStatus, Refused, RunnerUnavailable, Start
from meshtune.runners.json_files import write_whole
from meshtune.runners.schedulers.batch.launch_wrapper import read_notes
from meshtune.runners.schedulers.batch.records import JobRecord, RecordingRunner
from meshtune.runners.schedulers.batch.shared_look import SharedRunner, share
from meshtune.runners.schedulers.kubernetes.api import Document, KubernetesApi, Rejected
from meshtune.runners.schedulers.kubernetes.manifests import (
    DIRECTORY_ANNOTATION,
    User,
    object_name,
    render_job,
    render_service,
)
from meshtune.runners.schedulers.kubernetes.options import KubernetesOptions, options_for
from meshtune.runners.schedulers.kubernetes.statuses import SeenJob, condition_of, read_pod, status_of
from meshtune.search_spaces.checks import raising
from meshtune.search_spaces.cluster import ClusterSpec

# So many pods of a job tell what they wrote, when it has failed.
_MAX_LOGS = 8


class KubernetesRunner(RecordingRunner[KubernetesOptions]):
    """The id of a job is the name of its Job, in one namespace."""

    def __init__(self, root: Path, options: KubernetesOptions, *, nodes: int, devices_per_node: int) -> None:
        super().__init__(root, options, nodes=nodes, devices_per_node=devices_per_node)
        self._api = KubernetesApi(options)

    def _placed(self, spec: JobSpec) -> JobSpec:
        if spec.start is Start.JOB and spec.nodes > 1:
            problem = f"a script that launches for itself cannot reach the other {spec.nodes - 1} pods"
            raise Refused(f"{spec.name} cannot run on Kubernetes: {problem}")
        if not self._options.sees(spec.directory):
            raise Refused(f"{spec.name} would run in {spec.directory}, which is on none of claims and host_paths")
        # Where this service's own interpreter is named, the pods' is meant.
        command = tuple(self._options.python if word == sys.executable else word for word in spec.command)
        return replace(spec, command=command)

    def _deliver(self, spec: JobSpec) -> str:
        with raising(Refused, f"{spec.name} was refused", Rejected):
            if self._options.queue:
                self._require_queue()
            if spec.nodes > 1:
                self._require_service()
            try:
                self._api.create_job(render_job(spec, self._options, User(os.getuid(), os.getgid())))
            except Rejected as error:
                if error.code != 409:
                    raise
                there = self._api.job(object_name(spec))
                owner = there and (there["metadata"].get("annotations") or {}).get(DIRECTORY_ANNOTATION)
                if owner != str(spec.directory):
                    raise Rejected(409, f"there is another Job of the name {object_name(spec)}") from None
        return object_name(spec)

    def cancel(self, id: str) -> None:
        record = self._records.of(id)
        # Deleted, a job that has ended could not say how any more.
        if record is None or self.poll([id])[id].state.final:
            return
        self._note_cancel(id, record)
        with raising(RunnerUnavailable, f"{id} cannot be cancelled", Rejected):
            self._api.delete_job(id)

    def _find_sent(self, record: JobRecord) -> str | None:
        id = object_name(JobSpec(name=record.name, command=(), directory=record.directory, time_limit_s=0.0))
        with raising(RunnerUnavailable, f"{record.name} cannot be looked for", Rejected):
            return id if self._api.job(id) is not None else None

    def close(self) -> None:
        self._api.close()

    def _require_queue(self) -> None:
        """Without the right to read queues, Kueue says later what is wrong."""
        try:
            self._api.require_queue(self._options.queue)
        except Rejected as error:
            if error.code == 404:
                place = f"the namespace {self._options.namespace}"
                problem = f"{place} has no LocalQueue {self._options.queue} of Kueue"
                raise Rejected(404, problem) from None

    def _require_service(self) -> None:
        """Make the Service if it is not there; who has made it before may have kept us the right to."""
        try:
            self._api.create_service(render_service())
        except Rejected as error:
            if error.code not in (403, 409):
                raise

    def _statuses(self, records: Mapping[str, JobRecord]) -> Mapping[str, JobStatus]:
        # Before the look: a job that is shown as suspended may start during it.
        earlier = {id: read_notes(record.directory) for id, record in records.items()}
        seen, statuses = self._look(records), dict[str, JobStatus]()
        for id, record in records.items():
            notes = earlier[id] if id in seen and seen[id].suspended else read_notes(record.directory)
            status = status_of(record.job(), seen.get(id), notes, cancel_asked=record.cancel_asked)
            if status.state.final and id in seen:
                self._close_job(id, record, seen[id], status)
            statuses[id] = status
        return statuses

    def _look(self, ids: Mapping[str, JobRecord]) -> dict[str, SeenJob]:
        """Raises RunnerUnavailable."""
        with raising(RunnerUnavailable, "the jobs cannot be looked at", Rejected):
            jobs = {job["metadata"]["name"]: job for job in self._api.jobs()}
            pods: dict[str, list[Document]] = {}
            for pod in self._api.pods():
                for owner in pod["metadata"].get("ownerReferences") or []:
                    pods.setdefault(owner["name"], []).append(pod)
        seen = {id: SeenJob(job=jobs[id], pods=pods.get(id, ())) for id in ids if id in jobs}
        idle = {id: one for id, one in seen.items() if not one.ended and not one.started}
        words: dict[str, str] = {}
        with suppress(Rejected, RunnerUnavailable):  # a right, or an answer, that jobs do without
            if any(not one.suspended for one in idle.values()):
                # The last thing said of each Job and pod.
                for event in sorted(self._api.warnings(), key=lambda event: event.get("lastTimestamp") or ""):
                    words[event["involvedObject"]["name"]] = event.get("message") or ""
            if any(one.suspended for one in idle.values()):
                words |= _workload_words(self._api.workloads())
        for id, one in idle.items():
            names = [id, *(pod["metadata"]["name"] for pod in one.pods)]
            seen[id] = replace(one, waits=next((words[name] for name in reversed(names) if name in words), ""))
        return seen

    def _close_job(self, id: str, record: JobRecord, seen: SeenJob, status: JobStatus) -> None:
        """Keep what the pods of a failed job wrote; delete what would go on. Raises RunnerUnavailable."""
        if status.state is not JobState.SUCCEEDED:
            # One request that gets no answer is enough; a pod that has not started has no log.
            with suppress(RunnerUnavailable, OSError):
                for pod in sorted(map(read_pod, seen.pods), key=lambda pod: pod.index)[:_MAX_LOGS]:
                    with suppress(Rejected):
                        if text := self._api.log(pod.name):
                            write_whole(record.directory / f"pod-{pod.index}.log", text)
        if not seen.ended:
            with raising(RunnerUnavailable, f"{id} cannot be deleted", Rejected):
                self._api.delete_job(id)


def _workload_words(workloads: Sequence[Document]) -> dict[str, str]:
    """Why Kueue has not admitted each Job."""
    words = {}
    for workload in workloads:
        waits = condition_of(workload, "QuotaReserved", "False")
        for owner in workload["metadata"].get("ownerReferences") or []:
            words[owner["name"]] = f"Kueue: {waits.get('message') or ''}" if waits else "waits in a queue of Kueue"
    return words


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> SharedRunner:
    chosen = options_for(cluster, options)
    runner = KubernetesRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    place = f"kubernetes {chosen.context} {chosen.namespace} {chosen.queue}"
    return share(runner, place, root, chosen.poll_s)
