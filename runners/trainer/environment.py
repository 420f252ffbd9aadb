"""Prints what torch is here, as one line of JSON: its build, the devices that it sees, its communication libraries.

python -m meshtune.runners.trainer.environment"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist

from meshtune.runners.devices.facts import TorchBuild, TorchDevice


def torch_build() -> TorchBuild:
    kind, devices, error = "cpu", tuple[TorchDevice, ...](), ""
    try:
        kind, devices = _devices()
    except Exception as failure:  # a driver that does not fit raises what it likes
        error = " ".join(str(failure).split())
    return TorchBuild(
        version=torch.__version__,
        cuda=torch.version.cuda or "",
        rocm=torch.version.hip or "",
        xpu=str(getattr(torch.version, "xpu", None) or ""),
        kind=kind,
        devices=devices,
        backends=_backends(),
        numpy=find_spec("numpy") is not None,
        error=error,
    )


def _devices() -> tuple[str, tuple[TorchDevice, ...]]:
    kind, count = torch.accelerator.current_accelerator(), torch.accelerator.device_count()
    if kind is None or count == 0:
        return "cpu", ()
    module = torch.get_device_module(kind)
    module.init()  # says why nothing is seen, which counting swallows
    return kind.type, tuple(_device(module.get_device_properties(index)) for index in range(count))


def _device(properties: Any) -> TorchDevice:
    major = getattr(properties, "major", None)
    capability = "" if major is None else f"{major}.{properties.minor}"
    return TorchDevice(name=properties.name, memory_bytes=properties.total_memory, capability=capability)


def _backends() -> dict[str, str]:
    if not dist.is_available():
        return {}
    versions = {"gloo": ""} if dist.is_gloo_available() else {}
    if dist.is_nccl_available():
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # it has no annotations
        # ROCm's build answers for RCCL under the same name.
        versions["rccl" if torch.version.hip else "nccl"] = ".".join(map(str, version))
    if getattr(dist, "is_xccl_available", lambda: False)():
        versions["xccl"] = ""
    if dist.is_mpi_available():
        versions["mpi"] = ""
    return versions


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(torch_build())) + "\n")
