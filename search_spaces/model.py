"""ModelSpec: the shapes of a decoder-only transformer, and what follows from them: parameters and FLOPs.

Dense layers and mixtures of experts; multi-head, grouped-query and latent attention, in windows or not. Shapes only: no
weights, no tokenizer. Not counted: biases, normalisation of queries and keys, sinks of attention, norms after a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

from meshtune.search_spaces.checks import Checks, Closed, Count, StrEnum, Whole
from meshtune.search_spaces.layer_shapes import CutSide, LatentAttention, Product, Shape


class Norm(StrEnum):
    LAYERNORM = "layernorm"
    RMSNORM = "rmsnorm"


class Activation(StrEnum):
    GELU = "gelu"
    SWIGLU = "swiglu"

    @property
    def matrices(self) -> int:
        """Weight matrices in one feed-forward block: up and down, and a gate for gated ones (Shazeer 2020)."""
        return 3 if self is Activation.SWIGLU else 2


class Position(StrEnum):
    LEARNED = "learned"
    ROPE = "rope"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Closed):
    """Shapes of one model at one sequence length; 0 is the plain case everywhere but for the sizes without a default.
    Linear layers carry no bias.
    """

    # In results and in `meshtune recommend`; by default the preset's.
    name: str
    # Number of transformer layers.
    layers: Whole
    # Width of the model.
    hidden: Whole
    # Attention heads; without `head_dim` they divide `hidden`.
    heads: Whole
    # Width of the feed-forward block, or of one expert.
    ffn: Whole
    # Entries of the tokenizer.
    vocab: Whole
    # Tokens per sequence.
    seq_len: Whole
    # Key and value heads, which divide `heads` (fewer: grouped-query attention); 0: `heads`.
    kv_heads: Count = 0
    # Normalisation.
    norm: Norm = Norm.RMSNORM
    # Of the feed-forward block.
    activation: Activation = Activation.SWIGLU
    # Position encoding; `rope` needs an even head size.
    position: Position = Position.ROPE
    # Embedding and output head share weights.
    tied_head: bool = False
    # Experts in every layer; 0: a dense model.
    experts: Count = 0
    # Experts per token, from 1 to `experts`; 0 without experts.
    top_k: Count = 0
    # Width of a head; 0: `hidden` / `heads`.
    head_dim: Count = 0
    # Multi-head latent attention, in place of `kv_heads` and `head_dim`: `kv_lora_rank`, `qk_nope_head_dim`,
    # `qk_rope_head_dim`, `v_head_dim`, `q_lora_rank` (0: none).
    latent_attention: LatentAttention | None = None
    # Width of the experts of a layer that every token meets besides, all together.
    shared_ffn: Count = 0
    # So many first layers have no experts, and a block of width `dense_ffn` instead (0: `ffn`).
    dense_layers: Count = 0
    dense_ffn: Count = 0
    # Of the other layers every so many-th has experts.
    moe_every: Whole = 1
    # Tokens that a token attends to, itself included; 0: all before it.
    window: Count = 0
    # Every so many-th layer has no window; 0: all have it.
    full_attention_every: Count = 0
    # Layers after the last, each of which predicts one token more (DeepSeek-V3, section 2.2).
    mtp_layers: Count = 0
    # Weights of a tower beside the decoder (vision, audio), whose passes are not counted.
    tower_parameters: Count = 0
    # Rows of embedding and head are padded to a multiple of it times `tp`; 0: as the training code does unasked
    # (Megatron-Core, Megatron-DeepSpeed, gpt-neox: 128; others: 1).
    vocab_multiple: Count = 0

    def _check(self, checks: Checks) -> None:
        for name, kind in (("norm", Norm), ("activation", Activation), ("position", Position)):
            object.__setattr__(self, name, checks.member(kind, name, getattr(self, name)))
        self._check_attention(checks)
        self._check_blocks(checks)

    def _check_attention(self, checks: Checks) -> None:
        """With what head_dim and kv_heads stand for filled in."""
        heads, latent = self.heads, self.latent_attention
        object.__setattr__(self, "kv_heads", self.kv_heads or heads)
        own = self.head_dim or (latent.qk_head_dim if latent else self.hidden // heads)
        divides = self.head_dim > 0 or latent is not None or self.hidden % heads == 0
        checks.require(divides, "heads", f"heads({heads}) does not divide hidden({self.hidden})")
        problem = f"kv_heads({self.kv_heads}) does not divide heads({heads})"
        checks.require(heads % self.kv_heads == 0, "kv_heads", problem)
        rotated = latent.qk_rope_head_dim if latent else own
        problem = f"rope needs an even head size, but it is {rotated}"
        checks.require(self.position is not Position.ROPE or rotated % 2 == 0 or not divides, "position", problem)
        if latent is not None:
            problem = f"kv_heads({self.kv_heads}) must be heads({heads}): each head makes its own key and value"
            checks.require(self.kv_heads == heads, "kv_heads", problem)
            problem = f"head_dim({own}) must be qk_nope_head_dim + qk_rope_head_dim = {latent.qk_head_dim}, or left out"
            checks.require(own == latent.qk_head_dim, "head_dim", problem)
        checks.require(
            self.full_attention_every == 0 or self.window > 0,
            "full_attention_every",
            f"full_attention_every({self.full_attention_every}) needs a window",
        )
        object.__setattr__(self, "head_dim", own)

    def _check_blocks(self, checks: Checks) -> None:
        checks.require(
            (self.experts == 0) == (self.top_k == 0) and self.top_k <= self.experts,
            "top_k",
            f"top_k({self.top_k}) must lie between 1 and experts({self.experts}), or both be 0",
        )
        for name, plain in (("shared_ffn", 0), ("dense_layers", 0), ("moe_every", 1)):
            value = getattr(self, name)
            checks.require(self.experts > 0 or value == plain, name, f"{name}({value}) needs experts")
        fault = f"dense_ffn({self.dense_ffn}) needs dense_layers or a moe_every above 1"
        checks.require(self.dense_ffn == 0 or self.dense_layers > 0 or self.moe_every > 1, "dense_ffn", fault)
        fault = f"dense_layers({self.dense_layers}) and moe_every({self.moe_every}) leave none of layers({self.layers})"
        some = self.layers - self.dense_layers >= self.moe_every
        checks.require(some or self.experts == 0, "dense_layers", f"{fault} with experts")

    @property
    def known(self) -> bool:
        """False of NO_MODEL: nothing follows from its sizes."""
        return self != NO_MODEL

    def worded(self, text: str) -> str:
        """A text about tokens; of samples where the sequence's length is not known."""
        return text if self.known else text.replace("token", "sample")

    @property
    def shapes(self) -> frozenset[Shape]:
        """What a training code must have to run this model, beyond plain layers and mixtures of experts."""
        has = {
            Shape.HEAD_DIM: self.latent_attention is None and self.heads * self.head_dim != self.hidden,
            Shape.LATENT_ATTENTION: self.latent_attention is not None,
            Shape.WINDOW: 0 < self.window < self.seq_len,
            Shape.SHARED_EXPERTS: self.shared_ffn > 0,
            Shape.DENSE_LAYERS: self.expert_layers not in (0, self.layers),
            Shape.MTP: self.mtp_layers > 0,
        }
        return frozenset(shape for shape, there in has.items() if there)

    @property
    def query_width(self) -> int:
        """Of the queries of all heads; keys and values of all heads, and what attention answers, have theirs."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Of the keys of all heads."""
        return self.kv_heads * self.head_dim

    def vocab_rows(self, tp: Any, multiple: int = 1) -> Any:
        """Rows of the embedding and of the head on each of tp ranks, padding included: as Megatron-LM pads the whole to
        a multiple of `multiple` * tp (megatron/core/tokenizers/utils/build_tokenizer.py, vocab_size_with_padding, at
        d98e8a64). tp: a number, or a column of them. multiple: the training code's."""
        each = self.vocab_multiple or multiple
        return -(-self.vocab // (each * tp)) * each

    @property
    def value_width(self) -> int:
        latent = self.latent_attention
        return self.heads * latent.v_head_dim if latent else self.kv_width

    @property
    def answer_width(self) -> int:
        latent = self.latent_attention
        return self.heads * latent.v_head_dim if latent else self.query_width

    @property
    def attention_products(self) -> tuple[Product, ...]:
        """Of one layer: queries, keys and values in one product, as training codes fuse them, and the output."""
        if self.latent_attention is not None:
            return self.latent_attention.products(self.hidden, self.heads)
        read = self.query_width + self.kv_width + self.value_width
        return Product(self.hidden, read, CutSide.OUTPUTS), Product(self.answer_width, self.hidden, CutSide.INPUTS)

    def block_products(self, width: int) -> tuple[Product, ...]:
        """Of one feed-forward block of that width: up (and a gate), and down; none for 0."""
        if width == 0:
            return ()
        up = Product(self.hidden, width, CutSide.OUTPUTS)
        return (*[up] * (self.activation.matrices - 1), Product(width, self.hidden, CutSide.INPUTS))

    @property
    def attention_parameters(self) -> int:
        """Weights of the products of one layer's attention."""
        return sum(product.parameters for product in self.attention_products)

    @property
    def whole_attention_parameters(self) -> int:
        """Those of them that tensor parallelism leaves whole."""
        return sum(product.parameters for product in self.attention_products if product.cut is CutSide.WHOLE)

    @property
    def feed_forward_parameters(self) -> int:
        """Weights of one feed-forward block, or of one expert."""
        return self.activation.matrices * self.hidden * self.ffn

    @property
    def shared_parameters(self) -> int:
        """Weights of the shared experts of one layer."""
        return self.activation.matrices * self.hidden * self.shared_ffn

    @property
    def norm_parameters(self) -> int:
        """Weights of one normalisation of hidden states: a gain, and a bias for LayerNorm."""
        return self.hidden * (2 if self.norm is Norm.LAYERNORM else 1)

    @property
    def layer_norm_parameters(self) -> int:
        """Of one layer: before each block, and of latent attention's narrow vectors."""
        latent = self.latent_attention
        narrow = latent.q_lora_rank + latent.kv_lora_rank if latent else 0
        return 2 * self.norm_parameters + narrow * self.norm_parameters // self.hidden

    @property
    def expert_layers(self) -> int:
        return (self.layers - self.dense_layers) // self.moe_every if self.experts else 0

    @property
    def layer_parameters(self) -> float:
        """Weights of one layer, all its experts and their router included; the mean where layers differ."""
        return sum(count * _layer_parameters(kind) for count, kind in layer_kinds(self)) / self.layers

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding and, where positions are learned, of theirs."""
        return self.vocab * self.hidden + (self.seq_len * self.hidden if self.position is Position.LEARNED else 0)

    @property
    def mtp_parameters(self) -> int:
        """Weights of the layers that predict further tokens: each a layer as the last one, with the projection of two
        hidden states to one and three norms. Embedding and head are the model's own."""
        extra = _layer_parameters(last_kind(self)) + 2 * self.hidden * self.hidden + 3 * self.norm_parameters
        return self.mtp_layers * extra

    @property
    def parameters(self) -> int:
        """All weights; a tied head is counted once, a tower is among them."""
        head = 0 if self.tied_head else self.vocab * self.hidden
        layers = sum(count * _layer_parameters(kind) for count, kind in layer_kinds(self))
        ends = self.embedding_parameters + self.norm_parameters + head
        return ends + layers + self.mtp_parameters + self.tower_parameters

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of one token's forward and backward pass, recomputation left out.

        6 FLOPs per weight that a token meets in a matrix product (2 forward, 4 backward) plus attention's
        12 * layers * hidden * seq_len (PaLM, Chowdhery et al. 2022, appendix B, causal masking not subtracted, as
        there; hidden is the mean width of queries and answers, and a window stands for seq_len). The head is such a
        product, the embedding look-up is not; of experts, top_k are met.
        """
        head = 6.0 * self.vocab * self.hidden
        each = [(count, _layer_flops(kind)) for count, kind in layer_kinds(self)]
        extra = _layer_flops(last_kind(self)) + 12.0 * self.hidden * self.hidden + head
        return sum(count * flops for count, flops in each) + head + self.mtp_layers * extra


# The model of a program whose shapes nobody named; one sample of the batch is its token.
UNKNOWN = "unknown"
NO_MODEL = ModelSpec(name=f"{UNKNOWN} model", layers=1, hidden=2, heads=1, ffn=1, vocab=1, seq_len=1)


@lru_cache(maxsize=256)
def layer_kinds(model: ModelSpec) -> tuple[tuple[int, ModelSpec], ...]:
    """The kinds of layers of a model: how many layers are of each, and a model of that kind alone. One where all layers
    are alike; else up to four: with experts or without, in a window or not."""
    layers, every = model.layers, model.full_attention_every
    whole = layers // every if every else 0
    if not 0 < model.window < model.seq_len:
        whole = layers
    both = model.expert_layers if whole == layers else _whole_with_experts(model)
    counts = {
        (True, False): both,
        (True, True): model.expert_layers - both,
        (False, False): whole - both,
        (False, True): layers - whole - (model.expert_layers - both),
    }
    return tuple((count, _of_kind(model, *kind)) for kind, count in counts.items() if count)


def _whole_with_experts(model: ModelSpec) -> int:
    """Layers with experts that attend to the whole sequence: numbers dense_layers + k * moe_every that
    full_attention_every divides, by the linear congruence for k."""
    step, every, count = model.moe_every, model.full_attention_every, model.expert_layers
    if every == 0 or model.dense_layers % (shared := gcd(step, every)) != 0:
        return 0
    period = every // shared
    first = -(model.dense_layers // shared) * pow(step // shared, -1, period) % period or period
    return (count - first) // period + 1 if count >= first else 0


def layer_traits(model: ModelSpec, number: Any) -> tuple[Any, Any]:
    """Whether the layer of that number, counted from 1, has experts, and whether it attends in a window. The last of
    each period is the other one (Llama 4: interleave_moe_layer_step; gpt-oss: layer_types). number: or many of them."""
    every, place = model.full_attention_every, number - model.dense_layers
    windowed = (0 < model.window < model.seq_len) & ((number % every != 0) if every else number > 0)
    return (model.experts > 0) & (place > 0) & (place % model.moe_every == 0), windowed


@lru_cache(maxsize=256)
def last_kind(model: ModelSpec) -> ModelSpec:
    """The kind of the last layer (which those for further tokens repeat: Megatron-LM d98e8a64, training/
    theoretical_memory_usage.py)."""
    return _of_kind(model, *layer_traits(model, model.layers))


def _of_kind(model: ModelSpec, experts: bool, windowed: bool) -> ModelSpec:
    plain: dict[str, Any] = {
        "dense_layers": 0,
        "dense_ffn": 0,
        "moe_every": 1,
        "full_attention_every": 0,
        "mtp_layers": 0,
    }
    if not experts:
        plain |= {"experts": 0, "top_k": 0, "shared_ffn": 0}
        plain |= {"ffn": (model.dense_ffn or model.ffn) if model.experts else model.ffn}
    return replace(model, window=model.window if windowed else 0, **plain)


def _layer_parameters(kind: ModelSpec) -> int:
    blocks = max(1, kind.experts) * kind.feed_forward_parameters + kind.hidden * kind.experts + kind.shared_parameters
    return kind.attention_parameters + blocks + kind.layer_norm_parameters


def met_parameters(kind: ModelSpec) -> int:
    """Weights of the products of one layer that a token meets."""
    block = max(1, kind.top_k) * kind.feed_forward_parameters + kind.hidden * kind.experts + kind.shared_parameters
    return kind.attention_parameters + block


def _layer_flops(kind: ModelSpec) -> float:
    scores = (kind.query_width + kind.answer_width) * (kind.window or kind.seq_len)
    return 6.0 * met_parameters(kind) + 6.0 * scores
