"""Collects the libraries of the light core that a machine with torch lacks: `python wheels.py .whl 3.12 [PYTHON]`.

Versions and hashes are those of requirements.lock. PYTHON is of this version, by default the one on the PATH: where it
runs, the wheels are tried in a fresh environment that has of other libraries only HELD."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from first import ROOT, environment

WANTED = (
    *("alembic", "mako", "sqlalchemy", "pydantic", "pydantic-core", "annotated-types", "typing-inspection"),
    *("python-json-logger", "google-re2", "typing-extensions"),
)
# What such a machine has beside torch, with what these need; of a campaign nothing else is imported.
HELD = ("numpy", "pyyaml", "typer", "rich", "prometheus-client", "threadpoolctl", "markupsafe")
# glibc 2.28: every Linux that torch 2.9 runs on.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
CAMPAIGN = {
    "model": "gpt-micro",
    "cluster": {"preset": "dgx-h100"},
    "global_batch_size": 64,
    "workload": {"kind": "simulated"},
    "runner": {"kind": "simulated"},
    "budget": {"trials": 4},
}
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def locked(name: str) -> str:
    """The lock's lines of one library, with its hashes. Raises LookupError."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(name)}==[^\n]*\n(?:    --hash=[^\n]*\n)*", lock, re.MULTILINE)
    if found is None:
        raise LookupError(f"requirements.lock has no {name}")
    return found[0]


def collect(folder: Path, version: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    tag = f"cp{version.replace('.', '')}"
    options = ["--no-deps", "--only-binary=:all:", f"--python-version={version}", "--implementation=cp"]
    options += [f"--abi={abi}" for abi in (tag, "abi3", "none")] + [f"--platform={name}" for name in PLATFORMS]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(map(locked, WANTED)))
        file.flush()
        command = [*PIP, "download", *options, "--require-hashes", f"--requirement={file.name}", f"--dest={folder}"]
        subprocess.run([sys.executable, *command], check=True)


def try_in_fresh_environment(python: str, folder: Path) -> None:
    """An environment of this Python that has HELD alone. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([python, "-m", "venv", name], check=True)
        fresh, constraints = f"{name}/bin/python", f"--constraint={ROOT / 'constraints.txt'}"
        subprocess.run([fresh, *PIP, "install", "--only-binary=:all:", constraints, *HELD], check=True)
        subprocess.run([fresh, __file__, "--run", str(folder.resolve())], check=True)


def runs(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


def run_campaign(folder: Path) -> None:
    """A simulated one, in this Python, as the kit's parts would: without torch there is no other."""
    with tempfile.TemporaryDirectory() as name:
        spec = Path(name) / "campaign.yaml"
        spec.write_text(json.dumps(CAMPAIGN), encoding="utf-8")
        variables, wheels = environment(Path(name), folder)
        command = [sys.executable, "-m", "meshtune.tuner.cli", "run", str(spec), "--home", f"{name}/home"]
        subprocess.run(command, check=True, env=variables, stdout=subprocess.DEVNULL)
        sys.stdout.write(f"wheels: {wheels}; a simulated campaign ran under Python {sys.version.split()[0]}\n")


def main(argv: list[str]) -> None:
    if argv[0] == "--run":
        run_campaign(Path(argv[1]))
        return
    folder, version = Path(argv[0]), argv[1]
    python = argv[2] if len(argv) > 2 else f"python{version}"
    collect(folder, version)
    wheels = list(folder.glob("*.whl"))
    sys.stdout.write(f"{folder}: {len(wheels)} wheels, {sum(w.stat().st_size for w in wheels) / 2**20:.1f} MiB\n")
    if runs(python):
        try_in_fresh_environment(python, folder)
    else:
        sys.stdout.write(f"not tried: {python} does not run here\n")


if __name__ == "__main__":
    main(sys.argv[1:])
