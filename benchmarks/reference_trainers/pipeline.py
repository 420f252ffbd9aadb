"""Pipeline parallelism by torch.distributed.pipelining, data parallelism beside it by DistributedDataParallel."""

from __future__ import annotations

import torch
from plain import CUDA, adamw, built, finish, loss_of, start, tokens_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

job, device = start()
plan = job["plan"]
mesh = init_device_mesh(device.type, (plan["pp"], plan["dp"]), mesh_dim_names=("pp", "dp"))
stage, stages = mesh["pp"].get_local_rank(), plan["pp"]
own = job["model"]["layers"] // stages
model: torch.nn.Module = built(job, device, layers=own, first=stage == 0, last=stage == stages - 1)
if plan["dp"] > 1:
    model = DistributedDataParallel(
        model, device_ids=[device.index] if CUDA else None, process_group=mesh["dp"].get_group()
    )
schedules = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
schedule = schedules[plan["schedule"]](
    PipelineStage(model, stage, stages, device, group=mesh["pp"].get_group()),
    n_microbatches=plan["grad_accum_steps"],
    loss_fn=loss_of,
)
optimizer = adamw(model)


def step() -> None:
    optimizer.zero_grad()
    tokens, targets = tokens_of(job, device, plan["micro_batch_size"] * plan["grad_accum_steps"])
    arguments = (tokens,) if stage == 0 else ()
    schedule.step(*arguments, **({"target": targets} if stage == stages - 1 else {}))
    optimizer.step()


finish(job, device, step)
