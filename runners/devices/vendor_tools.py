"""Devices as the vendors' own tools describe them: nvidia-smi, rocm-smi, xpu-smi. Parsers are pure; `read_accelerators`
runs what is there, each call with a time limit, since a device that has failed hangs its tool.

What a tool leaves out, or words otherwise in another version, is None."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.command import call
from meshtune.runners.devices.facts import Accelerator, DeviceLink, DeviceProcess, Vendor
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.checks import raising

TOOL_LIMIT_S = 15.0
MIB = 2**20
# Of the clock's reasons; idleness, the power cap of a busy device and chosen clocks are no faults.
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class UnreadableTool(ValueError):
    """The answer of a tool is not in the form that its documentation gives."""


def read_accelerators() -> tuple[tuple[Accelerator, ...], str, tuple[DeviceLink, ...], tuple[str, ...]]:
    """The devices, NVIDIA's driver version, the links between its devices, and what did not answer."""
    devices: list[Accelerator] = []
    unread: list[str] = []
    driver, links = "", tuple[DeviceLink, ...]()

    def ask(arguments: list[str]) -> str:
        """Standard output, empty where the tool is not there or fails."""
        if shutil.which(arguments[0]) is None:
            return ""
        try:
            answer = call(arguments, time_limit_s=TOOL_LIMIT_S)
        except RunnerUnavailable as error:
            unread.append(str(error))
            return ""
        if answer.code:
            unread.append(f"{' '.join(arguments)}: {answer.complaint}")
        return "" if answer.code else answer.out

    def parse(tool: str, text: str, parser: Callable[[str], tuple[Accelerator, ...]]) -> tuple[Accelerator, ...]:
        try:
            return parser(text) if text else ()
        except (UnreadableTool, UnreadableText) as error:
            unread.append(f"{tool}: {error}")
            return ()

    report = ask(["nvidia-smi", "-q", "-x"])
    if nvidia := parse("nvidia-smi", report, parse_nvidia):
        devices += nvidia
        driver = parse_driver(report)
        links = parse_topology(ask(["nvidia-smi", "topo", "-m"])) if len(nvidia) > 1 else ()
    report = ask(["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showpids", "--json"])
    devices += parse("rocm-smi", report, parse_amd)
    devices += parse("xpu-smi", ask(["xpu-smi", "discovery", "-j"]), parse_intel)
    return tuple(devices), driver, links, tuple(unread)


def parse_nvidia(text: str) -> tuple[Accelerator, ...]:
    """The devices of `nvidia-smi -q -x`; its schema is versions 11 to 13 of nvsmi_device.dtd. Raises
    UnreadableTool."""
    return tuple(_nvidia(index, gpu) for index, gpu in enumerate(_xml(text).iterfind("gpu")))


def parse_driver(text: str) -> str:
    """The driver's version, from the same answer. Raises UnreadableTool."""
    return _xml(text).findtext("driver_version") or ""


def _xml(text: str) -> ElementTree.Element:
    with raising(UnreadableTool, "no XML", ElementTree.ParseError):
        return ElementTree.fromstring(text)


def _nvidia(index: int, gpu: ElementTree.Element) -> Accelerator:
    def number(*paths: str) -> float | None:
        """The first of these elements that has a number."""
        numbers = (_NUMBER.match(gpu.findtext(path) or "") for path in paths)
        return next((float(each[0]) for each in numbers if each), None)

    def whole(*paths: str, scale: int = 1) -> int | None:
        value = number(*paths)
        return None if value is None else round(value * scale)

    active = [
        reason
        for reason in SLOWDOWNS
        for form in ("clocks_event_reasons/clocks_event_reason", "clocks_throttle_reasons/clocks_throttle_reason")
        if gpu.findtext(f"{form}_{reason}") == "Active"
    ]
    # Parts of the memory, named anew in every generation; where none is named, their total.
    places = list(gpu.iterfind("ecc_errors/volatile//*"))
    parts = [place for place in places if "uncorrectable" in place.tag]
    counted = parts or [place for place in places if place.tag == "total"]
    errors = [float(match[0]) for place in counted if (match := _NUMBER.match(place.text or ""))]
    wanted = {
        "rows wait to be remapped": gpu.findtext("remapped_rows/remapped_row_pending") == "Yes",
        "remapping of rows failed": gpu.findtext("remapped_rows/remapped_row_failure") == "Yes",
        "a reset is required": gpu.findtext("gpu_reset_status/reset_required") == "Yes",
        "draining and a reset are recommended": gpu.findtext("gpu_reset_status/drain_and_reset_recommended") == "Yes",
    }
    action = gpu.findtext("gpu_recovery_action") or "None"
    repair = [words for words, needed in wanted.items() if needed]
    repair += [f"recovery action: {action}"] if action not in ("None", "N/A") else []
    ecc = gpu.findtext("ecc_mode/current_ecc")
    power = ("gpu_power_readings", "power_readings")
    return Accelerator(
        vendor=Vendor.NVIDIA,
        index=index,
        name=gpu.findtext("product_name") or "NVIDIA device",
        memory_bytes=whole("fb_memory_usage/total", scale=MIB),
        used_bytes=whole("fb_memory_usage/used", scale=MIB),
        clock_mhz=whole("clocks/sm_clock"),
        max_clock_mhz=whole("max_clocks/sm_clock"),
        throttled_by=tuple(active),
        temperature_c=whole("temperature/gpu_temp"),
        power_limit_w=number(*(f"{each}/{key}" for each in power for key in ("current_power_limit", "power_limit"))),
        default_power_limit_w=number(*(f"{each}/default_power_limit" for each in power)),
        ecc={"Enabled": True, "Disabled": False}.get(ecc or ""),
        uncorrected_errors=round(sum(errors)) if errors else None,
        repair="; ".join(repair),
        mig=gpu.findtext("mig_mode/current_mig") == "Enabled",
        compute_mode=gpu.findtext("compute_mode") or "",
        link_width=whole("pci/pci_gpu_link_info/link_widths/current_link_width"),
        max_link_width=whole("pci/pci_gpu_link_info/link_widths/max_link_width"),
        processes=tuple(
            DeviceProcess(
                pid=int(each.findtext("pid") or 0),
                name=each.findtext("process_name") or "",
                memory_bytes=round(float(used[0]) * MIB)
                if (used := _NUMBER.match(each.findtext("used_memory") or ""))
                else None,
            )
            for each in gpu.iterfind("processes/process_info")
            if "C" in (each.findtext("type") or "")  # C+G too; G draws windows
        ),
    )


def parse_topology(text: str) -> tuple[DeviceLink, ...]:
    """The links between devices from the matrix of `nvidia-smi topo -m`, each pair once; empty for another text."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    header = next((row for row in rows if row and row[0] == "GPU0" and "X" not in row), [])
    columns = [int(name[3:]) for name in header if re.fullmatch(r"GPU\d+", name)]
    links = []
    for row in rows:
        if len(row) <= len(columns) or not re.fullmatch(r"GPU\d+", row[0]) or row is header:
            continue
        first = int(row[0][3:])
        links += [
            DeviceLink(first=first, second=second, way=way)
            for second, way in zip(columns, row[1:], strict=False)
            if second > first
        ]
    return tuple(links)


def parse_amd(text: str) -> tuple[Accelerator, ...]:
    """The devices of `rocm-smi --json`. Raises UnreadableText, UnreadableTool."""
    document = _mapping(read_json(text))
    # {"PID4711": "python3, 1, 12345, 0, 0"}: name, devices, bytes of memory ...; of all devices together.
    held = {
        key: words
        for key, value in _mapping(document.get("system", {})).items()
        if key.startswith("PID") and len(words := [word.strip() for word in str(value).split(",")]) > 2
    }
    processes = tuple(
        DeviceProcess(pid=int(key[3:]), name=words[0], memory_bytes=int(words[2]))
        for key, words in held.items()
        if key[3:].isdecimal() and words[2].isdecimal() and int(words[2])
    )
    cards = sorted((int(key[4:]), _mapping(card)) for key, card in document.items() if re.fullmatch(r"card\d+", key))
    return tuple(
        Accelerator(
            vendor=Vendor.AMD,
            index=index,
            name=str(card.get("Card Series") or card.get("Card series") or "AMD device"),
            memory_bytes=_whole(card.get("VRAM Total Memory (B)")),
            used_bytes=_whole(card.get("VRAM Total Used Memory (B)")),
            processes=processes,
        )
        for index, card in cards
    )


def parse_intel(text: str) -> tuple[Accelerator, ...]:
    """The devices of `xpu-smi discovery -j`. Raises UnreadableText, UnreadableTool."""
    listed = _mapping(read_json(text)).get("device_list")
    if not isinstance(listed, list):
        raise UnreadableTool("the answer has no device_list")
    return tuple(
        Accelerator(
            vendor=Vendor.INTEL,
            index=_whole(device.get("device_id")) or 0,
            name=str(device.get("device_name") or "Intel device"),
            memory_bytes=_whole(device.get("memory_physical_size_byte")),
        )
        for device in map(_mapping, listed)
        if device.get("device_type", "GPU") == "GPU"
    )


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableTool(f"a mapping was expected, not {type(value).__name__}")
    return value


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() else None
