"""The GPU kit: its parts keep to the time, the next run goes on, and the archive runs where only torch is."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

KIT = Path(__file__).parents[2] / "benchmarks" / "gpu_kit"


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(KIT))
    return importlib.import_module("budget")


class Machine:
    """Runs parts on a clock of its own. takes: seconds of each part, by name; a part that would take longer than its
    share is cut, and takes up where it was."""

    def __init__(self, budget: ModuleType, takes: dict[str, float], fails: frozenset[str] = frozenset()) -> None:
        self.budget, self.takes, self.fails = budget, dict(takes), fails
        self.now = 100.0
        self.began: list[tuple[str, float]] = []

    def execute(self, part, share_s):
        self.began.append((part.name, round(share_s)))
        spent = min(share_s, self.takes[part.name])
        self.now += spent
        self.takes[part.name] -= spent
        if part.name in self.fails:
            return self.budget.Record(self.budget.FAILED, "no")
        if self.takes[part.name] > 0:
            return self.budget.Record(self.budget.PARTIAL, "cut", result={"kept": self.now})
        return self.budget.Record(self.budget.DONE, result={"of": part.name})

    def run(self, parts, records, seconds):
        self.began.clear()
        self.budget.run_parts(parts, records, seconds, lambda: self.now, self.execute)
        return {name: record.status for name, record in records.by_part.items()}


@pytest.fixture
def parts(budget):
    Part = budget.Part
    return (Part("a", "", 1, 5), Part("b", "", 1, 5), Part("c", "", 2, 30, needs="a"))


def test_time_that_a_part_does_not_use_is_the_others(budget, parts, tmp_path):
    machine = Machine(budget, {"a": 10, "b": 10, "c": 10})
    assert machine.run(parts, budget.Records(tmp_path / "state"), 100) == dict.fromkeys("abc", "done")
    assert machine.began == [("a", 25), ("b", 30), ("c", 80)]


def test_no_run_is_longer_than_it_may_be_and_what_does_not_fit_says_what_was_left(budget, parts, tmp_path):
    machine, records = Machine(budget, {"a": 100, "b": 4, "c": 100}), budget.Records(tmp_path / "state")
    assert machine.run(parts, records, 40) == {"a": "partial", "b": "done", "c": "not run"}
    assert machine.now <= 140
    assert records.by_part["c"].reason == "it needs the part a"
    short = Machine(budget, {"a": 1, "b": 20, "c": 100})
    records = budget.Records(tmp_path / "another")
    assert short.run(parts, records, 25)["c"] == "not run"
    assert records.by_part["c"].reason == "11 s left, and it takes at least 30 s"


def test_the_next_run_goes_on_from_the_file(budget, parts, tmp_path):
    machine = Machine(budget, {"a": 3, "b": 50, "c": 40})
    machine.run(parts, budget.Records(tmp_path / "state"), 30)
    assert machine.run(parts, budget.Records(tmp_path / "state"), 300) == dict.fromkeys("abc", "done")
    assert [name for name, _ in machine.began] == ["b", "c"]
    again = budget.Records(tmp_path / "state")
    assert again.by_part["a"].result == {"of": "a"}
    assert again.by_part["b"].seconds == pytest.approx(50)


def test_what_failed_is_tried_last_unless_others_need_it(budget, parts, tmp_path):
    machine = Machine(budget, {"a": 1, "b": 1, "c": 1}, fails=frozenset("ab"))
    statuses = machine.run(parts, budget.Records(tmp_path / "state"), 100)
    assert statuses == {"a": "failed", "b": "failed", "c": "not run"}
    machine.fails = frozenset()
    machine.run(parts, budget.Records(tmp_path / "state"), 100)
    assert [name for name, _ in machine.began] == ["a", "c", "b"]


def test_a_cut_part_keeps_the_result_it_had(budget, parts, tmp_path):
    records = budget.Records(tmp_path / "state")
    records.keep(parts[0], budget.Record(budget.PARTIAL, "cut", 2.0, {"trials": 3}))
    records.keep(parts[0], budget.Record(budget.PARTIAL, "cut at its start", 1.0))
    assert budget.Records(tmp_path / "state").by_part["a"].result == {"trials": 3}
    assert records.by_part["a"].seconds == 3.0


def test_a_part_does_not_repeat_what_it_has_kept(budget, tmp_path):
    Work = importlib.import_module("part").Work
    calls: list[str] = []
    for _ in range(2):
        work = Work("correctness", tmp_path, 10.0, False)
        assert work.once("x", lambda: calls.append("x") or {"loss": 1.0}) == {"loss": 1.0}
    assert calls == ["x"]


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_archive_runs_from_an_empty_folder_and_resumes(tmp_path):
    """In a bare environment: this one's torch and numpy, and of meshtune and its libraries nothing but the archive."""
    archive = tmp_path / "gpu_kit.tar.gz"
    subprocess.run([sys.executable, KIT / "pack.py", archive], check=True, timeout=400)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    bare = bare_environment(tmp_path / "bare")

    def run(minutes: float) -> dict:
        command = [bare, "gpu_kit/run.py", f"--minutes={minutes}"]
        environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "gpu_kit_results" / "gpu_kit.json").read_text())

    short = run(0.8)
    assert any(part["status"] == "not run" for part in short["parts"].values())
    for _ in range(4):  # a busy machine takes several runs, as it would there
        whole = run(5)
        statuses = {name: part["status"] for name, part in whole["parts"].items()}
        if {*statuses.values()} == {"done", "skipped"}:
            break
    assert statuses.pop("deepspeed-0.4b") == "skipped"
    assert {*statuses.values()} == {"done"}, statuses
    checks = whole["parts"]["correctness"]["result"]["checks"]
    assert len(checks) == 12
    assert all(check["right"] for check in checks.values()), checks
    # Of float32: torch's product of bfloat16 matrices is slow on CPUs without it, and nothing to measure by.
    campaign = whole["summary"]["campaign-0.4b-float32"]
    assert 0 < campaign["mfu_of_measured_rate"] < 1.5
    assert campaign["overhead_s"] > 0


def bare_environment(folder: Path) -> Path:
    """A Python with torch and what it needs, by links, and no site-packages of this environment."""
    import venv

    import torch

    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    needed = ("torch", "torchgen", "functorch", "numpy", "numpy.libs", "sympy", "mpmath", "networkx", "jinja2")
    needed += ("markupsafe", "filelock", "fsspec", "typing_extensions.py", "setuptools")
    source = Path(torch.__file__).parents[1]
    for name in needed:
        if (source / name).exists():
            (packages / name).symlink_to(source / name)
    return folder / "bin" / "python"
