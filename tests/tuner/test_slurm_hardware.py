"""On a real Slurm with nodes of two kinds, a campaign is measured on those of its baseline."""

from __future__ import annotations

import pytest
import toy
from driven import Driven, end
from slurm_lab import SlurmLab, wait_for
from specs import tiny

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict

pytestmark = [pytest.mark.long, pytest.mark.timeout(280)]

# A stand-in for the tool alone, with what it prints on such nodes.
NVIDIA_SMI = """\
#!/bin/sh
case $SLURMD_NODENAME in
n0|n1) device="NVIDIA H100 80GB HBM3, 81559 MiB, 1980 MHz" ;;
*) device="NVIDIA A100-SXM4-80GB, 81920 MiB, 1410 MHz" ;;
esac
echo "0, GPU-1, $device, 550.54.15"
echo "1, GPU-2, $device, 550.54.15"
"""


@pytest.fixture
def lab(slurm: SlurmLab):
    yield slurm
    for node in slurm.run("sinfo", "-h", "-N", "-p", "main", "-t", "drain", "-o", "%N").split():
        free(slurm, node)


def free(lab: SlurmLab, nodes: str) -> None:
    lab.run("scontrol", "update", f"nodename={nodes}", "state=resume")


def drain(lab: SlurmLab, nodes: str) -> None:
    lab.run("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=other")


def test_a_trial_that_slurm_put_on_another_kind_of_nodes_is_run_again_on_the_baselines(lab, tmp_path):
    site, tools = Driven(tmp_path), tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    spec = tiny(
        cluster={**toy.CLUSTER, "nodes": 2, "devices_per_node": 1},
        global_batch_size=16,
        space={"micro_batch_size": [1, 2], "zero_stage": [0], "tp": [1], "pp": [1]},
        baseline={"micro_batch_size": 2},
        workload=site.workload("{micro_batch_size}", "{grad_accum_steps}"),
        search="grid",
        trial={"time_limit_s": 60},
        runner={"kind": "slurm", "poll_s": 0.2, "cpus_per_device": 1, "setup": [f"export PATH={tools}:$PATH"]},
        budget={"trials": 2},
    )
    site.write(spec)
    site.hold("0000-a1", "0001-a1")
    drain(lab, "n[2-3]")
    service = site.start("run", "spec.yaml")
    try:
        site.await_ranks("0000-a1", 2)
        drain(lab, "n[0-1]")
        free(lab, "n[2-3]")
        site.let_go("0000-a1")
        site.await_ranks("0001-a1", 2)
        free(lab, "n[0-1]")
        # Till they have answered again they are silent, and so none that another job could have.
        states = ("sinfo", "-h", "-N", "-p", "main", "-n", "n[0-1]", "-o", "%T")
        wait_for(lambda: lab.run(*states).split() == ["idle", "idle"], "the baseline's nodes do not answer")
        site.let_go("0001-a1")
        site.finish(service)
    finally:
        end(service)
    baseline, trial = site.trials()
    (kind,) = baseline.measurement.hardware
    assert (kind.device, kind.memory_bytes, kind.clock_mhz, kind.driver) == (
        *("NVIDIA H100 80GB HBM3", 81559 << 20, 1980, "550.54.15"),
    )
    assert kind.nodes == ("n0", "n1")
    first, second = trial.attempts
    assert (first.outcome.verdict, first.outcome.failure) == (Verdict.LOST, Cause.OTHER_HARDWARE)
    assert "other hardware: NVIDIA A100-SXM4-80GB (baseline: NVIDIA H100 80GB HBM3)" in first.outcome.reason
    assert first.nodes == first.failed_nodes == second.avoid == ("n2", "n3")
    assert second.nodes == ("n0", "n1")
    assert second.outcome.measurement.hardware == (kind,)
