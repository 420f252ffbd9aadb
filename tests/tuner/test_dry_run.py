"""`meshtune run --dry-run`: the quote, the first trial's files and how it would start; nothing starts or is made."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from command_lab import run_meshtune

from meshtune.tuner.results.export import FORMATS

SPEC = {
    "name": "tiny",
    "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
    "cluster": {"preset": "local-cpu", "devices_per_node": 2},
    "global_batch_size": 8,
    "budget": {"trials": 4},
}


@pytest.fixture
def rehearse(tmp_path: Path) -> Callable[..., str]:
    """What the command prints for the spec with changes; it must leave nothing but the spec."""

    def run(**over: object) -> str:
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**SPEC, **over}))
        done = run_meshtune(tmp_path, "run", "spec.yaml", "--dry-run")
        assert (done.code, done.err) == (0, "")
        assert os.listdir(tmp_path) == ["spec.yaml"]
        return done.out

    return run


def test_the_quote_and_the_job_of_the_baseline_are_shown(rehearse):
    shown = rehearse(baseline={"tp": 2, "micro_batch_size": 4})
    assert "legal plans" in shown
    assert "cost: 7 trials of " in shown
    assert "first trial: tp2 pp1 dp1 mbs4 ga2 zero0 (the baseline), in " in shown
    assert "--- job.json\n{" in shown
    assert '"name": "dry-run-t0000-a1"' in shown
    assert "the runner local starts 2 processes: " in shown
    assert "-m meshtune.runners.trainer job.json" in shown


def test_without_a_baseline_the_plan_that_is_predicted_best_comes_first(rehearse):
    assert "(predicted best), in " in rehearse()


@pytest.mark.parametrize("runner", ["slurm", "pbs"])
def test_the_script_of_a_batch_runner_is_shown(rehearse, runner):
    shown = rehearse(runner=runner)
    script = shown.partition(f"--- {FORMATS[runner].script}\n")[2]
    assert "--- gang.json\n{" in shown
    assert script.startswith("#!/bin/")
    assert "dry-run-t0000-a1" in script
