"""The profiles of the known training codes, whose numbers and their sources are in profiles.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any, get_type_hints

import numpy as np

from meshtune.search_spaces.checks import Checks, Closed, StrEnum
from meshtune.search_spaces.columns import FloatColumn, IntColumn
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Selective
from meshtune.search_spaces.routing import Routing

# Of one chunk of the built-in trainer's loss (runners/trainer/head.py).
FEWEST_CHUNK_TOKENS = 1024
# Formats that the layers' products alone have (`FrameworkProfile.product_dtype`), and bytes of a value.
FEWER_BITS = {"float8": 1.0, "float4": 0.5}


class Reports(StrEnum):
    """The memory that a code's jobs report. ALLOCATED: tensors at one moment (torch.cuda.max_memory_allocated).
    RESERVED: what PyTorch's allocator took from the device and keeps, whatever moment needed it
    (max_memory_reserved). PROCESS: that with the context and the libraries' buffers (nvidia-smi)."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Closed):
    """Tensors that a training code keeps beyond the formulas of `search_spaces.physics.activations`."""

    # Bytes per value of an RMSNorm, beside its input and output.
    norm_bytes: float = 0.0
    # Further copies of keys and values, and of attention's answer.
    key_value_copies: int = 0
    attention_copies: int = 0
    # Values as wide as the block that SwiGLU keeps: its two inputs, what its SiLU returns and what it returns itself; 3
    # where SiLU is computed again, 2 where both are.
    swiglu_values: int = 4
    # With sequence parallelism: the gathered input of a block; else its shard (Korthikanti et al. 2022, 4.2.2).
    gathered_inputs: bool = False
    # Masks of dropout.
    dropout: bool = False
    # What selective recomputation computes again.
    selective: Selective = Selective.ATTENTION
    # It computes all products of experts again.
    repeats_experts: bool = False
    # Queries, keys and values are one product, a gate and what it gates another: of the halves computed again.
    fused_products: bool = False
    # Of tokens, one having logits at a time; gradients of head and hidden states exist from the loss on. 0: no chunks.
    loss_chunks: int = 0
    # torch's pipeline runtime: receive buffers for all micro-batches at once, and the last stage's results.
    torch_pipeline: bool = False
    # Tensor-parallel collectives run on their own stream, whose buffers return to the allocator late.
    late_buffers: bool = False
    # torch's FSDP2: what a reduction of gradients reads is held until the next one, and layers are sharded again before
    # the loss.
    fsdp2: bool = False
    # ZeRO 3 shards the float32 weights and has no other copy.
    master_is_shard: bool = False
    # Where nothing is sharded (stage 0), torch's autocast casts float32 weights and inputs at each product, and keeps
    # the copies; what lies between the blocks stays float32.
    autocast: bool = False
    # Gradients are freed by the step (set_to_none): at the loss of a step's only micro-batch there are none.
    fresh_gradients: bool = False
    # Gradients are copied into the buckets that are reduced, two of them where that overlaps.
    copied_buckets: bool = False
    # Weights were copied into flat buffers when the optimizer was made, and the allocator keeps the room of the first.
    flat_copies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProfile(Closed):
    """One training code with its settings."""

    name: str
    # Number format of the computing copy; selects the device's peak.
    dtype: str
    # Bytes per weight: of the computing copy; of accumulated gradients; of AdamW's state with a float32 master copy.
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    # Of each of its two moments; and what the state of embedding, norms and head has more per weight.
    moment_bytes: float = 4.0
    more_end_bytes: float = 0.0
    # Of the gradient of that copy, which exists while the optimizer steps.
    step_bytes: float = 0.0
    # Bytes per value kept for the backward pass.
    activation_bytes: float
    # Bytes per value sent by tensor, context, expert and pipeline parallelism.
    transfer_bytes: float
    # Bytes per gradient reduced over data-parallel ranks, and per weight gathered by ZeRO.
    reduce_bytes: float
    gather_bytes: float
    # Bytes per logit at the loss's peak, all copies together; and where tp cuts the vocabulary, 0 being the same.
    logit_bytes: float
    parallel_logit_bytes: float = 0.0
    # Number format of the layers' products, such as float8 or float4, where the device has a rate for it; else `dtype`.
    product_dtype: str = ""
    # The matrix of attention scores is never kept (Dao et al. 2022).
    fused_attention: bool = True
    # By the first of these that was timed on the device (`DeviceSpec.attention`): as torch's attention and
    # TransformerEngine choose, cuDNN from Hopper on, FlashAttention-2 before.
    attention_kernels: tuple[str, ...] = ("cudnn", "flash2")
    # The reduction of gradients runs beside the backward pass.
    overlapped_gradients: bool = True
    # Weights whose gradients are reduced, and that are gathered, by one collective: at least so many, and at least so
    # many for each replica; 0: a layer's. ZeRO 3 goes by layers.
    bucket_weights: float = 0.0
    bucket_weights_per_rank: float = 0.0
    # ZeRO 1 and 2 sum whole gradients on every rank; each rank's part of the weights is sent by a broadcast of its own.
    whole_gradients: bool = False
    broadcasts_weights: bool = False
    # ZeRO 1 sums whole gradients on every rank, after the backward pass.
    late_whole_gradients: bool = False
    # ZeRO 2 and 3 without a pipeline reduce the gradients of every micro-batch.
    reduces_every_micro_batch: bool = True
    # Host time to launch a layer's forward pass; in such times, what the host does more where the layer recomputes.
    layer_launch_s: float = 1e-3
    full_launches: float = 1.0
    selective_launches: float = 0.0
    # Layers are compiled. probed: the code is the one that `meshtune cluster probe` times.
    compiled: bool = False
    probed: bool = False
    # Delay of each hop of a collective while a pipeline's transfers between nodes are under way.
    pipeline_hop_s: float = 0.0
    # Host time for each slice that ZeRO 1 cuts: a parameter's for one of the data-parallel ranks.
    slice_s: float = 0.0
    # Reads or writes outside of products, a third of those of a forward and a backward pass; few with fused kernels. Of
    # the hidden width in a layer, of its rotation of heads, and of the feed-forward width by the activation function,
    # with and without a gate; of a logit, in the format that `logit_bytes` has.
    hidden_passes: float = 14
    rotary_passes: float = 0
    gated_passes: float = 6
    plain_passes: float = 4
    logit_passes: float = 5
    # The same of the hidden width of a copy of a token for an expert: made, ordered by expert, weighed and added up.
    copy_passes: float = 6
    # The backward pass's tensor-parallel all-reduces run beside products; and, with sequence parallelism, all gathers
    # and scatters, piece by piece.
    overlaps_tensor: bool = False
    overlaps_tensor_forward: bool = False
    # Transfers between the stages of an interleaved pipeline run beside other chunks.
    overlaps_sends: bool = False
    # ZeRO shards what all ranks hold alike over all of them; else over dp / ep ranks, and each of the ep holds a copy.
    shards_over_experts: bool = True
    # The experts' all-to-alls run beside another micro-batch's work. Copies of a token cross the network once a node.
    overlaps_experts: bool = False
    dispatches_by_node: bool = False
    # Weights that ZeRO 1 and 2 gather arrive beside the forward pass.
    overlapped_gathers: bool = False
    # The optimizer's state lies in the host's memory, and its processors step (ZeRO-Offload, Ren et al. 2021).
    host_optimizer: bool = False
    # It lies on disks (ZeRO-Infinity, Rajbhandari et al. 2021), which hold what the host's memory else would.
    disk_optimizer: bool = False
    # A script may read a whole checkpoint on every rank before weights are sharded.
    loads_whole: bool = False
    # Products add their gradients up themselves.
    fused_accumulation: bool = False
    # Pipeline stages share the layers out with the head's work counted.
    balances_head: bool = False
    # The vocabulary is padded to a multiple of so many entries per tensor-parallel rank; 1: cut as it is, the fullest
    # rank having the most rows. ModelSpec.vocab_multiple overrides it.
    vocab_multiple: int = 1
    # What experts get (search_spaces/routing.py); the load of the busiest over the mean where it is set, else 1. An
    # expert takes at most capacity_factor times the mean, 0: any number; padded, always as much.
    routing: Routing = Routing.LEARNED
    imbalance: float = 1.0
    capacity_factor: float = 0.0
    pads_to_capacity: bool = False
    # Weights that ZeRO 3 may leave gathered.
    live_weights: float = 0.0
    reports: Reports = Reports.ALLOCATED
    kept: Kept = Kept()

    def _check(self, checks: Checks) -> None:
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "float"}
        checks.at_least(0, **numbers)
        checks.whole(1, vocab_multiple=self.vocab_multiple)

    @property
    def master_bytes(self) -> float:
        """Per trained weight, of the float32 copy that the optimizer has beside the computing one."""
        return self.optimizer_bytes - 2 * self.moment_bytes

    def padded_vocab(self, model: ModelSpec, tp: IntColumn | FloatColumn) -> FloatColumn:
        """Entries of embedding and head with the padding."""
        degrees = np.asarray(tp, dtype=np.float64)
        rows: FloatColumn = model.vocab_rows(degrees, self.vocab_multiple) * degrees
        return rows


_TABLE = tomllib.loads(files(__package__).joinpath("profiles.toml").read_text("utf-8"))  # noqa: TID251  # our own
_KINDS = get_type_hints(FrameworkProfile) | get_type_hints(Kept)


def _read(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table as their fields have them."""
    return {name: _value(_KINDS[name], value) for name, value in table.items()}


def _value(kind: Any, value: Any) -> Any:
    match value:
        case dict():
            return Kept(**_read(value))
        case list():
            return tuple(value)
        case str():
            return float(Fraction(value)) if kind is float else kind(value)
    return value


@cache
def _section(name: str) -> Mapping[str, Any]:
    """The fields that a section of profiles.toml has, by the rules at its top."""
    own = dict(_TABLE[name])
    found = {field: value for base in own.pop("base", ()) for field, value in _section(base).items()}
    kept = _read(own.pop("kept_but", {}))
    found |= _read(own)
    return found | {"kept": replace(found["kept"], **kept)} if kept else found


# As specs name them: "megatron-deepspeed", "fsdp", "megatron-core-bfloat16" ...
FRAMEWORKS: Mapping[str, FrameworkProfile] = {
    name: FrameworkProfile(**_section(name)) for name in _TABLE if not name.startswith("_")
}
TRAINER = {dtype: FRAMEWORKS[f"trainer-{dtype}"] for dtype in ("float32", "bfloat16", "float16")}
MEGATRON_CORE = {dtype: FRAMEWORKS[f"megatron-core-{dtype}"] for dtype in ("bfloat16", "float16", "float32")}
TRAINER_BFLOAT16 = TRAINER["bfloat16"]
MEGATRON_DEEPSPEED = FRAMEWORKS["megatron-deepspeed"]
MEGATRON_DEEPSPEED_BF16 = FRAMEWORKS["megatron-deepspeed-bf16"]
NANOTRON = FRAMEWORKS["nanotron"]
FSDP = FRAMEWORKS["fsdp"]
FSDP_PURE_BF16 = FRAMEWORKS["fsdp-pure-bf16"]
DEEPSPEED = FRAMEWORKS["deepspeed"]
TORCHTITAN = FRAMEWORKS["torchtitan"]
TORCHTITAN_COMPILED = FRAMEWORKS["torchtitan-compiled"]
FLOAT32 = _section("_float32")
COMPILED_LOSS = _section("_compiled-loss")


def compiled(profile: FrameworkProfile) -> FrameworkProfile:
    """The built-in trainer's with compiled layers, another code, whose trials teach nothing of the uncompiled one."""
    return replace(profile, name=f"{profile.name}, compiled", **_section("_compiled"))
