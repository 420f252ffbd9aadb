"""What would go wrong on a machine, and how to mend it: one table of rules over its facts. Pure.

An error makes jobs fail or their measurements wrong; a warning does so on some machines or for some jobs; a note says
what to know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from meshtune.runners.devices.facts import Accelerator, Machine, Vendor
from meshtune.search_spaces.checks import StrEnum

MIB, GIB = 2**20, 2**30
# The versions of torch that the trainer runs under (`trainer.compat`): at least, and below.
TORCH_FROM, TORCH_BELOW = (2, 9), (2, 14)
# NCCL and data loaders of several ranks on one machine; Docker gives 64 MiB.
MIN_SHARED_BYTES = GIB
MIN_OPEN_FILES, MIN_PROCESSES = 4096, 4096
# RDMA registers the buffers that it sends, which count as locked memory.
MIN_LOCKED_BYTES = GIB
# An idle device holds some hundred MiB for its driver and its displays.
IDLE_BYTES = GIB
MIN_DISK_BYTES, LOW_DISK_BYTES = GIB, 10 * GIB
LOW_MEMORY_BYTES = 2 * GIB
NETWORK_DISKS = ("nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "fuse.sshfs")


class Level(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """rule: its name, for programs. found: what was seen, with the numbers. mend: what to do about it."""

    level: Level
    rule: str
    found: str
    mend: str


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    level: Level
    # What it finds, a sentence for each place; nothing where all is well.
    find: Callable[[Machine], Iterable[str]]
    mend: str


def findings(machine: Machine) -> list[Finding]:
    """Errors first, else in the order of the table."""
    seen = [
        Finding(level=rule.level, rule=rule.name, found=sentence, mend=rule.mend)
        for rule in RULES
        for sentence in rule.find(machine)
    ]
    return sorted(seen, key=lambda finding: [*Level].index(finding.level))


def device_count(machine: Machine) -> int:
    """The devices that jobs would use: those that torch sees, else those of the vendors' tools; 0: CPU processes."""
    return len(machine.torch.devices) if machine.torch and machine.torch.devices else len(machine.accelerators)


def _named(device: Accelerator) -> str:
    return f"device {device.index} ({device.name})"


def _cpu_build(machine: Machine) -> Iterator[str]:
    build, devices = machine.torch, machine.accelerators
    if build is not None and devices and not (build.cuda or build.rocm or build.xpu):
        yield f"torch {build.version} is a build for CPUs, but there are {len(devices)} x {devices[0].name}"


def _wrong_build(machine: Machine) -> Iterator[str]:
    build = machine.torch
    if build is None or not (build.cuda or build.rocm or build.xpu):
        return
    built = {Vendor.NVIDIA: build.cuda, Vendor.AMD: build.rocm, Vendor.INTEL: build.xpu}
    words = {Vendor.NVIDIA: "CUDA", Vendor.AMD: "ROCm", Vendor.INTEL: "XPU"}
    for vendor in dict.fromkeys(device.vendor for device in machine.accelerators):
        if not built[vendor]:
            yield f"torch {build.version} is not built for {words[vendor]}, which the devices here need"


def _unseen_devices(machine: Machine) -> Iterator[str]:
    build, there = machine.torch, len(machine.accelerators)
    if build is None or not (build.cuda or build.rocm or build.xpu) or machine.visible:
        return
    if len(build.devices) < there and not any(device.mig for device in machine.accelerators):
        why = f": {build.error}" if build.error else ""
        yield f"torch sees {len(build.devices)} of {there} devices{why}"


def _no_devices(machine: Machine) -> Iterator[str]:
    build = machine.torch
    if build is not None and (build.cuda or build.rocm or build.xpu) and not build.devices and not machine.accelerators:
        why = f": {build.error}" if build.error else ""
        yield f"torch {build.version} is built for accelerators and sees none{why}"


def _torch_version(machine: Machine) -> Iterator[str]:
    release = re.match(r"(\d+)\.(\d+)", machine.torch.version) if machine.torch else None
    if machine.torch and release and (int(release[1]), int(release[2])) < TORCH_FROM:
        yield f"torch {machine.torch.version} is older than {'.'.join(map(str, TORCH_FROM))}"


def _new_torch(machine: Machine) -> Iterator[str]:
    release = re.match(r"(\d+)\.(\d+)", machine.torch.version) if machine.torch else None
    if machine.torch and release and (int(release[1]), int(release[2])) >= TORCH_BELOW:
        yield f"torch {machine.torch.version}: the trainer was not tried with it"


def _no_collectives(machine: Machine) -> Iterator[str]:
    build = machine.torch
    if build is None:
        return
    needed = {"cuda": {"nccl", "rccl"}, "xpu": {"xccl"}, "cpu": {"gloo"}}.get(build.kind, set())
    if needed and not needed & set(build.backends):
        yield f"torch {build.version} has no {' or '.join(sorted(needed))}"


def _xpu(machine: Machine) -> Iterator[str]:
    if machine.torch is not None and machine.torch.kind == "xpu":
        yield f"the devices are Intel XPUs ({machine.torch.devices[0].name})"


def _occupied(machine: Machine) -> Iterator[str]:
    for device in machine.accelerators:
        # rocm-smi names programs without their devices; the memory of each device says which is held.
        if device.vendor is Vendor.AMD and (device.used_bytes or 0) < IDLE_BYTES:
            continue
        if device.processes:
            names = ", ".join(f"{each.name} (process {each.pid})" for each in device.processes[:3])
            more = f" and {len(device.processes) - 3} more" if len(device.processes) > 3 else ""
            yield f"{_named(device)} is in use by {names}{more}"


def _held(machine: Machine) -> Iterator[str]:
    for device in machine.accelerators:
        if not device.processes and (device.used_bytes or 0) > IDLE_BYTES:
            held = f"{(device.used_bytes or 0) / GIB:.1f} GiB"
            yield f"{held} of {_named(device)} are held by a program that is not shown"


def _devices(test: Callable[[Accelerator], str]) -> Callable[[Machine], Iterator[str]]:
    """A rule over each device by itself; the test says what is wrong with it."""

    def find(machine: Machine) -> Iterator[str]:
        for device in machine.accelerators:
            if words := test(device):
                yield f"{_named(device)} {words}"

    return find


def _errors(device: Accelerator) -> str:
    return f"counts {device.uncorrected_errors} uncorrected memory errors" if device.uncorrected_errors else ""


def _power(device: Accelerator) -> str:
    limit, default = device.power_limit_w, device.default_power_limit_w
    return f"is limited to {limit:g} W of {default:g} W" if limit and default and limit < default else ""


def _lanes(device: Accelerator) -> str:
    width, full = device.link_width, device.max_link_width
    return f"has {width} of {full} PCIe lanes" if width and full and width < full else ""


def _small_shared_memory(several_devices: bool) -> Callable[[Machine], Iterator[str]]:
    def find(machine: Machine) -> Iterator[str]:
        size, devices = machine.host.shared_memory_bytes, device_count(machine)
        if size is not None and size < MIN_SHARED_BYTES and (devices > 1) is several_devices:
            ranks = f"{devices} devices" if devices else "the ranks of this machine"
            yield f"/dev/shm has {size / MIB:.0f} MiB for {ranks}"

    return find


def _locked_memory(machine: Machine) -> Iterator[str]:
    limit = machine.host.limits.locked_bytes
    if machine.host.infiniband and limit is not None and limit < MIN_LOCKED_BYTES:
        ports = ", ".join(sorted({port.device for port in machine.host.infiniband}))
        yield f"at most {limit / MIB:.0f} MiB may be locked (ulimit -l), and RDMA over {ports} locks its buffers"


def _open_files(machine: Machine) -> Iterator[str]:
    limit = machine.host.limits.open_files
    if limit is not None and limit < MIN_OPEN_FILES:
        yield f"a process may open {limit} files (ulimit -n), fewer than {MIN_OPEN_FILES}"


def _process_limit(machine: Machine) -> Iterator[str]:
    limit = machine.host.limits.processes
    if limit is not None and limit < MIN_PROCESSES:
        yield f"the user may have {limit} processes and threads (ulimit -u), fewer than {MIN_PROCESSES}"


def _few_cores(machine: Machine) -> Iterator[str]:
    host, ranks = machine.host, device_count(machine)
    cores = min(float(host.cores), host.cgroup_cores or float(host.cores))
    if cores < ranks:
        yield f"{cores:g} CPU cores for {ranks} devices, each of which a process drives"


def _busy(machine: Machine) -> Iterator[str]:
    host = machine.host
    if host.load > host.cores_of_machine and not device_count(machine):
        yield f"the load is {host.load:.1f} on {host.cores_of_machine} cores, and trials would run on these"


def _memory(machine: Machine) -> Iterator[str]:
    host, ranks = machine.host, max(1, device_count(machine))
    memory = min(host.available_bytes, host.cgroup_memory_bytes or host.available_bytes)
    if 0 < memory < LOW_MEMORY_BYTES * ranks:
        yield f"{memory / GIB:.1f} GiB of memory are available for {ranks} ranks"


def _disk(below: int, at_least: int) -> Callable[[Machine], Iterator[str]]:
    def find(machine: Machine) -> Iterator[str]:
        disk = machine.host.disk
        if at_least <= disk.free_bytes < below:
            yield f"{disk.free_bytes / GIB:.1f} GiB of {disk.total_bytes / GIB:.0f} GiB are free at {disk.folder}"

    return find


def _network_disk(machine: Machine) -> Iterator[str]:
    disk = machine.host.disk
    if disk.kind in NETWORK_DISKS:
        yield f"{PurePath(disk.folder)} lies on a network disk ({disk.kind}), where SQLite's locks do not hold"


def _name(machine: Machine) -> Iterator[str]:
    if not machine.host.name_resolves:
        yield f"the host's own name {machine.host.name} does not resolve"


def _ports(machine: Machine) -> Iterator[str]:
    ports = machine.host.infiniband
    down = [port for port in ports if port.state != "ACTIVE"]
    if ports and len(down) == len(ports):
        yield f"none of {len(ports)} InfiniBand ports is active ({down[0].device}: {down[0].state})"


def _broken_scheduler(machine: Machine) -> Iterator[str]:
    yield from map(_short, machine.broken_schedulers)


def _no_scheduler(machine: Machine) -> Iterator[str]:
    if not machine.schedulers:
        yield "no scheduler's command (sinfo, pbsnodes, ray) is on the PATH"


def _outside(machine: Machine) -> Iterator[str]:
    answering = [scheduler for scheduler in machine.schedulers if scheduler.answers and scheduler.name != "ray"]
    if answering and not any(scheduler.allocation for scheduler in machine.schedulers):
        yield f"{answering[0].name} answers, and this process is in none of its jobs"


def _unread(machine: Machine) -> Iterator[str]:
    yield from map(_short, machine.unread)


def _hidden(machine: Machine) -> Iterator[str]:
    for name, value in machine.visible.items():
        yield f"{name} is {value!r}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


_E, _W, _N = Level.ERROR, Level.WARNING, Level.NOTE
RULES: tuple[Rule, ...] = (
    Rule("torch-cpu-build", _E, _cpu_build, "install the build for these devices: pytorch.org/get-started/locally"),
    Rule("torch-wrong-build", _E, _wrong_build, "install the build for these devices: pytorch.org/get-started/locally"),
    Rule("torch-old", _E, _torch_version, "pip install 'meshtune[torch]'"),
    Rule(
        "torch-sees-fewer-devices",
        _E,
        _unseen_devices,
        "compare the driver's version with what torch's CUDA or ROCm needs; in a container pass all devices",
    ),
    Rule("collectives-missing", _E, _no_collectives, "install an official build of torch: several ranks cannot meet"),
    Rule("device-in-use", _E, _occupied, "end these programs, or hide the device: measured times would not be its own"),
    Rule("memory-errors", _E, _devices(_errors), "drain the node; reset or replace the device"),
    Rule(
        "device-repair",
        _E,
        _devices(lambda device: f"says: {device.repair}" if device.repair else ""),
        "drain the node and reset the device (nvidia-smi -r)",
    ),
    Rule(
        "device-prohibited",
        _E,
        _devices(lambda device: "is closed to programs" if device.compute_mode == "Prohibited" else ""),
        "as root: nvidia-smi -c DEFAULT",
    ),
    Rule(
        "shared-memory-small",
        _E,
        _small_shared_memory(True),
        "docker run --shm-size=8g, or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm",
    ),
    Rule(
        "locked-memory-small",
        _E,
        _locked_memory,
        "ulimit -l unlimited: in limits.conf, and LimitMEMLOCK=infinity of slurmd or pbs_mom",
    ),
    Rule("disk-full", _E, _disk(MIN_DISK_BYTES, 0), "free space, or name another folder with --home"),
    Rule("device-memory-held", _W, _held, "look for programs in other containers or of other users"),
    Rule(
        "clock-slowed",
        _W,
        _devices(lambda device: f"is slowed down now: {', '.join(device.throttled_by)}" if device.throttled_by else ""),
        "check cooling and power of the node: its times will not be those of others",
    ),
    Rule(
        "power-limited",
        _W,
        _devices(_power),
        "as root: nvidia-smi -pl WATTS, or compare with equally limited devices only",
    ),
    Rule("pcie-narrow", _W, _devices(_lanes), "reseat the device, or check the slot; transfers take longer"),
    Rule(
        "mig",
        _W,
        _devices(lambda device: "is cut into MIG instances" if device.mig else ""),
        "as root: nvidia-smi -mig 0; ranks on instances share memory and cannot use NVLink",
    ),
    Rule(
        "torch-missing",
        _W,
        lambda machine: ["torch is not installed"] if machine.torch is None and not machine.unread else [],
        "pip install 'meshtune[torch]'; without it there are estimates, simulated campaigns and your own scripts",
    ),
    Rule(
        "torch-new",
        _W,
        _new_torch,
        "compare one trial's losses with another version's, or pip install 'meshtune[torch]'",
    ),
    Rule("no-devices", _W, _no_devices, "pass the devices to the container or the job; else trials run on the CPU"),
    Rule(
        "xpu-untried",
        _W,
        _xpu,
        "compare one trial's losses with the same job's on the CPU: the built-in trainer was never run on an XPU",
    ),
    Rule("shared-memory-small", _W, _small_shared_memory(False), "docker run --shm-size=8g, or --ipc=host"),
    Rule("open-files-few", _W, _open_files, "ulimit -n 65536, or in limits.conf"),
    Rule("processes-few", _W, _process_limit, "ulimit -u 65536, or in limits.conf"),
    Rule("cores-few", _W, _few_cores, "ask the scheduler or the container for at least one core per device"),
    Rule("memory-low", _W, _memory, "end other programs, or tune with fewer ranks"),
    Rule("busy", _W, _busy, "end other programs: times of CPU trials will be noise"),
    Rule("disk-low", _W, _disk(LOW_DISK_BYTES, MIN_DISK_BYTES), "free space, or name another folder with --home"),
    Rule("network-disk", _W, _network_disk, "keep the database on a local disk (--db), or in PostgreSQL"),
    Rule("infiniband-down", _W, _ports, "check cables and the subnet manager; nodes will talk over Ethernet"),
    Rule("name-unresolved", _W, _name, "add the name to /etc/hosts: gloo and launchers look it up"),
    Rule(
        "scheduler-silent",
        _W,
        lambda machine: [
            f"{each.name} does not answer: {_short(each.told)}" for each in machine.schedulers if each.answers is False
        ],
        "check its configuration here: campaigns with this runner wait until it answers",
    ),
    Rule("scheduler-broken", _W, _broken_scheduler, "update or remove the package: only its own runner cannot be used"),
    Rule("unread", _W, _unread, "run the command by hand; a tool that hangs often means a failed device"),
    Rule("devices-hidden", _N, _hidden, "jobs inherit it: unset it to use all devices"),
    Rule("scheduler-none", _N, _no_scheduler, "use the runner `local`, or run this where jobs are submitted"),
    Rule(
        "outside-allocation",
        _N,
        _outside,
        "the facts above are this host's; run `meshtune doctor` in a job to see a compute node",
    ),
)
