"""Measures meshtune on the devices of this machine, which needs no network and no installation.

    python gpu_kit/run.py --minutes 9 [--output gpu_kit_results]

Uses the machine's own torch (2.9 or newer) and Python (3.11 to 3.13; under 3.10 the trainer's parts alone). Unpacks the
wheels of the archive into the output folder, and writes `gpu_kit.json` and `gpu_kit.log` there; nothing else is
touched. Started again with the same output folder, it goes on where its time ended. docs/gpu.md, in the archive
README.md, says what each figure means."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

KIT = Path(__file__).resolve().parent
sys.path.insert(0, str(KIT))

from budget import FAILED, PARTIAL, SKIPPED, Part, Record, Records, run_parts, working_s  # noqa: E402

OLDEST, TUNER_FROM, NEWEST = (3, 10), (3, 11), (3, 13)
OLDEST_TORCH = (2, 9)
PARTS = (
    Part("doctor", "facts of the machine, and the tuner's self-test", 0.1, 25, tuner=True),
    Part("probe", "matrix products and memory of one device", 0.06, 20),
    Part("correctness", "losses on the device, and of several processes that share it, against a reference", 0.18, 20),
    Part("campaign-0.4b-bfloat16", "a campaign on one device", 0.17, 25, tuner=True, needs="probe"),
    Part("campaign-0.4b-compiled", "the same with compiled layers", 0.15, 60, tuner=True, needs="probe"),
    Part("campaign-1.3b-compiled", "a larger model with compiled layers", 0.2, 60, tuner=True, needs="probe"),
    Part("campaign-0.4b-float32", "the other precision", 0.07, 25, tuner=True, needs="probe"),
    Part("deepspeed-0.4b", "DeepSpeed's autotuning of the same model for the same time", 0.15, 60),
)
# Asked of the machine's own Python, with none of our folders.
ASK_TORCH = """
import json, sys
try:
    import torch
except Exception as error:
    print(json.dumps({"missing": f"{type(error).__name__}: {error}"}))
    sys.exit()
cuda = torch.cuda.device_count()
names = [torch.cuda.get_device_name(index) for index in range(cuda)]
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda or torch.version.hip, "devices": names}))
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="run.py", description="Measure meshtune on this machine's devices.")
    parser.add_argument("--minutes", type=float, default=9.0, help="the time of the whole (default: 9)")
    parser.add_argument("--output", type=Path, default=Path("gpu_kit_results"), help="default: gpu_kit_results")
    arguments = parser.parse_args(argv)
    begun = time.monotonic()
    output: Path = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    kit = Kit(output)
    kit.log(f"gpu_kit: {arguments.minutes:g} minutes, Python {platform.python_version()}, {platform.machine()}")
    if why := kit.prepare():
        kit.log(why)
        return 2
    records = Records(output / "state.json")
    left_s = 60 * arguments.minutes - (time.monotonic() - begun)
    run_parts(PARTS, records, left_s, time.monotonic, kit.execute)
    report = kit.report(records, arguments.minutes)
    (output / "gpu_kit.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for part in PARTS:
        record = records.by_part[part.name]
        kit.log(f"{part.name:<24}{record.status:<9}{record.seconds:>6.0f} s  {record.reason}")
    kit.log(f"wrote {output / 'gpu_kit.json'} in {time.monotonic() - begun:.0f} s")
    return 0


class Kit:
    """One output folder, and the environment that parts run in."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.machine: dict[str, Any] = {}
        self._site = output / "site"

    def log(self, text: str) -> None:
        print(text, flush=True)  # noqa: T201
        with (self.output / "gpu_kit.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")

    def prepare(self) -> str:
        """Unpack the wheels, and look at torch; why nothing can run, empty where it can."""
        python = sys.version_info[:2]
        if not OLDEST <= python <= NEWEST:
            return f"Python {python[0]}.{python[1]}: the kit is for 3.10 to 3.13"
        self._unpack(f"cp{python[0]}{python[1]}")
        asked = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=300)
        try:
            self.machine = json.loads(asked.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            self.machine = {"missing": asked.stderr.strip().splitlines()[-1:]}
        devices = self.machine.get("devices")
        self.log(f"torch {self.machine.get('torch', 'is missing')}, devices: {', '.join(devices or []) or 'none'}")
        return ""

    def _unpack(self, tag: str) -> None:
        """Wheels are archives of what is to be imported; those of the kit have nothing to install beside it. meshtune
        alone lies in a folder of its own, for programs that bring their own libraries."""
        wheels = KIT / "wheels"
        if not wheels.is_dir():
            self.log("no wheels beside run.py: meshtune is imported from this Python's own environment")
            return
        if (self._site / "unpacked").exists():
            return
        for folder, target in (("meshtune", "meshtune"), ("any", "libraries"), (tag, "libraries")):
            for wheel in sorted((wheels / folder).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(self._site / target)
        (self._site / "unpacked").touch()

    def environment(self, *, libraries: bool = True) -> dict[str, str]:
        folders = [str(self._site / "meshtune"), *([str(self._site / "libraries")] if libraries else []), str(KIT)]
        known = os.environ.get("PYTHONPATH", "")
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        return {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": ":".join([*folders, *([known] if known else [])]),
            # Not even caches beside the machine's own modules.
            "PYTHONPYCACHEPREFIX": str(self.output / "pycache"),
        }

    def cannot(self, part: Part) -> str:
        """Why a part cannot run here."""
        if part.tuner and sys.version_info[:2] < TUNER_FROM:
            return f"a campaign needs Python 3.11, and this is {platform.python_version()}"
        if "torch" not in self.machine:
            return "" if part.name == "doctor" else f"torch cannot be imported: {self.machine.get('missing')}"
        version = tuple(int(each) for each in self.machine["torch"].split("+")[0].split(".")[:2] if each.isdecimal())
        return f"torch {self.machine['torch']} is older than 2.9" if version < OLDEST_TORCH else ""

    def execute(self, part: Part, share_s: float) -> Record:
        """Run a part as a process of its own, which writes `result.json` in its folder."""
        if why := self.cannot(part):
            return Record(SKIPPED, why)
        folder = self.output / "parts" / part.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        self.log(f"{part.name}: {part.what}, {share_s:.0f} s")
        environment = self.environment(libraries=part.name != "deepspeed-0.4b")
        if part.name != "doctor" and len(self.machine["devices"]) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        command = [sys.executable, str(KIT / "part.py"), part.name, str(folder), f"--seconds={working_s(share_s)}"]
        command += ["--cuda"] * bool(self.machine.get("devices"))
        ended = ""
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
            try:
                process.wait(share_s)
            except subprocess.TimeoutExpired:
                ended = f"ended after {share_s:.0f} s"
            finally:
                end_processes(process, folder)
        return read_record(folder, process.returncode, ended)

    def report(self, records: Records, minutes: float) -> dict[str, Any]:
        results = {name: record.result for name, record in records.by_part.items()}
        return {
            "version": 1,
            "written_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "minutes": minutes,
            "python": platform.python_version(),
            "machine": self.machine,
            "on_gpu": bool(self.machine.get("devices")),
            "summary": summary(results),
            "parts": {
                name: {
                    "status": record.status,
                    "reason": record.reason,
                    "seconds": record.seconds,
                    "result": record.result,
                }
                for name, record in records.by_part.items()
            },
        }


def summary(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures that docs/gpu.md lists, by part; what was not measured is left out."""
    found: dict[str, Any] = {}
    for name, result in results.items():
        if name == "correctness" and result:
            checks = result["checks"]
            found[name] = {
                "compared": len(checks),
                "wrong": [check for check, told in checks.items() if not told["right"]],
            }
        elif name.startswith("campaign") and result.get("best"):
            best = result["best"]
            found[name] = {
                "model": result["model"],
                "best": best["plan"],
                "tokens_per_s": best["tokens_per_s"],
                "mfu_of_measured_rate": best["mfu"],
                "trials": len(result["trials"]),
                **result["figures"],
            }
        elif name.startswith("deepspeed") and result:
            found[name] = {"tokens_per_s": result.get("tokens_per_s"), "experiments": result.get("experiments")}
    return found


def read_record(folder: Path, code: int, ended: str) -> Record:
    """What a part left: its result, else what it had kept until it was ended."""
    try:
        told = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        return Record(told["status"], told["reason"], 0.0, told["result"])
    except OSError:
        pass
    if ended:
        return Record(PARTIAL, f"{ended}; the next run goes on")
    lines = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Record(FAILED, f"exit status {code}: {lines[-1] if lines else 'no output'} (see {folder / 'log'})")


def end_processes(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End a part with what it started: its group, and the job server that its campaign left, which has sessions of its
    own and names the part's folder in its command."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                continue
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(place.name) != os.getpid() and any(str(folder).encode() in word for word in words):
            try:
                os.kill(int(place.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
