"""Packs the kit into one archive: `python benchmarks/gpu_kit/pack.py build/gpu_kit.tar.gz [3.12 ...]`.

meshtune's wheel, and its dependencies as wheels in the versions of constraints.txt: those of pure Python once, the
others for each Python from 3.11 on and Linux on x86-64. Python 3.10 runs the trainer alone, which needs none of
them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

KIT = Path(__file__).resolve().parent
ROOT = KIT.parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
# glibc 2.28: every Linux that torch 2.9 runs on.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PARTS = ("api", "runners", "search_spaces", "tuner")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def main(archive: Path, versions: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kit = Path(folder) / "gpu_kit"
        shutil.copytree(KIT, kit, ignore=shutil.ignore_patterns("__pycache__", "pack.py"))
        build_wheel(Path(folder) / "source", kit / "wheels" / "meshtune")
        for version in versions:
            download(version, kit / "wheels")
        shutil.copy(ROOT / "docs" / "gpu.md", kit / "README.md")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(kit, "gpu_kit")
    print(f"{archive}: {archive.stat().st_size / 2**20:.0f} MiB")  # noqa: T201


def build_wheel(source: Path, target: Path) -> None:
    """From a copy of the sources: a build leaves its own folders beside them."""
    ignored = shutil.ignore_patterns("node_modules", "__pycache__", "web", "static")
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source)
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(target)]
    subprocess.run([*PIP, "wheel", *options, str(source)], check=True)


def download(version: str, wheels: Path) -> None:
    """The dependencies for one Python: those of pure Python into `any`, the others into cp311 and so on."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    tag = f"cp{version.replace('.', '')}"
    own, pure = wheels / tag, wheels / "any"
    options = ["--only-binary=:all:", f"--python-version={version}", "--implementation=cp", f"--dest={own}"]
    options += [f"--abi={abi}" for abi in (tag, "abi3", "none")]
    options += [f"--platform={platform}" for platform in (*PLATFORMS, "any")]
    subprocess.run([*PIP, "download", *options, f"--constraint={ROOT / 'constraints.txt'}", *needed], check=True)
    pure.mkdir(exist_ok=True)
    for wheel in own.glob("*-none-any.whl"):
        wheel.replace(pure / wheel.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or VERSIONS)
