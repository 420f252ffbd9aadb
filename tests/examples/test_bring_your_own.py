"""Somebody's own script is tuned end to end: one that reports, one whose log is read, one that is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import samples
from command_lab import run_campaign

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.cli.spec_file import read_document

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "bring-your-own" / "campaign.yaml"


def example(**changes: Any) -> dict[str, Any]:
    document = read_document(EXAMPLE)
    return document | {"runner": {"kind": "local", "idle_s": 0.5}, "confirm": 0} | changes


@pytest.mark.slow
def test_a_script_that_reports_is_tuned_as_the_tutorial_shows(tmp_path):
    document = example(budget={"trials": 2}, confirm=1, confirm_rounds=1)
    document["workload"] |= {"steps": 5, "warmup_steps": 2}
    finished, _, trials = run_campaign(tmp_path, document, ROOT)
    assert finished.code == 0, finished.out + finished.err
    assert "Recommended: tp1 pp1 dp2 " in finished.out
    samples.compared("bring-your-own", samples.of_a_campaign(finished.out))
    trials = [trial for trial in trials if trial.origin is not Origin.CONFIRMATION]
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 2, finished.out
    assert len({trial.plan for trial in trials}) == 2
    losses = []
    for trial in trials:
        measured = trial.outcome.measurement
        assert (len(measured.step_times_s), len(measured.warmup_times_s), measured.devices) == (3, 2, 2)
        assert (measured.tokens_per_step, measured.model_flops_per_token > 0) == (16 * 64, True)
        assert "torch" in measured.software
        losses.append(measured.first_losses[0])
    # Whatever the plan, the same weights see batches of one size: only the draw of the tokens differs.
    assert max(losses) - min(losses) < 0.2


# A training loop in name only, whose log is all that it leaves: larger micro-batches go faster.
SLEEPS = """
import sys, time
micro, accumulate, steps = map(int, sys.argv[1:])
for step in range(1, steps + 1):
    start = time.perf_counter()
    time.sleep(0.01 * accumulate)
    print(f"iter {step}/{steps} | loss {9 / step:.3f} | {(time.perf_counter() - start) * 1e3:.2f} ms/it", flush=True)
print("peak memory 12.5 MiB")
"""


@pytest.mark.slow
def test_a_script_that_says_all_in_its_log_is_tuned(tmp_path):
    document = example(
        space={"micro_batch_size": [1, 2, 4, 8]},
        budget={"trials": 4},
        search="grid",
        workload={
            "kind": "command",
            "command": "exec {python} sleeps.py {micro_batch_size} {grad_accum_steps} {steps}",
            "files": {"sleeps.py": SLEEPS.replace("{", "{{").replace("}", "}}")},
            "start": "job",
            "steps": 8,
            "warmup_steps": 2,
            "log": {
                "step": r"iter (\d+)/",
                "step_time_ms": r"([\d.]+) ms/it",
                "loss": r"loss ([\d.]+)",
                "memory_mib": r"peak memory ([\d.]+) MiB",
            },
        },
    )
    finished, _, trials = run_campaign(tmp_path, document, ROOT)
    assert finished.code == 0, finished.out + finished.err
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 4, finished.out
    measured = {trial.plan.micro_batch_size: trial.outcome.measurement for trial in trials}
    assert measured[8].step_time_s < measured[1].step_time_s
    assert measured[1].step_times_s[0] >= 0.01 * 8
    assert measured[1].first_losses == (9.0, 4.5, 3.0, 2.25)
    assert measured[1].peak_memory_bytes == (12 * 2**20 + 2**19,)
    assert (len(measured[1].step_times_s), measured[1].tokens_per_step) == (6, 16 * 64)


@pytest.mark.slow
def test_a_script_that_no_plan_can_help_is_tried_once(tmp_path):
    document = example(
        workload={"kind": "command", "command": "torchrunn train.py {micro_batch_size} {grad_accum_steps}"}
    )
    document["space"] = {"micro_batch_size": [1, 2, 4, 8]}
    finished, _, trials = run_campaign(tmp_path, document, ROOT)
    assert finished.code == 1, finished.out + finished.err
    (tried,) = [trial for trial in trials if trial.outcome is not None and trial.verdict is not Verdict.CANCELLED]
    assert (tried.verdict, tried.outcome.failure) == (Verdict.CRASHED, Cause.USER_BUG)
    assert "torchrunn" in finished.out
