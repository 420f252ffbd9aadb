"""Host time of one layer's forward and backward pass by tensor parallel degree, and on one rank by recomputation, as it
is and compiled: `python benchmarks/host_time.py`.

One process plays rank 0 of a group that hears nobody, with a model so small that only the host's work counts: what a
GPU waits for where a layer's kernels are short. Times are of the processor, so that other programs do not count, and
ratios are to tp 1 of the same round, which a machine's speed does not change."""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshtune.runners.trainer.job import TrainerJob
from meshtune.runners.trainer.parallel.mesh import build_mesh
from meshtune.runners.trainer.parallel.sharding import Sharding
from meshtune.runners.trainer.train import build_chunk
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.plan import Plan, Recompute

MODEL = ModelSpec(
    name="small",
    layers=8,
    hidden=64,
    heads=8,
    kv_heads=8,
    ffn=128,
    vocab=64,
    seq_len=16,
    activation=Activation.SWIGLU,
    norm=Norm.RMSNORM,
    position=Position.ROPE,
)


PLANS = [(1, False), (2, False), (2, True), (8, False), (8, True)]


ALONE = [(kind, compiled) for compiled in (False, True) for kind in Recompute]


def layer_ms(plan: Plan, repeats: int, *, compiled: bool = False) -> float:
    """Median over the repeats, in milliseconds: a pass through all layers, by their number."""
    job = TrainerJob(name="host", model=MODEL, plan=plan, compile=compiled)
    dist.init_process_group("fake", rank=0, world_size=plan.world_size, store=FakeStore())
    try:
        mesh = build_mesh(plan, "cpu")
        model = build_chunk(job, mesh, torch.device("cpu"), Sharding.FLAT, 0)
        length = MODEL.seq_len // (plan.tp if plan.sequence_parallel else 1)
        taken = []
        for _ in range(repeats):
            x = torch.zeros(1, length, MODEL.hidden, requires_grad=True)
            begun = time.process_time()
            out = x
            for layer in model.layer_list():
                out = layer(out)
            out.sum().backward()
            taken.append(time.process_time() - begun)
        return 1000 * statistics.median(taken[repeats // 5 :]) / MODEL.layers
    finally:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plans = [Plan(tp=tp, pp=1, dp=1, sequence_parallel=kind) for tp, kind in PLANS]
    rounds = [[layer_ms(plan, arguments.repeats) for plan in plans] for _ in range(arguments.rounds)]
    sys.stdout.write("| tp | sequence parallel | ms a layer | times tp 1 |\n|---|---|---|---|\n")
    for index, (tp, kind) in enumerate(PLANS):
        own = statistics.median(times[index] for times in rounds)
        ratio = statistics.median(times[index] / times[0] for times in rounds)
        sys.stdout.write(f"| {tp} | {'yes' if kind else 'no'} | {own:.2f} | {ratio:.2f} |\n")
    alone = [
        [layer_ms(Plan(recompute=kind), arguments.repeats, compiled=compiled) for kind, compiled in ALONE]
        for _ in range(arguments.rounds)
    ]
    sys.stdout.write("\n| recompute | compiled | ms a layer | times eager without |\n|---|---|---|---|\n")
    for index, (recompute, compiled) in enumerate(ALONE):
        own = statistics.median(times[index] for times in alone)
        ratio = statistics.median(times[index] / times[0] for times in alone)
        sys.stdout.write(f"| {recompute} | {'yes' if compiled else 'no'} | {own:.2f} | {ratio:.2f} |\n")


if __name__ == "__main__":
    main()
