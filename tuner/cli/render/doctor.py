"""The page of `meshtune doctor`: the facts of a machine, its self-test, and what would go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from meshtune.runners.devices.facts import Accelerator, Host, Machine
from meshtune.runners.devices.findings import Finding, Level
from meshtune.tuner.campaign.units import gibibytes, number, seconds
from meshtune.tuner.cli.render.terminal import new_table

if TYPE_CHECKING:
    from meshtune.tuner.service.self_test import SelfTest

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "cyan"}


def doctor_page(machine: Machine, test: SelfTest | None, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    table = new_table(f"{machine.host.name}", "what", "found")
    for what, text in (*_devices(machine), *_links(machine), *_host(machine.host), *_schedulers(machine)):
        table.add_row(what, text)
    if test is not None:
        for what, text in _self_test(test):
            table.add_row(what, text)
    yield table
    yield from _findings(findings)


def _devices(machine: Machine) -> Iterator[tuple[str, str]]:
    for same, count in Counter((device.vendor, device.name) for device in machine.accelerators).items():
        first = next(device for device in machine.accelerators if (device.vendor, device.name) == same)
        memory = "" if first.memory_bytes is None else f", {gibibytes(first.memory_bytes)} each"
        driver = f", driver {machine.driver}" if machine.driver and same[0] == "nvidia" else ""
        yield "devices", f"{count} x {same[1]}{memory}{driver}"
    if not machine.accelerators:
        yield "devices", "none that nvidia-smi, rocm-smi or xpu-smi show: trials would be processes of the CPU"
    for device in machine.accelerators:
        yield f"device {device.index}", _state(device)
    build = machine.torch
    if build is None:
        yield "torch", "not installed" if not machine.unread else "not usable; see below"
        return
    versions = {"CUDA": build.cuda, "ROCm": build.rocm, "XPU": build.xpu}
    made_for = ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "CPU"
    seen = ", ".join(f"{count} x {name}" for name, count in Counter(each.name for each in build.devices).items())
    yield "torch", f"{build.version}, built for {made_for}; sees {seen or 'no device'}"
    yield "back ends", ", ".join(f"{name} {version}".strip() for name, version in build.backends.items()) or "none"


def _state(device: Accelerator) -> str:
    parts = []
    if device.memory_bytes is not None and device.used_bytes is not None:
        parts.append(f"{gibibytes(device.used_bytes)} of {gibibytes(device.memory_bytes)} in use")
    if device.clock_mhz is not None:
        parts.append(f"{device.clock_mhz} of {device.max_clock_mhz} MHz")
    if device.power_limit_w is not None:
        parts.append(f"limit {device.power_limit_w:g} W")
    if device.temperature_c is not None:
        parts.append(f"{device.temperature_c} C")
    if device.ecc is not None:
        errors = f", {device.uncorrected_errors} uncorrected errors" if device.ecc else ""
        parts.append(f"ECC {'on' if device.ecc else 'off'}{errors}")
    if device.processes:
        parts.append(f"{len(device.processes)} other process{'es' if len(device.processes) > 1 else ''}")
    return ", ".join(parts) or "nothing more is told"


def _links(machine: Machine) -> Iterator[tuple[str, str]]:
    if machine.links:
        ways = Counter(link.way for link in machine.links)
        yield "links of devices", ", ".join(f"{count} x {way}" for way, count in ways.most_common())
    for interface in machine.host.interfaces:
        speed = "" if interface.speed_bits_per_s is None else f", {interface.speed_bits_per_s / 1e9:g} Gbit/s"
        if interface.up:
            yield f"network {interface.name}", f"up{speed}"
    for port in machine.host.infiniband:
        yield f"{port.device} port {port.port}", f"{port.layer}, {port.state}, {port.rate}"


def _host(host: Host) -> Iterator[tuple[str, str]]:
    limited = "" if host.cgroup_cores is None else f", limited to {host.cgroup_cores:g}"
    numa = f"{host.numa_nodes} NUMA node{'s' if host.numa_nodes > 1 else ''}"
    cores = f"{host.cores} of {host.cores_of_machine} cores{limited}, {numa}, load {host.load:.1f}"
    yield "CPU", f"{host.processor}: {cores}"
    limited = "" if host.cgroup_memory_bytes is None else f", limited to {gibibytes(host.cgroup_memory_bytes)}"
    yield "memory", f"{gibibytes(host.available_bytes)} of {gibibytes(host.memory_bytes)} available{limited}"
    if host.shared_memory_bytes is not None:
        yield "/dev/shm", gibibytes(host.shared_memory_bytes)
    limits = host.limits
    locked = "unlimited" if limits.locked_bytes is None else gibibytes(limits.locked_bytes)
    files, processes = ("unlimited" if each is None else str(each) for each in (limits.open_files, limits.processes))
    yield "limits", f"{files} open files, {processes} processes, {locked} of locked memory"
    disk = host.disk
    yield "disk", f"{disk.folder}: {gibibytes(disk.free_bytes)} of {gibibytes(disk.total_bytes)} free ({disk.kind})"
    yield "software", f"Python {host.python}, Linux {host.kernel}"


def _schedulers(machine: Machine) -> Iterator[tuple[str, str]]:
    for scheduler in machine.schedulers:
        state = {True: "answers", False: "does not answer", None: "not asked"}[scheduler.answers]
        inside = f"; inside job {scheduler.allocation}" if scheduler.allocation else ""
        answer = f": {scheduler.told}" if scheduler.answers is None else ""
        yield scheduler.name, f"{state}{answer}{inside}"


def _self_test(test: SelfTest) -> Iterator[tuple[str, str]]:
    search, devices = test.search, test.devices
    ending = "found" if search.found else f"missed: {search.best or 'nothing'} was measured best"
    trials = f"{search.trials} trials of {search.plans} plans, {seconds(search.seconds)}"
    yield "self-test: search", f"planted {search.planted}: {ending} ({trials})"
    if devices.skipped:
        yield "self-test: devices", f"not run: {devices.skipped}"
    elif devices.tokens_per_s is not None:
        ranks = f"{devices.devices} {devices.kind} rank{'s' if devices.devices > 1 else ''}"
        speed = f"{number(devices.tokens_per_s)} tokens/s"
        yield "self-test: devices", f"{ranks} trained: {devices.trials} trials, {speed}, {seconds(devices.seconds)}"
    else:
        yield "self-test: devices", "failed" if devices.failure else devices.reason


def _findings(findings: Sequence[Finding]) -> Iterator[Text]:
    if not findings:
        yield Text("Nothing was found that would go wrong.", style="green")
        return
    yield Text("What would go wrong, and how to mend it", style="italic")
    for finding in findings:
        yield Text.assemble((finding.level, _COLOURS[finding.level]), f": {finding.found}\n    {finding.mend}")
