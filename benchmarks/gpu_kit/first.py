"""Measures meshtune on the first device of a bare machine within a limit of time, from the repository's tree:

    python benchmarks/gpu_kit/first.py smoke --seconds 170 --output DIR --copy OUT
    python benchmarks/gpu_kit/first.py campaign --seconds 430 --output DIR --copy OUT

Needs the machine's own Python (3.11 to 3.13) and torch (2.9 or newer), and `.whl/` where the light core's libraries are
missing (`make gpu-wheels`). Nothing is installed and no network is used; what is written lies in DIR, and after every
part its record, the logs and the clocks are copied to OUT. docs/gpu.md says what each figure means. Standard library
only."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clocks import Clocks
from descendants import adopt_orphans, end_descendants

KIT = Path(__file__).resolve().parent
ROOT = KIT.parents[1]
CLUSTER_FILE = "cluster.yaml"
# Kept back of the whole for ending a part, copying and the last words; and of a part's limit, for its own end.
END_S, PART_END_S = 3.0, 2.0
# On a CPU everything is tiny; the least time of a part there.
CPU_LEAST_S = 4.0
# Endings of the copied files' names, after the mode's.
COPIED = (".json", ".log", "-clocks.csv", f"-{CLUSTER_FILE}")
# Of each part's log, in the copy and on the screen, whose end alone the caller sees.
KEPT_LOG, SHOWN_LOG, SHOWN_FAILURE = 1_000_000, 500, 1600


@dataclass(frozen=True)
class Part:
    """share: of the time that is left, relative to the parts after it. least_s: less is not worth a start on a
    device."""

    name: str
    share: float
    least_s: float


# The most valuable first: a part that is late costs those after it.
MODES: Mapping[str, Sequence[Part]] = {
    "smoke": (
        Part("machine", 16, 8),
        Part("reference", 62, 55),
        Part("probe", 48, 40),
        Part("trials", 26, 24),
        Part("shapes", 18, 12),
    ),
    "campaign": (
        Part("machine", 16, 8),
        Part("probe", 80, 60),
        Part("campaign", 205, 60),
        Part("further", 80, 25),
        Part("huggingface", 105, 45),
        Part("correctness", 50, 20),
        Part("mixture", 26, 15),
    ),
}


def main(argv: Sequence[str]) -> int:
    begun = time.monotonic()
    parser = argparse.ArgumentParser(prog="first.py", description="Measure meshtune on this machine's first device.")
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--seconds", type=float, required=True, help="wall time of the whole, never exceeded")
    parser.add_argument("--output", type=Path, required=True, help="folder for everything that is written")
    parser.add_argument("--copy", type=Path, required=True, help="folder for the record, the logs and the clocks")
    parser.add_argument("--parts", default="", help="only these of the mode's parts, A,B (after a run that was cut)")
    arguments = parser.parse_args(argv)
    names = [part.name for part in MODES[arguments.mode]]
    asked = {"machine", *arguments.parts.split(",")} if arguments.parts else {*names}
    if unknown := asked.difference(names):
        parser.error(f"--parts: {arguments.mode} has no {', '.join(sorted(unknown))}, but {', '.join(names)}")
    parts = [part for part in MODES[arguments.mode] if part.name in asked]
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with us
    run = Run(arguments.mode, arguments.output.resolve(), arguments.copy.resolve(), begun + arguments.seconds)
    try:
        for index, part in enumerate(parts):
            run.execute(part, parts[index:])
    finally:
        run.close()
    sys.stdout.write(run.summary())
    return 0


class Run:
    """One run of a mode: its folder, its record, and when it has to be over, by `time.monotonic`."""

    def __init__(self, mode: str, output: Path, copy: Path, end: float) -> None:
        self.mode, self.output, self.copy, self._end = mode, output, copy, end
        self.folder = output / mode
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        copy.mkdir(parents=True, exist_ok=True)
        for name in COPIED:
            (copy / f"{mode}{name}").unlink(missing_ok=True)
        self.environment, wheels = environment(output)
        self.record: dict[str, Any] = {
            "version": 1,
            "mode": mode,
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": end - time.monotonic(),
            "python": platform.python_version(),
            "wheels": wheels,
            "parts": {},
        }
        self._clocks = Clocks(self.folder / "clocks.csv", self.environment)

    @property
    def machine(self) -> dict[str, Any]:
        """What the part `machine` wrote of torch and its devices; empty before."""
        return self.record["parts"].get("machine", {}).get("result", {})

    @property
    def device(self) -> str | None:
        """The first device's name, as torch or else nvidia-smi says it; empty: there is none; None: nobody knows."""
        if devices := self.machine.get("devices"):
            return str(devices[0])
        name = (self.machine.get("nvidia_smi") or "").partition(",")[0]
        return name if "devices" not in self.machine and name else ("" if self.machine else None)

    def execute(self, part: Part, rest: Sequence[Part]) -> None:
        """Run a part for its share of the time that is left to it and to those after it, and copy the results."""
        left_s = self._end - time.monotonic() - END_S
        limit_s = left_s * part.share / sum(each.share for each in rest)
        least_s = CPU_LEAST_S if self.device == "" else part.least_s
        limit_s = max(limit_s, min(least_s, left_s))
        begun_at, begun = time.time(), time.monotonic()
        if why := self._cannot(part):
            told: dict[str, Any] = {"status": "skipped", "reason": why, "result": {}}
        elif limit_s < least_s:
            reason = f"{max(0.0, left_s):.0f} s are left, and it takes at least {least_s:.0f} s"
            told = {"status": "not run", "reason": reason, "result": {}}
        else:
            sys.stdout.write(f"--- {part.name}: at most {limit_s:.0f} s\n")
            sys.stdout.flush()
            told = self._run(part, limit_s)
        clocks = self._clocks.between(begun_at, time.time())
        self.record["parts"][part.name] = {**told, "seconds": round(time.monotonic() - begun, 2), "clocks": clocks}
        self._show(part, told)
        self._copy()

    def _cannot(self, part: Part) -> str:
        """Why a part cannot run here; empty where it can, or where nobody could ask torch."""
        missing = self.machine.get("torch_missing", "")
        return f"torch cannot be imported: {missing}" if missing and part.name != "machine" else ""

    def _run(self, part: Part, limit_s: float) -> dict[str, Any]:
        folder = self.folder / part.name
        folder.mkdir()
        command = [sys.executable, str(KIT / "part.py"), part.name, str(folder), f"--seconds={limit_s - PART_END_S}"]
        command += [f"--cluster={self.output / CLUSTER_FILE}", f"--device={self.device or ''}"]
        late = ""
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                late = f"ended after {limit_s:.0f} s"
            finally:
                end_descendants(spared=self._clocks.pid)
                process.wait()
        return read_result(folder, process.returncode, late)

    def _show(self, part: Part, told: Mapping[str, Any]) -> None:
        log = self._log(part.name)
        shown = log[-SHOWN_LOG:] if told["status"] == "done" else log[-SHOWN_FAILURE:]
        sys.stdout.write(f"{shown.rstrip()}\n" if shown.strip() else "")
        sys.stdout.write(f"=== {part.name}: {told['status']} {told['reason']}\n")
        sys.stdout.flush()

    def _log(self, name: str) -> str:
        path = self.folder / name / "log"
        return path.read_text(encoding="utf-8", errors="replace")[-KEPT_LOG:] if path.exists() else ""

    def _copy(self) -> None:
        """At most four files of a mode, each by rename."""
        self.record["spent_s"] = round(self.record["seconds"] - (self._end - time.monotonic()), 2)
        logs = "".join(f"##### {name}\n{self._log(name)}\n" for name in self.record["parts"])
        texts = {f"{self.mode}.json": json.dumps(self.record, indent=1) + "\n", f"{self.mode}.log": logs}
        for name in ("clocks.csv", CLUSTER_FILE):
            path = self.folder / name if name == "clocks.csv" else self.output / name
            if path.exists():
                texts[f"{self.mode}-{name}"] = path.read_text(encoding="utf-8", errors="replace")
        for name, text in texts.items():
            draft = self.copy / f".{name}"
            draft.write_text(text, encoding="utf-8")
            draft.replace(self.copy / name)

    def close(self) -> None:
        self._clocks.close()
        end_descendants()
        self._copy()

    def summary(self) -> str:
        lines = [f"\n{self.mode}: {self.record['spent_s']:.0f} of {self.record['seconds']:.0f} s\n"]
        for name, told in self.record["parts"].items():
            lines.append(f"{name:<12} {told['status']:<8} {told['seconds']:>6.1f} s  {told['reason']}\n")
            lines += [f"    {line}\n" for line in told["result"].get("summary", ())]
            lines += [f"    clocks: {json.dumps(told['clocks'])}\n"] if "samples" in told["clocks"] else []
        return "".join(lines)


def read_result(folder: Path, code: int, late: str) -> dict[str, Any]:
    """What a part left: its whole result, or what it had kept until it was ended."""
    result: dict[str, Any] = {}
    try:
        told: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        result = told["result"]
        if "status" in told:
            return told
    except (OSError, ValueError):
        pass
    if late:
        return {"status": "cut", "reason": late, "result": result}
    lines = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return {"status": "failed", "reason": f"{name}: {lines[-1][-500:] if lines else 'no output'}", "result": result}


def environment(output: Path, wheels: Path = ROOT / ".whl") -> tuple[dict[str, str], str]:
    """The environment of the parts, in which `meshtune` is this tree and the wheels' libraries can be imported; and a
    sentence on the wheels."""
    installed, site = output / "installed", output / "site"
    # What asks for the version of the package finds one.
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    metadata = installed / f"meshtune-{version}.dist-info"
    shutil.rmtree(installed, ignore_errors=True)
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: meshtune\nVersion: {version}\n")
    told = unpack_wheels(wheels, site)
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [str(ROOT / "src"), str(installed), *([str(site)] if site.exists() else []), *inherited]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0" if visible is None else visible.split(",")[0],
        "HF_HUB_OFFLINE": "1",
    }, told


def unpack_wheels(wheels: Path, site: Path) -> str:
    """All of them or none: those that fit another Python would mix with this one's own libraries."""
    shutil.rmtree(site, ignore_errors=True)
    found = sorted(wheels.glob("*.whl"))
    if not found:
        return "none: libraries are this Python's own"
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    unfit = [wheel.name for wheel in found if f"-{tag}-" not in wheel.name and "-py3-none-any" not in wheel.name]
    if unfit:
        return f"not used: {unfit[0]} does not fit {tag}; libraries are this Python's own"
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return f"{len(found)} unpacked"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
