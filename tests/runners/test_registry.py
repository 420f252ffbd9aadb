"""Every name in the registries leads to something that keeps its seam, and so may a laboratory of another package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import cluster

from meshtune.runners.extras import EXTRAS
from meshtune.runners.registry import RUNNERS, WORKLOADS, UnknownBackend, check_pair, create_runner, create_workload
from meshtune.search_spaces.columns import Capabilities

CLUSTER = cluster(1, 2)
# What a runner or a workload cannot do without.
NEEDED = {"command": {"command": ["true"]}, "deepspeed": {"module": "train"}, "kubernetes": {"image": "train:1"}}


@pytest.mark.parametrize("kind", RUNNERS)
def test_every_runner_has_the_five_verbs_and_starts_nothing(kind, tmp_path):
    if kind in EXTRAS:
        pytest.importorskip(kind)
    runner = create_runner(kind, tmp_path / "root", CLUSTER, NEEDED.get(kind, {}))
    assert all(callable(getattr(runner, verb)) for verb in ("submit", "poll", "cancel", "find", "close"))
    runner.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_workload_says_what_it_can(kind):
    workload = create_workload(kind, NEEDED.get(kind, {}))
    assert isinstance(workload.capabilities, Capabilities)
    assert workload.dtype == workload.framework.dtype


def test_a_wrong_name_is_told_the_right_one(tmp_path):
    with pytest.raises(UnknownBackend, match=r"^no runner is called 'locl'; did you mean 'local'\?$"):
        create_runner("locl", tmp_path, CLUSTER, {})
    with pytest.raises(UnknownBackend, match=r"^no workload is called 'jax'; known: .*torch"):
        create_workload("jax", {})


def test_what_is_simulated_goes_with_what_is_simulated_only():
    for kind in RUNNERS:
        for workload in WORKLOADS:
            fits = (kind == "simulated") == (workload == "simulated")
            assert [problem.path for problem in check_pair(kind, workload)] == ([] if fits else ["runner.kind"])
    (problem,) = check_pair("local", "simulated")
    assert problem.message.startswith("the runner local cannot run the workload simulated: ")


CONTRACT = Path(__file__).with_name("test_contract.py")


def test_a_package_outside_names_its_laboratory(tmp_path):
    (tmp_path / "outside_lab.py").write_text("from jobs import LocalLaboratory as OutsideLaboratory\n")
    words = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *words, str(CONTRACT), "-k", "time_limit or files_are_there"]
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "MESHTUNE_LABORATORY": "outside_lab:OutsideLaboratory"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    found = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    names = ("the_time_limit_ends_a_job", "the_files_are_there_when_the_job_starts_in_the_submitters_directory")
    assert found == [f"test_{name}[outside_lab:OutsideLaboratory]" for name in names], done.stdout + done.stderr
