"""The model has the parameters its spec says, and its initial numbers depend on their names and the seed alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshtune.runners.trainer.model import INITIAL_STD, Cut, Rotation, Transformer, split_heads, stream
from meshtune.runners.trainer.parallel.context import places_of
from meshtune.runners.trainer.parallel.mesh import place_tensor
from meshtune.runners.trainer.parallel.pipeline import stages_of
from meshtune.runners.trainer.parallel.sharding import materialize
from meshtune.search_spaces.model import Activation, ModelSpec, Norm, Position
from meshtune.search_spaces.plan import ContextParallel, Plan, Schedule
from meshtune.search_spaces.stages import layers_of_chunk

SHAPES = {"name": "m", "layers": 3, "hidden": 48, "heads": 6, "ffn": 80, "vocab": 101, "seq_len": 8}
GPT2 = {
    "norm": Norm.LAYERNORM,
    "activation": Activation.GELU,
    "position": Position.LEARNED,
    "tied_head": True,
}


def build(spec: ModelSpec, *arguments, seed: int = 0, **stage) -> Transformer:
    with torch.device("meta"):
        model = Transformer(spec, *arguments, **stage)
    materialize(model, torch.device("cpu"), seed)
    return model


MIXTURE = {"experts": 6, "top_k": 2}


@pytest.mark.parametrize(
    "change",
    [{}, {"kv_heads": 2}, {"kv_heads": 1, "tied_head": True}, GPT2, MIXTURE, MIXTURE | GPT2 | {"tied_head": False}],
    ids=str,
)
def test_the_model_has_as_many_parameters_as_its_spec_says(change):
    spec = ModelSpec(**SHAPES | change)
    with torch.device("meta"):
        model = Transformer(spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.parameters


@pytest.mark.parametrize("change", [{}, GPT2], ids=["llama", "gpt2"])
def test_the_stages_together_equal_the_whole_model(change):
    spec = ModelSpec(**SHAPES | change)
    whole = build(spec).state_dict()
    seen = set()
    for stage in range(3):
        part = build(spec, layers_of_chunk(Plan(pp=3), spec.layers, stage), first=stage == 0, last=stage == 2)
        for name, values in part.state_dict().items():
            torch.testing.assert_close(values, whole[name], rtol=0, atol=0)
            seen.add(name)
    assert seen == set(whole)


def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(stream(0, name))
    return torch.empty(shape).normal_(0.0, INITIAL_STD, generator=generator)


def test_joined_weights_start_with_the_numbers_of_each_alone():
    spec = ModelSpec(**SHAPES | {"kv_heads": 2})
    weights, mixture = build(spec).state_dict(), build(replace(spec, **MIXTURE)).state_dict()
    for block, parts in {
        "attention.query_key_value": {"query": 48, "key": 16, "value": 16},
        "feed_forward.up": {"gate": 80, "up": 80},
    }.items():
        owner = block.partition(".")[0]
        alone = [drawn(f"layers.1.{owner}.{part}.weight", (width, 48)) for part, width in parts.items()]
        torch.testing.assert_close(weights[f"layers.1.{block}.weight"], torch.cat(alone), rtol=0, atol=0)
    experts = mixture["layers.1.feed_forward.experts.up"].view(6, 48, 160)
    for number in range(6):
        alone = [drawn(f"layers.1.feed_forward.experts.{part}.{number}", (48, 80)) for part in ("gate", "up")]
        torch.testing.assert_close(experts[number], torch.cat(alone, 1), rtol=0, atol=0)


def test_a_cut_takes_as_much_of_each_of_the_weights_that_are_joined():
    whole = torch.arange(12).view(6, 2)
    parts = [Cut(whole.shape, 0, rank, 2, (2, 4)).part(whole)[:, 0].tolist() for rank in (0, 1)]
    assert parts == [[0, 4, 6], [2, 8, 10]]


def test_a_tied_head_stays_tied_and_only_the_outer_stages_share_it():
    spec = ModelSpec(**SHAPES | GPT2)
    model, middle = build(spec), build(spec, [1], first=False, last=False)
    assert model.get_parameter("head.weight") is model.get_parameter("embedding.weight")
    assert model.shared_with_another_stage() is middle.shared_with_another_stage() is None
    outer = build(spec, [2], first=False, last=True)
    assert outer.shared_with_another_stage() is outer.get_parameter("head.weight")


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0)).unbind(0)
    product = torch.cat([query, key, key], 2).expand(1, 8, 3, 16)
    queries, keys, values = split_heads(product, [1, 1, 1], Rotation((range(8),), 16))
    torch.testing.assert_close(values, product[:, :, 2:], rtol=0, atol=0)
    torch.testing.assert_close(queries.norm(dim=-1), query.norm(dim=-1).expand(1, 8, 1))
    scores = queries[0, :, 0] @ keys[0, :, 0].T
    torch.testing.assert_close(scores[3, 1], scores[7, 5])
    assert not torch.isclose(scores[3, 1], scores[3, 2])


def test_later_tokens_do_not_change_earlier_logits():
    model = build(ModelSpec(**SHAPES))
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 99
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert difference[:5].max() == 0
    assert difference[5:].min() > 0


@pytest.mark.parametrize(("layers", "stages"), [(4, 2), (7, 3), (5, 5), (1, 1)])
def test_the_cut_is_balanced_and_leaves_no_layer_out(layers, stages):
    cut = [layers_of_chunk(Plan(pp=stages), layers, stage) for stage in range(stages)]
    assert [index for part in cut for index in part] == list(range(layers))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


@pytest.mark.parametrize("kind", ContextParallel)
def test_the_ranks_of_cp_hold_every_place_once(kind):
    plan = Plan(cp=4, context=kind)
    held = [place_tensor(places_of(plan, rank, 32), torch.device("cpu")).tolist() for rank in range(4)]
    assert sorted(place for part in held for place in part) == list(range(32))
    assert {len(part) for part in held} == {8}
    if kind is ContextParallel.RING:
        # Under the causal mask a place costs as much as its number says.
        assert len({sum(part) for part in held}) == 1


@pytest.mark.parametrize(
    ("schedule", "vpp", "expected"),
    [
        (Schedule.ONE_F_ONE_B, 1, [(0,), (1,), (2,)]),
        (Schedule.INTERLEAVED, 2, [(0, 3), (1, 4), (2, 5)]),
        (Schedule.ZBV, 2, [(0, 5), (1, 4), (2, 3)]),
    ],
)
def test_every_stage_has_one_rank(schedule, vpp, expected):
    plan = Plan(pp=3, vpp=vpp, schedule=schedule)
    assert [stages_of(plan, rank) for rank in range(3)] == expected
