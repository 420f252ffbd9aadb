"""Bytes of a training step by TRL as torch counts them on a CPU, beside what the physics predicts, part by part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.activations import layer_bytes
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.framework_profiles import FSDP, FSDP_PURE_BF16, FrameworkProfile
from meshtune.search_spaces.physics.memory import MemoryPart, memory_parts
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.recipe import PLAIN, Adapter, Companion, Recipe, Role

SCRIPT = Path(__file__).parents[1] / "laboratories/trl_memory.py"
SHAPES = {"layers": 4, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 704, "vocab": 1024}
ROWS, TOKENS = 2, 256
MODEL = ModelSpec(name="tiny", seq_len=TOKENS, **SHAPES)
CPU = ClusterSpec(
    name="cpu", nodes=1, devices_per_node=1, device=DeviceSpec(name="cpu", kind=DeviceKind.CPU, memory_bytes=2**40)
)
# bytes per value of the last norm and of the head's input: float32 before the norm and, where its weight is trained,
# after it; the input in 16 bits, which a frozen head does not keep.
NARROW = ("--dtype", "bfloat16")
CASES = {
    "full": (FSDP, PLAIN, 4 + 4 + 2, ()),
    "lora": (FSDP, Recipe(adapter=Adapter(rank=8)), 4, NARROW),
    "lora of a high rank": (FSDP, Recipe(adapter=Adapter(rank=64)), 4, (*NARROW, "--rank", "64")),
    "lora without autocast": (FSDP_PURE_BF16, Recipe(adapter=Adapter(rank=8)), 4, NARROW),
    "dpo": (FSDP, Recipe(rows_per_sample=2, beside=(Companion(role=Role.REFERENCE, bits=32),)), 4 + 4 + 2, ()),
}


def counted(case: str, *options: str) -> dict[str, Any]:
    shapes = [word for name, size in SHAPES.items() for word in (f"--{name.replace('_', '-')}", str(size))]
    words = [case, "--batch", str(ROWS), "--sequence", str(TOKENS), *shapes, *options]
    found = subprocess.run(
        [sys.executable, SCRIPT, *words],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    counts: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return counts


@pytest.mark.parametrize("case", CASES)
def test_predicted_bytes_are_those_that_torch_counts_within_5_percent(case: str) -> None:
    profile, recipe, last_bytes, options = CASES[case]
    code: FrameworkProfile = with_recipe(profile, recipe)
    columns = columns_of([Plan(micro_batch_size=ROWS, grad_accum_steps=2)])
    parts = memory_parts(Training(MODEL, CPU, code, recipe), columns, DEFAULTS)
    rows = columns_of([Plan(micro_batch_size=ROWS * recipe.rows_per_sample)])
    (layer,) = layer_bytes(MODEL, code, rows, recipe=recipe)
    last = ROWS * recipe.rows_per_sample * TOKENS * MODEL.hidden * last_bytes
    predicted = {
        "weights": parts[MemoryPart.WEIGHTS][0],
        "gradients": parts[MemoryPart.GRADIENTS][0],
        "optimizer": parts[MemoryPart.OPTIMIZER][0],
        "saved": MODEL.layers * layer.kept[0] + last,
    }
    counts = counted(case.split()[0], *["--autocast"] * profile.kept.autocast, *options)
    measured = {name: counts[name] for name in ("gradients", "optimizer", "saved")}
    measured["weights"] = counts["parameters"] + counts["reference"]
    for name, size in predicted.items():
        assert size == pytest.approx(measured[name], rel=0.05), name
