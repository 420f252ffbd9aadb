"""ZeRO 0 to 2 by DeepSpeed."""

from __future__ import annotations

import deepspeed
import deepspeed.ops
import torch
from plain import CUDA, built, finish, loss_of, start, tokens_of

job, device = start()
plan = job["plan"]
if not CUDA:
    # Else DeepSpeed compiles a collective for CPUs when it first starts.
    deepspeed.ops.__compatible_ops__ = {}
model = built(job, device, layers=job["model"]["layers"])
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    dist_init_required=False,
    config={
        "train_micro_batch_size_per_gpu": plan["micro_batch_size"],
        "gradient_accumulation_steps": plan["grad_accum_steps"],
        "zero_optimization": {"stage": plan["zero_stage"]},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": job["dtype"] == "bfloat16"},
    },
)


def step() -> None:
    for _ in range(plan["grad_accum_steps"]):
        tokens, targets = tokens_of(job, device, plan["micro_batch_size"])
        engine.backward(loss_of(engine(tokens), targets))
        engine.step()


finish(job, device, step)
