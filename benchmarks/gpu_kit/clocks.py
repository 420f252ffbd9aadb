"""Clocks, power and reasons for throttling of the first device, sampled twice a second beside the parts, by nvidia-smi,
or where it is missing by torch's own counters."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PERIOD_MS = 500
COLUMNS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "memory_used_mib", "throttle")
_QUERIES = "clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used,clocks_event_reasons.active"
# nvml.h, nvmlClocksEventReason*.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
# torch asks NVML by the package nvidia-ml-py and starts no context.
_TORCH = f"""
import time, torch
while True:
    print(torch.cuda.clock_rate(0), "", torch.cuda.power_draw(0) / 1000, torch.cuda.temperature(0), "", "", sep=",")
    time.sleep({PERIOD_MS / 1000})
"""


class Clocks:
    """A process that samples, and the samples so far as (seconds since the epoch, a number per column or None)."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-uc", _TORCH]
        if shutil.which("nvidia-smi"):
            # Into a pipe a program may write late, and a line's time here is that of its arrival.
            command = [
                *(["stdbuf", "-oL"] if shutil.which("stdbuf") else []),
                "nvidia-smi",
                "-i",
                environment["CUDA_VISIBLE_DEVICES"] or "0",
                f"-lms={PERIOD_MS}",
            ]
            command += [f"--query-gpu={_QUERIES}", "--format=csv,noheader,nounits"]
        self._program = "nvidia-smi" if "nvidia-smi" in command else "torch.cuda"
        self._samples: list[tuple[float, tuple[float | None, ...]]] = []
        self._trouble = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._thread = threading.Thread(target=self._read, args=(path,), daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self, path: Path) -> None:
        assert self._process.stdout is not None
        with path.open("w", encoding="utf-8") as file:
            file.write(f"seconds,{','.join(COLUMNS)}\n")
            for line in self._process.stdout:
                now, fields = time.time(), line.strip().split(",")
                if len(fields) != len(COLUMNS):
                    self._trouble = line.strip() or self._trouble
                    continue
                self._samples.append((now, tuple(number(field) for field in fields)))
                file.write(f"{now:.2f},{line.strip()}\n")
                file.flush()

    def between(self, begun_at: float, ended_at: float) -> dict[str, Any]:
        """The figures of a part, or why there are none."""
        rows = [row for at, row in list(self._samples) if begun_at <= at <= ended_at]
        if not rows:
            return {"missing": f"{self._program} gave no sample: {self._trouble or 'the part was too short'}"}
        return {"by": self._program, **figures(rows)}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(1.0)
        assert self._process.stdout is not None
        self._process.stdout.close()


def number(field: str) -> float | None:
    """A number, decimal or hexadecimal; None for what a device does not tell."""
    text = field.strip()
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def figures(rows: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Least, median and most of each column, and the share of samples with each reason for a lower clock."""
    found: dict[str, Any] = {"samples": len(rows)}
    for index, name in enumerate(COLUMNS[:-1]):
        if values := [value for row in rows if (value := row[index]) is not None]:
            found[name] = [min(values), median(values), max(values)]
    masks = [int(row[-1]) for row in rows if row[-1] is not None]
    for bit, reason in REASONS.items():
        if share := sum(bool(mask & bit) for mask in masks):
            found.setdefault("throttle", {})[reason] = round(share / len(masks), 3)
    return found
