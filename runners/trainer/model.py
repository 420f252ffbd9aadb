"""The blocks of a layer: causal self-attention over the places that this rank holds, feed-forward, mixture of experts.

A router sends every token to its top_k experts and back: no token is dropped, there is no capacity factor and no
auxiliary loss. The experts of a rank are computed one after the other, so many small ones are undersold on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from meshtune.runners.trainer.head import Head
from meshtune.runners.trainer.job import Router
from meshtune.runners.trainer.parallel.mesh import exchange, exchange_numbers
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position

# Calls a function with its arguments and keeps less of its activations than autograd would.
Recompute = Callable[..., Tensor]


class _SwiGLU(torch.autograd.Function):
    """Keeps its two inputs alone, as Megatron's fused kernel; autograd would keep SiLU's answer as well."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        gate_gradient = torch.ops.aten.silu_backward(gradients[0] * up, gate)
        return gate_gradient, F.silu(gate).mul_(gradients[0])


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    out: Tensor = _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


class FeedForward(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.hidden, spec.ffn, bias=False)
        gated = spec.activation is Activation.SWIGLU
        self.gate = nn.Linear(spec.hidden, spec.ffn, bias=False) if gated else None
        self.down = nn.Linear(spec.ffn, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else swiglu(self.gate(x), self.up(x))
        out: Tensor = self.down(inner)
        return out


class Experts(nn.Module):
    """The experts of this rank by their number in the model. No ModuleDict: torch 2.9 refuses to shard one."""

    def __init__(self, spec: ModelSpec, numbers: range) -> None:
        super().__init__()
        for number in numbers:
            self.add_module(str(number), FeedForward(spec))
        self.recompute: Recompute | None = None

    def forward(self, tokens: Tensor, counts: list[int]) -> Tensor:
        """tokens: those of the first expert, then those of the second, and so on, `counts` of them each."""
        return self._run(tokens, counts) if self.recompute is None else self.recompute(self._run, tokens, counts)

    def _run(self, tokens: Tensor, counts: list[int]) -> Tensor:
        parts = zip(self.children(), torch.split(tokens, counts), strict=True)
        return torch.cat([expert(part) for expert, part in parts])


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many copies of tokens go where. sent, received: by rank of ep; own: by expert here; arrival: where each
    received copy belongs in the order by expert."""

    sent: list[int]
    received: list[int]
    own: list[int]
    arrival: Tensor


class Mixture(nn.Module):
    """A mixture of experts, of which this rank holds `numbers` and the other ranks of `peers` the rest.

    The balanced router sends the token at place p to the experts p * top_k, p * top_k + 1, ... modulo their number: all
    experts get equally many tokens, whatever the layout. It weighs their answers by the learned probabilities."""

    def __init__(self, spec: ModelSpec, numbers: range, places: Places, kind: Router) -> None:
        super().__init__()
        self.router = nn.Linear(spec.hidden, spec.experts, bias=False)
        self.experts = Experts(spec, numbers)
        self.peers: dist.ProcessGroup | None = None
        self._count, self._top_k = spec.experts, spec.top_k
        self._places, self._kind = places, kind

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, choices = self._route(tokens, sequences=x.shape[0])
        order = choices.flatten().argsort(stable=True)
        counts = choices.flatten().bincount(minlength=self._count)
        copies = tokens[order // self._top_k]
        if self.peers is None:
            answers = self.experts(copies, counts.tolist())
        else:
            answers = self._ask_peers(copies, counts, self.peers)
        weighted = answers * weights.flatten()[order, None].type_as(answers)
        return torch.zeros_like(tokens).index_add(0, order // self._top_k, weighted).view_as(x)

    def _route(self, tokens: Tensor, sequences: int) -> tuple[Tensor, Tensor]:
        # In float32 whatever the weights are, and not renormalised over the chosen, so that top_k 1 trains the router
        # as well (Fedus et al. 2021, sections 2.1 and 2.4).
        probabilities = self.router(tokens).float().softmax(-1)
        if self._kind is Router.LEARNED:
            weights, choices = probabilities.topk(self._top_k, -1)
            return weights, choices
        first = place_tensor(self._places, tokens.device) * self._top_k
        nth = torch.arange(self._top_k, device=tokens.device)
        choices = ((first[:, None] + nth) % self._count).repeat(sequences, 1)
        return probabilities.gather(-1, choices), choices

    def _ask_peers(self, copies: Tensor, counts: Tensor, peers: dist.ProcessGroup) -> Tensor:
        """The experts' answers in the order of the copies."""
        traffic = self._plan_traffic(counts, peers)
        arrived = exchange(copies, peers, receive=traffic.received, send=traffic.sent)
        by_expert = self.experts(arrived[traffic.arrival], traffic.own)
        by_sender = torch.zeros_like(by_expert).index_copy(0, traffic.arrival, by_expert)
        return exchange(by_sender, peers, receive=traffic.sent, send=traffic.received)

    @torch.no_grad()
    def _plan_traffic(self, counts: Tensor, peers: dist.ProcessGroup) -> Traffic:
        ranks, own = peers.size(), len(counts) // peers.size()
        theirs = exchange_numbers(counts, peers)
        # From each rank the copies come sorted by expert; here they are wanted sorted by expert over all ranks.
        expert_of = torch.arange(own, device=counts.device).repeat(ranks).repeat_interleave(theirs)
        sizes = torch.stack([counts.view(ranks, own), theirs.view(ranks, own)]).tolist()  # one wait for the device
        sent, received = ([sum(row) for row in table] for table in sizes)
        mine = [sum(column) for column in zip(*sizes[1], strict=True)]
        return Traffic(sent, received, mine, expert_of.argsort(stable=True))


ROPE_BASE = 10_000.0  # Su et al. 2021


# Which places of the sequence a rank holds, in the order it holds them.
Places = tuple[range, ...]


# Query, key and value of (batch, heads, length, head_dim) to what the heads read, of the query's shape.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@lru_cache(maxsize=4)
def place_tensor(places: Places, device: torch.device) -> Tensor:
    return torch.cat([torch.arange(part.start, part.stop, device=device) for part in places])


@lru_cache(maxsize=4)
def rotation(places: Places, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary angles, (length, head_dim / 2) each, in float32."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(place_tensor(places, device).float(), frequencies)
    return angles.cos(), angles.sin()


class _Rotate(torch.autograd.Function):
    """Keeps nothing: the backward pass is the rotation back. What it returns lies in memory as what it was given does,
    and attention answers in that order too: its answer needs no copy to have the heads of a token side by side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Places) -> Tensor:
        out = torch.empty_like(x)
        ctx.places, ctx.strides = places, out.stride()
        return _rotate_into(out, x, *rotation(places, x.shape[-1], x.device))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (given,) = gradients
        cos, sin = rotation(ctx.places, given.shape[-1], given.device)
        out = torch.empty_strided(given.shape, ctx.strides, dtype=given.dtype, device=given.device)
        return _rotate_into(out, given, cos, -sin), None


def _rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In float32, whatever `x` is in."""
    (left, right), (own_left, own_right) = x.chunk(2, -1), out.chunk(2, -1)
    torch.sub(left * cos, right * sin, out=own_left)
    torch.add(left * sin, right * cos, out=own_right)
    return out


def rotate(x: Tensor, places: Places) -> Tensor:
    """Rotary position embedding of (batch, heads, length, head_dim): the halves of a head are the pairs."""
    if torch.compiler.is_compiling():  # it writes no halves in place, and decides itself what is kept
        cos, sin = rotation(places, x.shape[-1], x.device)
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], -1).type_as(x)
    out: Tensor = _Rotate.apply(x, places)  # type: ignore[no-untyped-call]
    return out


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention where this rank holds the whole sequence."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1])


class Attention(nn.Module):
    """Causal self-attention over as many heads as the projections return: all of them, or this rank's."""

    def __init__(self, spec: ModelSpec, places: Places) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.rotary = spec.position is Position.ROPE
        self.places = places
        self.attend: Attend = attend_causally
        self.query = nn.Linear(spec.hidden, spec.hidden, bias=False)
        self.key = nn.Linear(spec.hidden, spec.kv_width, bias=False)
        self.value = nn.Linear(spec.hidden, spec.kv_width, bias=False)
        self.output = nn.Linear(spec.hidden, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        if self.rotary:
            query, key = rotate(query, self.places), rotate(key, self.places)
        mixed = self.attend(query, key, value)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


NORM_EPSILON = 1e-5
INITIAL_STD = 0.02  # GPT-2 (Radford et al. 2019) and Megatron-LM's default


def build_norm(spec: ModelSpec) -> nn.Module:
    if spec.norm is Norm.LAYERNORM:
        return nn.LayerNorm(spec.hidden, eps=NORM_EPSILON)
    return nn.RMSNorm(spec.hidden, eps=NORM_EPSILON)


# Of the activations between two blocks.
Relayout = Callable[[Tensor], Tensor]


def as_it_is(x: Tensor) -> Tensor:
    return x


class Layer(nn.Module):
    """Attention and feed-forward block, each with its norm and residual.

    recompute, recompute_attention: how to run all of it, or its first half, without keeping all activations; called
    inside of whatever wraps the layer, so that a recomputation finds the weights in place. enter, leave: what tensor
    parallelism does with a block's input and with its output."""

    def __init__(self, spec: ModelSpec, places: Places, experts: range, router: Router) -> None:
        super().__init__()
        self.recompute: Recompute | None = None
        self.recompute_attention: Recompute | None = None
        # Of `run` and of `run_attention`, which they then stand for.
        self.compiled: Relayout | None = None
        self.compiled_attention: Relayout | None = None
        self.enter: Relayout = as_it_is
        self.leave: Relayout = as_it_is
        self.attention_norm = build_norm(spec)
        self.attention = Attention(spec, places)
        self.feed_forward_norm = build_norm(spec)
        self.feed_forward = Mixture(spec, experts, places, router) if spec.experts else FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x) if self.compiled is None else self.compiled(x)

    def run(self, x: Tensor) -> Tensor:
        return self._blocks(x) if self.recompute is None else self.recompute(self._blocks, x)

    def run_attention(self, x: Tensor) -> Tensor:
        return self._attend(x) if self.recompute_attention is None else self.recompute_attention(self._attend, x)

    def _blocks(self, x: Tensor) -> Tensor:
        x = self.run_attention(x) if self.compiled_attention is None else self.compiled_attention(x)
        out: Tensor = x + self.leave(self.feed_forward(self.enter(self.feed_forward_norm(x))))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.leave(self.attention(self.enter(self.attention_norm(x))))
        return out


@dataclass(frozen=True, slots=True)
class Cut:
    """How tensor parallelism cuts a parameter. shape: of the whole; axis: along which it is cut into `parts`."""

    shape: torch.Size
    axis: int
    rank: int
    parts: int

    def part(self, whole: Tensor) -> Tensor:
        """This rank's; the last ones may be smaller, or empty."""
        parts = whole.chunk(self.parts, self.axis)
        return parts[self.rank] if self.rank < len(parts) else whole.narrow(self.axis, 0, 0)


class Transformer(nn.Module):
    """Some layers of the model, with the embeddings when `first`, with the final norm and head when `last`.

    Takes token ids when first, else hidden states; returns hidden states, when last the loss of the targets (see Head),
    or without targets logits. places: where in the sequence its tokens stand; experts: which ones it holds; both
    default to all."""

    def __init__(
        self,
        spec: ModelSpec,
        layers: Iterable[int] | None = None,
        *,
        first: bool = True,
        last: bool = True,
        places: Places | None = None,
        experts: range | None = None,
        router: Router = Router.LEARNED,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.places = places or (range(spec.seq_len),)
        # By the parameter's name; those that are whole on every rank have none.
        self.cuts: dict[str, Cut] = {}
        # Names of those that are, but of whose gradient tensor parallelism leaves a part on each.
        self.partial_gradients: set[str] = set()
        learned = first and spec.position is Position.LEARNED
        self.embedding: nn.Module | None = nn.Embedding(spec.vocab, spec.hidden) if first else None
        self.position: nn.Module | None = nn.Embedding(spec.seq_len, spec.hidden) if learned else None
        self.layers: nn.ModuleDict = nn.ModuleDict()
        for index in range(spec.layers) if layers is None else layers:
            held = range(spec.experts) if experts is None else experts
            self.layers[str(index)] = Layer(spec, self.places, held, router)
        self.norm = build_norm(spec) if last else None
        self.head = Head(spec.hidden, spec.vocab) if last else None
        self.tie()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.embedding is not None:
            tokens, x = x, self.embedding(x)
            if self.position is not None:
                x = x + self.position(place_tensor(self.places, tokens.device))
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.norm(x)  # what the last layer returned is kept by nobody while the head computes
            x = self.head(x, targets)
        return x

    def tie(self) -> None:
        """Make a tied head and the embedding one parameter, where both live here; again after replacing either."""
        if self.spec.tied_head and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.get_parameter("weight")

    def layer_list(self) -> list[Layer]:
        return [layer for layer in self.layers.values() if isinstance(layer, Layer)]

    def mixtures(self) -> list[Mixture]:
        blocks = (layer.feed_forward for layer in self.layer_list())
        return [block for block in blocks if isinstance(block, Mixture)]

    def shared_with_another_stage(self) -> nn.Parameter | None:
        """This stage's copy of the tied weight when the other copy lives on another stage."""
        if not self.spec.tied_head or (self.embedding is None) == (self.head is None):
            return None
        return self.get_parameter("head.weight" if self.embedding is None else "embedding.weight")


def stream(seed: int, name: str | int) -> int:
    """A generator's seed for one named sequence of random numbers; torch's CPU generator heeds 32 bits alone."""
    return crc32(f"{seed} {name}".encode())


def is_of_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "norm.bias"))


def initial_values(spec: ModelSpec, name: str, shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """The whole parameter at the start of training, in float32, the same on every rank of one device kind."""
    if is_of_norm(name):
        return torch.full(shape, float(name.endswith("weight")), device=device)
    if name == "head.weight" and spec.tied_head:
        name = "embedding.weight"
    generator = torch.Generator(device).manual_seed(stream(seed, name))
    return torch.empty(shape, device=device).normal_(0.0, INITIAL_STD, generator=generator)
