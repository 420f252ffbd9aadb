"""The accelerators of this machine as jobs see them: their names in the variable that shows a program some of them, and
the processes of others that compute on them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

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


# Lines of index and UUID of each device, then of UUID, process id and name of each process that computes.
_LOOK = """nvidia-smi --query-gpu=index,uuid --format=csv,noheader &&
nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader"""


@dataclass(slots=True)
class Neighbours:
    """Who computes on the devices beside our jobs, by nvidia-smi: processes that a loop polls and nobody waits for,
    since it takes seconds where nothing keeps the driver loaded, and may hang. One look at a time.

    It counts devices as CUDA_DEVICE_ORDER=PCI_BUS_ID does. Nobody is known where it is not there, does not answer or
    shows no processes (in most containers), on parts of a device (MIG), and on AMD's and Intel's devices."""

    # When the last look began, by `time.monotonic`.
    began_at: float = 0.0
    _process: subprocess.Popen[bytes] | None = None
    # The lines of the last look, without those of our jobs.
    _seen: list[list[str]] = field(default_factory=list)

    def look(self, now: float) -> None:
        """Begin to look, unless that is under way."""
        if self._process is None:
            self.began_at, quiet = now, subprocess.DEVNULL
            with suppress(OSError):
                self._process = subprocess.Popen(
                    ["sh", "-c", _LOOK], stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, start_new_session=True
                )

    def poll(self, now: float, is_own: Callable[[int], bool]) -> bool:
        """Whether a look has just ended. is_own: of a process id, whether it is a job's of ours."""
        if self._process is None or self._process.stdout is None:
            return False
        if self._process.poll() is None:
            if now - self.began_at > _NVIDIA_SMI_LIMIT_S:  # what hangs in the driver stays, and no other joins it
                os.killpg(self._process.pid, signal.SIGKILL)
            return False
        with self._process.stdout as out:
            os.set_blocking(out.fileno(), False)  # a site's wrapper may have left something that holds it open
            text = (out.read() or b"").decode("utf-8", "replace") if self._process.returncode == 0 else ""
        lines = [line.split(", ", 2) for line in text.splitlines()]
        self._seen = [line for line in lines if not (len(line) == 3 and line[1].isdecimal() and is_own(int(line[1])))]
        self._process = None
        return True

    def on(self, device: str) -> dict[str, str]:
        """The names of those that the last look saw on a device, by process id."""
        uuids = [line[1] for line in self._seen if line[0] == device and len(line) == 2]
        return {
            line[1]: line[2]
            for line in self._seen
            # All of MPS's clients compute in its server's name, ours included.
            if len(line) == 3
            and not line[2].endswith("nvidia-cuda-mps-server")
            and (line[0] in uuids or (device.startswith("GPU-") and line[0].startswith(device)))
        }
