"""A mixture of experts: a router sends every token to its top_k experts and back.

The experts of a rank are one grouped matrix product per projection. No token is dropped: there is no capacity factor,
and no auxiliary loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from meshtune.runners.trainer.adapters import Adapters, adapted
from meshtune.runners.trainer.compat import grouped_mm
from meshtune.runners.trainer.job import Router
from meshtune.runners.trainer.parallel.mesh import Places, exchange, exchange_numbers, place_tensor
from meshtune.search_spaces.model import Activation, ModelSpec
from meshtune.search_spaces.routing import systematic_edges


class _SwiGLU(torch.autograd.Function):
    """Keeps its input alone, as Megatron's fused kernel; autograd would keep SiLU's answer as well."""

    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_and_up)
        gate, up = gate_and_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gate_and_up,) = ctx.saved_tensors
        both = torch.empty_like(gate_and_up)
        (gate, up), (of_gate, of_up) = (x.chunk(2, -1) for x in (gate_and_up, both))
        torch.mul(gradients[0], up, out=of_gate)
        torch.ops.aten.silu_backward(of_gate, gate, grad_input=of_gate)
        torch.ops.aten.silu.out(gate, out=of_up).mul_(gradients[0])
        return both


def swiglu(gate_and_up: Tensor) -> Tensor:
    """The halves of the last axis are the products of the gate's and the up projection, whose weights are one."""
    if torch.compiler.is_compiling():  # it writes no halves in place, and decides itself what is kept
        gate, up = gate_and_up.chunk(2, -1)
        return F.silu(gate) * up
    out: Tensor = _SwiGLU.apply(gate_and_up)  # type: ignore[no-untyped-call]
    return out


class FeedForward(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        gated = spec.activation is Activation.SWIGLU
        self.up = nn.Linear(spec.hidden, spec.ffn * (1 + gated), bias=False)
        self.down = nn.Linear(spec.ffn, spec.hidden, bias=False)
        self._activate = swiglu if gated else F.gelu
        self.joined = ("gate", "up") if gated else ("up",)
        self.adapters: Adapters = {}

    def forward(self, x: Tensor) -> Tensor:
        product = self.up(x)
        widths = dict.fromkeys(self.joined, product.shape[-1] // len(self.joined))
        inner = self._activate(adapted(x, product, widths, self.adapters))
        out: Tensor = self.down(inner)
        return adapted(inner, out, {"down": out.shape[-1]}, self.adapters)


# torch's grouped product takes matrices whose rows begin at multiples of so many bytes.
ALIGNMENT_BYTES = 16


def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows times its own matrix of `weights`, (groups, in, out). ends: of the groups, int32.

    In bfloat16 one kernel on newer CUDA devices (compute capability 9.0 and 10.0 as of torch 2.10), without a wait for
    the device; elsewhere torch computes one group after the other. Gradients that arrive may not be expanded."""
    width = ALIGNMENT_BYTES // rows.element_size()
    if not any(size % width for size in weights.shape[1:]):
        out: Tensor = grouped_mm(rows, weights, offs=ends)
        return out
    parts = rows.tensor_split(numbers_of(ends)[0][:-1])
    return torch.cat([part @ weight for part, weight in zip(parts, weights.unbind(), strict=True)])


def numbers_of(*counts: Tensor) -> list[list[int]]:
    """Numbers of tokens, for the host: a wait for the device."""
    return [part.tolist() for part in torch.split(torch.cat(counts).cpu(), [len(part) for part in counts])]


# A step of the golden ratio on a circle of this length: any run of places meets it evenly (Knuth, vol. 3, 6.4).
CIRCLE, GOLDEN_STEP = 2**32, 2654435769


@lru_cache(maxsize=4)
def choose_by_place(places: Places, experts: int, top_k: int, imbalance: float | None, device: torch.device) -> Tensor:
    """The experts of each place, (length, top_k). None: of place p those after p * top_k, modulo their number."""
    place, nth = place_tensor(places, device)[:, None], torch.arange(top_k, device=device)
    if imbalance is None:
        return (place * top_k + nth) % experts
    edges = torch.tensor(systematic_edges(experts, top_k, imbalance), dtype=torch.float64, device=device)
    return torch.searchsorted(edges, (place * GOLDEN_STEP % CIRCLE).double() / CIRCLE + nth, right=True)


class Experts(nn.Module):
    """The experts `numbers` of the model. A projection of all of them is one parameter of (experts * hidden, ffn), up
    with the gate's beside it: FSDP2 cuts its rows evenly however few experts there are, and tensor parallelism cuts the
    columns."""

    def __init__(self, spec: ModelSpec, numbers: range) -> None:
        super().__init__()
        self.numbers = numbers
        gated, rows = spec.activation is Activation.SWIGLU, len(numbers) * spec.hidden
        self.up = nn.Parameter(torch.empty(rows, spec.ffn * (1 + gated)))
        self.down = nn.Parameter(torch.empty(rows, spec.ffn))
        self._activate = swiglu if gated else F.gelu
        self.recompute: Callable[..., Tensor] | None = None

    def forward(self, tokens: Tensor, ends: Tensor) -> Tensor:
        """tokens: those of the first expert, then those of the second, and so on; ends: where each one's end."""
        return self._run(tokens, ends) if self.recompute is None else self.recompute(self._run, tokens, ends)

    def _run(self, tokens: Tensor, ends: Tensor) -> Tensor:
        inner = self._activate(grouped_product(tokens, self._matrices(self.up), ends))
        return grouped_product(inner, self._matrices(self.down).transpose(1, 2), ends)

    def _matrices(self, projection: Tensor) -> Tensor:
        """(experts, hidden, ffn)"""
        return projection.view(len(self.numbers), -1, projection.shape[1])


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many copies of tokens go where. sent, received: by rank of ep; gathered: by rank of etp, empty where all have
    the same tokens; ends: of each expert here; arrival: where each copy belongs in the order by expert."""

    sent: list[int]
    received: list[int]
    gathered: list[int]
    ends: Tensor
    arrival: Tensor


class Mixture(nn.Module):
    """A mixture of experts, of which this rank holds `numbers` and the other ranks of `peers` the rest.

    Routers that are not learned go by a token's place, so that experts get as many tokens whatever the layout. They
    weigh the experts' answers by the learned probabilities. imbalance: of the skewed one.

    gatherers: the ranks of etp, which hold parts of the same experts and other tokens. part: which part of the tokens
    at `places` the rank has, and of how many."""

    def __init__(
        self, spec: ModelSpec, numbers: range, places: Places, kind: Router, imbalance: float | None = None
    ) -> None:
        super().__init__()
        self.router = nn.Linear(spec.hidden, spec.experts, bias=False)
        self.experts = Experts(spec, numbers)
        self.peers: dist.ProcessGroup | None = None
        self.gatherers: dist.ProcessGroup | None = None
        self.part = (0, 1)
        self._count, self._top_k = spec.experts, spec.top_k
        self._places, self._kind, self._imbalance = places, kind, imbalance

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, choices = self._route(tokens, sequences=x.shape[0])
        by_expert, order = choices.flatten().sort(stable=True)
        # bincount would wait for the device.
        ends = torch.searchsorted(by_expert, torch.arange(self._count, device=x.device), right=True, out_int32=True)
        copies = tokens[order // self._top_k]
        if self.peers is None:
            answers = self.experts(copies, ends)
        else:
            answers = self._ask_peers(copies, ends.diff(prepend=ends.new_zeros(1)), self.peers)
        weighted = answers * weights.flatten()[order, None].type_as(answers)
        return torch.zeros_like(tokens).index_add(0, order // self._top_k, weighted).view_as(x)

    def _route(self, tokens: Tensor, sequences: int) -> tuple[Tensor, Tensor]:
        # In float32 whatever the weights are, and not renormalised over the chosen, so that top_k 1 trains the router
        # as well (Fedus et al. 2021, sections 2.1 and 2.4).
        probabilities = self.router(tokens).float().softmax(-1)
        if self._kind is Router.LEARNED:
            weights, choices = probabilities.topk(self._top_k, -1)
            return weights, choices
        choices = choose_by_place(self._places, self._count, self._top_k, self._imbalance, tokens.device)
        choices = choices.chunk(self.part[1])[self.part[0]].repeat(sequences, 1)
        return probabilities.gather(-1, choices), choices

    def _ask_peers(self, copies: Tensor, counts: Tensor, peers: dist.ProcessGroup) -> Tensor:
        """The experts' answers in the order of the copies."""
        traffic = self._plan_traffic(counts, peers)
        arrived = exchange(copies, peers, receive=traffic.received, send=traffic.sent)
        parts, own = len(traffic.gathered), [len(arrived)] * len(traffic.gathered)
        if self.gatherers is not None:
            arrived = exchange(arrived.repeat(parts, 1), self.gatherers, receive=traffic.gathered, send=own)
        by_expert = self.experts(arrived[traffic.arrival], traffic.ends)
        by_sender = torch.zeros_like(by_expert).index_copy(0, traffic.arrival, by_expert)
        if self.gatherers is not None:
            answers = exchange(by_sender, self.gatherers, receive=own, send=traffic.gathered)
            by_sender = answers.view(parts, own[0], answers.shape[1]).sum(0)
        return exchange(by_sender, peers, receive=traffic.sent, send=traffic.received)

    @torch.no_grad()
    def _plan_traffic(self, counts: Tensor, peers: dist.ProcessGroup) -> Traffic:
        ranks, own = peers.size(), len(counts) // peers.size()
        here = exchange_numbers(counts, peers)
        sums = [counts.view(ranks, own).sum(-1), here.view(ranks, own).sum(-1)]
        if self.gatherers is not None:
            parts = self.gatherers.size()
            here = exchange_numbers(here.repeat(parts), self.gatherers)
            sums.append(here.view(parts, -1).sum(-1))
        sent, received, *gathered = numbers_of(*sums)
        # From each rank the copies come sorted by expert; here they are wanted sorted by expert over all ranks.
        expert_of = torch.arange(own, device=counts.device).repeat(len(here) // own)
        total = sum(gathered[0] if gathered else received)
        arrival = expert_of.repeat_interleave(here, output_size=total).argsort(stable=True)
        ends = here.view(-1, own).sum(0).cumsum(0, dtype=torch.int32)
        return Traffic(sent, received, gathered[0] if gathered else [], ends, arrival)
