"""Data parallelism as most users have it: torch's DistributedDataParallel and AdamW."""

from __future__ import annotations

from contextlib import nullcontext

from plain import CUDA, adamw, built, finish, loss_of, start, tokens_of
from torch.nn.parallel import DistributedDataParallel

job, device = start()
plan = job["plan"]
bare = built(job, device, layers=job["model"]["layers"])
model = DistributedDataParallel(bare, device_ids=[device.index] if CUDA else None)
optimizer = adamw(model)


def step() -> None:
    optimizer.zero_grad()
    for index in range(plan["grad_accum_steps"]):
        last = index == plan["grad_accum_steps"] - 1
        with nullcontext() if last else model.no_sync():
            tokens, targets = tokens_of(job, device, plan["micro_batch_size"])
            (loss_of(model(tokens), targets) / plan["grad_accum_steps"]).backward()
    optimizer.step()


finish(job, device, step)
