"""Times what training is made of, on every rank at once and each by itself: products and attention at a model's shapes,
the optimizer, the host's work for a layer, and a few of the model's layers in the trainer as it is. All is collective.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.job import Dtype, TrainerJob, require_supported
from meshtune.runners.trainer.model import attend_causally
from meshtune.runners.trainer.parallel.mesh import Mesh, gather
from meshtune.runners.trainer.parallel.sharding import FlatAdamW, Sharding
from meshtune.runners.trainer.probe_rates import RankPlace, name_of, time_in_turn
from meshtune.runners.trainer.train import Trainer, build_chunk
from meshtune.search_spaces.cluster import DeviceKind, LayerRun, MeasuredRates, ProductRate
from meshtune.search_spaces.model import ModelSpec, layer_kinds
from meshtune.search_spaces.physics.layer_time import FUSED_BACKWARD
from meshtune.search_spaces.plan import Plan

# Rows of products, and tokens of the larger micro-batch of real layers.
ROWS, CPU_ROWS = (2048, 8192, 16384), (128, 512, 2048)
TOKENS, CPU_TOKENS = 16384, 1024
# So many weights fill no cache; on a device, so many that the update's fixed time does not show: a share of its memory,
# by the bytes of a weight with its gradient, float32 master and moments.
WEIGHTS_SHARE, BYTES_OF_WEIGHT, CPU_WEIGHTS = 0.2, 20, 4_000_000
# Of the real layers; and the share of the time that they get.
LAYERS, WARM_STEPS, TIMED_STEPS, LAYERS_SHARE = (2, 4), 2, 3, 0.5
# Only the host's work counts in it.
TINY = ModelSpec(name="tiny", layers=4, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=64, seq_len=16)

# What is timed, by name.
Operations = Iterator[tuple[Any, Callable[[], object]]]


def time_training(
    place: RankPlace, model: ModelSpec | None, dtype: torch.dtype, seconds: float
) -> tuple[MeasuredRates, tuple[LayerRun, ...]]:
    """The rates that were measured, and the runs of real layers that tell the others; without a model what needs none.
    Raises InvalidValue where the trainer has no such layers."""
    cpu, device = place.device.type == "cpu", place.device
    kind, name = DeviceKind(device.type), Dtype(name_of(dtype))
    job = TrainerJob(name="probe", model=model or TINY, plan=Plan(), device=kind, dtype=name)
    require_supported(job)
    memory_bytes = 0 if cpu else torch.get_device_module(device).get_device_properties(device).total_memory
    mesh, count = _alone(device), CPU_WEIGHTS if cpu else int(WEIGHTS_SHARE * memory_bytes) // BYTES_OF_WEIGHT
    operations = dict(_host(device, mesh, job)) | dict(_weights(device, mesh, dtype, count))
    if model is None:
        return _rates(time_in_turn(place, operations, seconds), count), ()
    batch = max(2, (CPU_TOKENS if cpu else TOKENS) // model.seq_len)
    operations |= dict(_products(device, model, dtype, CPU_ROWS if cpu else ROWS))
    operations |= dict(_attention(device, model, dtype, (1, batch)))
    took = time_in_turn(place, operations, seconds * (1 - LAYERS_SHARE))
    del operations  # the layers need the memory
    # Causal: half of the scores. Of the two micro-batches the faster one counts.
    flops = {size: size * model.seq_len**2 * (model.query_width + model.answer_width) for size in (1, batch)}
    rates = replace(
        _rates(took, count),
        products=tuple(_product_rate(took, *name[1:]) for name in took if name[0] == "product"),
        attention_flops=max(each / took["attention", size] for size, each in flops.items()),
        attention_backward_flops=max(FUSED_BACKWARD * each / took["answered", size] for size, each in flops.items()),
    )
    return rates, _layers(place, mesh, job, batch, seconds * LAYERS_SHARE)


def _rates(took: Mapping[Any, float], count: int) -> MeasuredRates:
    return MeasuredRates(
        accumulated_per_s=count / took["add"],
        updated_per_s=count / took["update"],
        layer_host_s=took["host", False] / TINY.layers,
        compiled_layer_host_s=took["host", True] / TINY.layers if ("host", True) in took else None,
    )


def _alone(device: torch.device) -> Mesh:
    """The mesh of a rank that trains by itself, whatever others there are."""
    own = DeviceMesh.from_group(dist.new_group([dist.get_rank()], use_local_synchronization=True), device.type)
    return Mesh(pp=own, dp=own, cp=own, tp=own, replicas=own, experts=None)


def _host(device: torch.device, mesh: Mesh, job: TrainerJob) -> Operations:
    """Forward and backward pass of layers so small that nothing but their launches takes time; on accelerators
    compiled too, which takes seconds beyond the probe's."""
    alike = {way: getattr(job.model, way) for way in ("norm", "activation", "position")}
    for compiled in (False,) if device.type == "cpu" else (False, True):
        tiny = replace(job, model=replace(TINY, **alike), compile=compiled)
        layers = build_chunk(tiny, mesh, device, Sharding.FLAT, 0).layer_list()
        x = torch.zeros(1, TINY.seq_len, TINY.hidden, dtype=getattr(torch, job.dtype), device=device)
        yield ("host", compiled), partial(_pass, nn.Sequential(*layers), x.requires_grad_())


def _pass(layers: nn.Module, x: Tensor) -> None:
    torch.autograd.backward(layers(x), x.detach())


def _weights(device: torch.device, mesh: Mesh, dtype: torch.dtype, count: int) -> Operations:
    """To add a gradient to the sum in float32, and to move the weights, by the trainer's optimizer."""
    weight = nn.Parameter(torch.zeros(count, dtype=dtype, device=device))
    gradient = torch.ones_like(weight)
    optimizer = FlatAdamW([weight], 1e-3, mesh.replicas.get_all_groups(), shard=False, backward_passes=1)

    def add() -> None:
        weight.grad = gradient
        optimizer.gradient(weight)

    def update() -> None:
        optimizer.begin_step()
        optimizer.reduce()
        optimizer.update()

    yield "add", add
    yield "update", update


def _products(device: torch.device, model: ModelSpec, dtype: torch.dtype, every: Sequence[int]) -> Operations:
    """Of each shape of weight in the layers, and of the head, by rows: as autograd multiplies them."""
    layers = [
        (each.inputs, each.outputs)
        for _, kind in layer_kinds(model)
        for each in (*kind.attention_products, *kind.block_products(kind.ffn), *kind.block_products(kind.shared_ffn))
    ]
    for (inputs, outputs), rows in product(sorted({*layers, (model.hidden, model.vocab)}), every):
        shapes = (rows, inputs), (outputs, inputs), (rows, outputs)
        x, weight, gradient = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
        yield ("product", inputs, outputs, rows), partial(torch.mm, x, weight.t())
        yield ("gradients", inputs, outputs, rows), partial(_gradients, x, weight, gradient)


def _gradients(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.mm(gradient, weight), torch.mm(gradient.t(), x)


def _product_rate(took: Mapping[Any, float], inputs: int, outputs: int, rows: int) -> ProductRate:
    flops, place = 2 * rows * inputs * outputs, (inputs, outputs, rows)
    return ProductRate(
        inputs=inputs,
        outputs=outputs,
        rows=rows,
        forward_flops=flops / took[("product", *place)],
        backward_flops=2 * flops / took[("gradients", *place)],
    )


def _attention(device: torch.device, model: ModelSpec, dtype: torch.dtype, sizes: Sequence[int]) -> Operations:
    """Forward and backward by the sequences at once, as the trainer calls it: heads of a token side by side."""
    for size in sizes:
        shapes = [(size, model.seq_len, heads, model.head_dim) for heads in (model.heads, *[model.kv_heads] * 2)]
        inputs = [torch.randn(shape, device=device).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]
        out = attend_causally(*inputs)
        yield ("attention", size), partial(attend_causally, *inputs)
        yield ("answered", size), partial(torch.autograd.grad, out, inputs, out.detach(), retain_graph=True)


def _layers(place: RankPlace, mesh: Mesh, job: TrainerJob, batch: int, seconds: float) -> tuple[LayerRun, ...]:
    """Steps of the trainer with the model's first layers, in turn. A larger micro-batch that a rank's memory has no
    room for is halved; none are timed where it has none for 1."""
    while batch:
        runs = [(layers, size, False) for size in dict.fromkeys((1, batch)) for layers in LAYERS]
        if place.device.type != "cpu":
            runs += [(layers, batch, True) for layers in LAYERS]
        times: list[list[float]] = [[] for _ in runs]
        begun, fits = time.perf_counter(), True
        while fits and (not times[0] or place.slowest(time.perf_counter() - begun) < seconds):
            place.meet()
            try:
                for (layers, size, compiled), taken in zip(runs, times, strict=True):
                    gc.collect()  # the last trainer's hooks refer to it
                    plan = Plan(micro_batch_size=size)
                    taken += _steps_s(place, mesh, replace(job, plan=plan, compile=compiled), layers)
            except (MemoryError, torch.OutOfMemoryError):
                fits = False
            fits = place.slowest(float(not fits)) == 0
        if fits:
            medians = [median(gather(median(taken))) for taken in times]
            return tuple(LayerRun(*run, step_s) for run, step_s in zip(runs, medians, strict=True))
        batch //= 2
    return ()


def _steps_s(place: RankPlace, mesh: Mesh, job: TrainerJob, layers: int) -> list[float]:
    trainer = Trainer(replace(job, model=replace(job.model, layers=layers)), mesh, place.device, Progress())
    tokens, targets = trainer.batch(0)
    for _ in range(WARM_STEPS):
        trainer.step(tokens, targets)
    return [place.time(lambda: trainer.step(tokens, targets), 1) for _ in range(TIMED_STEPS)]
