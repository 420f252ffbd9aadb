"""One device as production would use it: no wrapper, gradients of micro-batches added in place."""

from __future__ import annotations

import torch
from plain import adamw, built, finish, loss_of, start, tokens_of
from torch import Tensor

job, device = start()
plan = job["plan"]
model = built(job, device, layers=job["model"]["layers"])
loss_function = torch.compile(loss_of, dynamic=False) if job.get("compile") else loss_of
optimizer = adamw(model)


def step() -> Tensor:
    optimizer.zero_grad()
    total = torch.zeros((), device=device)
    for _ in range(plan["grad_accum_steps"]):
        tokens, targets = tokens_of(job, device, plan["micro_batch_size"])
        loss = loss_function(model(tokens), targets) / plan["grad_accum_steps"]
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


finish(job, device, step)
