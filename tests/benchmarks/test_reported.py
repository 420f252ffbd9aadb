from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reported import Reported, preset_of, reported
from tables import TableError, read_table

from meshtune.search_spaces.model import Activation
from meshtune.search_spaces.physics.framework_profiles import NANOTRON
from meshtune.search_spaces.plan import Plan, Recompute, Schedule

MakeTable = Callable[..., Path]
LLAMA = {
    "model": "llama-small",
    "precision": "bf16",
    "hardware": "h100_80gb",
    "vocab": 32768,
}


def only(path: Path) -> Reported:
    kept, left = reported(read_table(path))
    assert left == ()
    (one,) = kept
    return one


def test_a_row_becomes_its_plan(make_table: MakeTable) -> None:
    change = {"vpp": 2, "zero_stage": 1, "act_ckpt": "selective"}

    assert only(make_table(change)).plan == Plan(
        tp=2,
        pp=2,
        dp=2,
        vpp=2,
        micro_batch_size=2,
        grad_accum_steps=4,
        zero_stage=1,
        recompute=Recompute.SELECTIVE,
        schedule=Schedule.INTERLEAVED,
        sequence_parallel=False,
    )


def test_a_llamas_head_is_tied_where_the_stated_parameters_say_so(make_table: MakeTable) -> None:
    # 8 layers of 4 * 1024^2 + 3 * 1024 * 4096 weights, and once or twice 32768 * 1024 of embeddings: 0.168, 0.201.
    for params_b, tied in ((0.168, True), (0.201, False), (None, False)):
        model = only(make_table(LLAMA | {"params_b": params_b})).training.model
        assert (model.tied_head, model.activation) == (tied, Activation.SWIGLU)


@pytest.mark.parametrize(
    ("change", "dtype", "reduce_bytes"),
    [
        ({"precision": "fp16"}, "float16", 2),
        ({"precision": "bf16"}, "bfloat16", 4),
        ({"model": "mpt-small", "precision": "bf16"}, "bfloat16", 2),
        ({"model": "mpt-small", "precision": "amp_bf16"}, "bfloat16", 4),
        ({"model": "mpt-small", "precision": "amp_fp8"}, "bfloat16", 4),
        ({"model": "mpt-small", "precision": "amp_fp8", "hardware": "h100_80gb"}, "float8", 4),
        (LLAMA, NANOTRON.dtype, NANOTRON.reduce_bytes),
    ],
)
def test_model_and_precision_name_the_training_code(
    make_table: MakeTable, change: dict[str, object], dtype: str, reduce_bytes: float
) -> None:
    framework = only(make_table(change)).training.framework
    assert (framework.dtype, framework.reduce_bytes) == (dtype, reduce_bytes)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"layers": None, "hidden": None}, "not stated"),
        ({"nodes": None}, "not stated"),
        ({"nodes": 2}, "nodes and devices disagree"),
        ({"dp": 4}, "degrees and devices disagree"),
        ({"grad_accum": 3}, "batches disagree"),
        ({"grad_accum": None, "global_batch": 18}, "batches disagree"),
        ({"heads": 7}, "breaks the rules of a model or a plan"),
        ({"zero_stage": 5}, "breaks the rules of a model or a plan"),
        ({"layers": 1}, "more stages than layers"),
        ({"params_b": 2.0}, "shapes and parameters disagree"),
        ({"precision": "int4"}, "unknown precision for the training code"),
        ({"act_ckpt": "some"}, "unknown recomputation"),
        ({"model": "falcon"}, "unknown family: known are gpt, mpt, llama and nanotron"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_counted_and_shown(
    make_table: MakeTable, change: dict[str, object], kind: str
) -> None:
    kept, left = reported(read_table(make_table({}, change, change)))

    assert len(kept) == 1
    assert [(reason.kind, reason.rows) for reason in left] == [(kind, 2)]
    assert left[0].first.startswith("table.csv, line 3: ")


@pytest.mark.parametrize(
    ("change", "preset"),
    [
        ({"hardware": "h100_80gb", "gpu_mem_gb": None}, "dgx-h100"),
        ({"hardware": "H100-80GB-SXM (AWS p5, EFA)"}, "aws-p5"),
        ({"hardware": "a100_40gb", "gpu_mem_gb": 40}, "dgx-a100-40gb"),
        ({"hardware": "a100_40gb", "gpu_mem_gb": None}, "dgx-a100-40gb"),
        ({"hardware": "A100 (8/node), 4xHDR IB 800Gb/s/node", "gpu_mem_gb": None}, "a100-800g"),
        ({"hardware": "A100 (8/node)", "gpu_mem_gb": None}, "dgx-a100"),
        ({"hardware": "A100-80GB Jean Zay (8/node, OPA)"}, "jean-zay-a100"),
        ({"hardware": "V100-32GB Jean Zay (4/node)", "gpu_mem_gb": 32, "gpus_per_node": 4}, "jean-zay-v100"),
        ({"hardware": "MI250X", "gpu_mem_gb": 64}, "frontier"),
    ],
)
def test_hardware_names_a_preset(make_table: MakeTable, change: dict[str, object], preset: str) -> None:
    assert preset_of(read_table(make_table(change))[0]) == preset


@pytest.mark.parametrize("change", [{"hardware": "Abacus 9000"}, {"hardware": "A100", "gpu_mem_gb": 24}])
def test_unknown_hardware_is_refused_with_the_presets(make_table: MakeTable, change: dict[str, object]) -> None:
    with pytest.raises(TableError, match=r"table.csv, line 2, column hardware: .*--cluster: .*dgx-a100.*dgx-h100"):
        reported(read_table(make_table(change)))
