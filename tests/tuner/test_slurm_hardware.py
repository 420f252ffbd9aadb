"""On a real Slurm with nodes of two kinds, a campaign is measured on those of its baseline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import toy
import yaml
from slurm_lab import SlurmLab, wait_for

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.store import Store

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
# A job goes on for as long as it is held.
SCRIPT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from meshtune.runners.report import report
open(f"started-{os.environ['RANK']}", "w").close()
while os.path.exists(os.path.join(sys.argv[2], os.getcwd().rpartition("-t")[2])):
    time.sleep(0.05)
report([0.01 * int(sys.argv[3])] * 6)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab(slurm: SlurmLab):
    yield slurm
    for node in slurm.run("sinfo", "-h", "-N", "-p", "main", "-t", "drain", "-o", "%N").split():
        free(slurm, node)


def free(lab: SlurmLab, nodes: str) -> None:
    lab.run("scontrol", "update", f"nodename={nodes}", "state=resume")


def drain(lab: SlurmLab, nodes: str) -> None:
    lab.run("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=other")


def write_spec(folder: Path, holds: Path) -> None:
    tools = folder / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    (folder / "train.py").write_text(SCRIPT)
    command = ["{python}", str(folder / "train.py"), str(ROOT), str(holds), "{micro_batch_size}", "{grad_accum_steps}"]
    spec = {
        "name": "two-kinds",
        "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
        "cluster": {**toy.CLUSTER, "nodes": 2, "devices_per_node": 1},
        "global_batch_size": 16,
        "space": {"micro_batch_size": [1, 2], "zero_stage": [0], "tp": [1], "pp": [1]},
        "baseline": {"micro_batch_size": 2},
        "workload": {"kind": "command", "command": command},
        "search": "grid",
        "confirm": 0,
        "trial": {"time_limit_s": 60},
        "runner": {"kind": "slurm", "poll_s": 0.2, "cpus_per_device": 1, "setup": [f"export PATH={tools}:$PATH"]},
        "budget": {"trials": 2},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))


def ended(home: Home) -> list[Trial]:
    with Store.open(home.database_url) as store:
        (campaign,) = store.campaigns(limit=9)
        return store.trials(campaign.id)


def test_a_trial_that_slurm_put_on_another_kind_of_nodes_is_run_again_on_the_baselines(lab, tmp_path):
    home, holds = Home(tmp_path / "home"), tmp_path / "holds"
    holds.mkdir()
    write_spec(tmp_path, holds)
    (holds / "0000-a1").touch()
    (holds / "0001-a1").touch()
    drain(lab, "n[2-3]")

    def runs(job: str) -> bool:
        assert service.poll() is None, said.read_text()
        return len(list(home.root.glob(f"campaigns/*/*-t{job}/started-*"))) == 2

    said = tmp_path / "said.txt"
    with said.open("wb") as told:
        service = subprocess.Popen(
            [sys.executable, "-m", "meshtune.tuner.cli", "run", "spec.yaml", "--home", str(home.root)],
            stdout=told,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        )
    try:
        wait_for(lambda: runs("0000-a1"), "the baseline does not run")
        drain(lab, "n[0-1]")
        free(lab, "n[2-3]")
        (holds / "0000-a1").unlink()
        wait_for(lambda: runs("0001-a1"), "the trial does not run")
        free(lab, "n[0-1]")
        # Till they have answered again they are silent, and so none that another job could have.
        states = ("sinfo", "-h", "-N", "-p", "main", "-n", "n[0-1]", "-o", "%T")
        wait_for(lambda: lab.run(*states).split() == ["idle", "idle"], "the baseline's nodes do not answer")
        (holds / "0001-a1").unlink()
        assert service.wait(120) == 0, said.read_text()
    finally:
        if service.poll() is None:
            service.kill()
            service.wait()
    baseline, trial = ended(home)
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
