"""Keeps a rank on the CPUs beside its device: from those of another socket every launch and copy goes a longer way.

For every launcher; torch's own (`torch.numa.binding`, by the same files) is torchrun's. Not for XPU, whose place on the
bus torch does not tell. Not run on an accelerator."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

PCI_DEVICES = Path("/sys/bus/pci/devices")


def bind_beside(properties: Any, devices: Path = PCI_DEVICES) -> None:
    """Bind this thread and those that it starts. properties: of the device, as torch gives them."""
    allowed = os.sched_getaffinity(0)
    chosen = choose_cpus(allowed, cpus_beside(properties, devices))
    if chosen != allowed:
        os.sched_setaffinity(0, chosen)


def choose_cpus(allowed: AbstractSet[int], beside: AbstractSet[int]) -> AbstractSet[int]:
    """Of the allowed CPUs those beside the device. Whoever left the process no more CPUs than lie there, a scheduler or
    the user, has bound it already, and that stands."""
    chosen = allowed & beside
    return chosen if chosen and len(allowed) > len(beside) else allowed


def cpus_beside(properties: Any, devices: Path) -> frozenset[int]:
    """The CPUs of the device's NUMA node; of none all of the machine (the kernel's word), empty where nobody tells."""
    try:
        slot = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        told = (devices / slot / "local_cpulist").read_text(encoding="ascii").strip()
    except (AttributeError, OSError):
        return frozenset()
    ranges = (part.split("-") for part in told.split(",") if part)  # as "0-31,64-95"
    return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))
