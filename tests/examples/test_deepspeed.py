"""A script under DeepSpeed is tuned from its start command, with the real package: every ZeRO stage, accumulation, two
to four processes over gloo. A quick campaign is in test_examples.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_lab import run_campaign
from launches import launch_of

from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.deepspeed.reader import read_launch
from meshtune.tuner.specs.import_script import spec_document

ROOT = Path(__file__).parents[2]
MODEL = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64}
SETTINGS = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": False},
    "fp16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
    "gradient_clipping": 1.0,
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processes", [2, 4])
def test_every_stage_of_zero_is_tuned_from_the_start_command(tmp_path, processes):
    pytest.importorskip("deepspeed")
    shapes = " ".join(f"--{name.replace('_', '-')} {size}" for name, size in MODEL.items())
    command = f"deepspeed --num_gpus {processes} train.py --deepspeed --deepspeed_config ds.json --steps 500 --seed 1 "
    folder = str(ROOT / "examples" / "deepspeed")
    files = {"ds.json": json.dumps(SETTINGS)}
    launch = launch_of(command + shapes, files=files, directory=folder, nodes=1, devices_per_node=processes)
    imported = read_launch(launch)
    assert imported.global_batch_size == 4 * processes
    document = spec_document(imported, name="deepspeed", cluster="local-cpu", here=ROOT)
    # What shapes the model has. The run's length stays: a trial ends when its steps are measured.
    (question,) = document.pop("open_questions")
    assert "layers, hidden, heads, ffn, vocab and seq_len" in question
    document["model"] = MODEL
    assert document["workload"]["watch"]
    assert "--steps 500" in document["workload"]["arguments"]
    document["workload"] |= {"python": sys.executable}
    document |= {
        "cluster": {"preset": "local-cpu", "devices_per_node": processes},
        "space": {"tp": [1], "pp": [1], "cp": [1], "zero_stage": [0, 1, 2, 3], "micro_batch_size": [1, 2]},
        "runner": {"kind": "local", "idle_s": 0.5},
        "budget": {"trials": 8},
        "search": "grid",
        "confirm": 0,
    }
    finished, _, trials = run_campaign(tmp_path, document, ROOT, timeout_s=800)
    told = finished.out + finished.err + "".join(str(trial.outcome) for trial in trials)
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 8, told
    assert {(trial.plan.zero_stage, trial.plan.grad_accum_steps) for trial in trials} == {
        (stage, passes) for stage in range(4) for passes in (2, 4)
    }
    assert "Recommended: tp1 pp1 " in finished.out
    for trial in trials:
        measured = trial.outcome.measurement
        assert len(measured.step_times_s) >= 3
        assert measured.devices == processes
        assert measured.tokens_per_step == 4 * processes * 64
