"""megatron-core's own configuration accepts every plan of the spaces and derives what the plan says.

The argument parser is no part of the package (benchmarks/megatron_arguments.py asks it); FIELDS and SWITCHES are what
Megatron-LM at core_v0.16.1 makes of an argument, megatron/training/arguments.py, core_transformer_config_from_args."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from megatron_spaces import BATCH, CLUSTER, LLAMA, Case, cases

from meshtune.runners.programs.dialects.base import Arguments
from meshtune.runners.programs.megatron.options import CONTEXTS, Flavour, MegatronOptions
from meshtune.runners.programs.megatron.workload import arguments_of
from meshtune.search_spaces.model import Activation, ModelSpec
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.stages import layers_of_chunk

pytestmark = pytest.mark.slow

FIELDS = {
    "--num-layers": "num_layers",
    "--hidden-size": "hidden_size",
    "--ffn-hidden-size": "ffn_hidden_size",
    "--num-attention-heads": "num_attention_heads",
    "--num-query-groups": "num_query_groups",
    "--normalization": "normalization",
    "--num-experts": "num_moe_experts",
    "--moe-router-topk": "moe_router_topk",
    "--tensor-model-parallel-size": "tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "pipeline_model_parallel_size",
    "--context-parallel-size": "context_parallel_size",
    "--cp-comm-type": "cp_comm_type",
    "--expert-model-parallel-size": "expert_model_parallel_size",
    "--recompute-granularity": "recompute_granularity",
    "--recompute-method": "recompute_method",
    "--recompute-num-layers": "recompute_num_layers",
    "--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--pipeline-model-parallel-layout": "pipeline_model_parallel_layout",
}
SWITCHES = {
    "--sequence-parallel": "sequence_parallel",
    "--init-model-with-meta-device": "init_model_with_meta_device",
    "--bf16": "bf16",
    "--account-for-embedding-in-pipeline-split": "account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "account_for_loss_in_pipeline_split",
}
# Of the model, the data, the batch and the optimizer, which TransformerConfig does not hold.
ELSEWHERE = {
    *(
        "--seq-length",
        "--max-position-embeddings",
        "--position-embedding-type",
        "--untie-embeddings-and-output-weights",
    ),
    *("--mock-data", "--tokenizer-type", "--vocab-size", "--micro-batch-size", "--global-batch-size", "--ckpt-format"),
    *("--use-distributed-optimizer", "--use-megatron-fsdp", "--data-parallel-sharding-strategy"),
}
SPECIAL = {"--group-query-attention", "--swiglu", "--disable-bias-linear", "--num-layers-per-virtual-pipeline-stage"}


@pytest.fixture(scope="module")
def core() -> Any:
    """The package `megatron.core`."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # That Transformer Engine is not there.
        warnings.simplefilter("ignore")
        # A compiler that is not needed takes seconds to load.
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        import megatron.core.distributed
        import megatron.core.num_microbatches_calculator
        import megatron.core.transformer.transformer_block
    return megatron.core


def config_of(core: Any, arguments: Arguments) -> Any:
    import torch
    from torch.nn.functional import silu

    assert set(arguments) <= {*FIELDS, *SWITCHES, *ELSEWHERE, *SPECIAL}
    known = {field: word(arguments[name]) for name, field in FIELDS.items() if name in arguments}
    known |= {field: True for name, field in SWITCHES.items() if name in arguments}
    if "--swiglu" in arguments:
        known |= {"gated_linear_unit": True, "activation_func": silu}
    if "--num-layers-per-virtual-pipeline-stage" in arguments:
        counted = known["num_layers"] + sum(name.startswith("account_for") for name in known)
        stage = counted // known["pipeline_model_parallel_size"]
        chunk = word(arguments["--num-layers-per-virtual-pipeline-stage"])
        known["virtual_pipeline_model_parallel_size"] = stage // chunk
    return core.transformer.TransformerConfig(
        **known,
        add_bias_linear="--disable-bias-linear" not in arguments,
        pipeline_dtype=torch.bfloat16,
        # Transformer Engine's.
        gradient_accumulation_fusion=False,
    )


def layers_built(core: Any, config: Any, plan: Plan) -> list[int]:
    """Layers of every chunk, in their order."""
    ranks_of_chunks = [(rank, turn) for turn in range(plan.vpp) for rank in range(plan.pp)]
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        decoder = core.transformer.enums.LayerType.decoder
        return [layout.layout[rank][turn].count(decoder) for rank, turn in ranks_of_chunks]
    layers_of = core.transformer.transformer_block.get_num_layers_to_build
    return [layers_of(config, turn if plan.vpp > 1 else None, rank) for rank, turn in ranks_of_chunks]


def word(values: tuple[str, ...]) -> int | str:
    (value,) = values
    return int(value) if value.isdecimal() else value


def degrees(plan: Plan) -> Mapping[str, Any]:
    return {
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "context_parallel_size": plan.cp,
        "cp_comm_type": CONTEXTS[plan.context] if plan.cp > 1 else None,
        "expert_model_parallel_size": plan.ep,
        "sequence_parallel": plan.sequence_parallel and plan.tp > 1,
        "recompute_granularity": None if plan.recompute is Recompute.NONE else str(plan.recompute),
    }


def shapes(model: ModelSpec) -> Mapping[str, Any]:
    return {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads,
        "gated_linear_unit": model.activation is Activation.SWIGLU,
        "num_moe_experts": model.experts or None,
    }


def sharding_of(core: Any, arguments: Arguments) -> int:
    """The ZeRO stage of what megatron-core is told."""
    (strategy,) = arguments.get("--data-parallel-sharding-strategy", ("no_shard",))
    config = core.distributed.DistributedDataParallelConfig(
        use_distributed_optimizer="--use-distributed-optimizer" in arguments,
        use_megatron_fsdp="--use-megatron-fsdp" in arguments,
        data_parallel_sharding_strategy=strategy,
    )
    stages = {"optim_grads": 2, "optim_grads_params": 3}
    return stages[strategy] if config.use_megatron_fsdp else int(config.use_distributed_optimizer)


@pytest.mark.filterwarnings("ignore::UserWarning:megatron")
@pytest.mark.parametrize("share", [1 / 8, pytest.param(1.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", cases(Flavour.MEGATRON_LM)[:3], ids=lambda case: case.name)
def test_a_plan_is_a_configuration_of_megatron_core(core, case: Case, share: float):
    calculator = core.num_microbatches_calculator.ConstantNumMicroBatchesCalculator
    plans = list(case.space)
    assert len(plans) > 3000
    for plan in random.Random(0).sample(plans, round(share * len(plans))):
        arguments = arguments_of(case.model, plan, case.options)
        config = config_of(core, arguments)
        meant = {**shapes(case.model), **degrees(plan)}
        assert {name: getattr(config, name) for name in meant} == meant
        meant_layers = [len(layers_of_chunk(plan, case.model.layers, chunk)) for chunk in range(plan.pp * plan.vpp)]
        assert layers_built(core, config, plan) == meant_layers
        if config.recompute_method == "block":
            assert {config.recompute_num_layers * plan.recompute_interval} == set(meant_layers)
        counted = calculator(BATCH, plan.micro_batch_size, plan.dp, False, 0)
        assert counted.get() == plan.grad_accum_steps
        assert sharding_of(core, arguments) == plan.zero_stage


@pytest.mark.filterwarnings("ignore::UserWarning:megatron")
@pytest.mark.parametrize(
    ("pp", "vpp", "first", "last"),
    [
        *((4, 1, 1, 1), (8, 1, 0, 2), (2, 2, 1, 1), (4, 2, 0, 2), (4, 2, 1, 5)),
        *((4, 1, -2, 1), (2, 1, 0, 6), (4, 1, 0, 6), (4, 2, -1, 6), (4, 2, 6, 1)),
    ],
)
def test_uneven_stages_are_megatron_core_s(core, pp, vpp, first, last):
    """The plan's layers in its chunks, whichever of Megatron's arguments says so."""
    model = replace(LLAMA, layers=6 * pp * vpp - first - last)
    own = {"vpp": vpp, "schedule": "interleaved" if vpp > 1 else "1f1b"}
    plan = Plan(pp=pp, first_stage_less_layers=first, last_stage_less_layers=last, grad_accum_steps=8, **own)
    config = config_of(core, arguments_of(model, plan, MegatronOptions()))
    assert layers_built(core, config, plan) == [6 - first, *[6] * (pp * vpp - 2), 6 - last]
    assert config.virtual_pipeline_model_parallel_size == (vpp if vpp > 1 else None)


def test_every_layout_is_one_of_megatron_core_s_groups(core):
    layouts = {
        (plan.tp, plan.pp, plan.cp, plan.dp, plan.ep) for case in cases(Flavour.MEGATRON_LM)[1:3] for plan in case.space
    }
    for tp, pp, cp, dp, ep in layouts:
        # parallel_state.py, initialize_model_parallel: experts have tp, and no cp, of their own.
        whole = core.parallel_state.RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order="tp-cp-ep-dp-pp")
        assert whole.world_size == CLUSTER.devices
        assert {len(group) for group in whole.get_ranks("dp")} == {dp}
        assert dp * cp % ep == 0
    assert len(layouts) > 20


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"tensor_model_parallel_size": 3}, "tensor_model_parallel_size"),
        ({"recompute_granularity": "selective", "recompute_num_layers": 1}, "recompute_num_layers"),
        ({"sequence_parallel": True}, "sequence parallelism"),
    ],
)
def test_megatron_core_refuses_what_is_wrong(core, changes, refusal):
    given = {"num_layers": 4, "hidden_size": LLAMA.hidden, "num_attention_heads": LLAMA.heads, **changes}
    with pytest.raises((ValueError, AssertionError), match=refusal):
        core.transformer.TransformerConfig(**given)
