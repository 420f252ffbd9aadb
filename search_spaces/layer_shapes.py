"""The parts of a transformer's layer that a model's spec nests, and the matrix products that a layer is made of."""

from __future__ import annotations

from dataclasses import dataclass

from meshtune.search_spaces.checks import Closed, Count, StrEnum, Whole


class CutSide(StrEnum):
    """The side of a weight that tensor parallelism cuts (Shoeybi et al. 2019, section 3); whole: none, every rank has
    all of it."""

    INPUTS = "inputs"
    OUTPUTS = "outputs"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product with a weight: (tokens, inputs) by (inputs, outputs)."""

    inputs: int
    outputs: int
    cut: CutSide

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs


class Shape(StrEnum):
    """What makes a model more than equal layers of plain attention as wide as the model and one feed-forward block or
    one mixture: a training code has each or has it not (`columns.Capabilities.shapes`)."""

    HEAD_DIM = "head_dim"
    LATENT_ATTENTION = "latent_attention"
    WINDOW = "window"
    SHARED_EXPERTS = "shared_ffn"
    DENSE_LAYERS = "dense_layers"
    MTP = "mtp_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Closed):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), in its files' own names.

    Keys and values come from one narrow vector of kv_lora_rank per token, queries from one of q_lora_rank (0: from the
    hidden state itself). A head's query and key have qk_nope_head_dim values without a position and qk_rope_head_dim
    with one, which for keys all heads share; its value has v_head_dim.
    """

    kv_lora_rank: Whole
    qk_nope_head_dim: Whole
    qk_rope_head_dim: Whole
    v_head_dim: Whole
    q_lora_rank: Count = 0

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """The narrow vectors of a token, and the keys' shared part with a position."""
        return self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim

    def products(self, hidden: int, heads: int) -> tuple[Product, ...]:
        """Those that make the narrow vectors are whole on every tensor rank (Megatron-LM d98e8a64,
        core/transformer/multi_latent_attention.py: linear_q_down_proj and linear_kv_down_proj are duplicated)."""
        queries, rank = heads * self.qk_head_dim, self.q_lora_rank
        asked = (
            (Product(hidden, rank, CutSide.WHOLE), Product(rank, queries, CutSide.OUTPUTS))
            if rank
            else (Product(hidden, queries, CutSide.OUTPUTS),)
        )
        return (
            *asked,
            Product(hidden, self.kv_lora_rank + self.qk_rope_head_dim, CutSide.WHOLE),
            Product(self.kv_lora_rank, heads * (self.qk_nope_head_dim + self.v_head_dim), CutSide.OUTPUTS),
            Product(heads * self.v_head_dim, hidden, CutSide.INPUTS),
        )
