"""The versions that measured numbers hold for, by name; another version of one of them may be faster or slower."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch
import torch.distributed as dist

# Where the kernel modules of NVIDIA and AMD say which driver they are; reading them starts no process.
DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))
# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", or the number alone.
_VERSION = re.compile(r"(?:^|\s)(\d+(?:\.\d+)+)(?:\s|$)")


def software(device: torch.device) -> dict[str, str]:
    """Versions by name; a driver that says none is left out. The process group must be there: it is the backend's."""
    versions = {"torch": torch.__version__, "python": platform.python_version(), "backend": dist.get_backend()}
    if device.type == "cuda":
        versions |= {"cuda": str(torch.version.cuda or torch.version.hip)}
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # it has no annotations
        versions |= {"nccl": ".".join(map(str, nccl))}
        found = [version for path in DRIVER_FILES if (version := driver_version(path)) is not None]
        versions |= {"driver": found[0]} if found else {}
    return versions


def driver_version(path: Path) -> str | None:
    """The version that a driver's file tells; None where there is no such file, or no version in its first line."""
    try:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    found = _VERSION.search(first)
    return None if found is None else found[1]
