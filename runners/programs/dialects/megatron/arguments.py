"""What a spec says of a Megatron run, and a model, a plan and a number format in Megatron's arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from meshtune.runners.programs.dialects.base import Arguments, FlagOptions, without
from meshtune.runners.programs.dialects.megatron.pipeline_split import METHOD, words_of
from meshtune.runners.trainer.job import Dtype as Dtype
from meshtune.search_spaces.checks import Checks, names_in
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute


class Flavour(StrEnum):
    """Whose Megatron: NVIDIA/Megatron-LM, or deepspeedai/Megatron-DeepSpeed, which trains through DeepSpeed."""

    MEGATRON_LM = "megatron-lm"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"


# What follows from the plan, the number format and the model's shapes; nobody else sets it.
FROM_PLAN = names_in("""
    --tensor-model-parallel-size --pipeline-model-parallel-size --context-parallel-size --cp-comm-type
    --ds-sequence-parallel-size --expert-model-parallel-size --moe-expert-parallel-size
    --num-layers-per-virtual-pipeline-stage --num-virtual-stages-per-pipeline-rank --micro-batch-size
    --global-batch-size --sequence-parallel --recompute-activations --recompute-granularity --recompute-method
    --recompute-num-layers --checkpoint-activations --checkpoint-num-layers --deepspeed-activation-checkpointing
    --use-distributed-optimizer --use-megatron-fsdp --use-custom-fsdp --use-torch-fsdp2
    --data-parallel-sharding-strategy --init-model-with-meta-device --zero-stage --deepspeed --deepspeed_config
    --no-pipeline-parallel --bf16 --fp16
""")
FROM_MODEL = names_in("""
    --num-layers --hidden-size --ffn-hidden-size --num-attention-heads --seq-length --group-query-attention
    --num-query-groups --num-key-value-heads --normalization --swiglu --position-embedding-type
    --use-rotary-position-embeddings --untie-embeddings-and-output-weights --num-experts --moe-router-topk
    --moe-ffn-hidden-size --topk
""")
# What an import reads into the model as well. A spec may say them among its arguments, as it could before;
# they then stand in place of the model's.
FROM_SHAPES = names_in("""
    --kv-channels --multi-latent-attention --q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim
    --v-head-dim --moe-shared-expert-intermediate-size --moe-layer-freq --window-size --window-attn-skip-freq
    --mtp-num-layers
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronOptions(FlagOptions):
    """setup: lines of bash that come first, before env is exported. ds_config: DeepSpeed's settings but for batch
    sizes, stage and number format."""

    script: str = "pretrain_gpt.py"
    flavour: Flavour = Flavour.MEGATRON_LM
    dtype: Dtype = Dtype.BFLOAT16
    setup: tuple[str, ...] = ()
    ds_config: Mapping[str, Any] = field(default_factory=dict)

    def _check(self, checks: Checks) -> None:
        FlagOptions._check(self, checks)
        for name in ("script", "directory", "python"):
            text = getattr(self, name)
            checks.require("\n" not in text, name, f"must be one line, not {text!r}")
        checks.require(bool(self.script), "script", "must not be empty")
        for name in self._check_arguments(checks, "--lr"):
            checks.require(name not in FROM_PLAN, "arguments", f"{name} follows from the plan; leave it out")
            checks.require(name not in FROM_MODEL, "arguments", f"{name} follows from the model; leave it out")
        to_deepspeed = self.flavour is Flavour.MEGATRON_DEEPSPEED or not self.ds_config
        checks.require(to_deepspeed, "ds_config", f"goes with flavour {Flavour.MEGATRON_DEEPSPEED}")

    @property
    def through_deepspeed(self) -> bool:
        return self.flavour is Flavour.MEGATRON_DEEPSPEED


CONTEXTS: Mapping[ContextParallel, str] = {
    ContextParallel.RING: "p2p",
    ContextParallel.ULYSSES: "a2a",
    ContextParallel.ALL_GATHER: "all_gather",
}
# Rows of a tensor rank's part of the vocabulary are a multiple of it. Both defaults are 128.
VOCAB_MULTIPLE = "--make-vocab-size-divisible-by"
# The whole vocabulary as it is to be, which nothing pads further: of Megatron-LM (megatron/core/tokenizers/utils/
# build_tokenizer.py, _set_padded_vocab_size, d98e8a64), and of bigscience's fork (megatron/tokenizer/tokenizer.py).
WHOLE_VOCABULARY = ("--padded-vocab-size", "--pad-vocab-size-to")
# What Megatron-FSDP shards, by ZeRO stage; stage 1 is the distributed optimizer without it.
SHARDINGS: Mapping[int, str] = {2: "optim_grads", 3: "optim_grads_params"}
_PARAM_GATHER = ("--overlap-param-gather", "--overlap-param-gather-with-optimizer-step")
_FSDP_ONLY = ("--fsdp-manual-registration", "--fsdp-double-buffer", "--use-nccl-ub")
FSDP_CHECKPOINT = "fsdp_dtensor"
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
# Whoever says one of these has data; without them Megatron-LM makes some up.
_DATA = ("--tokenizer-", "--vocab-file", "--mock-data", "--data-", "--train-data-", "--per-split-data-")
DS_CONFIG_FILE = "ds_config.json"
# Flags that a trial leaves out: length, checkpoints, evaluation, and reports to other services.
_LEFT_OUT = names_in("""
    --train-iters --train-samples --train-tokens --lr-decay-* --lr-warmup-* --exit-* --eval-* --save* --load*
    --async-save --non-persistent-* --finetune --use-checkpoint-* --ckpt-* --log-* --tensorboard-* --wandb-*
    --one-logger-* --profile* --seed --rampup-batch-size --step-batch-size-schedule --timing-log-level
    --exit-signal-handler
""")
# Of a run whose user says none.
LEARNING_RATE = "1.0e-4"
# Not a length of training: a shape of the schedule, and what FSDP asserts.
_STAYS = frozenset({"--lr-decay-style", "--ckpt-format", "--log-throughput"})

_Words = Iterator[tuple[str, *tuple[object, ...]]]


def filled_in(options: MegatronOptions) -> Arguments:
    """What Megatron starts without only to fail, where the user does not say it: a learning rate and a length
    (megatron/training/training.py, get_optimizer_param_scheduler, d98e8a64: float(args.lr), and "either train-iters or
    train-samples should be provided"; megatron/training.py of Megatron-DeepSpeed alike)."""
    given = options.given
    length = {} if {"--train-iters", "--train-samples"} & given.keys() else {"--train-iters": (str(options.steps),)}
    return {**({} if "--lr" in given else {"--lr": (LEARNING_RATE,)}), **length}


def has_data(options: MegatronOptions) -> bool:
    """Whether the user says what data or tokenizer there is."""
    return any(name.startswith(_DATA) for name in options.given)


def vocab_multiple(options: MegatronOptions) -> int | None:
    """What the user's arguments have each rank's part of the vocabulary padded to; None where they leave it open."""
    if options.given.keys() & set(WHOLE_VOCABULARY):
        return 1
    said = "".join(options.given.get(VOCAB_MULTIPLE, ()))
    return int(said) if said.isdecimal() and int(said) else None


def left_out_of_trials(arguments: Arguments) -> frozenset[str]:
    return frozenset(arguments) - without(arguments, _LEFT_OUT).keys() - _STAYS


def arguments_of(model: ModelSpec, plan: Plan, options: MegatronOptions) -> Arguments:
    """Everything after the script's name: what follows from model and plan, then what the user gives."""
    words = {
        name: tuple(map(str, values))
        for name, *values in (*_model(model, options), *_plan(model, plan, options), *_defaults(model, options))
    }
    return {**words, **without(options.given, set(_useless(plan, options)))}


def ds_config_of(plan: Plan, options: MegatronOptions) -> Mapping[str, Any]:
    """DeepSpeed's settings: the user's, with what follows from plan and number format in its place."""
    given = options.ds_config
    sixteen_bits = {Dtype.BFLOAT16: "bf16", Dtype.FLOAT16: "fp16"}
    formats = {
        key: {**given.get(key, {}), "enabled": options.dtype is dtype}
        for dtype, key in sixteen_bits.items()
        if options.dtype is dtype or key in given
    }
    return {
        "steps_per_print": 1,
        **given,
        **formats,
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.grad_accum_steps,
        "zero_optimization": {**given.get("zero_optimization", {}), "stage": plan.zero_stage},
    }


def environment_of(plan: Plan, options: MegatronOptions) -> Mapping[str, str]:
    """What the ranks must find in their environment. Tensor and context parallelism want one queue of kernels, and
    Megatron-FSDP refuses it (arguments.py, validate_args)."""
    fsdp = plan.zero_stage in SHARDINGS and not options.through_deepspeed
    given = {name: value for name, value in options.env.items() if not (fsdp and name == _QUEUES)}
    return given if fsdp else {_QUEUES: "1", **given}


def _model(model: ModelSpec, options: MegatronOptions) -> _Words:
    deepspeed = options.through_deepspeed
    yield "--num-layers", model.layers
    yield "--hidden-size", model.hidden
    mixed = model.expert_layers not in (0, model.layers)
    yield "--ffn-hidden-size", (model.dense_ffn or model.ffn) if mixed else model.ffn
    yield "--num-attention-heads", model.heads
    if deepspeed and model.kv_heads != model.heads:
        yield "--num-key-value-heads", model.kv_heads
    elif model.kv_heads != model.heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", model.kv_heads
    yield "--seq-length", model.seq_len
    norms = {Norm.RMSNORM: "RMSNorm", Norm.LAYERNORM: "LayerNorm"}
    if not deepspeed:
        yield "--normalization", norms[model.norm]
    elif model.norm is not Norm.LAYERNORM:
        # Forks without the argument, bigscience's, have its default.
        yield "--normalization", norms[model.norm].lower()
    if model.activation is Activation.SWIGLU:
        yield ("--swiglu",)
    if model.position is Position.ROPE:
        yield ("--use-rotary-position-embeddings",) if deepspeed else ("--position-embedding-type", "rope")
    if not model.tied_head:
        yield ("--untie-embeddings-and-output-weights",)
    if model.vocab_multiple and not options.given.keys() & set(WHOLE_VOCABULARY):
        yield VOCAB_MULTIPLE, model.vocab_multiple
    if model.experts:
        yield "--num-experts", model.experts
        yield ("--topk" if deepspeed else "--moe-router-topk"), model.top_k
        if not deepspeed:
            # transformer_config.py: bias in MoE is only supported without tensor parallelism; so in no plan.
            yield ("--disable-bias-linear",)
    yield from _shapes(model, deepspeed)


def _shapes(model: ModelSpec, deepspeed: bool) -> _Words:
    """What the model has beyond plain layers (Megatron-LM d98e8a64: core/transformer/transformer_config.py, by whose
    fields the arguments are called; megatron/training/arguments.py, moe_freq_type and tuple_type)."""
    if (latent := model.latent_attention) is not None:
        yield ("--multi-latent-attention",)
        if latent.q_lora_rank:
            yield "--q-lora-rank", latent.q_lora_rank
        yield "--kv-lora-rank", latent.kv_lora_rank
        yield "--qk-head-dim", latent.qk_nope_head_dim
        yield "--qk-pos-emb-head-dim", latent.qk_rope_head_dim
        yield "--v-head-dim", latent.v_head_dim
    elif Shape.HEAD_DIM in model.shapes:
        yield "--kv-channels", model.head_dim
    if deepspeed:
        return
    if model.expert_layers not in (0, model.layers):
        yield "--moe-ffn-hidden-size", model.ffn
        plain = f"[0]*{model.dense_layers}"
        period = f"([0]*{model.moe_every - 1}+[1])*{model.expert_layers}"
        rest = model.layers - model.dense_layers - model.moe_every * model.expert_layers
        parts = (plain if model.dense_layers else "", period if model.moe_every > 1 else f"[1]*{model.expert_layers}")
        yield "--moe-layer-freq", "(" + "+".join(filter(None, (*parts, f"[0]*{rest}" if rest else ""))) + ")"
    if model.shared_ffn:
        yield "--moe-shared-expert-intermediate-size", model.shared_ffn
    if Shape.WINDOW in model.shapes:
        # flash_attn's window: so many keys to the left of the token, which it counts besides.
        yield "--window-size", f"{model.window - 1},0"
        if model.full_attention_every:
            yield "--window-attn-skip-freq", model.full_attention_every
    if model.mtp_layers:
        yield "--mtp-num-layers", model.mtp_layers


def _plan(model: ModelSpec, plan: Plan, options: MegatronOptions) -> _Words:
    deepspeed = options.through_deepspeed
    yield "--tensor-model-parallel-size", plan.tp
    yield "--pipeline-model-parallel-size", plan.pp
    yield from words_of(model, plan, options.given)
    if plan.cp > 1:
        yield ("--ds-sequence-parallel-size" if deepspeed else "--context-parallel-size"), plan.cp
        if not deepspeed:
            yield "--cp-comm-type", CONTEXTS[plan.context]
    if model.experts:
        yield ("--moe-expert-parallel-size" if deepspeed else "--expert-model-parallel-size"), plan.ep
    yield "--micro-batch-size", plan.micro_batch_size
    yield "--global-batch-size", plan.global_batch_size
    if plan.tp > 1 and plan.sequence_parallel:
        yield ("--sequence-parallel",)
    yield from _recompute(model, plan, deepspeed)
    yield from _deepspeed(model, plan) if deepspeed else _sharding(plan)
    if options.dtype is not Dtype.FLOAT32:
        yield ("--bf16" if options.dtype is Dtype.BFLOAT16 else "--fp16",)


def _recompute(model: ModelSpec, plan: Plan, deepspeed: bool) -> _Words:
    if plan.recompute is Recompute.NONE:
        return
    yield "--recompute-granularity", plan.recompute
    if plan.recompute is Recompute.FULL:
        # uniform: units of so many layers; block: so many layers of each chunk (transformer_config.py).
        some = plan.recompute_interval > 1
        layers = model.layers // (plan.pp * plan.vpp * plan.recompute_interval) if some else 1
        yield "--recompute-method", "block" if some else "uniform"
        yield "--recompute-num-layers", layers
    if deepspeed:
        yield ("--deepspeed-activation-checkpointing",)


def _sharding(plan: Plan) -> _Words:
    if plan.zero_stage >= 1:
        yield ("--use-distributed-optimizer",)
    if plan.zero_stage in SHARDINGS:
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", SHARDINGS[plan.zero_stage]
        # As in examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh; the checkpoint's format is asserted.
        yield ("--init-model-with-meta-device",)
        yield "--ckpt-format", FSDP_CHECKPOINT


def _deepspeed(model: ModelSpec, plan: Plan) -> _Words:
    yield ("--deepspeed",)
    yield "--deepspeed_config", DS_CONFIG_FILE
    yield "--zero-stage", plan.zero_stage
    if plan.pp == 1:
        yield ("--no-pipeline-parallel",)
    if model.experts and plan.zero_stage:
        # megatron/arguments.py: necessary for techniques like ZeRO.
        yield ("--create-moe-param-group",)


def _defaults(model: ModelSpec, options: MegatronOptions) -> _Words:
    """What Megatron asks for and the user may leave out."""
    yield "--max-position-embeddings", model.seq_len
    if options.through_deepspeed and model.experts:
        # Megatron-DeepSpeed's default is 2: layers without experts between those with them.
        yield "--expert-interval", 1
    if not options.through_deepspeed and not has_data(options):
        yield ("--mock-data",)
        yield "--tokenizer-type", "NullTokenizer"
        yield "--vocab-size", model.vocab


def _useless(plan: Plan, options: MegatronOptions) -> Iterator[str]:
    """The user's arguments that Megatron refuses with this plan (arguments.py, validate_args)."""
    fsdp = plan.zero_stage in SHARDINGS and not options.through_deepspeed
    if fsdp or options.given.get("--ckpt-format") == (FSDP_CHECKPOINT,):
        yield "--ckpt-format"
    if not fsdp:
        yield from _FSDP_ONLY
    if plan.zero_stage == 0:
        yield from _PARAM_GATHER
    if options.through_deepspeed:
        yield METHOD
    if plan.vpp == 1:
        yield _PARAM_GATHER[1]
    if plan.vpp > 1 and plan.pp == 2:
        # Refused at arguments.py:1006: two messages between the same two ranks would be taken for each other.
        yield "--no-overlap-p2p-communication"
    if plan.tp == 1 or not plan.sequence_parallel:
        yield from ("--tp-comm-overlap", "--tp-comm-overlap-cfg")
    if plan.tp == 1 or plan.sequence_parallel or plan.recompute is not Recompute.FULL:
        yield "--distribute-saved-activations"
