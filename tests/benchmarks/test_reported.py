from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reported import Reported, named_cluster, preset_of, reported
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
        ({"model": "mpt-small", "precision": "amp_fp8", "hardware": "h100_80gb"}, "bfloat16", 4),
        ({"hardware": "H100-80GB", "precision": "bf16"}, "bfloat16", 4),
        ({"hardware": "GH200-96GB", "gpus_per_node": 4, "nodes": 2, "precision": "fp32"}, "tensorfloat32", 4),
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
        ({"nodes": 3}, "nodes and devices disagree"),
        ({"dp": 4}, "degrees and devices disagree"),
        ({"grad_accum": 3}, "batches disagree"),
        ({"grad_accum": None, "global_batch": 18}, "batches disagree"),
        ({"heads": 7}, "breaks the rules of a model or a plan"),
        ({"zero_stage": 5}, "breaks the rules of a model or a plan"),
        ({"layers": 1}, "more stages than layers"),
        ({"params_b": 2.0}, "shapes and parameters disagree"),
        ({"precision": "int4"}, "unknown precision for the training code"),
        ({"act_ckpt": "some"}, "unknown recomputation"),
        ({"model": "deepseek-r1-distill"}, "multi-head latent attention, whose widths the table does not state"),
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


def test_a_model_of_another_name_is_told_by_its_shapes(make_table: MakeTable) -> None:
    # 8 layers of 4 * 1024^2 + 2 or 3 * 1024 * 4096 weights, beside 8192 * 1024 of embeddings.
    activations = {
        params_b: only(make_table({"model": "falcon", "params_b": params_b})).training.model.activation
        for params_b in (0.109, 0.143)
    }
    assert activations == {0.109: Activation.GELU, 0.143: Activation.SWIGLU}


def test_eight_bit_products_are_the_training_codes(make_table: MakeTable) -> None:
    change = {"model": "mpt-small", "precision": "amp_fp8", "hardware": "h100_80gb"}
    assert only(make_table(change)).training.framework.eight_bit_products


def test_nodes_that_are_not_full_are_smaller_nodes(make_table: MakeTable) -> None:
    cluster = only(make_table({"nodes": 2})).training.cluster
    assert (cluster.nodes, cluster.devices_per_node) == (2, 4)


def test_memory_of_the_last_stage_alone_is_not_scored(make_table: MakeTable) -> None:
    told = {name: only(make_table({"mem_gb": 20}, name=name)).peak_memory_bytes for name in ("table", "megatron_ci")}
    assert told == {"table": 20 * 2**30, "megatron_ci": None}


def test_times_of_toys_are_not_scored(make_table: MakeTable) -> None:
    toy = {"layers": 12, "hidden": 512, "ffn": 2048}
    assert not only(make_table(toy, name="megatron_ci")).timed
    assert only(make_table(toy | {"layers": 200, "hidden": 1024}, name="megatron_ci")).timed
    assert only(make_table(toy)).timed


def test_cluster_and_family_of_all_rows_may_be_named(make_table: MakeTable, tmp_path: Path) -> None:
    rows = read_table(make_table({}))
    file = tmp_path / "mine.yaml"
    file.write_text(
        """
cluster:
  name: mine
  nodes: 1
  devices_per_node: 8
  device: {name: fast, kind: cuda, memory_bytes: 100000000000, peak_flops: {bfloat16: 1.0e+15}}
"""
    )
    (kept,), _ = reported(rows, named_cluster(str(file)), guess=True, family="nanotron")
    assert (kept.training.cluster.device.name, kept.training.framework) == ("fast", NANOTRON)
    assert named_cluster("dgx-a100") == "dgx-a100"
    with pytest.raises(TableError, match="no cluster preset 'nowhere', and no such file"):
        named_cluster("nowhere")


def test_a_deepseek_of_fewer_layers_has_the_widths_of_the_whole_one(make_table: MakeTable) -> None:
    row = {"model": "deepseekv2-l4", "layers": 4, "hidden": 5120, "heads": 128, "kv_heads": 128, "ffn": 1536}
    row |= {"vocab": 102400, "experts": 160, "topk": 6, "params_b": None}
    model = only(make_table(LLAMA | row)).training.model
    latent = model.latent_attention
    assert latent is not None
    assert (latent.q_lora_rank, latent.kv_lora_rank, model.shared_ffn) == (1536, 512, 3072)
    assert (model.layers, model.dense_layers, model.dense_ffn, model.expert_layers) == (4, 1, 12288, 3)

    for change, told in (({"ffn": 1024}, "other shapes"), ({"model": "deepseek-9"}, "does not state")):
        _, left = reported(read_table(make_table(LLAMA | row | change)))
        assert told in str(left)
