"""A job as a Kubernetes manifest: a JobSet (v1alpha2), or a TrainJob of Kubeflow Trainer (v1alpha1); text only.

One pod per node; torchrun starts a process per device in it, so the image needs torch then. The pod's shell writes the
job's files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar
from zlib import crc32

import yaml

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.documents import read_value
from meshtune.runners.schedulers.kubernetes.manifests import QUEUE_LABEL, volumes_of
from meshtune.runners.schedulers.kubernetes.options import LABEL_WORDS, Image
from meshtune.runners.yaml_blocks import BlockDumper
from meshtune.search_spaces.checks import Checks, Closed, Text

_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# The one group of pods: ours in a JobSet; in Trainer's own runtimes it has this name (constants.go, Node).
_WORKERS, _NODE = "workers", "node"
# Which Trainer's runtimes declare (constants.go, ContainerTrainerPort).
_PORT = 29500
# A pod's host name, NAME-workers-0-INDEX and five letters more, is a label of 63 characters at most.
_LONGEST_NAME = 40
_LABEL = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
_Label = Annotated[str, Text(f"^{_LABEL}$", LABEL_WORDS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions(Closed):
    """What the cluster needs to know."""

    form: ClassVar[Mapping[str, str]] = {
        "image": "image of the pods, with the training program in it",
        "namespace": "namespace of the object",
        "queue": "a LocalQueue of Kueue",
        "device": "resource of a device, such as amd.com/gpu; '' for none",
    }

    # With the training program in it.
    image: Image
    # Of the object.
    namespace: _Label = "default"
    # A LocalQueue of Kueue, where there is one.
    queue: Annotated[str, Text(f"^({_LABEL})?$", LABEL_WORDS)] = ""
    # The resource that a pod gets one of per device; empty for none.
    device: str = "nvidia.com/gpu"
    # Of a JobSet: volume claims by the path where the pods see them. A TrainJob's are its runtime's.
    claims: Mapping[str, str] = field(default_factory=dict)
    # Of a TrainJob.
    runtime: _Label = "torch-distributed"

    def _check(self, checks: Checks) -> None:
        wrong = [path for path in self.claims if not PurePosixPath(path).is_absolute()]
        checks.require(not wrong, "claims", f"must be paths from the root on, not {wrong}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetOptions(ManifestOptions):
    form: ClassVar[Mapping[str, str]] = {
        **ManifestOptions.form,
        "claims": "volume claims by the path where pods see them: {/data: team-data}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJobOptions(ManifestOptions):
    form: ClassVar[Mapping[str, str]] = {
        **ManifestOptions.form,
        "runtime": "its ClusterTrainingRuntime, which defines the volumes",
    }


def render_jobset(spec: JobSpec, options: Mapping[str, Any]) -> str:
    """A JobSet of one pod per node that ends with its first failure. Raises InvalidValue."""
    chosen = read_value(JobSetOptions, dict(options))
    _require_expressible(spec)
    name = label_of(spec.name)
    volumes, mounts = volumes_of(chosen.claims)
    container = {
        "name": _NODE,
        "image": chosen.image,
        "command": _command(spec),
        "env": _environment(spec, f"{name}-{_WORKERS}-0-0.{name}"),
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": mounts,
        **_resources("resources", spec, chosen),
    }
    job = {
        "parallelism": spec.nodes,
        "completions": spec.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": ceil(spec.time_limit_s),
        "template": {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes}},
    }
    workers = {"name": _WORKERS, "replicas": 1, "template": {"spec": job}}
    body = {"network": {"enableDNSHostnames": True}, "failurePolicy": {"maxRestarts": 0}, "replicatedJobs": [workers]}
    return _text("jobset.x-k8s.io/v1alpha2", "JobSet", name, chosen, body)


def render_trainjob(spec: JobSpec, options: Mapping[str, Any]) -> str:
    """A TrainJob on a runtime of torch. It has no time limit: not every release knows one. Raises InvalidValue."""
    chosen = read_value(TrainJobOptions, dict(options))
    _require_expressible(spec, claims=chosen.claims)
    name = label_of(spec.name)
    trainer = {
        "image": chosen.image,
        "numNodes": spec.nodes,
        "numProcPerNode": spec.processes_per_node,
        **_resources("resourcesPerNode", spec, chosen),
        "command": _command(spec),
        # Trainer names the pods of every runtime so (torch.go, EnforceMLPolicy).
        "env": _environment(spec, f"{name}-{_NODE}-0-0.{name}"),
    }
    body = {"runtimeRef": {"name": chosen.runtime}, "trainer": trainer}
    return _text("trainer.kubeflow.org/v1alpha1", "TrainJob", name, chosen, body)


def label_of(name: str) -> str:
    """A job's name as a label of Kubernetes; one that had to be changed gets a check sum."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if label == name and label[:1].isalpha() and len(label) <= _LONGEST_NAME:
        return label
    start = label if label[:1].isalpha() else f"job-{label}"
    return f"{start[: _LONGEST_NAME - 9].rstrip('-')}-{crc32(name.encode()):08x}"


def _require_expressible(spec: JobSpec, claims: Mapping[str, str] | None = None) -> None:
    checks = Checks()
    alone = spec.start is not Start.JOB or spec.nodes == 1
    checks.require(alone, "start", f"a script that launches for itself cannot reach the other {spec.nodes - 1} pods")
    checks.require(not claims, "claims", "a TrainJob's volumes are its runtime's")
    checks.done()


def _command(spec: JobSpec) -> list[str]:
    directory = shlex.quote(str(spec.directory))
    lines = ["set -eu", f"mkdir -p {directory}", f"cd {directory}"]
    for name, text in sorted(spec.files.items()):
        lines += _written(name, text)
    command = shlex.join(spec.command)
    if spec.start is Start.DEVICE:
        grid = f"--nnodes={spec.nodes} --nproc-per-node={spec.processes_per_node} --node-rank=$NODE_RANK"
        command = f"torchrun {grid} --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT --no-python {command}"
    script = "\n".join([*lines, f"exec {command}"]) + "\n"
    # The kubelet replaces $(NAME) in commands; $$(NAME) is its way to leave it.
    return ["sh", "-c", script.replace("$(", "$$(")]


def _written(name: str, text: str) -> list[str]:
    """Shell lines that put a file there whole: pods may share the directory."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    folder = str(PurePosixPath(name).parent)
    path, draft = shlex.quote(name), f'{shlex.quote(name)}."$HOSTNAME"'
    body = text if text.endswith("\n") or not text else f"{text}\n"
    return [
        *([] if folder == "." else [f"mkdir -p {shlex.quote(folder)}"]),
        f"cat > {draft} <<'{end}'\n{body}{end}",
        f"mv {draft} {path}",
    ]


def _environment(spec: JobSpec, address: str) -> list[dict[str, Any]]:
    own: dict[str, Any] = {
        "NODE_RANK": {"valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}},
        "NNODES": {"value": str(spec.nodes)},
        "MASTER_ADDR": {"value": address},
        "MASTER_PORT": {"value": str(_PORT)},
    }
    if spec.start is not Start.DEVICE:
        own |= {"RANK": own["NODE_RANK"], "WORLD_SIZE": {"value": str(spec.processes)}, "LOCAL_RANK": {"value": "0"}}
    given = {name: {"value": value.replace("$(", "$$(")} for name, value in sorted(spec.env.items()) if name not in own}
    return [{"name": name, **value} for name, value in {**own, **given}.items()]


def _resources(key: str, spec: JobSpec, options: ManifestOptions) -> dict[str, Any]:
    return {key: {"limits": {options.device: spec.devices_per_node}}} if options.device else {}


def _text(api: str, kind: str, name: str, options: ManifestOptions, body: Mapping[str, Any]) -> str:
    labels = {"labels": {QUEUE_LABEL: options.queue}} if options.queue else {}
    metadata = {"name": name, "namespace": options.namespace, **labels}
    manifest = {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": body}
    return yaml.dump(manifest, Dumper=BlockDumper, sort_keys=False, width=120)
