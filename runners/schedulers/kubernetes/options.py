"""What a site or a user says of a Kubernetes cluster, for the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import Amount, Checks, Closed, Count, Positive, Text, names_in
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind

Image = Annotated[str, Text(r"^\S{1,500}$", "name an image")]
_LABEL, LABEL_WORDS = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "have lower-case letters, digits, '-' and '.' only"
_Name = Annotated[str, Text(f"^({_LABEL})?$", LABEL_WORDS)]
# Of a pod's spec and of its container, what the runner writes itself.
OWN_FIELDS = names_in("""
    affinity automountServiceAccountToken activeDeadlineSeconds containers enableServiceLinks nodeSelector
    restartPolicy securityContext serviceAccountName subdomain tolerations volumes hostname
""")
OWN_CONTAINER_FIELDS = frozenset(
    {"name", "image", "command", "args", "workingDir", "env", "volumeMounts", "terminationMessagePolicy", "resources"}
)
_DEVICES = {DeviceKind.CPU: "", DeviceKind.CUDA: "nvidia.com/gpu", DeviceKind.XPU: "gpu.intel.com/i915"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions(Closed):
    """The image, the volumes and the places of the pods, and how the API server is asked."""

    # With meshtune and the training program in it.
    image: Image
    # Of the image, or on a volume: for the launch wrapper, and for jobs in place of this service's own interpreter.
    python: str = "python3"
    # A context of the kubeconfig file; empty: its current one, or inside a pod the pod's own service account.
    context: str = ""
    # Where the jobs are made.
    namespace: Annotated[str, Text(f"^{_LABEL}$", LABEL_WORDS)] = "default"
    # A LocalQueue of Kueue: jobs are sent suspended, and Kueue starts them.
    queue: _Name = ""
    # The resource that a pod gets one of per device; empty: none; by default the one of the cluster's kind of devices.
    device: str | None = None
    # More limits of each pod: {cpu: "96", memory: 1500Gi, rdma/hca: "8"}.
    limits: Mapping[str, str] = field(default_factory=dict)
    # Where the pods see the folder of the jobs, at the same path as this service: volume claims by their path, and
    # folders of the nodes (NFS, Lustre).
    claims: Mapping[str, str] = field(default_factory=dict)
    host_paths: tuple[str, ...] = ()
    # As in a pod's spec: {gpu: h100}.
    node_selector: Mapping[str, str] = field(default_factory=dict)
    # As in a pod's spec: [{key: nvidia.com/gpu, operator: Exists}].
    tolerations: tuple[Mapping[str, Any], ...] = ()
    # The pods' account; none of its rights are given to them.
    service_account: _Name = ""
    # More of a pod's spec, as it stands there: {hostNetwork: true, priorityClassName: low}.
    pod: Mapping[str, Any] = field(default_factory=dict)
    # More of its container: {securityContext: {capabilities: {add: [IPC_LOCK]}}}.
    container: Mapping[str, Any] = field(default_factory=dict)
    # How long ended jobs stay to be looked at.
    keep_s: Count = 86_400
    # How long the API server may take to answer.
    call_limit_s: Positive = 20.0
    # Jobs are looked at no more often than that.
    poll_s: Amount = 3.0

    def _check(self, checks: Checks) -> None:
        for name, paths in (("claims", tuple(self.claims)), ("host_paths", self.host_paths)):
            wrong = [path for path in paths if not PurePosixPath(path).is_absolute()]
            checks.require(not wrong, name, f"must be paths from the root on, not {wrong}")
        for name, fields in (("pod", OWN_FIELDS), ("container", OWN_CONTAINER_FIELDS)):
            own = sorted(fields & getattr(self, name).keys())
            checks.require(not own, name, f"must leave {', '.join(own)} to the runner and its other options")
        checks.require(bool(self.python), "python", "must name an interpreter")

    def sees(self, directory: Path) -> bool:
        """Whether the pods see that folder on one of their volumes."""
        return any(directory.is_relative_to(path) for path in (*self.claims, *self.host_paths))


def options_for(cluster: ClusterSpec, options: Mapping[str, Any]) -> KubernetesOptions:
    """The options of a campaign, with what follows from its cluster. Raises InvalidValue."""
    chosen = read_value(KubernetesOptions, dict(options))
    return chosen if chosen.device is not None else replace(chosen, device=_DEVICES[cluster.device.kind])
