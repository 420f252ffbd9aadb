"""The hardware that a job ran on, by kind: read from the records of its nodes, and compared with another job's.

Each node of a job leaves a record (`runners.devices.record`) with what the vendors' tools answered there, as
it stands. What they say is untrusted text. Whatever is missing, unreadable or in another form is unknown; unknown
hardware is like any other. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshtune.runners.json_files import read_json_file
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.checks import Checked, Checks, Some

MAX_RECORD_BYTES = 64 << 10
# What nvidia-smi is asked, in this order, and what rocm-smi is.
NVIDIA_QUERY = "index,uuid,name,memory.total,clocks.max.sm,driver_version"
NVIDIA_ARGUMENTS = ("nvidia-smi", f"--query-gpu={NVIDIA_QUERY}", "--format=csv,noheader")
ROCM_ARGUMENTS = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
# Of a kind, in characters; of a measurement, in kinds.
MAX_TEXT, MAX_KINDS = 200, 64
# Two sizes that differ by less are one: firmware and kernels keep some of a memory to themselves.
MEMORY_STEP_BYTES = 1 << 30
MIB = 1 << 20
# Names of nodes that a sentence has.
MAX_NODES_TOLD = 4
_WHOLE = re.compile(r"\s*(\d{1,12})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareKind(Checked):
    """Devices of one kind, and the nodes on which a job had them."""

    # As the vendor's tool names it ("NVIDIA H100 80GB HBM3"); of a CPU, the model.
    device: str
    # Of one device; of a CPU, the node's. None where unknown.
    memory_bytes: Some | None = None
    # The highest clock; None where unknown.
    clock_mhz: Some | None = None
    # The driver's version, the kernel's for a CPU. It is told, and makes no kind unlike another.
    driver: str = ""
    # As the runner names them; in the order of the ranks.
    nodes: tuple[str, ...] = ()

    def _check(self, checks: Checks) -> None:
        for name in ("device", "driver"):
            length = len(getattr(self, name))
            checks.require(length <= MAX_TEXT, name, f"must have at most {MAX_TEXT} characters, not {length}")

    def is_like(self, other: HardwareKind) -> bool:
        """Whether a measurement on one holds for the other: device, memory and clock; the unknown equals anything."""
        sizes, clocks = (self.memory_bytes, other.memory_bytes), (self.clock_mhz, other.clock_mhz)
        return (
            self.device == other.device
            and (sizes[0] is None or sizes[1] is None or abs(sizes[0] - sizes[1]) < MEMORY_STEP_BYTES)
            and (clocks[0] is None or clocks[1] is None or clocks[0] == clocks[1])
        )

    @property
    def words(self) -> str:
        """With memory and clock, for people."""
        memory = [] if self.memory_bytes is None else [f"{self.memory_bytes / 2**30:.0f} GiB"]
        clock = [] if self.clock_mhz is None else [f"{self.clock_mhz} MHz"]
        return f"{self.device} ({', '.join([*memory, *clock])})" if memory or clock else self.device


Hardware = tuple[HardwareKind, ...]


def unlike_kinds(kinds: Hardware, others: Hardware) -> list[HardwareKind]:
    """Those of the first that are like none of the others; none where either is unknown."""
    return [kind for kind in kinds if others and not any(kind.is_like(other) for other in others)]


def same_hardware(one: Hardware, other: Hardware) -> bool:
    """Whether measurements on both can be compared: the same kinds, on however many nodes each; or unknown ones."""
    return not unlike_kinds(one, other) and not unlike_kinds(other, one)


def kinds_text(kinds: Hardware, beside: Hardware = ()) -> str:
    """The devices, for people. beside: with what they are compared; memory and clock are told where the names alone do
    not tell one from the other."""
    in_full = {kind.device for kind in kinds} == {kind.device for kind in beside}
    return " and ".join(dict.fromkeys(kind.words if in_full else kind.device for kind in kinds))


def nodes_text(nodes: Sequence[str]) -> str:
    more = len(nodes) - MAX_NODES_TOLD
    return ", ".join(nodes[:MAX_NODES_TOLD]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareRecord:
    """What one node says of itself, in `hardware-<number>.json` of a job's folder. visible: the devices that the job
    was given, as its environment names them; None: all. nvidia, rocm: answers to NVIDIA_ARGUMENTS and ROCM_ARGUMENTS,
    empty where there was none. cpu: the processor."""

    host: str
    visible: str | None = None
    nvidia: str = ""
    rocm: str = ""
    cpu: HardwareKind | None = None


def record_name(node: int) -> str:
    return f"hardware-{node}.json"


def read_hardware(directory: Path, count: int, *, accelerators: bool, nodes: Sequence[str] = ()) -> Hardware:
    """The kinds in the records of a job's folder; none where they are unknown. count: of the job's nodes. accelerators:
    the devices are GPUs, else processors. nodes: the job's, as its runner names them, by number; a record's own name of
    its host counts where it is one of them, or where the runner names none."""
    nodes_of: dict[HardwareKind, list[str]] = {}
    for number, record in _records(directory, count):
        named = nodes[number] if record.host not in nodes and number < len(nodes) else record.host
        for kind in _kinds(record, accelerators):
            at = nodes_of.setdefault(replace(kind, nodes=()), [])
            at += [] if named in at[-1:] else [named]
    return tuple(replace(kind, nodes=tuple(at)) for kind, at in list(nodes_of.items())[:MAX_KINDS])


def _records(directory: Path, count: int) -> Iterator[tuple[int, HardwareRecord]]:
    for number in range(count):
        with suppress(OSError, ValueError):
            yield number, read_json_file(HardwareRecord, directory / record_name(number), MAX_RECORD_BYTES)


def _kinds(record: HardwareRecord, accelerators: bool) -> list[HardwareKind]:
    if not accelerators:
        return [] if record.cpu is None else [record.cpu]
    devices = parse_nvidia_csv(record.nvidia) or parse_rocm_json(record.rocm)
    return list(dict.fromkeys(_chosen(devices, record.visible)))


def _chosen(devices: Mapping[str, HardwareKind], visible: str | None) -> Iterable[HardwareKind]:
    """Those that the job was given. devices: by index and by UUID. None for parts of a device (MIG), which the answer
    does not describe; all where the names are another numbering's, as in some containers."""
    if visible is None:
        return devices.values()
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if any(name.startswith("MIG-") for name in names) or not names or names[0] == "-1":
        return ()
    matches = [(name, key) for name in names for key in devices if key == name or _shortens(name, key)]
    return [devices[key] for _, key in matches] if {name for name, _ in matches} == {*names} else devices.values()


def _shortens(name: str, uuid: str) -> bool:
    """CUDA takes the start of a UUID for the whole."""
    return name.startswith("GPU-") and uuid.startswith(name)


def parse_nvidia_csv(text: str) -> dict[str, HardwareKind]:
    """The devices of an answer to NVIDIA_ARGUMENTS, by index and by UUID. A line in another form is left out, a number
    that is none ("[N/A]") is unknown."""
    devices: dict[str, HardwareKind] = {}
    columns = NVIDIA_QUERY.count(",")
    for line in text.splitlines()[:MAX_KINDS]:
        # Names have no commas.
        words = [word.strip() for word in line.split(",")]
        if len(words) != columns + 1 or not words[2] or max(map(len, words)) > MAX_TEXT:
            continue
        index, uuid, name, memory, clock, driver = words
        memory_mib = _whole(memory)
        kind = HardwareKind(
            device=name,
            memory_bytes=None if memory_mib is None else memory_mib * MIB,
            clock_mhz=_whole(clock),
            driver=driver,
        )
        devices |= {index: kind, uuid: kind}
    return devices


def parse_rocm_json(text: str) -> dict[str, HardwareKind]:
    """The devices of an answer to ROCM_ARGUMENTS, by index; none in another form. It names no highest clock."""
    if not text:
        return {}
    with suppress(UnreadableText, AttributeError):
        document: Any = read_json(text)
        driver = str(document.get("system", {}).get("Driver version", ""))[:MAX_TEXT]
        devices = {}
        for key, card in document.items():
            if not re.fullmatch(r"card\d{1,4}", key):
                continue
            name = str(card.get("Card Series") or card.get("Card series") or "")
            if 0 < len(name) <= MAX_TEXT:
                size = _whole(str(card.get("VRAM Total Memory (B)", "")))
                devices[key[4:]] = HardwareKind(device=name, memory_bytes=size, driver=driver)
        return devices
    return {}


def _whole(text: str) -> int | None:
    """The whole number above 0 that a text starts with."""
    match = _WHOLE.match(text)
    return (int(match[1]) or None) if match else None
