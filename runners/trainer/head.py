"""The head and its loss, in chunks of tokens: only a chunk of the logits exists at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshtune.runners.trainer.gradients import GradientSum
from meshtune.search_spaces.physics.framework_profiles import FEWEST_CHUNK_TOKENS, LOSS_CHUNKS

_COLLECTIVES = torch.ops._c10d_functional


def sum_over(group: dist.ProcessGroup, x: Tensor, operation: str = "sum") -> Tensor:
    out: Tensor = _COLLECTIVES.wait_tensor.default(
        _COLLECTIVES.all_reduce.default(x.contiguous(), operation, group.group_name)
    )
    return out


def own_rows(tokens: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Each token's row among the `count` rows of this rank, 0 where another rank has it; and where that is so."""
    rows = tokens - first
    outside = (rows < 0) | (rows >= count)
    return rows.masked_fill(outside, 0), outside


def chunk_tokens(tokens: int) -> int:
    """Tokens of one chunk: an eighth, as in torchtune (`CEWithChunkedOutputLoss`), but not so few that the weight's
    gradient, which every chunk reads and writes, takes longer than the product that it comes from."""
    return max(FEWEST_CHUNK_TOKENS, -(-tokens // LOSS_CHUNKS))


class Head(nn.Linear):
    """The output projection, of a hidden state to logits; with targets to the cross entropy summed over all tokens.

    vocab: the rows. words: those of them that stand for one; the rest pads, and no token is ever predicted to be one.
    loss_scale: factor on the sum. group, first_row: of the ranks that split the vocabulary, and where this one's part
    begins. to_gradient: `to_gradient`, or what it was compiled to. gradient_sum: of the weight, where the optimizer has
    one, to be added to."""

    def __init__(self, hidden: int, vocab: int, words: int | None = None) -> None:
        super().__init__(hidden, vocab, bias=False)
        self.words = vocab if words is None else words
        self.loss_scale = 1.0
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
    weight_sum = head.gradient_sum or GradientSum(torch.empty_like(weight, dtype=torch.float32))
    loss = torch.zeros(1, dtype=torch.float32, device=hidden.device)
    size = chunk_tokens(len(hidden))
    parts = zip(*(torch.split(tokens, size) for tokens in (hidden, targets, hidden_gradient)), strict=True)
    for part, wanted, part_gradient in parts:
        logits = part @ weight.T
        loss += head.to_gradient(logits, wanted, head)
        torch.addmm(part_gradient, logits, weight, beta=0, alpha=head.loss_scale, out=part_gradient)
        weight_sum.add_product(logits, part, head.loss_scale)
        del logits  # before the next chunk's
    known = weight_sum.total.to(weight.dtype) if head.gradient_sum is None else None
    return loss.mul_(head.loss_scale), hidden_gradient, known


def to_gradient(logits: Tensor, targets: Tensor, head: Head) -> Tensor:
    """The loss of some tokens; their logits are overwritten by their gradients. Uncompiled, every line is a pass over
    the logits, so that it works in place; compiled, all lines of a pass are one kernel, and no float32 logit is
    written. A last chunk that is smaller is compiled for itself."""
    if torch.compiler.is_compiling():
        return _to_gradient_in_registers(logits, targets, head)
    if head.own_words < logits.shape[1]:
        logits[:, head.own_words :] = -torch.inf
    peak = logits.amax(-1).float()
    if head.group is not None:
        peak = sum_over(head.group, peak, "max")
    # In float32, into which the subtraction casts; of float32 there is no further copy.
    scores = logits.sub_(peak[:, None]) if logits.dtype is torch.float32 else logits - peak[:, None]
    rows, outside = own_rows(targets, head.first_row, scores.shape[1])
    chosen = scores.gather(1, rows[:, None]).squeeze(1).masked_fill(outside, 0.0)
    total = scores.exp_().sum(-1)
    if head.group is not None:
        chosen, total = sum_over(head.group, torch.stack([chosen, total])).unbind()
    scores.scatter_add_(1, rows[:, None], (-total).masked_fill(outside, 0.0)[:, None])
    torch.div(scores, total[:, None], out=logits)
    return (total.log() - chosen).sum()


def _to_gradient_in_registers(logits: Tensor, targets: Tensor, head: Head) -> Tensor:
    """Passes over a chunk's logits: their maximum and their sum, which inductor joins on CUDA, and the gradient. A
    scatter would write all of them in float32."""
    word = torch.arange(logits.shape[1], device=logits.device)
    scores = logits.float().masked_fill(word >= head.own_words, -torch.inf)
    peak = scores.amax(-1)
    if head.group is not None:
        peak = sum_over(head.group, peak, "max")
    rows, outside = own_rows(targets, head.first_row, logits.shape[1])
    chosen = (logits.gather(1, rows[:, None]).squeeze(1).float() - peak).masked_fill(outside, 0.0)
    powers = (scores - peak[:, None]).exp()
    total = powers.sum(-1)
    if head.group is not None:
        chosen, total = sum_over(head.group, torch.stack([chosen, total])).unbind()
    is_target = word == rows.masked_fill(outside, -1)[:, None]
    logits.copy_(powers / total[:, None] - is_target.float())
    return (total.log() - chosen).sum()
