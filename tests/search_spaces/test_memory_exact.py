"""The formulas against the trainer's own tensors, counted one by one by `runners.trainer.exact`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshtune.runners.trainer.exact import exact_peak, representatives
from meshtune.runners.trainer.job import Dtype, Router, TrainerJob
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.framework_profiles import TRAINER_BFLOAT16, Reports
from meshtune.search_spaces.physics.memory import stage_parts
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import LOSS_CHUNKS, Plan
from meshtune.search_spaces.recipe import PLAIN, Adapter, Recipe
from meshtune.search_spaces.routing import Routing

# What a plain test run takes of a list, and what it leaves to `make test-long`.
SLOW, LONG = pytest.mark.slow, pytest.mark.long
MODEL = ModelSpec(name="mid", layers=4, hidden=1024, heads=16, kv_heads=8, ffn=4096, vocab=16384, seq_len=1024)
MIXTURE = replace(MODEL, name="mixture", experts=8, top_k=2, ffn=2048)
MANY = replace(MIXTURE, name="many", experts=16, top_k=8)
# The loss is the fullest moment.
WORDY = replace(MODEL, name="wordy", vocab=131072)
# A layer's backward pass is.
WIDE = replace(MODEL, name="wide", layers=6, hidden=2048, ffn=8192, vocab=1024, seq_len=256)
PADDED = replace(MODEL, name="padded", vocab=120001, vocab_multiple=4096)
UNEVEN = replace(MODEL, name="uneven", layers=7)
LORA, HALF = Recipe(adapter=Adapter(rank=16)), Recipe(frozen_layers=2, frozen_embedding=True)
FIRST, LAST = "first_stage_less_layers", "last_stage_less_layers"
BARE = replace(DEFAULTS, memory_offset_bytes=1e-9, activation_factor=1.0)
DEVICE = DeviceSpec(name="any", kind="cuda", memory_bytes=80 * 2**30)


@pytest.mark.parametrize(
    ("model", "plan", "stage"),
    [
        pytest.param(MODEL, {"grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MODEL, {"dp": 8, "zero_stage": 1, "recompute": "full"}, 0, marks=LONG),
        pytest.param(MODEL, {"dp": 8, "zero_stage": 2, "recompute": "selective", "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MODEL, {"dp": 8, "zero_stage": 3}, 0, marks=LONG),
        pytest.param(MODEL, {"tp": 4, "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MODEL, {"tp": 4, "sequence_parallel": False}, 0, marks=LONG),
        pytest.param(MODEL, {"cp": 4, "context": "ulysses", "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MODEL, {"pp": 4, "grad_accum_steps": 4}, 0, marks=LONG),
        pytest.param(MODEL, {"pp": 4, "grad_accum_steps": 4}, 3, marks=LONG),
        pytest.param(MODEL, {"pp": 2, "grad_accum_steps": 4, "schedule": "gpipe"}, 1, marks=LONG),
        pytest.param(MODEL, {"pp": 2, "vpp": 2, "grad_accum_steps": 4, "schedule": "interleaved"}, 0, marks=LONG),
        pytest.param(MODEL, {"pp": 2, "vpp": 2, "grad_accum_steps": 4, "schedule": "zbv"}, 0, marks=SLOW),
        pytest.param(MODEL, {"pp": 2, "dp": 4, "zero_stage": 3, "grad_accum_steps": 4}, 1, marks=LONG),
        pytest.param(UNEVEN, {"pp": 3, FIRST: 1, LAST: 1, "grad_accum_steps": 4}, 0, marks=LONG),
        pytest.param(UNEVEN, {"pp": 3, FIRST: 1, LAST: 1, "grad_accum_steps": 4}, 1, marks=LONG),
        pytest.param(UNEVEN, {"pp": 3, FIRST: -1, "grad_accum_steps": 4}, 0, marks=LONG),
        pytest.param(
            UNEVEN,
            {"pp": 2, "vpp": 2, FIRST: -3, "grad_accum_steps": 4, "schedule": "interleaved"},
            0,
            marks=LONG,
        ),
        pytest.param(
            UNEVEN, {"pp": 2, "vpp": 2, LAST: 1, "grad_accum_steps": 4, "schedule": "interleaved"}, 1, marks=LONG
        ),
        pytest.param(
            UNEVEN, {"pp": 2, "vpp": 2, LAST: 1, "grad_accum_steps": 4, "schedule": "zero_bubble"}, 1, marks=LONG
        ),
        pytest.param(UNEVEN, {"pp": 2, "vpp": 2, FIRST: 1, "grad_accum_steps": 4, "schedule": "zbv"}, 0, marks=LONG),
        pytest.param(WORDY, {"tp": 4, "sequence_parallel": False, "recompute": "full"}, 0, marks=LONG),
        pytest.param(PADDED, {"tp": 8, "recompute": "full"}, 0, marks=LONG),
        pytest.param(WORDY, {"dp": 8, "zero_stage": 3, "recompute": "full", "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(WIDE, {"dp": 8, "zero_stage": 3, "recompute": "full"}, 0, marks=SLOW),
        pytest.param(WIDE, {"dp": 8, "zero_stage": 2, "recompute": "full", "grad_accum_steps": 2}, 0, marks=SLOW),
        pytest.param(WORDY, {"pp": 2, "grad_accum_steps": 4}, 1, marks=SLOW),
        pytest.param(WORDY, {"pp": 2, "grad_accum_steps": 4, "schedule": "gpipe"}, 1, marks=LONG),
        pytest.param(WORDY, {"pp": 2, "vpp": 2, "grad_accum_steps": 4, "schedule": "zero_bubble"}, 1, marks=LONG),
        pytest.param(MIXTURE, {"dp": 4, "ep": 4, "zero_stage": 1}, 0, marks=SLOW),
        pytest.param(MIXTURE, {"dp": 4, "ep": 4, "zero_stage": 1, "imbalance": 3.0}, 0, marks=SLOW),
        pytest.param(
            MIXTURE, {"dp": 4, "ep": 4, "zero_stage": 1, "recompute": "selective", "imbalance": 3.0}, 0, marks=LONG
        ),
        pytest.param(MODEL, {"dp": 8, "zero_stage": 1, "zero_group": 2}, 0, marks=SLOW),
        pytest.param(MODEL, {"dp": 8, "zero_stage": 2, "zero_group": 2, "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MODEL, {"dp": 8, "zero_stage": 3, "zero_group": 2, "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MIXTURE, {"dp": 8, "ep": 2, "zero_stage": 1, "zero_group": 4}, 0, marks=LONG),
        pytest.param(MIXTURE, {"dp": 2, "tp": 2, "ep": 4, "etp": 1, "zero_stage": 1}, 0, marks=LONG),
        pytest.param(MIXTURE, {"dp": 4, "ep": 2, "etp": 2, "zero_stage": 1}, 0, marks=LONG),
        pytest.param(MANY, {"dp": 2, "tp": 4, "ep": 8, "etp": 1, "zero_stage": 1}, 0, marks=SLOW),
        pytest.param(MANY, {"dp": 4, "tp": 2, "ep": 2, "etp": 4, "zero_stage": 1}, 0, marks=LONG),
        pytest.param(MIXTURE, {"dp": 4, "cp": 2, "ep": 4, "zero_stage": 1}, 0, marks=LONG),
        pytest.param(WORDY, {"loss_chunks": 1, "recompute": "full"}, 0, marks=LONG),
        pytest.param(WORDY, {"loss_chunks": 2, "tp": 4}, 0, marks=SLOW),
        pytest.param(MODEL, {"selective": "attention"}, 0, marks=LONG),
        pytest.param(MODEL, {"selective": "half_products", "grad_accum_steps": 2}, 0, marks=SLOW),
        pytest.param(MODEL, {"cp": 4, "selective": "attention", "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MODEL, {"tp": 4, "selective": "half_products"}, 0, marks=LONG),
        pytest.param(MIXTURE, {"dp": 4, "ep": 4, "zero_stage": 1, "selective": "attention"}, 0, marks=LONG),
        pytest.param(MIXTURE, {"dp": 4, "ep": 4, "zero_stage": 1, "selective": "half_products"}, 0, marks=LONG),
        pytest.param(MODEL, {"dp": 4, "recipe": LORA}, 0, marks=SLOW),
        pytest.param(MODEL, {"dp": 4, "zero_stage": 2, "recipe": LORA, "recompute": "full"}, 0, marks=SLOW),
        pytest.param(MODEL, {"dp": 4, "zero_stage": 3, "recipe": LORA}, 0, marks=LONG),
        pytest.param(MODEL, {"dp": 4, "zero_stage": 3, "recipe": replace(LORA, trained_ends=True)}, 0, marks=LONG),
        pytest.param(MODEL, {"tp": 4, "recipe": LORA, "grad_accum_steps": 2}, 0, marks=LONG),
        pytest.param(MODEL, {"pp": 2, "grad_accum_steps": 4, "recipe": HALF}, 1, marks=SLOW),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
def test_the_formulas_are_within_a_tenth_of_the_exact_peak(model, plan, stage):
    axes = dict(plan)
    imbalance, selective = axes.pop("imbalance", None), axes.pop("selective", None)
    chunks, recipe = axes.pop("loss_chunks", LOSS_CHUNKS), axes.pop("recipe", PLAIN)
    plan = Plan(micro_batch_size=4, **({"recompute": "selective"} if selective else {}) | axes)
    job = TrainerJob(
        name="exact",
        model=model,
        plan=plan,
        recipe=recipe,
        device=DeviceKind.CUDA,
        dtype=Dtype.BFLOAT16,
        router=Router.SKEWED if imbalance else Router.BALANCED,
        imbalance=imbalance,
        selective=selective or "products",
        loss_chunks=chunks,
    )
    # At pp 1 the rank that gets the most tokens.
    exact = exact_peak(job, stage * plan.world_size // plan.pp if plan.pp > 1 else representatives(job)[0])
    kept = replace(TRAINER_BFLOAT16.kept, selective=job.selective, loss_chunks=chunks)
    framework = replace(
        TRAINER_BFLOAT16, routing=Routing.EVEN, imbalance=imbalance or 1.0, kept=kept, reports=Reports.ALLOCATED
    )
    cluster = ClusterSpec(name="any", nodes=8, devices_per_node=8, device=DEVICE)
    training = Training(model, cluster, with_recipe(framework, recipe), recipe)
    parts = stage_parts(training, columns_of([plan]), BARE, np.array([stage]))
    assert sum(float(part[0]) for part in parts.values()) == pytest.approx(exact.peak_bytes, rel=0.1)
