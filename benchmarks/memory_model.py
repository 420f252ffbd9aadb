"""The memory formulas against the trainer's own tensors, counted one by one on one core without a cluster.

`python benchmarks/memory_model.py [part of a plan's name]` prints a table: the exact peak of a pipeline stage
(`meshtune estimate --exact`), the formulas' peak, their ratio, and the formulas' parts. bfloat16; minutes in all.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from meshtune.runners.trainer.exact import exact_peak, representatives
from meshtune.runners.trainer.job import Dtype, Router, TrainerJob
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.framework_profiles import TRAINER_BFLOAT16, Reports
from meshtune.search_spaces.physics.memory import MemoryPart, stage_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import Routing

# Tensors alone: nothing that an allocator or a library adds.
TENSORS = replace(DEFAULTS, memory_offset_bytes=1e-9, activation_factor=1.0)
DEVICE = DeviceSpec(name="any", kind=DeviceKind.CUDA, memory_bytes=80 * 2**30)
MID = ModelSpec(name="mid", layers=4, hidden=1024, heads=16, ffn=4096, vocab=16384, seq_len=1024)
MIXTURE = replace(MID, name="mixture", experts=8, top_k=2, ffn=2048)
SKEWED = replace(MIXTURE, name="mixture, imbalance 3")
GPT: dict[str, object] = {"norm": "layernorm", "activation": "gelu", "position": "learned"}
GPT_22B = ModelSpec(name="22B", layers=48, hidden=6144, heads=48, ffn=24576, vocab=51200, seq_len=2048, **GPT)  # type: ignore[arg-type]
GPT_175B = ModelSpec(name="175B", layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200, seq_len=2048, **GPT)  # type: ignore[arg-type]

FOUR: dict[str, object] = {"micro_batch_size": 4, "grad_accum_steps": 4}
TWO_CHUNKS = FOUR | {"pp": 2, "vpp": 2}
EXPERTS = FOUR | {"dp": 4, "ep": 4}
CASES: list[tuple[ModelSpec, dict[str, object], tuple[int, ...]]] = [
    (MID, FOUR, (0,)),
    (MID, FOUR | {"recompute": "full"}, (0,)),
    (MID, FOUR | {"dp": 8, "zero_stage": 1}, (0,)),
    (MID, FOUR | {"dp": 8, "zero_stage": 2}, (0,)),
    (MID, FOUR | {"dp": 8, "zero_stage": 3}, (0,)),
    (MID, FOUR | {"dp": 8, "zero_stage": 3, "recompute": "full"}, (0,)),
    (MID, FOUR | {"pp": 2, "dp": 4, "zero_stage": 2}, (0, 1)),
    (MID, FOUR | {"pp": 2, "dp": 4, "zero_stage": 3}, (0, 1)),
    (MID, FOUR | {"tp": 4, "pp": 2}, (0, 1)),
    (MID, FOUR | {"cp": 4}, (0,)),
    (MID, FOUR | {"cp": 4, "context": "ulysses"}, (0,)),
    (MID, FOUR | {"cp": 4, "context": "ring"}, (0,)),
    (MID, FOUR | {"cp": 4, "recompute": "selective"}, (0,)),
    (MID, FOUR | {"cp": 4, "context": "ring", "recompute": "selective"}, (0,)),
    (MID, FOUR | {"pp": 2}, (0, 1)),
    (MID, FOUR | {"pp": 2, "recompute": "selective"}, (0, 1)),
    (MID, FOUR | {"pp": 2, "schedule": "gpipe"}, (0, 1)),
    (MID, TWO_CHUNKS | {"schedule": "interleaved"}, (0, 1)),
    (MID, TWO_CHUNKS | {"schedule": "zero_bubble"}, (0, 1)),
    (MID, TWO_CHUNKS | {"schedule": "zbv"}, (0, 1)),
    (MIXTURE, EXPERTS | {"zero_stage": 1}, (0,)),
    (MIXTURE, EXPERTS | {"zero_stage": 1, "recompute": "selective"}, (0,)),
    (MIXTURE, EXPERTS | {"zero_stage": 3}, (0,)),
    (SKEWED, EXPERTS | {"zero_stage": 1}, (0,)),
    (SKEWED, EXPERTS | {"zero_stage": 1, "recompute": "selective"}, (0,)),
    (GPT_22B, {"tp": 8, "pp": 4, "dp": 8, "zero_stage": 3, "recompute": "full", "grad_accum_steps": 32}, (0,)),
    (GPT_22B, {"tp": 8, "pp": 4, "dp": 8, "zero_stage": 1, "grad_accum_steps": 32}, (0, 3)),
    (GPT_175B, {"tp": 8, "pp": 16, "dp": 4, "zero_stage": 1, "recompute": "full", "grad_accum_steps": 64}, (0,)),
]


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(wanted: str) -> None:
    write("| model | plan | stage | exact GiB | formulas GiB | ratio | " + " | ".join(MemoryPart) + " |")
    write("|---" * (6 + len(MemoryPart)) + "|")
    for model, fields, stages in CASES:
        plan = Plan(**fields)  # type: ignore[arg-type]
        if wanted not in f"{model.name} {plan.key}":
            continue
        cluster = ClusterSpec(name="any", nodes=1, devices_per_node=plan.world_size, device=DEVICE)
        router, imbalance = (Router.SKEWED, 3.0) if model is SKEWED else (Router.BALANCED, None)
        framework = replace(
            TRAINER_BFLOAT16, routing=Routing.EVEN, imbalance=imbalance or 1.0, reports=Reports.ALLOCATED
        )
        training, columns = Training(model, cluster, framework), columns_of([plan])
        job = TrainerJob(
            name="exact",
            model=model,
            plan=plan,
            device=DeviceKind.CUDA,
            dtype=Dtype.BFLOAT16,
            router=router,
            imbalance=imbalance,
        )
        fullest = representatives(job)[0]  # of stage 0
        for stage in stages:
            exact = exact_peak(job, fullest + stage * plan.world_size // plan.pp).peak_bytes / 2**30
            parts = stage_parts(training, columns, TENSORS, np.array([stage]))
            gib = [float(parts[part][0]) / 2**30 for part in MemoryPart]
            row = " | ".join(f"{one:.2f}" for one in gib)
            sizes = f"{exact:.2f} | {sum(gib):.2f} | {sum(gib) / exact:.3f}"
            write(f"| {model.name} | {plan.key} | {stage} | {sizes} | {row} |")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
