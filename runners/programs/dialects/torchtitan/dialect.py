"""torchtitan's words for a plan: a TOML file for releases up to 0.2.2, flags for 0.3.0; both laid over the user's own.

Names from torchtitan/config/job_config.py at v0.2.2 and torchtitan/config/configs.py of 0.3.0. What came after 0.3.0
counts batches in tokens (num_tokens_per_train_step) and is not written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import (
    Arguments,
    Files,
    overlaid,
    read_base,
    render_lines,
    render_toml,
    require_words,
)
from meshtune.runners.programs.dialects.torchtitan.config import flat, key_of
from meshtune.runners.programs.dialects.torchtitan.options import SCHEDULES, Dtype, TorchtitanOptions
from meshtune.runners.programs.dialects.torchtitan.reader import parse as parse
from meshtune.runners.untrusted_text import read_toml
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import RECOMPUTES, Capabilities, Constraint
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute

TOML_FILE = "torchtitan.toml"
FLAGS_FILE = "torchtitan.args"
_RECOMPUTE = "activation_checkpoint"
_SELECTIVE = RECOMPUTES.index(Recompute.SELECTIVE)
_REPLICATED_ALONE = Constraint(
    "torchtitan-ddp-alone",
    "replicas that shard nothing are DDP's, which v0.2 runs with no other parallelism; take zero_stage 2 or 3, or v0.3",
    lambda c, s: (c["zero_stage"] > 0) | (c["dp"] * c["cp"] == 1) | (c["tp"] * c["pp"] == 1),
    lambda p, s: f"zero_stage(0) with dp({p.dp}), tp({p.tp}), pp({p.pp})",
)
_SHARDED_CONTEXT = Constraint(
    "torchtitan-cp-shards",
    "FSDP always shards over the context ranks (distributed/parallel_dims.py: fsdp = dp_shard * cp)",
    lambda c, s: (c["zero_stage"] > 0) | (c["cp"] == 1),
    lambda p, s: f"zero_stage(0) with cp({p.cp})",
)
_SHARDED_EXPERTS = Constraint(
    "torchtitan-ep-shards",
    "experts are spread over ranks that shard (distributed/parallel_dims.py: efsdp = dp_shard * cp * tp / ep)",
    lambda c, s: (c["zero_stage"] > 0) | (c["ep"] == 1),
    lambda p, s: f"zero_stage(0) with ep({p.ep})",
)
_WHOLE_EXPERTS = Constraint(
    "torchtitan-ep-tp",
    "v0.3 spreads experts over the tensor ranks too, and cuts none; v0.2 cuts them as the plan means",
    lambda c, s: (c["ep"] == 1) | (c["tp"] == 1),
    lambda p, s: f"ep({p.ep}) with tp({p.tp})",
)
_SEQUENCE = Constraint(
    "torchtitan-sequence",
    "sequences are cut over tp and in two halves per context rank (parallel_dims.py: seq_len_divisor = tp * cp * 2)",
    lambda c, s: s.model.seq_len % (c["tp"] * c["cp"] * 2) == 0,
    lambda p, s: f"2 * tp({p.tp}) * cp({p.cp}) = {2 * p.tp * p.cp} does not divide seq_len({s.model.seq_len})",
)
_MIXED_PRECISION = Constraint(
    "torchtitan-mixed-precision",
    "v0.2 has bfloat16 products by FSDP, or by DDP alone; tensor and pipeline ranks without FSDP compute in float32 "
    "(distributed/utils.py, maybe_enable_amp)",
    lambda c, s: (c["dp"] * c["cp"] > 1) | (c["tp"] * c["pp"] == 1),
    lambda p, s: f"bfloat16 with tp({p.tp}), pp({p.pp}), dp(1), cp(1)",
)
_INTERVAL = Constraint(
    "torchtitan-selective-interval",
    "selective_ac_option is either op or every so many-th layer, which is then recomputed in full",
    lambda c, s: (c["recompute"] != _SELECTIVE) | (c["recompute_interval"] == 1),
    lambda p, s: f"recompute(selective) with recompute_interval({p.recompute_interval})",
)


def capabilities(options: TorchtitanOptions) -> Capabilities:
    """Which plans this release can run. Of ZeRO, FSDP2 has stages 2 (weights stay gathered) and 3, and no 1."""
    toml = options.release.has_file
    rules = (_SHARDED_CONTEXT, _SHARDED_EXPERTS, _SEQUENCE)
    half = (_MIXED_PRECISION,) if options.dtype is Dtype.BFLOAT16 else ()
    return Capabilities(
        schedules=frozenset(SCHEDULES),
        recompute=frozenset(Recompute),
        recompute_intervals=toml,
        zero_stages=frozenset({0, 2, 3}),
        zero_stages_with_pp=frozenset({0, 2, 3}),
        contexts=frozenset(
            {ContextParallel.ALL_GATHER, ContextParallel.RING} if toml else {ContextParallel.ALL_GATHER}
        ),
        choice_of_sequence_parallel=not toml,
        expert_parallel=True,
        experts=True,
        stage_splits=None,
        # DTensor cuts it unevenly.
        uneven_vocab=True,
        # The user's flavor names the model; its deepseek_v3, gpt_oss, llama4 and qwen3 have these (0.3.0).
        shapes=frozenset(Shape) - {Shape.MTP},
        rules=(*rules, _REPLICATED_ALONE, _INTERVAL, *half) if toml else (*rules, _WHOLE_EXPERTS),
    )


def render(model: ModelSpec, plan: Plan, cluster: ClusterSpec, extra: Mapping[str, Any] | None = None) -> Files:
    """The TOML file or the flags of a plan. extra: options of the workload. Raises CannotExpress, InvalidValue."""
    options = read_value(TorchtitanOptions, dict(extra or {}))
    sections = sections_of(model, plan, cluster, options)
    if options.release.has_file:
        return {TOML_FILE: render_config(sections, options)}
    return {FLAGS_FILE: "".join(f"{line}\n" for line in render_flags(sections, options))}


def sections_of(
    model: ModelSpec, plan: Plan, cluster: ClusterSpec, options: TorchtitanOptions
) -> dict[str, dict[str, Any]]:
    """What a plan says, by section; None for a key that the user's own configuration must not have. Raises
    CannotExpress."""
    require_words(f"torchtitan {options.release}", model, plan, cluster, capabilities(options))
    return _words(model, plan, options)


def render_config(sections: Mapping[str, Any], options: TorchtitanOptions) -> str:
    """The user's TOML with these sections laid over it. Raises InvalidValue where the user's cannot be read."""
    return render_toml(overlaid(read_base(options.config, read_toml), sections))


def render_flags(sections: Mapping[str, Mapping[str, Any]], options: TorchtitanOptions) -> list[str]:
    """The user's flags, those of these sections in place of his, and last the kind of recomputation, one per line."""
    flags: dict[str, tuple[str, ...]] = {}
    for section, keys in sections.items():
        for key, value in keys.items() if section != _RECOMPUTE else ():
            on, off = (f"--{section}.{prefix}{key}".replace("--.", "--") for prefix in ("", "no_"))
            if value is not None:
                flags[off if value is False else on] = () if isinstance(value, bool) else (str(value),)
    lines = render_lines({**own_flags(sections, options), **flags})
    # A choice among kinds of configuration is a subcommand of tyro's, which stands after all flags.
    return [*lines, f"activation-checkpoint:{sections[_RECOMPUTE]['mode']}"]


def keys_of_plans(options: TorchtitanOptions) -> set[str]:
    """The dotted keys that plans set, each by some plan. Without CUDA graphs' switch, which a plan sets where none
    go with it."""
    model = ModelSpec(name="any", layers=8, hidden=8, heads=1, kv_heads=1, ffn=8, vocab=8, seq_len=8)
    every = _words(model, Plan(pp=2, cp=2, dp=2, ep=2, vpp=3, recompute=Recompute.SELECTIVE), options)
    return {".".join(key) for key in flat(every)} - {"training.disable_cuda_graphs"}


def own_flags(sections: Mapping[str, Mapping[str, Any]], options: TorchtitanOptions) -> Arguments:
    """The user's flags but for those that these sections set, whichever way they are written: flags count more than a
    file."""
    replaced = flat(sections).keys() | {("job", "config_file")}
    return {flag: values for flag, values in options.given.items() if key_of(flag)[0] not in replaced}


def _words(model: ModelSpec, plan: Plan, options: TorchtitanOptions) -> dict[str, dict[str, Any]]:
    """What a plan says, by section."""
    toml = options.release.has_file
    sharded = plan.zero_stage > 0 or plan.dp == 1
    # In a pipeline the local batch is cut into micro-batches; without one torchtitan accumulates over local batches.
    local = plan.micro_batch_size * (plan.grad_accum_steps if plan.pp > 1 else 1)
    training: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": plan.global_batch_size,
        "seq_len": model.seq_len,
        "mixed_precision_param": str(options.dtype),
    }
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if sharded else plan.dp,
        "data_parallel_shard_degree": plan.dp if sharded else 1,
        "fsdp_reshard_after_forward": "never" if plan.zero_stage == 2 else "always",
        "tensor_parallel_degree": plan.tp,
        "pipeline_parallel_degree": plan.pp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
    }
    if plan.pp > 1:
        parallelism |= _pipeline(model, plan)
    if toml and plan.cp > 1:
        rotate = "alltoall" if plan.context is ContextParallel.RING else "allgather"
        parallelism["context_parallel_rotate_method"] = rotate
    if toml and plan.ep > 1:
        parallelism["expert_tensor_parallel_degree"] = plan.tp
    if not toml:
        parallelism["enable_sequence_parallel"] = plan.sequence_parallel
        if plan.pp > 1 or plan.ep > 1:
            # trainer.py, _validate_cuda_graphs: they go with neither.
            training["disable_cuda_graphs"] = True
    return {"training": training, "parallelism": parallelism, _RECOMPUTE: _recompute(plan)}


def _pipeline(model: ModelSpec, plan: Plan) -> dict[str, Any]:
    first, last = plan.first_stage_less_layers, plan.last_stage_less_layers
    # One chunk per rank, and two where the schedule interleaves, are torchtitan's own choice.
    per_stage = (model.layers + first + last) // (plan.pp * plan.vpp) if plan.vpp > 2 else None
    return {
        "pipeline_parallel_schedule": SCHEDULES[plan.schedule],
        "pipeline_parallel_schedule_csv": None,
        "pipeline_parallel_microbatch_size": plan.micro_batch_size,
        # Said always: the defaults are 1 and 1.
        "pipeline_parallel_first_stage_less_layers": first,
        "pipeline_parallel_last_stage_less_layers": last,
        "pipeline_parallel_layers_per_stage": per_stage,
        "module_fqns_per_model_part": None,
    }


def _recompute(plan: Plan) -> dict[str, Any]:
    if plan.recompute is Recompute.SELECTIVE:
        return {"mode": "selective", "selective_ac_option": "op"}
    if plan.recompute is Recompute.FULL and plan.recompute_interval > 1:
        return {"mode": "selective", "selective_ac_option": str(plan.recompute_interval)}
    return {"mode": str(plan.recompute)}
