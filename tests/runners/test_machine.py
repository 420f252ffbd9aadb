"""Facts of a machine from the tools and files that tell them, and the rules over these facts.

The answers of the tools are written by hand after their published forms: no such device was here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_programs import Recorded

from meshtune.runners.devices import vendor_tools
from meshtune.runners.devices.facts import (
    Accelerator,
    DeviceLink,
    DeviceProcess,
    Disk,
    Host,
    InfinibandPort,
    Machine,
    NetworkInterface,
    ProcessLimits,
    SchedulerFact,
    TorchBuild,
    TorchDevice,
    Vendor,
)
from meshtune.runners.devices.findings import RULES, Level, device_count, findings
from meshtune.runners.devices.host import read_disk, read_host, read_infiniband, read_interfaces
from meshtune.runners.devices.vendor_tools import (
    UnreadableTool,
    parse_amd,
    parse_driver,
    parse_intel,
    parse_nvidia,
    parse_topology,
    read_accelerators,
)
from meshtune.runners.machine import read_schedulers

MIB, GIB = 2**20, 2**30
NVIDIA = (Path(__file__).parent / "machine_answers" / "nvidia-smi.xml").read_text()
TOPOLOGY = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-23\t0
GPU1\tNV18\t X \tPHB\tSYS\t0-23\t0
GPU2\tSYS\tPHB\t X \tSYS\t24-47\t1
NIC0\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
AMD = {
    "card0": {"Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520"},
    "card10": {"Card series": "AMD Instinct MI250X", "VRAM Total Used Memory (B)": "2147483648"},
    "card2": {"Card series": "AMD Instinct MI250X"},
    "system": {"PID77": "python3, 1, 4096, 0, 0", "PID78": "idle, 0, 0, 0, 0", "Driver version": "6.3.6"},
}
INTEL = {"device_list": [{"device_id": 1, "device_name": "Intel(R) Data Center GPU Max 1550", "device_type": "GPU"}]}


def test_nvidias_devices_are_read_in_the_forms_of_old_and_new_drivers():
    quiet, hot = parse_nvidia(NVIDIA)
    assert parse_driver(NVIDIA) == "550.54.15"
    assert quiet == Accelerator(
        vendor=Vendor.NVIDIA,
        index=0,
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=81559 * MIB,
        used_bytes=4 * MIB,
        clock_mhz=345,
        max_clock_mhz=1980,
        temperature_c=31,
        power_limit_w=700.0,
        default_power_limit_w=700.0,
        ecc=True,
        uncorrected_errors=0,
        compute_mode="Default",
        link_width=16,
        max_link_width=16,
    )
    assert hot.throttled_by == ("hw_thermal_slowdown",)  # the power cap is no fault
    assert (hot.power_limit_w, hot.uncorrected_errors, hot.link_width) == (500.0, 3, 8)
    assert hot.repair == "a reset is required"
    assert hot.processes == (DeviceProcess(pid=4711, name="python3", memory_bytes=20480 * MIB),)  # not Xorg


def test_a_topology_gives_each_pair_of_devices_once_and_no_cards():
    assert parse_topology(TOPOLOGY) == (
        DeviceLink(first=0, second=1, way="NV18"),
        DeviceLink(first=0, second=2, way="SYS"),
        DeviceLink(first=1, second=2, way="PHB"),
    )
    assert parse_topology("Failed to initialize NVML") == ()


def test_amds_and_intels_devices_are_read_by_number():
    cards = parse_amd(json.dumps(AMD))
    assert [card.index for card in cards] == [0, 2, 10]
    assert (cards[0].memory_bytes, cards[2].used_bytes) == (68702699520, 2 * GIB)
    assert cards[0].processes == (DeviceProcess(pid=77, name="python3", memory_bytes=4096),)
    (intel,) = parse_intel(json.dumps(INTEL))
    assert (intel.vendor, intel.index, intel.name) == (Vendor.INTEL, 1, "Intel(R) Data Center GPU Max 1550")


@pytest.mark.parametrize(("parser", "text"), [(parse_nvidia, "no XML"), (parse_amd, "[]"), (parse_intel, "{}")])
def test_another_form_is_refused(parser, text):
    with pytest.raises(UnreadableTool):
        parser(text)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program of this name and shell script on the PATH."""
    monkeypatch.setenv("PATH", os.defpath)
    return Recorded(tmp_path / "bin", monkeypatch).script


def test_tools_are_asked_and_what_fails_or_hangs_is_told_and_holds_nobody_up(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(vendor_tools, "TOOL_LIMIT_S", 0.5)
    (tmp_path / "smi.xml").write_text(NVIDIA)
    (tmp_path / "topo").write_text(TOPOLOGY)
    tool("nvidia-smi", f'[ "$1" = topo ] && exec cat {tmp_path}/topo; exec cat {tmp_path}/smi.xml')
    tool("rocm-smi", "sleep 60")
    tool("xpu-smi", "echo the driver is gone >&2; exit 3")
    begun = time.monotonic()
    devices, driver, links, unread = read_accelerators()
    assert time.monotonic() - begun < 30
    assert ([device.vendor for device in devices], driver, len(links)) == ([Vendor.NVIDIA] * 2, "550.54.15", 3)
    assert unread == ("rocm-smi did not answer within 0.5 s", "xpu-smi discovery -j: the driver is gone")


def test_schedulers_that_are_there_are_asked(tool):
    tool("sinfo", "echo 'batch* 4 idle'")
    tool("pbsnodes", "echo 'cannot connect to server' >&2; exit 1")
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "17"}
    slurm, pbs = (fact for fact in read_schedulers(environment) if fact.name != "ray")
    assert slurm == SchedulerFact(name="slurm", command="sinfo", answers=True, told="batch* 4 idle", allocation="17")
    assert (pbs.answers, pbs.told, pbs.allocation) == (False, "cannot connect to server", "")


# A recorded tree


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_links_to_other_nodes_are_read_from_the_kernel(tmp_path):
    for name, state, speed in (("ib0", "up", "400000\n"), ("eth0", "down", "-1\n"), ("lo", "unknown", "")):
        put(tmp_path, f"sys/class/net/{name}/operstate", state)
        put(tmp_path, f"sys/class/net/{name}/speed", speed)
    port = "sys/class/infiniband/mlx5_0/ports/1"
    for name, text in {"state": "4: ACTIVE\n", "link_layer": "InfiniBand\n", "rate": "400 Gb/sec (4X NDR)\n"}.items():
        put(tmp_path, f"{port}/{name}", text)
    assert read_interfaces(tmp_path) == (
        NetworkInterface(name="eth0", up=False),
        NetworkInterface(name="ib0", up=True, speed_bits_per_s=4e11),
    )
    assert read_infiniband(tmp_path) == (
        InfinibandPort(device="mlx5_0", port=1, state="ACTIVE", layer="InfiniBand", rate="400 Gb/sec (4X NDR)"),
    )


def test_the_narrowest_limit_of_all_control_groups_above_counts(tmp_path):
    put(tmp_path, "proc/self/cgroup", "0::/job/step\n")
    put(tmp_path, "sys/fs/cgroup/job/cpu.max", "400000 100000\n")
    put(tmp_path, "sys/fs/cgroup/job/step/cpu.max", "max 100000\n")
    put(tmp_path, "sys/fs/cgroup/job/memory.max", "1073741824\n")
    put(tmp_path, "sys/fs/cgroup/job/step/memory.max", "max\n")
    host = read_host(tmp_path, tmp_path)
    assert (host.cgroup_cores, host.cgroup_memory_bytes) == (4.0, GIB)


def test_control_groups_of_the_first_version_are_read_too(tmp_path):
    put(tmp_path, "proc/self/cgroup", "4:memory:/slurm\n3:cpu,cpuacct:/slurm\n0::/\n")
    put(tmp_path, "sys/fs/cgroup/cpu/slurm/cpu.cfs_quota_us", "150000\n")
    put(tmp_path, "sys/fs/cgroup/cpu/slurm/cpu.cfs_period_us", "100000\n")
    put(tmp_path, "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "2147483648\n")
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    host = read_host(tmp_path, tmp_path)
    assert (host.cgroup_cores, host.cgroup_memory_bytes) == (1.5, 2 * GIB)


def test_a_disk_is_that_of_the_nearest_folder_that_exists(tmp_path):
    put(tmp_path, "proc/mounts", f"a / ext4 rw 0 0\nb {tmp_path} nfs4 rw 0 0\nc {tmp_path}x xfs rw 0 0\n")
    disk = read_disk(tmp_path / "not" / "there", tmp_path)
    assert (disk.kind, disk.folder) == ("nfs4", str(tmp_path / "not" / "there"))
    assert 0 < disk.free_bytes <= disk.total_bytes


def test_this_host_is_read(tmp_path):
    host = read_host(tmp_path)
    assert host.cores == len(os.sched_getaffinity(0))
    assert 0 < host.available_bytes <= host.memory_bytes
    assert host.shared_memory_bytes
    assert host.disk.kind


# Rules

HOST = Host(
    name="node1",
    kernel="6.1",
    python="3.11.7",
    processor="CPU",
    cores=64,
    cores_of_machine=64,
    numa_nodes=2,
    load=0.5,
    memory_bytes=512 * GIB,
    available_bytes=500 * GIB,
    cgroup_cores=None,
    cgroup_memory_bytes=None,
    shared_memory_bytes=256 * GIB,
    shared_memory_free_bytes=256 * GIB,
    name_resolves=True,
    limits=ProcessLimits(open_files=65536, locked_bytes=None, processes=65536),
    interfaces=(NetworkInterface(name="eth0", up=True),),
    infiniband=(InfinibandPort(device="mlx5_0", port=1, state="ACTIVE", layer="InfiniBand", rate="400"),),
    disk=Disk(folder="/home/ann/.meshtune", kind="ext4", total_bytes=1000 * GIB, free_bytes=500 * GIB),
)
H100 = Accelerator(vendor=Vendor.NVIDIA, index=0, name="H100", memory_bytes=80 * GIB, used_bytes=4 * MIB)
BUILD = TorchBuild(
    version="2.13.0+cu130",
    cuda="13.0",
    rocm="",
    xpu="",
    kind="cuda",
    devices=(TorchDevice(name="H100", memory_bytes=80 * GIB),) * 2,
    backends={"nccl": "2.27.5", "gloo": ""},
    numpy=True,
)
SLURM = SchedulerFact(name="slurm", command="sinfo", answers=True, told="batch", allocation="17")
HEALTHY = Machine(host=HOST, accelerators=(H100, replace(H100, index=1)), torch=BUILD, schedulers=(SLURM,), visible={})


def host(**over: Any) -> Machine:
    return replace(HEALTHY, host=replace(HOST, **over))


def limits(**over: Any) -> Machine:
    return host(limits=replace(HOST.limits, **over))


def device(**over: Any) -> Machine:
    return replace(HEALTHY, accelerators=(replace(H100, **over), replace(H100, index=1)))


def build(**over: Any) -> Machine:
    return replace(HEALTHY, torch=replace(BUILD, **over))


def disk(**over: Any) -> Machine:
    return host(disk=replace(HOST.disk, **over))


NO_CUDA = {"version": "2.13.0+cpu", "cuda": "", "kind": "cpu", "devices": ()}
CPU_ONLY = replace(HEALTHY, accelerators=(), torch=replace(BUILD, **NO_CUDA))
PROCESS = DeviceProcess(pid=4711, name="python3")
SILENT = replace(SLURM, answers=False, told="Unable to contact slurm controller")
# rule -> a machine that breaks it alone, its level, and words of what is told
BROKEN: dict[str, tuple[Machine, Level, str]] = {
    "torch-cpu-build": (build(**NO_CUDA), Level.ERROR, "2.13.0+cpu is a build for CPUs, but there are 2 x H100"),
    "torch-wrong-build": (
        build(cuda="", rocm="7.0", backends={"rccl": ""}),
        Level.ERROR,
        "is not built for CUDA",
    ),
    "torch-old": (build(version="2.8.0"), Level.ERROR, "torch 2.8.0 is older than 2.9"),
    "torch-sees-fewer-devices": (
        build(devices=BUILD.devices[:1], error="driver too old"),
        Level.ERROR,
        "sees 1 of 2 devices: driver too old",
    ),
    "collectives-missing": (build(backends={"gloo": ""}), Level.ERROR, "has no nccl or rccl"),
    "device-in-use": (device(processes=(PROCESS,)), Level.ERROR, "device 0 (H100) is in use by python3 (process 4711)"),
    "memory-errors": (device(uncorrected_errors=3), Level.ERROR, "counts 3 uncorrected memory errors"),
    "device-repair": (device(repair="a reset is required"), Level.ERROR, "says: a reset is required"),
    "device-prohibited": (device(compute_mode="Prohibited"), Level.ERROR, "is closed to programs"),
    "shared-memory-small": (host(shared_memory_bytes=64 * MIB), Level.ERROR, "/dev/shm has 64 MiB for 2 devices"),
    "locked-memory-small": (limits(locked_bytes=8 * MIB), Level.ERROR, "at most 8 MiB may be locked (ulimit -l)"),
    "disk-full": (disk(free_bytes=GIB // 2), Level.ERROR, "0.5 GiB of 1000 GiB are free at /home/ann/.meshtune"),
    "device-memory-held": (device(used_bytes=20 * GIB), Level.WARNING, "20.0 GiB of device 0 (H100) are held"),
    "clock-slowed": (device(throttled_by=("hw_slowdown",)), Level.WARNING, "is slowed down now: hw_slowdown"),
    "power-limited": (
        device(power_limit_w=500.0, default_power_limit_w=700.0),
        Level.WARNING,
        "is limited to 500 W of 700 W",
    ),
    "pcie-narrow": (device(link_width=8, max_link_width=16), Level.WARNING, "has 8 of 16 PCIe lanes"),
    "mig": (device(mig=True), Level.WARNING, "is cut into MIG instances"),
    "torch-missing": (replace(HEALTHY, torch=None), Level.WARNING, "torch is not installed"),
    "torch-new": (build(version="2.14.1"), Level.WARNING, "was not tried with it"),
    "no-devices": (replace(HEALTHY, accelerators=(), torch=replace(BUILD, devices=())), Level.WARNING, "sees none"),
    "xpu-untried": (
        replace(HEALTHY, accelerators=(), torch=replace(BUILD, kind="xpu", backends={"xccl": ""})),
        Level.WARNING,
        "are Intel XPUs",
    ),
    "open-files-few": (limits(open_files=1024), Level.WARNING, "may open 1024 files (ulimit -n), fewer than 4096"),
    "processes-few": (limits(processes=256), Level.WARNING, "256 processes and threads"),
    "cores-few": (host(cgroup_cores=1.5), Level.WARNING, "1.5 CPU cores for 2 devices"),
    "memory-low": (host(available_bytes=3 * GIB), Level.WARNING, "3.0 GiB of memory are available for 2 ranks"),
    "busy": (replace(CPU_ONLY, host=replace(HOST, load=70.0)), Level.WARNING, "the load is 70.0 on 64 cores"),
    "disk-low": (disk(free_bytes=2 * GIB), Level.WARNING, "2.0 GiB of 1000 GiB"),
    "network-disk": (disk(kind="lustre"), Level.WARNING, "lies on a network disk (lustre)"),
    "infiniband-down": (
        host(infiniband=(replace(HOST.infiniband[0], state="DOWN"),)),
        Level.WARNING,
        "none of 1 InfiniBand ports is active (mlx5_0: DOWN)",
    ),
    "name-unresolved": (host(name_resolves=False), Level.WARNING, "name node1 does not resolve"),
    "scheduler-silent": (replace(HEALTHY, schedulers=(SILENT,)), Level.WARNING, "slurm does not answer: Unable to"),
    "scheduler-broken": (
        replace(HEALTHY, broken_schedulers=("the scheduler lsf of meshtune-lsf 1.0 cannot be loaded: ImportError: x",)),
        Level.WARNING,
        "the scheduler lsf of meshtune-lsf 1.0 cannot be loaded",
    ),
    "unread": (replace(HEALTHY, unread=("nvidia-smi did not answer within 15 s",)), Level.WARNING, "did not answer"),
    "devices-hidden": (
        replace(HEALTHY, visible={"CUDA_VISIBLE_DEVICES": "0"}),
        Level.NOTE,
        "CUDA_VISIBLE_DEVICES is '0'",
    ),
    "scheduler-none": (replace(HEALTHY, schedulers=()), Level.NOTE, "no scheduler's command"),
    "outside-allocation": (
        replace(HEALTHY, schedulers=(replace(SLURM, allocation=""),)),
        Level.NOTE,
        "slurm answers, and this process is in none of its jobs",
    ),
}


def test_on_a_healthy_machine_nothing_is_found():
    assert findings(HEALTHY) == []
    assert findings(CPU_ONLY) == []


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_finds_its_fault_alone(rule):
    machine, level, words = BROKEN[rule]
    (found,) = [found for found in findings(machine) if found.rule == rule]
    assert (found.level, words in found.found) == (level, True), found.found
    # What is told beside it follows from the same fault: torch that sees fewer devices of a wrong build.
    assert {other.rule for other in findings(machine)} <= {rule, "no-devices", "torch-wrong-build"}


def test_every_rule_is_broken_once_above():
    assert {rule.name for rule in RULES} == set(BROKEN)
    assert len({finding.mend for machine, _, _ in BROKEN.values() for finding in findings(machine)}) >= len(RULES) - 5


def test_small_shared_memory_is_a_warning_where_there_is_one_device_or_none():
    (found,) = findings(replace(CPU_ONLY, host=replace(HOST, shared_memory_bytes=64 * MIB)))
    assert (found.rule, found.level) == ("shared-memory-small", Level.WARNING)


def test_errors_come_first():
    both = replace(disk(free_bytes=GIB // 2), visible={"CUDA_VISIBLE_DEVICES": "0"}, unread=("x",))
    assert [found.level for found in findings(both)] == [Level.ERROR, Level.WARNING, Level.NOTE]


def test_processes_of_amds_devices_count_where_their_memory_is_held():
    card = Accelerator(vendor=Vendor.AMD, index=0, name="MI300X", used_bytes=GIB // 4, processes=(PROCESS,))
    rocm = replace(BUILD, cuda="", rocm="7.0", backends={"rccl": ""})
    machine = replace(HEALTHY, torch=rocm, accelerators=(card, replace(card, index=1, used_bytes=9 * GIB)))
    assert [found.found for found in findings(machine)] == ["device 1 (MI300X) is in use by python3 (process 4711)"]


def test_hidden_devices_are_not_counted():
    machine = build(devices=BUILD.devices[:1])
    assert device_count(machine) == 1
    assert "torch-sees-fewer-devices" not in {
        found.rule for found in findings(replace(machine, visible={"CUDA_VISIBLE_DEVICES": "0"}))
    }
