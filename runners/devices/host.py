"""Facts of the host from /proc, /sys and the process's own limits; starts no process.

`root` is where /proc, /sys and /dev lie, so that a recorded tree can be read as well."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from meshtune.runners.devices.facts import Disk, Host, InfinibandPort, NetworkInterface, ProcessLimits
from meshtune.runners.devices.record import processor_name, text_of

ROOT = Path("/")
# What a control group without a limit says in its first version: nearly 2^63.
_NO_LIMIT_BYTES = 2**60


def read_host(folder: Path, root: Path = ROOT) -> Host:
    """folder: the home of campaigns, or where it is going to be."""
    sizes = re.findall(r"^(\w+):\s+(\d+) kB$", text_of(root / "proc/meminfo"), re.MULTILINE)
    memory = {name: int(size) * 1024 for name, size in sizes}
    shared, shared_free = _sizes(root / "dev/shm")
    return Host(
        name=socket.gethostname(),
        kernel=platform.release(),
        python=platform.python_version(),
        processor=processor_name(root),
        cores=len(os.sched_getaffinity(0)),
        cores_of_machine=os.cpu_count() or 1,
        numa_nodes=max(1, len([*root.glob("sys/devices/system/node/node[0-9]*")])),
        load=os.getloadavg()[0],
        memory_bytes=memory.get("MemTotal", 0),
        available_bytes=memory.get("MemAvailable", 0),
        cgroup_cores=_cgroup_cores(root),
        cgroup_memory_bytes=_cgroup_memory_bytes(root),
        shared_memory_bytes=shared,
        shared_memory_free_bytes=shared_free,
        name_resolves=_resolves(socket.gethostname()),
        limits=read_limits(),
        interfaces=read_interfaces(root),
        infiniband=read_infiniband(root),
        disk=read_disk(folder, root),
    )


def read_limits() -> ProcessLimits:
    def soft(number: int) -> int | None:
        value = resource.getrlimit(number)[0]
        return None if value == resource.RLIM_INFINITY else value

    return ProcessLimits(
        open_files=soft(resource.RLIMIT_NOFILE),
        locked_bytes=soft(resource.RLIMIT_MEMLOCK),
        processes=soft(resource.RLIMIT_NPROC),
    )


def read_interfaces(root: Path = ROOT) -> tuple[NetworkInterface, ...]:
    """All but the loopback."""
    interfaces = []
    for place in sorted((root / "sys/class/net").glob("*")):
        # In Mbit/s; -1, or an error of reading, where nobody knows.
        speed = text_of(place / "speed")
        megabits = int(speed) if speed.lstrip("-").isdecimal() else -1
        if place.name != "lo" and place.is_dir():
            up = text_of(place / "operstate") in ("up", "unknown")
            interfaces.append(
                NetworkInterface(name=place.name, up=up, speed_bits_per_s=megabits * 1e6 if megabits > 0 else None)
            )
    return tuple(interfaces)


def read_infiniband(root: Path = ROOT) -> tuple[InfinibandPort, ...]:
    return tuple(
        InfinibandPort(
            device=place.parents[1].name,
            port=int(place.name),
            state=text_of(place / "state").rpartition(": ")[2],  # "4: ACTIVE"
            layer=text_of(place / "link_layer"),
            rate=text_of(place / "rate"),
        )
        for place in sorted((root / "sys/class/infiniband").glob("*/ports/[0-9]*"))
    )


def read_disk(folder: Path, root: Path = ROOT) -> Disk:
    """Of the folder, or of the first of its parents that exists."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    place = place.resolve()
    usage = shutil.disk_usage(place)
    kind, longest = "", -1
    for line in text_of(root / "proc/mounts").splitlines():
        _, mounted, name, *_ = [*line.split(), "", "", ""]
        mount = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mounted))
        # Of two mounts at one place the later one is seen.
        if place.is_relative_to(mount) and len(mount.parts) >= longest:
            kind, longest = name, len(mount.parts)
    return Disk(folder=str(folder), kind=kind, total_bytes=usage.total, free_bytes=usage.free)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The folders of this process's control group, the innermost first: of version 2, or of one controller of version
    1. In a container the group's own path may not be there, and the mount's root is the group."""
    places: list[tuple[Path, str]] = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            places.append((root / "sys/fs/cgroup", path))
        elif controller in controllers.split(","):
            places.append((root / "sys/fs/cgroup" / controller, path))
    folders: list[Path] = []
    for mount, path in places:
        place = mount / path.lstrip("/")
        folders += [each for each in (place, *place.parents) if each.is_relative_to(mount)]
    return folders


def _cgroup_cores(root: Path) -> float | None:
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = text_of(folder / "cpu.max").partition(" ")
        quota, period = quota or text_of(folder / "cpu.cfs_quota_us"), period or text_of(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroup_memory_bytes(root: Path) -> int | None:
    limits = []
    for folder in _cgroup_folders(root, "memory"):
        limit = text_of(folder / "memory.max") or text_of(folder / "memory.limit_in_bytes")
        if limit.isdecimal() and int(limit) < _NO_LIMIT_BYTES:
            limits.append(int(limit))
    return min(limits, default=None)


def _sizes(place: Path) -> tuple[int, int] | tuple[None, None]:
    with suppress(OSError):
        usage = shutil.disk_usage(place)
        return usage.total, usage.free
    return None, None


def _resolves(name: str) -> bool:
    with suppress(OSError):
        return bool(socket.getaddrinfo(name, None))
    return False
