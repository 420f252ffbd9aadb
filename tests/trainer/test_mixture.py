"""A mixture of experts is what a plain loop over its experts computes, whoever holds them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from meshtune.runners.trainer import mixture
from meshtune.runners.trainer.fakes import alone
from meshtune.runners.trainer.job import Router
from meshtune.runners.trainer.mixture import Experts, Mixture, choose_by_place, grouped_product
from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel import sharding
from meshtune.runners.trainer.parallel.context import places_of
from meshtune.runners.trainer.parallel.mesh import build_mesh
from meshtune.runners.trainer.parallel.sharding import FlatAdamW, materialize
from meshtune.search_spaces.model import Activation, ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import skewed_shares

SHAPES = {"name": "m", "layers": 2, "hidden": 48, "heads": 6, "ffn": 80, "vocab": 101, "seq_len": 8, "top_k": 2}
# One without tokens at the start, between and at the end.
COUNTS = {"uneven": [3, 0, 9, 4], "none at the ends": [0, 7, 9, 0], "one has all": [0, 16, 0, 0], "nothing": [0] * 4}


def product_by_loop(rows, weights, ends):
    edges = pairwise([0, *ends.tolist()])
    return torch.cat([rows[start:end] @ weight for (start, end), weight in zip(edges, weights, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("ffn", [80, 50], ids=["aligned", "not aligned"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_grouped_product_has_the_values_and_gradients_of_a_loop(dtype, counts, ffn, transposed):
    torch.manual_seed(0)
    ends = torch.tensor(counts).cumsum(0, dtype=torch.int32)
    stacked = torch.randn(4, 48, ffn, dtype=dtype, requires_grad=True)
    rows = torch.randn(sum(counts), ffn if transposed else 48, dtype=dtype, requires_grad=True)
    weights = stacked.transpose(1, 2) if transposed else stacked
    ours, expected = grouped_product(rows, weights, ends), product_by_loop(rows, weights, ends)
    given = torch.randn_like(ours)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    everything = zip(
        (ours, *torch.autograd.grad(ours, (rows, stacked), given)),
        (expected, *torch.autograd.grad(expected, (rows, stacked), given)),
        strict=True,
    )
    for one, other in everything:
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_only_sizes_that_torch_refuses_go_through_the_loop(monkeypatch):
    monkeypatch.setattr(mixture, "grouped_mm", lambda rows, weights, offs: "grouped")
    ends = torch.tensor([1, 2], dtype=torch.int32)
    sizes = {(torch.float32, 4): True, (torch.float32, 6): False, (torch.bfloat16, 8): True, (torch.bfloat16, 4): False}
    for (dtype, width), grouped in sizes.items():
        rows, weights = torch.zeros(2, width, dtype=dtype), torch.zeros(2, width, 16, dtype=dtype)
        assert isinstance(grouped_product(rows, weights, ends), str) is grouped


@pytest.mark.parametrize("activation", Activation)
def test_a_mixture_is_the_weighted_sum_of_its_experts(activation):
    torch.manual_seed(0)
    spec = ModelSpec(**SHAPES | {"experts": 4, "activation": activation})
    block = Mixture(spec, range(4), (range(8),), Router.LEARNED)
    for parameter in block.experts.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 8, spec.hidden)
    weights, choices = torch.softmax(block.router(x[0]), -1).topk(2, -1)
    up, down = (matrix.view(4, spec.hidden, -1) for matrix in (block.experts.up, block.experts.down))
    gate, inner = (x @ up).tensor_split([-spec.ffn], -1)
    inner = F.silu(gate) * inner if gate.numel() else F.gelu(inner)
    answers = inner @ down.transpose(1, 2)
    expected = sum(weights[:, k, None] * answers[choices[:, k], torch.arange(8)] for k in range(2))
    torch.testing.assert_close(block(x)[0], expected, rtol=1e-4, atol=1e-4)


def test_ranks_start_with_the_experts_that_are_theirs():
    spec = ModelSpec(**SHAPES | {"experts": 6})

    def build(experts):
        with torch.device("meta"):
            model = Transformer(spec, experts=experts)
        materialize(model, torch.device("cpu"), 0)
        return model.state_dict()

    whole, parts = build(range(6)), [build(range(start, start + 3)) for start in (0, 3)]
    projections = [name for name in whole if "experts" in name]
    assert len(projections) == 2 * 2
    for name in projections:
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), whole[name], rtol=0, atol=0)
        assert len({float(expert[0, 0]) for expert in whole[name].view(6, spec.hidden, -1)}) == 6


class HostWaits(TorchDispatchMode):
    """Counts the operations for which a CUDA device would make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in (
            "_local_scalar_dense",
            "bincount",
            "nonzero",
            "repeat_interleave",
        )
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("router", Router)
def test_routing_on_one_rank_does_not_wait_for_the_device(router):
    spec = ModelSpec(**SHAPES | {"experts": 4})
    block = Mixture(spec, range(4), (range(8),), router, 2.0 if router is Router.SKEWED else None)
    with HostWaits() as waits:
        block(torch.randn(2, 8, spec.hidden)).logsumexp(-1).sum().backward()
    assert waits.count == 0


def test_weights_of_any_number_of_replicas_lie_where_grouped_products_can_read_them(make_job, monkeypatch):
    monkeypatch.setattr(sharding, "BUCKET_ELEMENTS", 1)
    job = make_job(plan={"dp": 3, "zero_stage": 1, "grad_accum_steps": 1})
    parameters = [torch.nn.Parameter(torch.ones(2, 8, dtype=torch.bfloat16)) for _ in range(3)]
    with alone(job, 0):
        replicas = build_mesh(job.plan, "cpu").replicas.get_all_groups()
        FlatAdamW(parameters, 1e-3, replicas, shard=True, backward_passes=1)
    assert [parameter.data_ptr() % 16 for parameter in parameters] == [0, 0, 0]


def test_experts_are_one_parameter_per_product():
    spec = ModelSpec(**SHAPES | {"experts": 6})
    experts = Experts(spec, range(2, 4))
    shapes = {name: tuple(parameter.shape) for name, parameter in experts.named_parameters()}
    assert shapes == {"up": (2 * spec.hidden, 2 * spec.ffn), "down": (2 * spec.hidden, spec.ffn)}


def counts_of(experts, top_k, imbalance, places):
    choices = choose_by_place(places, experts, top_k, imbalance, torch.device("cpu"))
    assert all(len(set(row)) == top_k for row in choices.tolist())
    return choices.flatten().bincount(minlength=experts)


@pytest.mark.parametrize(
    ("experts", "top_k", "imbalance"), [(8, 2, 2.0), (8, 2, 4.0), (8, 1, 7.5), (64, 8, 3.0), (240, 8, 1.0)]
)
@pytest.mark.parametrize("parts", [1, 4])
def test_a_skewed_router_gives_every_expert_its_share_of_any_slice_of_the_sequence(experts, top_k, imbalance, parts):
    shares = torch.tensor(skewed_shares(experts, imbalance), dtype=torch.float64)
    assert float(shares.max()) * experts == pytest.approx(imbalance)
    for rank in range(parts):
        counts = counts_of(experts, top_k, imbalance, places_of(Plan(cp=parts), rank, 4096))
        assert counts.sum() == 4096 // parts * top_k
        # The discrepancy of multiples of the golden ratio grows with the logarithm of their number.
        assert (counts - shares * counts.sum()).abs().max() < 5


def test_a_balanced_router_gives_every_expert_equally_many():
    assert counts_of(8, 2, None, (range(4, 12),)).tolist() == [2] * 8
