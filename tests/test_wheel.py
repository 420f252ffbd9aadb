"""The wheel holds `meshtune` alone, and runs in a folder that has packages called as its parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path

import jedi
import pytest
import yaml
from specs import tiny

from meshtune.tuner.cli.commands.before import example_texts, study_texts

ROOT = Path(__file__).parents[1]
LICENCES = ("LICENSE", "NOTICE")
PARTS = ("api", "runners", "search_spaces", "tuner")
DIST_INFO = f"meshtune-{version('meshtune')}.dist-info"
TRAIN = """
import time
from meshtune.runners.report import Reporter

reporter = Reporter()
for step in range(12):
    time.sleep(0.002)
    reporter.step(loss=1.0)
reporter.done()
"""
SPEC = tiny(
    global_batch_size=4,
    space={"micro_batch_size": [1, 2]},
    workload={
        "kind": "command",
        "command": ["{python}", "train.py", "{micro_batch_size}", "{grad_accum_steps}"],
        "working_directory": ".",
        "steps": 12,
        "warmup_steps": 2,
    },
    search="grid",
    runner={"kind": "local", "idle_s": 1},
    budget={"trials": 2},
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources: a build leaves its own folders beside them."""
    source = tmp_path_factory.mktemp("sources") / "source"
    for part in (*PARTS, "examples"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("node_modules", "__pycache__", "web"))
    shutil.copytree(ROOT / "src", source / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", *LICENCES):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"))


def build(source: Path, folder: Path) -> Path:
    """The wheel of a folder or an archive of sources."""
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
    assert {name.partition("/")[0] for name in names} == {"meshtune", DIST_INFO}
    assert {name.split("/")[1] for name in names if name.startswith("meshtune/")} == {
        *(*PARTS, "examples", "__init__.py", "py.typed"),
    }
    embedded = {name.removeprefix("meshtune/examples/") for name in names if name.startswith("meshtune/examples/")}
    every = [*example_texts().values(), *study_texts().values()]
    assert embedded == {"__init__.py", *(file for found in every for file in found)}
    for needed in (
        "search_spaces/presets/",
        "search_spaces/physics/profiles.toml",
        "api/examples/",
        "tuner/store/migrations/",
        "runners/sites/frontier.yaml",
        "runners/programs/dialects/launcher_options.toml",
        "runners/programs/capture/trace.sh",
        "runners/programs/megatron/flags.txt",
    ):
        assert any(name.startswith(f"meshtune/{needed}") for name in names)


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    backend = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", backend, folder], cwd=source, check=True, capture_output=True, timeout=240)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def test_the_archive_of_sources_gives_the_same_wheel(sdist, wheel, tmp_path):
    assert contents(build(sdist, tmp_path)) == contents(wheel)


def contents(wheel: Path) -> dict[str, int]:
    """Checksums by name."""
    return {member.filename: member.CRC for member in zipfile.ZipFile(wheel).infolist()}


def test_an_editor_finds_the_sources_of_an_editable_install(tmp_path):
    venv.create(tmp_path, with_pip=False)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    (packages / "meshtune.pth").write_text(f"{ROOT / 'src'}\n")
    environment = jedi.create_environment(tmp_path, safe=False)
    for module, name, file in (
        ("meshtune", "Client", "tuner/client/client.py"),
        ("meshtune.runners.schedulers.slurm.runner", "SlurmRunner", "runners/schedulers/slurm/runner.py"),
    ):
        script = jedi.Script(f"from {module} import {name}\n{name}\n", environment=environment)
        assert [found.module_path for found in script.goto(2, 1, follow_imports=True)] == [ROOT / "src/meshtune" / file]


def test_the_licence_and_the_notice_travel_with_the_wheel_and_the_sdist(wheel, sdist):
    archive = zipfile.ZipFile(wheel)
    for name in LICENCES:
        assert archive.read(f"{DIST_INFO}/licenses/{name}") == (ROOT / name).read_bytes()
    metadata = message_from_bytes(archive.read(f"{DIST_INFO}/METADATA"))
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("Apache-2.0", [*LICENCES])
    if (ROOT / "api" / "static" / "index.html").exists():  # the dashboard was built
        assert b"## preact" in archive.read("meshtune/api/static/licenses.md")
        assert b"Apache License" in archive.read("meshtune/api/static/swagger-ui-licenses.txt")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert names.issuperset(LICENCES)


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
