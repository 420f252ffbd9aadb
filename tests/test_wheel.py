"""The wheel holds `meshtune` alone, and runs in a folder that has packages called as its parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from meshtune.tuner.cli.example_files import known, known_studies

ROOT = Path(__file__).parents[1]
PARTS = ("api", "runners", "search_spaces", "tuner")
TRAIN = """
import time
from meshtune.runners.report import Reporter

reporter = Reporter()
for step in range(12):
    time.sleep(0.002)
    reporter.step(loss=1.0)
reporter.done()
"""
SPEC = {
    "name": "wheel",
    "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
    "cluster": {"preset": "local-cpu", "devices_per_node": 1},
    "global_batch_size": 4,
    "space": {"micro_batch_size": [1, 2]},
    "workload": {
        "kind": "command",
        "command": ["{python}", "train.py", "{micro_batch_size}", "{grad_accum_steps}"],
        "working_directory": ".",
        "steps": 12,
        "warmup_steps": 2,
    },
    "search": "grid",
    "runner": {"kind": "local", "idle_s": 1},
    "budget": {"trials": 2},
    "confirm": 0,
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources: a build leaves its own folders beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for part in (*PARTS, "examples"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("node_modules", "__pycache__", "web"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", folder, source], check=True, timeout=240)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and, after it, the libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True, timeout=240
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is not searched for .pth files: the sources that are installed here stay out.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_nothing_but_meshtune_lies_at_the_top_of_the_wheel(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"meshtune", "meshtune-0.1.0.dist-info"}
    assert {name.split("/")[1] for name in names if name.startswith("meshtune/")} == {
        *(*PARTS, "examples", "__init__.py"),
    }
    embedded = {name.removeprefix("meshtune/examples/") for name in names if name.startswith("meshtune/examples/")}
    every = [*known().values(), *known_studies().values()]
    assert embedded == {"__init__.py", *(file for found in every for file in found)}
    for needed in ("search_spaces/presets/", "api/examples/", "tuner/store/migrations/", "runners/sites/frontier.yaml"):
        assert any(name.startswith(f"meshtune/{needed}") for name in names)


def test_a_campaign_ends_in_a_folder_with_packages_of_the_same_names(python, tmp_path):
    for part in PARTS:
        (tmp_path / part).mkdir()
        (tmp_path / part / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))

    def run(*arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run("-c", "import meshtune.tuner, meshtune.api; print(*meshtune.tuner.__path__, *meshtune.api.__path__)")
    assert all(place.startswith(str(python.parents[1])) for place in where.split())
    loaded = "import sys, meshtune; print(len([name for name in sys.modules if name.startswith('meshtune.')]))"
    assert run("-c", loaded).strip() == "0"
    assert "tuner.client.client.Client" in run("-c", "from meshtune import Client; print(Client)")
    run("-m", "meshtune.tuner.cli", "examples", "deepspeed")
    for file in ("campaign.yaml", "train.py"):
        written = (tmp_path / "examples" / "deepspeed" / file).read_text()
        assert written == (ROOT / "examples" / "deepspeed" / file).read_text()
    assert "frontier-22b" in run("-m", "meshtune.tuner.cli", "study", "list")
    shown = run("-m", "meshtune.tuner.cli", "run", "spec.yaml")
    assert shown.count(": ok, step ") == 2, shown
    best = json.loads(run("-m", "meshtune.tuner.cli", "best", "last", "--json"))
    assert len(best["best"]) == 2
