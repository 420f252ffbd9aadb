"""Every name in the registries leads to something that keeps its seam, and a wrong name is told the right one."""

from __future__ import annotations

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
