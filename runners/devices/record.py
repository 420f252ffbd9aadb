"""What a node says of the hardware that a job has there, left in the job's folder beside the running job; standard
library only. What cannot be told is left out, and never a fault of the job."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from meshtune.runners.hardware import (
    MAX_RECORD_BYTES,
    MAX_TEXT,
    NVIDIA_ARGUMENTS,
    ROCM_ARGUMENTS,
    HardwareKind,
    HardwareRecord,
    record_name,
)
from meshtune.runners.json_files import write_whole

# A tool takes seconds where no process keeps the driver loaded; one whose device has failed hangs.
TOOL_LIMIT_S = 30.0
# They choose among a node's devices, the first that is set: see `runners.devices.visible`.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def leave_record(directory: Path, environment: Mapping[str, str] = os.environ) -> None:
    """environment: of a rank on this node."""
    record = HardwareRecord(
        # The name by which Slurm knows it.
        host=environment.get("SLURMD_NODENAME", socket.gethostname()),
        visible=next((environment[name] for name in _VISIBLE if name in environment), None),
        nvidia=(nvidia := _answer(NVIDIA_ARGUMENTS)),
        rocm="" if nvidia else _answer(ROCM_ARGUMENTS),
        cpu=processor(),
    )
    write_whole(directory / record_name(int(environment["NODE_RANK"])), json.dumps(asdict(record)))


def _answer(arguments: Sequence[str]) -> str:
    # In our own session, which dies with the job, and the tool with it.
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_LIMIT_S, check=True
        )
        # JSON needs up to six letters for one.
        return done.stdout[: MAX_RECORD_BYTES // 8].decode("utf-8", "replace").replace("\0", "")
    return ""


def processor(root: Path = Path("/")) -> HardwareKind:
    """The processors of this node and its memory."""
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", text_of(root / "proc/meminfo"), re.MULTILINE)
    khz = text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return HardwareKind(
        device=processor_name(root)[:MAX_TEXT],
        memory_bytes=int(memory[1]) * 1024 if memory else None,
        clock_mhz=(int(khz) // 1000 or None) if khz.isdecimal() else None,
        driver=platform.release()[:MAX_TEXT],
    )


def processor_name(root: Path = Path("/")) -> str:
    line = re.search(r"^model name\s*:\s*(.+)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return line[1].strip() if line else platform.machine()


def text_of(path: Path) -> str:
    """Of a file of the kernel's, without the space around it; empty where it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""
