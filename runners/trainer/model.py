"""The model in layers: causal self-attention over the places that this rank holds, and a feed-forward block or a
mixture of experts (`feed_forward`, `mixture`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshtune.runners.trainer.adapters import Adapters, LowRank, adapted, is_trained
from meshtune.runners.trainer.head import Head
from meshtune.runners.trainer.job import Router
from meshtune.runners.trainer.mixture import FeedForward, Mixture
from meshtune.runners.trainer.parallel.mesh import Places, place_tensor
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.recipe import Adapter, Recipe

# Calls a function with its arguments and keeps less of its activations than autograd would.
Recompute = Callable[..., Tensor]


ROPE_BASE = 10_000.0  # Su et al. 2021


# Query, key and value of (batch, heads, length, head_dim) to what the heads read, of the query's shape.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Rotation:
    """The rotary position embedding of some places, the halves of a head being the pairs, by tables that all layers of
    a chunk share. No module: what FSDP2 and `to_empty` do to buffers would empty or convert the tables."""

    def __init__(self, places: Places, head_dim: int) -> None:
        self._places, self._head_dim = places, head_dim
        self.make_tables(torch.get_default_device())

    def make_tables(self, device: torch.device) -> None:
        """cos and sin of the angles, (length, 1, head_dim / 2) each, in float32."""
        powers = torch.arange(0, self._head_dim, 2, device=device, dtype=torch.float32) / self._head_dim
        angles = torch.outer(place_tensor(self._places, device).float(), ROPE_BASE**-powers)
        self.cos, self.sin = (table.unsqueeze(1) for table in (angles.cos(), angles.sin()))


class _Rotated(torch.autograd.Function):
    """Keeps nothing: the backward pass is the rotation back, and writes one gradient of the whole product."""

    @staticmethod
    def forward(ctx: Any, product: Tensor, heads: list[int], cos: Tensor, sin: Tensor) -> Any:
        ctx.how = heads, cos, sin
        query, key, value = torch.split(product, heads, 2)
        query, key = (_rotate_into(part.new_empty(part.shape), part, cos, sin) for part in (query, key))
        return query, key, value.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        heads, cos, sin = ctx.how
        product = gradients[0].new_empty(*gradients[0].shape[:2], sum(heads), gradients[0].shape[-1])
        *turned, value = torch.split(product, heads, 2)
        for part, gradient in zip(turned, gradients[:2], strict=True):
            _rotate_into(part, gradient, cos, -sin)
        value.copy_(gradients[2])
        return product, None, None, None


def _rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In float32, whatever `x` is in."""
    (left, right), (own_left, own_right) = x.chunk(2, -1), out.chunk(2, -1)
    torch.sub(left * cos, right * sin, out=own_left)
    torch.add(left * sin, right * cos, out=own_right)
    return out


def split_heads(product: Tensor, heads: list[int], rotation: Rotation | None) -> tuple[Tensor, ...]:
    """Query, key and value, of so many `heads`, from their product (batch, length, all heads, head_dim).

    They stay in this order, in which attention answers, too: so the heads of a token lie side by side before and after
    attention, without a copy. Where query and key are rotated, the value is copied, so that it keeps no product."""
    if rotation is None:
        return torch.split(product, heads, 2)
    cos, sin = rotation.cos, rotation.sin
    if torch.compiler.is_compiling():  # it writes no halves in place, and decides itself what is kept
        *turned, value = torch.split(product, heads, 2)
        halves = (part.chunk(2, -1) for part in turned)
        query, key = (torch.cat([x * cos - y * sin, x * sin + y * cos], -1).type_as(product) for x, y in halves)
        return query, key, value.clone(memory_format=torch.contiguous_format)
    parts: tuple[Tensor, ...] = _Rotated.apply(product, heads, cos, sin)  # type: ignore[no-untyped-call]
    return parts


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention where this rank holds the whole sequence."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1])


class Attention(nn.Module):
    """Causal self-attention over so many `heads` of query, key and value: all of them, or this rank's."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.heads = [width // spec.head_dim for width in (spec.query_width, spec.kv_width, spec.kv_width)]
        self.rotation: Rotation | None = None
        self.attend: Attend = attend_causally
        self.adapters: Adapters = {}
        width = spec.query_width + 2 * spec.kv_width
        self.query_key_value: Callable[[Tensor], Tensor] = nn.Linear(spec.hidden, width, bias=False)
        self.output = nn.Linear(spec.query_width, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        widths = {target: heads * self.head_dim for target, heads in zip("qkv", self.heads, strict=True)}
        product = adapted(x, self.query_key_value(x), widths, self.adapters)
        parts = split_heads(product.view(*x.shape[:-1], -1, self.head_dim), self.heads, self.rotation)
        mixed = self.attend(*(part.transpose(1, 2) for part in parts)).transpose(1, 2).flatten(2)
        out: Tensor = self.output(mixed)
        return adapted(mixed, out, {"o": out.shape[-1]}, self.adapters)


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
    parallelism does with a block's input and with its output; not with those of experts that are `folded`, which fetch
    tokens themselves."""

    def __init__(
        self, spec: ModelSpec, places: Places, experts: range, router: Router, imbalance: float | None
    ) -> None:
        super().__init__()
        self.recompute: Recompute | None = None
        self.recompute_attention: Recompute | None = None
        # Of `run` and of `run_attention`, which they then stand for.
        self.compiled: Relayout | None = None
        self.compiled_attention: Relayout | None = None
        self.enter: Relayout = as_it_is
        self.leave: Relayout = as_it_is
        self.folded = False
        # Also the attention's and the feed-forward block's, where their products call them.
        self.adapters = nn.ModuleDict()
        self.attention_norm = build_norm(spec)
        self.attention = Attention(spec)
        self.feed_forward_norm = build_norm(spec)
        self.feed_forward = Mixture(spec, experts, places, router, imbalance) if spec.experts else FeedForward(spec)

    def adapt(self, spec: ModelSpec, adapter: Adapter) -> None:
        shapes = {"q": (spec.hidden, spec.query_width), "o": (spec.query_width, spec.hidden)}
        shapes |= dict.fromkeys("kv", (spec.hidden, spec.kv_width))
        if isinstance(self.feed_forward, FeedForward):
            shapes |= dict.fromkeys(self.feed_forward.joined, (spec.hidden, spec.ffn))
            shapes |= {"down": (spec.ffn, spec.hidden)}
        own = {str(one): LowRank(*shapes[one], adapter.rank) for one in adapter.targets if one in shapes}
        self.adapters = nn.ModuleDict(own)
        self.attention.adapters, self.feed_forward.adapters = own, own

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x) if self.compiled is None else self.compiled(x)

    def run(self, x: Tensor) -> Tensor:
        return self._blocks(x) if self.recompute is None else self.recompute(self._blocks, x)

    def run_attention(self, x: Tensor) -> Tensor:
        return self._attend(x) if self.recompute_attention is None else self.recompute_attention(self._attend, x)

    def _blocks(self, x: Tensor) -> Tensor:
        x = self.run_attention(x) if self.compiled_attention is None else self.compiled_attention(x)
        normed = self.feed_forward_norm(x)
        if self.folded:
            answer: Tensor = self.feed_forward(normed)
        else:
            answer = self.leave(self.feed_forward(self.enter(normed)))
        return x + answer

    def _attend(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.leave(self.attention(self.enter(self.attention_norm(x))))
        return out


@dataclass(frozen=True, slots=True)
class Cut:
    """How tensor parallelism cuts a parameter. shape: of the whole; axis: along which it is cut into `parts`; sections:
    widths along the axis of what is cut each for itself, none where that is the whole."""

    shape: torch.Size
    axis: int
    rank: int
    parts: int
    sections: tuple[int, ...] = ()

    def part(self, whole: Tensor) -> Tensor:
        """This rank's; the last ones may be smaller, or empty."""
        own = []
        for section in torch.split(whole, list(self.sections) or whole.shape[self.axis], self.axis):
            parts = section.chunk(self.parts, self.axis)
            own.append(parts[self.rank] if self.rank < len(parts) else section.narrow(self.axis, 0, 0))
        return own[0] if len(own) == 1 else torch.cat(own, self.axis)


class Transformer(nn.Module):
    """Some layers of the model, with the embeddings when `first`, with the final norm and head when `last`.

    Takes token ids when first, else hidden states; returns hidden states, when last the loss of the targets (see Head),
    or without targets logits. places: where in the sequence its tokens stand; experts: which ones it holds; both
    default to all. rows: of embedding and head, the vocabulary's and what pads it."""

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
        imbalance: float | None = None,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        rows = spec.vocab_rows(1) if rows is None else rows
        self.places = places or (range(spec.seq_len),)
        # By the parameter's name; those that are whole on every rank have none.
        self.cuts: dict[str, Cut] = {}
        # Names of those that are, but of whose gradient tensor parallelism leaves a part on each.
        self.partial_gradients: set[str] = set()
        learned = first and spec.position is Position.LEARNED
        self.embedding: nn.Module | None = nn.Embedding(rows, spec.hidden) if first else None
        self.position: nn.Module | None = nn.Embedding(spec.seq_len, spec.hidden) if learned else None
        self.rotation = Rotation(self.places, spec.head_dim) if spec.position is Position.ROPE else None
        self.layers: nn.ModuleDict = nn.ModuleDict()
        for index in range(spec.layers) if layers is None else layers:
            held = range(spec.experts) if experts is None else experts
            self.layers[str(index)] = layer = Layer(spec, self.places, held, router, imbalance)
            layer.attention.rotation = self.rotation
        self.norm = build_norm(spec) if last else None
        self.head = Head(spec.hidden, rows, spec.vocab) if last else None
        # Called with each part before it computes: its weights may still be on their way.
        self.await_weights: Callable[[nn.Module], None] = lambda _: None
        self.tie()

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, weight) for name, weight in self.named_parameters() if weight.requires_grad]

    def freeze(self, recipe: Recipe, dtype: torch.dtype) -> None:
        """Keep in `dtype`, and without gradients, what is not trained."""
        for name, weight in list(self.named_parameters()):
            if not is_trained(recipe, name):
                owner, _, kind = name.rpartition(".")
                frozen = nn.Parameter(torch.empty_like(weight, dtype=dtype), requires_grad=False)
                setattr(self.get_submodule(owner), kind, frozen)
        self.tie()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.embedding is not None:
            self.await_weights(self.embedding)
            tokens, x = x, self.embedding(x)
            if self.position is not None:
                self.await_weights(self.position)
                x = x + self.position(place_tensor(self.places, tokens.device))
        for layer in self.layers.values():
            self.await_weights(layer)
            x = layer(x)
        if self.norm is not None and self.head is not None:
            self.await_weights(self.norm)
            x = self.norm(x)  # what the last layer returned is kept by nobody while the head computes
            self.await_weights(self.head)
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
        """This stage's copy of the tied weight when it is trained and the other copy lives on another stage."""
        if not self.spec.tied_head or (self.embedding is None) == (self.head is None):
            return None
        weight = self.get_parameter("head.weight" if self.embedding is None else "embedding.weight")
        return weight if weight.requires_grad else None


def stream(seed: int, name: str | int) -> int:
    """A generator's seed for one named sequence of random numbers; torch's CPU generator heeds 32 bits alone."""
    return crc32(f"{seed} {name}".encode())


def is_of_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "norm.bias"))


def joined_weights(spec: ModelSpec, name: str) -> dict[str, int]:
    """The weights that the parameter joins, so that one product computes with all, by the names under which their
    initial values are drawn: each one's outputs. Empty for a parameter that is one weight."""
    attention = {"query": spec.query_width, "key": spec.kv_width, "value": spec.kv_width}
    gated = {"gate": spec.ffn, "up": spec.ffn} if spec.activation is Activation.SWIGLU else {}
    kinds = {"query_key_value": attention, "up": gated}
    kind = next((kind for kind in kinds if kind in name.split(".") and ".adapters." not in name), "")
    return {name.replace(kind, part): width for part, width in kinds.get(kind, {}).items()}


def initial_values(
    spec: ModelSpec, name: str, shape: torch.Size, seed: int, device: torch.device, experts: range = range(0)
) -> Tensor:
    """The whole parameter at the start of training, in float32, the same on every rank of one device kind. Rows that
    pad the vocabulary are 0, as is an adapter's second factor. experts: of which the parameter is the stack."""
    if is_of_norm(name) or name.endswith(".b"):
        return torch.full(shape, float(name.endswith("weight")), device=device)
    if name == "head.weight" and spec.tied_head:
        name = "embedding.weight"
    values = torch.zeros(shape, device=device)
    words = values[: spec.vocab] if name in ("embedding.weight", "head.weight") else values
    joined = joined_weights(spec, name)
    sections = torch.split(values, list(joined.values()), int(bool(experts))) if joined else [words]
    for section, own_name in zip(sections, joined or [name], strict=True):
        parts = section.chunk(len(experts)) if experts else [section]
        names = [f"{own_name}.{number}" for number in experts] or [own_name]
        for part, stream_name in zip(parts, names, strict=True):
            generator = torch.Generator(device).manual_seed(stream(seed, stream_name))
            # torch draws other numbers into what does not lie in one piece.
            drawn = part if part.is_contiguous() else part.new_empty(part.shape)
            part.copy_(drawn.normal_(0.0, INITIAL_STD, generator=generator))
    return values
