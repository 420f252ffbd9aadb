"""DeepSpeed's `--autotuning` on the model of a campaign, for as long as this part may run.

It tunes micro-batch size and ZeRO stage of the same trainer's model in bfloat16, by its own experiments. The samples
per second of the fastest one, times the tokens of a sample, compare with the campaign's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from part import Skipped, Work

SCRIPT = Path(__file__).with_name("deepspeed_train.py")


def autotune(work: Work) -> dict[str, Any]:
    if find_spec("deepspeed") is None:
        raise Skipped("deepspeed cannot be imported here")
    if not work.cuda:
        raise Skipped("DeepSpeed's autotuning needs a CUDA device")
    model, results = work.model(), work.folder / "results"
    (work.folder / "model.json").write_text(json.dumps(model), encoding="utf-8")
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "autotuning": {
            "enabled": True,
            "fast": True,
            "metric": "throughput",
            "max_train_batch_size": 32,
            "start_profile_step": 5,
            "end_profile_step": 15,
            "results_dir": str(results),
            "exps_dir": str(work.folder / "experiments"),
            "overwrite": False,
        },
    }
    (work.folder / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--autotuning=run", "--num_gpus=1", str(SCRIPT)]
    command += [f"--model={work.folder / 'model.json'}", "--deepspeed", "--deepspeed_config", "ds_config.json"]
    process = subprocess.Popen(command, cwd=work.folder, start_new_session=True, env=dict(os.environ))
    ended = ""
    try:
        process.wait(work.left_s)
    except subprocess.TimeoutExpired:
        ended = "the time ended it"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = [read(path, model["seq_len"]) for path in sorted(results.rglob("metrics.json"))]
    measured = [each for each in found if each["tokens_per_s"]]
    best = max(measured, key=lambda each: each["tokens_per_s"], default=None)
    return {
        "ended": ended or f"exit status {process.returncode}",
        "experiments": len(found),
        "best": best,
        "tokens_per_s": None if best is None else best["tokens_per_s"],
        "all": found,
    }


def read(path: Path, seq_len: int) -> dict[str, Any]:
    told = json.loads(path.read_text(encoding="utf-8"))
    samples = told.get("throughput")
    return {"experiment": path.parent.name, "tokens_per_s": samples * seq_len if samples else None, "told": told}
