"""The accelerators of this machine as jobs see them: their names in the variable that shows a program some of them, and
the processes of others that compute on them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.processes.command import call
from meshtune.runners.processes.gang import is_marked

# By the path that a vendor's driver makes: the variables that choose among its devices, first the one that chooses
# among what the next ones leave (ROCR_VISIBLE_DEVICES hides devices from HIP, which counts the rest from 0).
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "proc/driver/nvidia": ("CUDA_VISIBLE_DEVICES",),
    "dev/kfd": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "sys/module/xe": ("ZE_AFFINITY_MASK",),
    "sys/module/i915": ("ZE_AFFINITY_MASK",),
}
# CUDA takes a list up to the first element that is no device; -1 hides those after it.
_DEVICE = re.compile(r"\d+(\.\d+)?|(GPU|MIG)-.+")
_NVIDIA_SMI_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    """The devices that jobs may have, in order, as the variable names them: indices or UUIDs."""

    variable: str
    names: tuple[str, ...]


def visible_devices(environment: Mapping[str, str], slots: int, root: Path = Path("/")) -> VisibleDevices:
    """Those that the environment names; where it names none, all that NVIDIA's driver lists, else as many as there are
    slots."""
    variable = _variable(environment, root)
    if variable in environment:
        listed = (name.strip() for name in environment[variable].split(","))
        return VisibleDevices(variable, tuple(dict.fromkeys(takewhile(_DEVICE.fullmatch, listed))))
    count = len(list(root.glob("proc/driver/nvidia/gpus/*"))) if variable == "CUDA_VISIBLE_DEVICES" else 0
    return VisibleDevices(variable, tuple(map(str, range(count or slots))))


def _variable(environment: Mapping[str, str], root: Path) -> str:
    known = [name for names in _VARIABLES.values() for name in names if name in environment]
    for driver, names in _VARIABLES.items():
        chosen = [name for name in names if name in environment]
        # Intel's driver is there for processors' own graphics too: a variable of another vendor says more.
        if (root / driver).exists() and (chosen or not known):
            return (chosen or names)[0]
    return "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in known else [*known, "CUDA_VISIBLE_DEVICES"][0]


def foreign_processes(devices: Collection[str], own_mark: str = "") -> dict[str, dict[str, str]]:
    """The names of processes that compute on these devices, by process id, by device; those with our mark left out.

    nvidia-smi tells them, and counts devices as CUDA_DEVICE_ORDER=PCI_BUS_ID does. Nothing where it is not there, does
    not answer or shows no processes (in most containers), for parts of a device (MIG), and for AMD's and Intel's."""
    found: dict[str, dict[str, str]] = {}
    if not devices:
        return found
    try:
        running = _nvidia_smi("--query-compute-apps=gpu_uuid,pid,process_name")
        uuids = dict(_nvidia_smi("--query-gpu=index,uuid")) if running else {}
    except (RunnerUnavailable, ValueError):
        return found
    for uuid, pid, process in running:
        # All of MPS's clients compute in its server's name, ours included.
        if process.endswith("nvidia-cuda-mps-server") or (
            own_mark and pid.isdecimal() and is_marked(int(pid), own_mark)
        ):
            continue
        for device in devices:
            if uuids.get(device) == uuid or (device.startswith("GPU-") and uuid.startswith(device)):
                found.setdefault(device, {})[pid] = process
    return found


def _nvidia_smi(query: str) -> list[list[str]]:
    """The lines of an answer. Raises RunnerUnavailable."""
    answer = call(["nvidia-smi", query, "--format=csv,noheader"], time_limit_s=_NVIDIA_SMI_LIMIT_S)
    if answer.code != 0:
        raise RunnerUnavailable(f"nvidia-smi: {answer.complaint}")
    columns = query.count(",") + 1
    return [line.split(", ", columns - 1) for line in answer.out.splitlines() if line.count(", ") >= columns - 1]
