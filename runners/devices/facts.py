"""Facts of one machine, or of the part of it that an allocation shows: values, and nothing that asks.

None and empty sequences stand for what could not be found out; `unread` says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.search_spaces.checks import StrEnum


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A program that holds memory of a device for computation. memory_bytes: None where the driver does not tell."""

    pid: int
    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device, as its vendor's tool describes it.

    throttled_by: the reasons for which it is slowed down at this moment, but not idleness or its power cap.
    uncorrected_errors: of memory, since the driver was loaded. repair: what the driver wants done, such as a reset.
    link_width, max_link_width: lanes of PCIe."""

    vendor: Vendor
    index: int
    name: str
    memory_bytes: int | None = None
    used_bytes: int | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()
    temperature_c: int | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    ecc: bool | None = None
    uncorrected_errors: int | None = None
    repair: str = ""
    mig: bool = False
    compute_mode: str = ""
    link_width: int | None = None
    max_link_width: int | None = None
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLink:
    """The way between two devices, in the words of `nvidia-smi topo -m`: NV12 (12 NVLinks), PIX, PHB, SYS ..."""

    first: int
    second: int
    way: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """speed_bits_per_s: None where the driver tells none."""

    name: str
    up: bool
    speed_bits_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPort:
    """state: as the kernel words it, ACTIVE where it carries data. layer: InfiniBand or Ethernet (RoCE)."""

    device: str
    port: int
    state: str
    layer: str
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Soft limits of this process, which its jobs inherit; None: unlimited."""

    open_files: int | None
    locked_bytes: int | None
    processes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The file system of a folder. kind: its name in /proc/mounts, such as ext4, nfs4, lustre."""

    folder: str
    kind: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """cores: that this process may run on. cgroup_cores, cgroup_memory_bytes: the limits of the control group, None
    where there are none. shared_memory_bytes: the size of /dev/shm. name_resolves: whether the host's name has an
    address."""

    name: str
    kernel: str
    python: str
    processor: str
    cores: int
    cores_of_machine: int
    numa_nodes: int
    load: float
    memory_bytes: int
    available_bytes: int
    cgroup_cores: float | None
    cgroup_memory_bytes: int | None
    shared_memory_bytes: int | None
    shared_memory_free_bytes: int | None
    name_resolves: bool
    limits: ProcessLimits
    interfaces: tuple[NetworkInterface, ...]
    infiniband: tuple[InfinibandPort, ...]
    disk: Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFact:
    """A scheduler whose command is on the PATH. answers: None where it was not asked. told: its first line, or why it
    does not answer. allocation: the job that this process runs in, empty outside of one."""

    name: str
    command: str
    answers: bool | None
    told: str
    allocation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """One device that torch sees. capability: as torch writes it, such as 9.0; empty where it has none."""

    name: str
    memory_bytes: int
    capability: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The torch that jobs would import. cuda, rocm, xpu: the version that it was built for, empty where it was not.
    kind: of the devices that it sees: cuda (ROCm too), xpu or cpu. backends: versions of the communication libraries
    by name, empty where a library tells none. error: why counting the devices failed."""

    version: str
    cuda: str
    rocm: str
    xpu: str
    kind: str
    devices: tuple[TorchDevice, ...]
    backends: Mapping[str, str]
    numpy: bool
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """torch: None where it is not installed, or where asking it failed. visible: the variables that hide devices, by
    name. unread: what was there and did not answer, with the reason. broken_schedulers: why those of other packages
    cannot be used."""

    host: Host
    accelerators: tuple[Accelerator, ...] = ()
    driver: str = ""
    links: tuple[DeviceLink, ...] = ()
    torch: TorchBuild | None = None
    schedulers: tuple[SchedulerFact, ...] = ()
    broken_schedulers: tuple[str, ...] = ()
    visible: dict[str, str]
    unread: tuple[str, ...] = ()
