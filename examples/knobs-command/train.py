"""A training script in name only: it prints the knobs that it saw, sleeps for as long as a step would take with them,
and reports. Standard library and meshtune's reporter alone.
By hand: python train.py --micro-batch-size 2 --grad-accum 2 --devices 2 --fp8-recipe mxfp8"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from meshtune.runners.report import Reporter

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, default=1)
parser.add_argument("--grad-accum", type=int, default=1)
parser.add_argument("--zero", type=int, choices=(0, 1), default=0)
parser.add_argument("--recompute", choices=("none", "selective"), default="none")
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--config", type=Path)
parser.add_argument("--fp8-recipe", choices=("off", "tensorwise", "mxfp8"), default="off")
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
config = json.loads(args.config.read_text(encoding="utf-8")) if args.config else {}

# What the program runs with, by the names of the spec's knobs. The reporter sees arguments and variables by itself;
# of keys of a file and of placeholders only the program knows.
SEEN = {
    "fp8": args.fp8_recipe,
    "ac_budget": config.get("activation_checkpoint", {}).get("memory_budget", 1.0),
    "nccl_channels": os.environ.get("NCCL_MIN_NCHANNELS"),
    "offload": config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none"),
    "workers": args.workers,
    "torchtitan_compile": config.get("compile", {}).get("enable", False),
}
print("saw", json.dumps(SEEN), flush=True)  # noqa: T201  # its log

# Seconds of a micro-batch, and of what a step does once.
pass_s = 1e-3 * (0.4 + 0.4 * args.micro_batch_size)
pass_s *= {"off": 1.0, "tensorwise": 0.8, "mxfp8": 0.7}[args.fp8_recipe]
pass_s *= 0.85 if SEEN["torchtitan_compile"] else 1.0
pass_s *= 1.0 if args.recompute == "none" else 1.3 - 0.2 * SEEN["ac_budget"]
once_s = 1e-3 * (1.5 if SEEN["offload"] == "optimizer" else 0.5) + 0.5e-3 / args.workers
if args.devices > 2:
    once_s += 4e-3 / int(SEEN["nccl_channels"] or 2)
memory = 2**20 * (8 + 2 * args.micro_batch_size + (0 if SEEN["offload"] == "optimizer" else 4))

reporter = Reporter()
for step in range(args.steps):
    time.sleep(args.grad_accum * pass_s + once_s)
    loss = 6.0 / (1 + 0.1 * step) + {"off": 0.0, "tensorwise": 0.05, "mxfp8": 0.1}[args.fp8_recipe]
    print(f"step {step} loss {loss:.3f}", flush=True)  # noqa: T201
    reporter.step(loss=loss)
reporter.done(knobs=SEEN, peak_memory_bytes=[memory] * args.devices)
