"""ModelSpec: the shapes of a decoder-only transformer, and what follows from them: parameters and FLOPs.

Dense and mixture-of-experts models; multi-head and grouped-query attention. Shapes only: no weights, no tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from meshtune.search_spaces.checks import CLOSED, Checks, StrEnum


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
class ModelSpec:
    """Shapes of one model at one sequence length.

    hidden: model width. ffn: width of the feed-forward block (of one expert in a mixture). kv_heads: key/value heads
    (= heads: multi-head; fewer: grouped-query). kv_heads 0 stands for `heads`. seq_len: tokens per sequence.
    experts 0: dense; else every layer holds `experts` of them and routes each token to top_k. Linear layers carry
    no bias; attention's inner width is hidden.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    seq_len: int
    kv_heads: int = 0
    norm: Norm = Norm.RMSNORM
    activation: Activation = Activation.SWIGLU
    position: Position = Position.ROPE
    tied_head: bool = False
    experts: int = 0
    top_k: int = 0

    def __post_init__(self) -> None:
        checks = Checks()
        for name, kind in (("norm", Norm), ("activation", Activation), ("position", Position)):
            object.__setattr__(self, name, checks.member(kind, name, getattr(self, name)))
        sizes = ("layers", "hidden", "heads", "ffn", "vocab", "seq_len")
        positive = checks.whole(1, **{name: getattr(self, name) for name in sizes})
        positive &= checks.whole(0, kv_heads=self.kv_heads, experts=self.experts, top_k=self.top_k)
        if positive:
            object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
            checks.require(
                self.hidden % self.heads == 0, "heads", f"heads({self.heads}) does not divide hidden({self.hidden})"
            )
            checks.require(
                self.heads % self.kv_heads == 0,
                "kv_heads",
                f"kv_heads({self.kv_heads}) does not divide heads({self.heads})",
            )
            checks.require(
                self.position is not Position.ROPE
                or self.hidden % (2 * self.heads) == 0
                or self.hidden % self.heads != 0,
                "position",
                f"rope needs an even head size, but it is {self.hidden // self.heads}",
            )
            checks.require(
                (self.experts == 0) == (self.top_k == 0) and self.top_k <= self.experts,
                "top_k",
                f"top_k({self.top_k}) must lie between 1 and experts({self.experts}), or both be 0",
            )
        checks.done()

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention: query, key, value, output."""
        return 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width

    @property
    def feed_forward_parameters(self) -> int:
        """Weights of one feed-forward block, or of one expert."""
        return self.activation.matrices * self.hidden * self.ffn

    @property
    def norm_parameters(self) -> int:
        """Weights of one normalisation: a gain, and a bias for LayerNorm."""
        return self.hidden * (2 if self.norm is Norm.LAYERNORM else 1)

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, all its experts and their router included."""
        blocks = max(1, self.experts) * self.feed_forward_parameters + self.hidden * self.experts
        return self.attention_parameters + blocks + 2 * self.norm_parameters

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding and, where positions are learned, of theirs."""
        return self.vocab * self.hidden + (self.seq_len * self.hidden if self.position is Position.LEARNED else 0)

    @property
    def parameters(self) -> int:
        """All weights; a tied head is counted once."""
        head = 0 if self.tied_head else self.vocab * self.hidden
        return self.embedding_parameters + self.layers * self.layer_parameters + self.norm_parameters + head

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of one token's forward and backward pass, recomputation left out.

        6 FLOPs per weight that a token meets in a matrix product (2 forward, 4 backward) plus attention's
        12 * layers * hidden * seq_len (PaLM, Chowdhery et al. 2022, appendix B, causal masking not subtracted, as
        there). The head is such a product, the embedding look-up is not; of experts, top_k are met.
        """
        met = self.attention_parameters + max(1, self.top_k) * self.feed_forward_parameters + self.hidden * self.experts
        return 6.0 * (self.layers * met + self.vocab * self.hidden) + 12.0 * self.layers * self.hidden * self.seq_len
