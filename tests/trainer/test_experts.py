"""A balanced router gives every expert equally many tokens and still learns; places and stages leave nothing out."""

from __future__ import annotations

import pytest
import torch

from meshtune.runners.trainer.blocks import Mixture, place_tensor
from meshtune.runners.trainer.job import Router
from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel.context import places_of
from meshtune.runners.trainer.parallel.pipeline import stages_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Schedule

SPEC = ModelSpec(
    name="m", layers=2, hidden=16, heads=2, ffn=24, vocab=32, seq_len=8, experts=4, top_k=2, activation="gelu"
)
CPU = torch.device("cpu")


def test_a_mixture_is_the_weighted_sum_of_its_experts():
    torch.manual_seed(0)
    mixture = Mixture(SPEC, range(4), (range(8),), Router.LEARNED)
    x = torch.randn(1, 8, SPEC.hidden)
    probabilities = torch.softmax(mixture.router(x[0]), -1)
    weights, choices = probabilities.topk(2, -1)
    answers = torch.stack([expert(x[0]) for expert in mixture.experts.children()])
    expected = sum(weights[:, k, None] * answers[choices[:, k], torch.arange(8)] for k in range(2))
    torch.testing.assert_close(mixture(x)[0], expected)


@pytest.mark.parametrize("shape", [{}, {"norm": "layernorm", "activation": "gelu", "position": "learned"}], ids=str)
def test_a_mixture_of_experts_has_as_many_parameters_as_its_spec_says(shape):
    spec = ModelSpec(
        **dict(name="m", layers=3, hidden=48, heads=6, ffn=80, vocab=101, seq_len=8, experts=6, top_k=2) | shape
    )
    with torch.device("meta"):
        model = Transformer(spec)
        halves = [Transformer(spec, experts=range(start, start + 3)) for start in (0, 3)]
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.parameters
    names = [set(dict(half.named_parameters())) for half in halves]
    assert names[0] | names[1] == set(dict(model.named_parameters()))
    assert not any("experts" in name for name in names[0] & names[1])


@pytest.mark.parametrize("kind", ContextParallel)
def test_the_ranks_of_cp_hold_every_place_once(kind):
    plan = Plan(cp=4, context=kind)
    held = [place_tensor(places_of(plan, rank, 32), CPU).tolist() for rank in range(4)]
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
