"""ZeRO 2 and 3 by torch's FSDP2, with or without tensor parallelism by torch's parallel styles."""

from __future__ import annotations

import torch
from plain import built, finish, loss_of, start, tokens_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

job, device = start()
plan = job["plan"]
model = built(job, device, layers=job["model"]["layers"])
mesh = init_device_mesh(device.type, (plan["dp"], plan["tp"]), mesh_dim_names=("dp", "tp"))
if plan["tp"] > 1:
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    column, row = ColwiseParallel, RowwiseParallel
    layer_plan = {
        **{name: column(input_layouts=Shard(1)) for name in ("query", "key", "value", "gate", "up")},
        **{name: row(output_layouts=Shard(1)) for name in ("output", "down")},
        **{name: SequenceParallel() for name in ("norm1", "norm2")},
    }
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], layer_plan)
    ends = {
        "embedding": row(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": column(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["tp"], ends)
if plan["dp"] > 1:
    policy = MixedPrecisionPolicy(param_dtype=model.dtype, reduce_dtype=torch.float32)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=plan["zero_stage"] == 3)
        if device.type == "cpu":
            module.set_force_sum_reduction_for_comms(True)  # gloo has no division in a reduction
            module.set_gradient_divide_factor(float(plan["dp"]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


def step() -> None:
    optimizer.zero_grad()
    for _ in range(plan["grad_accum_steps"]):
        tokens, targets = tokens_of(job, device, plan["micro_batch_size"])
        (loss_of(model(tokens), targets) / plan["grad_accum_steps"]).backward()
    optimizer.step()


finish(job, device, step)
