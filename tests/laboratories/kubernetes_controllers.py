"""Behind the tests' API server of Kubernetes: the Job controller, the scheduler and a kubelet for all nodes, in one
thread; every pod's command really runs. Statuses, reasons and their order are those of Kubernetes 1.31 and later."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import processes_where

if TYPE_CHECKING:
    from kubernetes_lab import KubernetesLab

Document = dict[str, Any]
DEVICE = "example.com/device"
INDEX, JOB_NAME = "batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/job-name"
_PERIOD_S = 0.01
# A dead node is missed after so long.
MISSED_S = 1.0
# In the environment of every process of a container, in place of the container's own process namespace.
_MARK = "LAB_CONTAINER"


def now() -> str:
    from kubernetes_lab import now

    return now()


def set_condition(document: Document, kind: str, status: str, reason: str = "", message: str = "") -> None:
    status_of = document.setdefault("status", {})
    others = [one for one in status_of.get("conditions", []) if one["type"] != kind]
    told = {key: value for key, value in (("reason", reason), ("message", message)) if value}
    status_of["conditions"] = [*others, {"type": kind, "status": status, "lastTransitionTime": now(), **told}]


def has(document: Document, kind: str) -> bool:
    return any(
        one["type"] == kind and one["status"] == "True" for one in document.get("status", {}).get("conditions", [])
    )


class Controllers:
    def __init__(self, lab: KubernetesLab) -> None:
        self.lab = lab
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._containers: dict[str, subprocess.Popen[bytes]] = {}
        # uid -> when its processes are killed, and by whom its container ended.
        self._kill_at: dict[str, float] = {}
        self._oom: set[str] = set()
        # When each dead node died.
        self.dead: dict[str, float] = {}
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)
        if self.error is not None:
            raise self.error

    def _loop(self) -> None:
        while not self._stopped.wait(_PERIOD_S):
            try:
                with self.lab.lock:
                    for job in self.lab.all("Job"):
                        self._step_job(job)
                    for pod in self.lab.all("Pod"):
                        self._step_pod(pod)
            except BaseException as error:
                self.error = error
                raise

    # --- what tests do to pods

    def pods_of(self, name: str) -> list[Document]:
        found = [pod for pod in self.lab.all("Pod") if pod["metadata"]["labels"].get(JOB_NAME) == name]
        return sorted(found, key=lambda pod: pod["metadata"]["labels"][INDEX])

    def delete_pod(self, pod: Document, grace_s: float = 30.0) -> None:
        if "deletionTimestamp" not in pod["metadata"] or grace_s == 0:
            pod["metadata"]["deletionTimestamp"] = now()
            self._end(pod, grace_s)

    def disrupt(self, pod: Document, reason: str, message: str) -> None:
        """As an eviction, a preemption or a lost node do it: with the condition, then with SIGTERM."""
        with self.lab.lock:
            set_condition(pod, "DisruptionTarget", "True", reason, message)
            self._end(pod, 30.0)

    def kill_node(self, node: str) -> None:
        """As when the machine loses power: its pods go on in the API server's words, until the node is missed."""
        with self.lab.lock:
            self.dead[node] = time.monotonic()
            for pod in self.lab.all("Pod"):
                if pod["spec"].get("nodeName") == node:
                    self._kill(pod)

    def _is_missed(self, node: str) -> bool:
        return time.monotonic() - self.dead.get(node, float("inf")) > MISSED_S

    def fill_memory(self, pod: Document) -> None:
        """As the kernel does it with one group for the container: all of it is killed."""
        with self.lab.lock:
            self._oom.add(pod["metadata"]["uid"])
            self._kill(pod)

    # --- the Job controller

    def complete_job(self, job: Document, name: str) -> None:
        spec, uid = job["spec"], str(uuid.uuid4())
        spec.setdefault("suspend", False)
        own = {"batch.kubernetes.io/controller-uid": uid, JOB_NAME: name}
        spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(own)
        job["status"] = {}

    def _step_job(self, job: Document) -> None:
        metadata, spec, status = job["metadata"], job["spec"], job["status"]
        pods = self.pods_of(metadata["name"])
        live = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        if "deletionTimestamp" in metadata:
            for pod in live:
                self.delete_pod(pod)
            for pod in pods:
                if pod not in live:
                    self.lab.remove("Pod", pod["metadata"]["name"])
            if not pods:
                self.lab.remove("Job", metadata["name"])
            return
        if has(job, "Complete") or has(job, "Failed"):
            return
        if spec["suspend"]:
            for pod in live:
                self.delete_pod(pod)
            status.pop("startTime", None)
            if not has(job, "Suspended"):
                set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended")
            return
        if has(job, "Suspended"):
            set_condition(job, "Suspended", "False", "JobResumed", "Job resumed")
        status.setdefault("startTime", now())
        ended = {kind: [pod for pod in pods if pod["status"]["phase"] == kind] for kind in ("Succeeded", "Failed")}
        status["active"], status["succeeded"] = len(live), len(ended["Succeeded"])
        status["failed"] = max(len(ended["Failed"]), status.get("failed", 0))
        backoff = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        if status["failed"] > 0:
            if not has(job, "FailureTarget"):
                set_condition(job, "FailureTarget", "True", *backoff)
            for pod in live:
                self.delete_pod(pod)
            if not live:
                set_condition(job, "Failed", "True", *backoff)
        elif status["succeeded"] == spec["completions"]:
            set_condition(job, "Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods")
            status["completionTime"] = now()
        else:
            there = {pod["metadata"]["labels"][INDEX] for pod in pods}
            for index in range(spec["completions"]):
                if str(index) not in there:
                    self._create_pod(job, index)

    def _create_pod(self, job: Document, index: int) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        name = f"{metadata['name']}-{index}-{uuid.uuid4().hex[:5]}"
        if self.lab.max_pods is not None and len(self.lab.all("Pod")) >= self.lab.max_pods:
            about = {"kind": "Job", "name": metadata["name"], "namespace": metadata["namespace"]}
            message = f'Error creating: pods "{name}" is forbidden: exceeded quota: pods, limited: {self.lab.max_pods}'
            self._warn(about, "FailedCreate", message)
            return
        own = template["metadata"]
        labels = {**own["labels"], INDEX: str(index)}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True, "blockOwnerDeletion": True}
        owner |= {"name": metadata["name"], "uid": metadata["uid"]}
        annotations = {**own.get("annotations", {}), INDEX: str(index)}
        about = {"labels": labels, "annotations": annotations, "ownerReferences": [owner]}
        spec = {**template["spec"], "hostname": f"{metadata['name']}-{index}"}
        self.lab.put("Pod", name, {"metadata": about, "spec": spec, "status": {"phase": "Pending"}})

    def _warn(self, about: Document, reason: str, message: str) -> None:
        event = {"involvedObject": about, "reason": reason, "message": message, "type": "Warning"}
        self.lab.put("Event", f"{about['name']}.{reason.lower()}", {**event, "lastTimestamp": now()})

    # --- scheduler and kubelet

    def _step_pod(self, pod: Document) -> None:
        uid, status = pod["metadata"]["uid"], pod["status"]
        if (node := pod["spec"].get("nodeName")) in self.dead:
            if "deletionTimestamp" in pod["metadata"]:
                if (process := self._containers.pop(uid, None)) is not None:
                    process.wait()
                self.lab.remove("Pod", pod["metadata"]["name"])
            elif self._is_missed(node) and not has(pod, "DisruptionTarget"):
                told = "Taint manager: deleting due to NoExecute taint"
                set_condition(pod, "DisruptionTarget", "True", "DeletionByTaintManager", told)
            return
        if status["phase"] in ("Succeeded", "Failed"):
            if "deletionTimestamp" in pod["metadata"]:
                self.lab.remove("Pod", pod["metadata"]["name"])
            return
        process = self._containers.get(uid)
        if process is None:
            if "deletionTimestamp" in pod["metadata"]:
                self.lab.remove("Pod", pod["metadata"]["name"])
            elif "nodeName" in pod["spec"] or self._bind(pod):
                self._start(pod)
            return
        limit_s = pod["spec"].get("activeDeadlineSeconds")
        if limit_s is not None and "reason" not in status and time.monotonic() - process.began > limit_s:  # type: ignore[attr-defined]
            status |= {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than specified"}
            self._end(pod, 30.0)
        if time.monotonic() >= self._kill_at.get(uid, float("inf")):
            self._kill(pod)
        if process.poll() is not None:
            self._kill(pod)  # a container ends with its first process
            self._ended(pod, process)

    def _bind(self, pod: Document) -> bool:
        spec = pod["spec"]
        wanted = self._devices(pod)
        apart = "podAntiAffinity" in spec.get("affinity", {})
        free = []
        for node, labels in self.lab.nodes.items():
            if self._is_missed(node):
                continue
            here = [
                other
                for other in self.lab.all("Pod")
                if other["spec"].get("nodeName") == node and other["status"]["phase"] in ("Pending", "Running")
            ]
            own = any(other["metadata"]["labels"][JOB_NAME] == pod["metadata"]["labels"][JOB_NAME] for other in here)
            room = self.lab.devices - sum(map(self._devices, here)) >= wanted
            if room and spec.get("nodeSelector", {}).items() <= labels.items() and not (apart and own):
                free.append(node)
        if not free:
            message = f"0/{len(self.lab.nodes)} nodes are available: {len(self.lab.nodes)} Insufficient {DEVICE}."
            set_condition(pod, "PodScheduled", "False", "Unschedulable", message)
            return False
        spec["nodeName"] = min(free, key=lambda node: node in self._shunned(pod))
        pod["status"]["startTime"] = now()
        set_condition(pod, "PodScheduled", "True")
        return True

    @staticmethod
    def _devices(pod: Document) -> int:
        return int(pod["spec"]["containers"][0].get("resources", {}).get("limits", {}).get(DEVICE, "0"))

    @staticmethod
    def _shunned(pod: Document) -> list[str]:
        affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        return [node for term in terms for field in term["preference"]["matchFields"] for node in field["values"]]

    def _start(self, pod: Document) -> None:
        (container,) = pod["spec"]["containers"]
        absent = [
            volume["hostPath"]["path"]
            for volume in pod["spec"].get("volumes", [])
            if "hostPath" in volume and not Path(volume["hostPath"]["path"]).is_dir()
        ]
        if absent:
            about = {"kind": "Pod", "name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
            told = f"MountVolume.SetUp failed: hostPath type check failed: {absent[0]} is not a directory"
            self._warn(about, "FailedMount", told)
            self._tell(pod, {"waiting": {"reason": "ContainerCreating"}})
            return
        if container["image"] in self.lab.bad_images:
            reason, message = self.lab.bad_images[container["image"]]
            self._tell(pod, {"waiting": {"reason": reason, "message": message}})
            return
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), _MARK: pod["metadata"]["uid"]}
        environment |= {"HOSTNAME": pod["spec"]["hostname"], "JOB_COMPLETION_INDEX": pod["metadata"]["labels"][INDEX]}
        for variable in container.get("env", []):
            environment[variable["name"]] = self._value(pod, variable)
        with self._log_path(pod).open("wb") as log:
            try:
                process = subprocess.Popen(
                    container["command"],
                    cwd=container["workingDir"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                ended = {"exitCode": 128, "reason": "StartError", "message": f"failed to create task: {error}"}
                pod["status"]["phase"] = "Failed"
                self._tell(pod, {"terminated": {**ended, "startedAt": now(), "finishedAt": now()}})
                return
        process.began = time.monotonic()  # type: ignore[attr-defined]
        self._containers[pod["metadata"]["uid"]] = process
        pod["status"]["phase"] = "Running"
        self._tell(pod, {"running": {"startedAt": now()}})

    def _value(self, pod: Document, variable: Document) -> str:
        if "valueFrom" in variable:
            section, _, field = variable["valueFrom"]["fieldRef"]["fieldPath"].partition(".")
            return pod[section][field]
        value = variable["value"]
        host, _, domain = value.partition(".")
        service = self.lab.objects.get("Service", {}).get(domain)
        hosts = [other["spec"]["hostname"] for other in self.lab.all("Pod") if self._is_named(other, service, domain)]
        return "127.0.0.1" if host in hosts else value

    @staticmethod
    def _is_named(pod: Document, service: Document | None, domain: str) -> bool:
        """Whether the cluster's DNS would have a record of the pod's host name below the Service's."""
        spec = (service or {}).get("spec", {})
        headless = spec.get("clusterIP") == "None" and spec.get("publishNotReadyAddresses")
        selected = spec.get("selector", {}).items() <= pod["metadata"]["labels"].items()
        return bool(headless and selected and pod["spec"].get("subdomain") == domain)

    def _tell(self, pod: Document, state: Document) -> None:
        (container,) = pod["spec"]["containers"]
        told = {"name": container["name"], "image": container["image"], "imageID": "", "ready": "running" in state}
        pod["status"]["containerStatuses"] = [{**told, "restartCount": 0, "state": state}]

    def _end(self, pod: Document, grace_s: float) -> None:
        uid = pod["metadata"]["uid"]
        process = self._containers.get(uid)
        self._kill_at.setdefault(uid, time.monotonic() + grace_s)
        self._kill_at[uid] = min(self._kill_at[uid], time.monotonic() + grace_s)
        if process is None:
            pod["status"]["phase"] = "Failed"
        elif process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)

    def _kill(self, pod: Document) -> None:
        mark = f"{_MARK}={pod['metadata']['uid']}".encode()
        while found := processes_where(lambda folder: mark in (folder / "environ").read_bytes().split(b"\0")):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _ended(self, pod: Document, process: subprocess.Popen[bytes]) -> None:
        uid = pod["metadata"]["uid"]
        del self._containers[uid]
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        reason = "OOMKilled" if uid in self._oom else "Error" if code else "Completed"
        running = pod["status"]["containerStatuses"][0]["state"]["running"]
        ended = {"exitCode": code, "reason": reason, "startedAt": running["startedAt"], "finishedAt": now()}
        if code and pod["spec"]["containers"][0].get("terminationMessagePolicy") == "FallbackToLogsOnError":
            ended["message"] = self.log(pod, 80)[-2048:]
        pod["status"]["phase"] = "Failed" if code or pod["status"].get("reason") else "Succeeded"
        self._tell(pod, {"terminated": ended})

    def _log_path(self, pod: Document) -> Path:
        return self.lab.folder / f"{pod['metadata']['uid']}.log"

    def log(self, pod: Document, lines: int) -> str:
        with suppress(FileNotFoundError):
            return "".join(self._log_path(pod).read_text(errors="replace").splitlines(keepends=True)[-lines:])
        return ""
