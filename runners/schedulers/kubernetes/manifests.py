"""A job as an indexed Job of Kubernetes, one pod per node, and the Service under which the pods find each other; pure.

Ranks and time limits are the launch wrapper's; see `pod.py`. The Job itself never starts a pod twice."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any
from zlib import crc32

from meshtune.runners.base import JobSpec
from meshtune.runners.processes.gang import FIRST_PORT, PORTS, THREADS
from meshtune.runners.schedulers.batch.script import BACKSTOP_S
from meshtune.runners.schedulers.kubernetes.options import KubernetesOptions

# The objects of all services of meshtune in a namespace; and the headless Service that names their pods.
MANAGED = {"app.kubernetes.io/managed-by": "meshtune"}
SERVICE = "meshtune"
# Of Kueue.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Whose a Job is: two services may give the same name to different jobs.
JOB_ANNOTATION, DIRECTORY_ANNOTATION = "meshtune/job", "meshtune/directory"
# What Kubernetes takes as a label's value.
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
POD_MODULE = "meshtune.runners.schedulers.kubernetes.pod"
# A pod's name is the Job's, its index and six characters: a label of 63 characters at most.
_LONGEST_NAME, _SUM = 46, 8
# For the pull of an image, which counts as part of a pod's life.
PULL_S = 1800.0
# How long a node may be silent, on top of the 40 s or so after which Kubernetes notices.
NODE_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class User:
    """Who the pods' processes are: whoever shares the folder of the jobs with them."""

    uid: int
    gid: int


def object_name(spec: JobSpec) -> str:
    """The name of its Job: other services have jobs of the same name in other folders."""
    label = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-")
    label = label if label[:1].isalpha() else f"job-{label}"
    digest = hashlib.sha256(f"{spec.name}\n{spec.directory}".encode()).hexdigest()[:_SUM]
    return f"{label[: _LONGEST_NAME - _SUM - 1].rstrip('-')}-{digest}"


def render_service() -> dict[str, Any]:
    """The headless Service; one for all jobs of a namespace."""
    # Pods meet before any of them is ready.
    spec = {"clusterIP": "None", "selector": MANAGED, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "labels": MANAGED}, "spec": spec}


def render_job(spec: JobSpec, options: KubernetesOptions, user: User) -> dict[str, Any]:
    """The directory must be absolute. user: root's pods are as the image says."""
    name = object_name(spec)
    queue = {QUEUE_LABEL: options.queue} if options.queue else {}
    whose = {f"meshtune/{what}": value for what, value in spec.labels.items()}
    notes = {JOB_ANNOTATION: spec.name, DIRECTORY_ANNOTATION: str(spec.directory), **whose}
    labels = {**MANAGED, **{what: value for what, value in whose.items() if _LABEL.fullmatch(value)}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, **queue}, "annotations": notes},
        "spec": {
            "parallelism": spec.nodes,
            "completions": spec.nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": options.keep_s,
            **({"suspend": True} if options.queue else {}),
            "template": {"metadata": {"labels": labels, "annotations": notes}, "spec": _pod(spec, name, options, user)},
        },
    }


def volumes_of(claims: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The volumes of a pod, memory for its processes and claims by their path, and where its container sees them."""
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, (path, claim) in enumerate(sorted(claims.items())):
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"claim-{number}", "mountPath": path})
    return volumes, mounts


def _pod(spec: JobSpec, name: str, options: KubernetesOptions, user: User) -> dict[str, Any]:
    volumes, mounts = volumes_of(options.claims)
    for number, path in enumerate(options.host_paths):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": path, "type": "Directory"}})
        mounts.append({"name": f"host-{number}", "mountPath": path})
    devices = {options.device: str(spec.devices_per_node)} if options.device else {}
    limits = {**options.limits, **devices}
    container = {
        "securityContext": {"allowPrivilegeEscalation": False},
        **options.container,
        "name": "job",
        "image": options.image,
        "command": [options.python, "-m", POD_MODULE],
        "workingDir": str(spec.directory),
        "env": _environment(spec, name),
        "volumeMounts": mounts,
        # What a pod says that cannot start its ranks is told without a right to read logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"resources": {"limits": limits}} if limits else {}),
    }
    return {
        **options.pod,
        "restartPolicy": "Never",
        # The Job's own limit would count the time in the queue.
        "activeDeadlineSeconds": ceil(spec.time_limit_s + BACKSTOP_S + PULL_S),
        "subdomain": SERVICE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": volumes,
        **({"nodeSelector": dict(options.node_selector)} if options.node_selector else {}),
        "tolerations": _tolerations(options),
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        **({"affinity": affinity} if (affinity := _affinity(spec, name)) else {}),
        **({"securityContext": {"runAsUser": user.uid, "runAsGroup": user.gid}} if user.uid else {}),
    }


def _tolerations(options: KubernetesOptions) -> list[dict[str, Any]]:
    """With those for lost nodes, unless the site has its own: by default a pod stays on one for 5 minutes."""
    given = [dict(one) for one in options.tolerations]
    keys = {f"node.kubernetes.io/{fault}" for fault in ("not-ready", "unreachable")} - {one.get("key") for one in given}
    effect = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LIMIT_S}
    return [*given, *({"key": key, **effect} for key in sorted(keys))]


def _affinity(spec: JobSpec, name: str) -> dict[str, Any]:
    """A node for each pod, and those to keep away from only where there are no others."""
    rules: dict[str, Any] = {}
    if spec.nodes > 1:
        own = {"matchLabels": {"batch.kubernetes.io/job-name": name}}
        apart = {"labelSelector": own, "topologyKey": "kubernetes.io/hostname"}
        rules["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    if spec.avoid:
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in spec.avoid]
        away = {"weight": 100, "preference": {"matchFields": fields}}
        rules["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [away]}
    return rules


def _environment(spec: JobSpec, name: str) -> list[dict[str, Any]]:
    """Of the launch wrapper; the job's own is in its gang file. MASTER_ADDR: the name of an indexed Job's first pod."""
    values: Mapping[str, Mapping[str, Any]] = {
        "MASTER_ADDR": {"value": f"{name}-0.{SERVICE}" if spec.nodes > 1 else "127.0.0.1"},
        "MASTER_PORT": {"value": str(FIRST_PORT + crc32(name.encode()) % PORTS)},
        "MESHTUNE_NODE_NAME": {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        "MESHTUNE_POD_UID": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        **{name: {"value": "1"} for name in THREADS},
        "PYTHONUNBUFFERED": {"value": "1"},
    }
    return [{"name": variable, **value} for variable, value in values.items()]
