"""The head and its loss, in chunks of tokens: only a chunk of the logits exists at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshtune.search_spaces.physics.framework_profiles import FEWEST_CHUNK_TOKENS
from meshtune.search_spaces.plan import LOSS_CHUNKS

_COLLECTIVES = torch.ops._c10d_functional
# Of a 16-bit product that is added in float32 where no kernel does both: the rows that exist at a time.
_ROWS_AT_ONCE = 1024


def sum_over(group: str, x: Tensor, operation: str = "sum") -> Tensor:
    """group: its name."""
    out: Tensor = _COLLECTIVES.wait_tensor.default(_COLLECTIVES.all_reduce.default(x.contiguous(), operation, group))
    return out


def own_rows(tokens: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Each token's row among the `count` rows of this rank, 0 where another rank has it; and where that is so."""
    rows = tokens - first
    outside = (rows < 0) | (rows >= count)
    return rows.masked_fill(outside, 0), outside


def chunk_tokens(tokens: int, chunks: int = LOSS_CHUNKS) -> int:
    """Tokens of one chunk: an eighth, as in torchtune (`CEWithChunkedOutputLoss`), but not so few that the weight's
    gradient, which every chunk reads and writes, takes longer than the product that it comes from."""
    return max(FEWEST_CHUNK_TOKENS, -(-tokens // chunks))


@dataclass(eq=False, slots=True)
class GradientSum:
    """`total`: the sum, in float32 whatever the weights are, of a parameter's gradients over the micro-batches of a
    step. empty: of nothing yet, so that the first gradient overwrites it."""

    total: Tensor
    empty: bool = True

    def add(self, gradient: Tensor) -> None:
        (self.total.copy_ if self.empty else self.total.add_)(gradient)
        self.empty = False

    def add_product(self, left: Tensor, right: Tensor, factor: float) -> None:
        """Add factor * left^T right, of (tokens, rows) and (tokens, columns), both in the weights' format. On CUDA one
        kernel adds in float32, as Megatron's fused accumulation; elsewhere the product of a call is rounded first."""
        beta = int(not self.empty)
        if left.dtype is torch.float32:
            self.total.addmm_(left.T, right, beta=beta, alpha=factor)
        elif left.is_cuda and torch.version.hip is None:
            torch.addmm(self.total, left.T, right, torch.float32, beta=beta, alpha=factor, out=self.total)
        else:
            if self.empty:
                self.total.zero_()
            parts = torch.split(self.total, _ROWS_AT_ONCE), torch.split(left, _ROWS_AT_ONCE, 1)
            for part, rows in zip(*parts, strict=True):
                part.add_(rows.T @ right, alpha=factor)
        self.empty = False


class Head(nn.Linear):
    """The output projection, of a hidden state to logits; with targets to the cross entropy summed over all tokens.

    vocab: the rows. words: those of them that stand for one; the rest pads, and no token is ever predicted to be one.
    loss_scale: factor on the sum. chunks: of a micro-batch's tokens. group, first_row: of the ranks that split the
    vocabulary, and where this one's part begins. to_gradient: `to_gradient`, or what it was compiled to. gradient_sum:
    of the weight, where the optimizer has one, to be added to."""

    def __init__(self, hidden: int, vocab: int, words: int | None = None) -> None:
        super().__init__(hidden, vocab, bias=False)
        self.words = vocab if words is None else words
        self.loss_scale, self.chunks = 1.0, LOSS_CHUNKS
        self.group: dist.ProcessGroup | None = None
        self.first_row = 0
        self.to_gradient: Callable[[Tensor, Tensor, Head], Tensor] = to_gradient
        self.gradient_sum: GradientSum | None = None

    @property
    def own_words(self) -> int:
        """Of this rank's rows, those before the padding."""
        return max(0, self.words - self.first_row)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None:
            return super().forward(x)[..., : self.own_words]
        hidden = x.flatten(0, 1)
        # The weight is used inside of forward, where FSDP2 has gathered it.
        loss, by_hidden, by_weight = _loss_and_gradients(hidden, targets.flatten(), self)
        # Two functions: a split backward pass runs the one without the other, and torch before 2.13 splits only at a
        # node of its own, such as their sum.
        of_hidden: Tensor = _Known.apply(hidden, loss, by_hidden)  # type: ignore[no-untyped-call]
        of_weight: Tensor = _Known.apply(self.weight, torch.zeros_like(loss), by_weight)  # type: ignore[no-untyped-call]
        return of_hidden + of_weight


class _Known(torch.autograd.Function):
    """A number whose gradient by `x` is known; None where it has been added up already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: Tensor, gradient: Tensor | None) -> Tensor:
        ctx.gradient = gradient
        return number.view_as(number)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        gradient = ctx.gradient
        del ctx.gradient  # autograd adds to a tensor in place only if nobody else holds it
        return gradient, None, None


@torch.no_grad()
def _loss_and_gradients(hidden: Tensor, targets: Tensor, head: Head) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients are by hidden states and weight, and made with the loss, as in Liger (Hsu et al. 2024): so no logit
    outlives its chunk, and none is computed twice. The loss is what training differentiates, so its own gradient is 1.
    The weight's is summed over chunks in float32: into the optimizer's sum, or else returned in the weight's format.

    A vocabulary over several ranks as in Megatron: logits stay where they are, three numbers of a token are
    exchanged."""
    weight = head.weight
    hidden_gradient = torch.empty_like(hidden)
    own_sum = weight.requires_grad and head.gradient_sum is None
    weight_sum = GradientSum(torch.empty_like(weight, dtype=torch.float32)) if own_sum else head.gradient_sum
    loss = torch.zeros(1, dtype=torch.float32, device=hidden.device)
    size = chunk_tokens(len(hidden), head.chunks)
    parts = zip(*(torch.split(tokens, size) for tokens in (hidden, targets, hidden_gradient)), strict=True)
    for part, wanted, part_gradient in parts:
        logits = part @ weight.T
        loss += head.to_gradient(logits, wanted, head)
        torch.addmm(part_gradient, logits, weight, beta=0, alpha=head.loss_scale, out=part_gradient)
        if weight_sum is not None:
            weight_sum.add_product(logits, part, head.loss_scale)
        del logits  # before the next chunk's
    known = weight_sum.total.to(weight.dtype) if own_sum and weight_sum is not None else None
    return loss.mul_(head.loss_scale), hidden_gradient, known


def to_gradient(logits: Tensor, targets: Tensor, head: Head) -> Tensor:
    """The loss of some tokens; their logits are overwritten by their gradients. As written every line is a pass over
    the logits; compiled, a few kernels are, and a last chunk that is smaller has its own."""
    if head.own_words < logits.shape[1]:
        logits[:, head.own_words :] = -torch.inf
    peak = logits.amax(-1).float()
    if head.group is not None:
        peak = sum_over(head.group.group_name, peak, "max")
    # In float32, into which the subtraction casts; of float32 there is no further copy.
    scores = logits.sub_(peak[:, None]) if logits.dtype is torch.float32 else logits - peak[:, None]
    rows, outside = own_rows(targets, head.first_row, scores.shape[1])
    chosen = scores.gather(1, rows[:, None]).squeeze(1).masked_fill(outside, 0.0)
    total = scores.exp_().sum(-1)
    if head.group is not None:
        chosen, total = sum_over(head.group.group_name, torch.stack([chosen, total])).unbind()
    less = (-total).masked_fill(outside, 0.0)[:, None]
    if torch.compiler.is_compiling():  # a scatter is a kernel of its own, before which all scores are written
        scores = scores + less * (torch.arange(scores.shape[1], device=scores.device) == rows[:, None])
    else:
        scores.scatter_add_(1, rows[:, None], less)
    torch.div(scores, total[:, None], out=logits)
    return (total.log() - chosen).sum()
