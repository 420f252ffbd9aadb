"""The example on Megatron-Core runs with the real package: its model, groups, schedules and optimizer, over gloo.

On CPUs by a stand-in for CUDA, which Megatron-Core insists on (tests/laboratories/cuda_on_cpu.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_lab import run_campaign

from meshtune.runners.outcome import Verdict
from meshtune.tuner.cli.spec_file import read_document

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "megatron-core"
LABORATORIES = ROOT / "tests" / "laboratories"
# Without a compiler at its first step, and over loopback.
ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


def losses_of(*runs: str) -> list[list[float]]:
    """The losses that train.py prints in each run: its number of ranks and its arguments."""
    finished = subprocess.run(
        [sys.executable, LABORATORIES / "megatron_core_runs.py", EXAMPLE / "train.py"],
        input="\n".join(runs),
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return [list(map(float, line.split()[1:])) for line in finished.stdout.splitlines() if line.startswith("losses")]


@pytest.mark.slow
def test_tensor_and_pipeline_parallel_ranks_train_the_model_of_one_process():
    whole, grid, interleaved = losses_of(
        "1 --steps 4 --micro-batch-size 2",
        "4 --steps 4 --micro-batch-size 2 --tp 2 --pp 2 --recompute selective",
        "4 --steps 4 --micro-batch-size 2 --pp 2 --vpp 2 --schedule interleaved --zero 1 --recompute full",
    )
    assert len(whole) == 4
    # Four optimizer steps, with clipped gradients, in float32: the orders of the sums differ.
    assert grid == pytest.approx(whole, rel=1e-5)
    assert interleaved == pytest.approx(whole, rel=1e-5)
    assert whole[3] < whole[0] - 0.1


@pytest.mark.long
def test_plans_of_megatron_core_are_tuned_over_four_processes(tmp_path):
    document = read_document(EXAMPLE / "campaign.yaml")
    small = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64}
    program = document["workload"]["command"]
    assert program[:2] == ["python3", "train.py"]
    document |= {
        "model": document["model"] | small,
        "cluster": {"preset": "local-cpu", "devices_per_node": 4},
        "runner": {"kind": "local", "idle_s": 0.5},
        "budget": {"trials": 4},
        "confirm": 0,
    }
    document["workload"] |= {
        "command": ["{python}", str(LABORATORIES / "cuda_on_cpu.py"), *program[1:]],
        "env": ENVIRONMENT,
        "framework": "megatron-core-float32",
        "dtype": "float32",
        "steps": 8,
        "warmup_steps": 3,
    }
    finished, _, trials = run_campaign(tmp_path, document, ROOT)
    assert finished.code == 0, finished.out + finished.err
    assert "Recommended: tp" in finished.out
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 4, finished.out
    assert len({trial.plan for trial in trials}) == 4
    first = [trial.outcome.measurement.first_losses[0] for trial in trials]
    assert first == pytest.approx([first[0]] * 4, rel=1e-5)
    assert all("megatron-core" in trial.outcome.measurement.software for trial in trials)
