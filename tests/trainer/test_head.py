"""The head's loss in chunks of tokens is that of all logits at once, on one rank and on several."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from meshtune.runners.trainer import head
from meshtune.runners.trainer.exact import exact_peak
from meshtune.runners.trainer.head import Head, chunk_tokens, to_gradient
from meshtune.runners.trainer.timing.measure import LiveTensors


@pytest.fixture(params=["as written", "compiled"])
def gradient_by(request) -> Callable[[Tensor, Tensor, Head], Tensor]:
    if request.param == "as written":
        return to_gradient
    torch._dynamo.reset()
    return torch.compile(to_gradient, backend="aot_eager", fullgraph=True, dynamic=False)


@pytest.mark.parametrize("tokens", [1, 14, 15, 56])
def test_loss_and_gradients_are_those_of_all_logits_at_once(tokens, gradient_by, monkeypatch):
    monkeypatch.setattr(head, "FEWEST_CHUNK_TOKENS", 7)
    torch.manual_seed(0)
    layer, x = Head(16, 37), torch.randn(1, tokens, 16, requires_grad=True)
    layer.loss_scale, layer.to_gradient = 1 / 77, gradient_by
    targets = torch.randint(0, 37, (1, tokens))
    whole = F.cross_entropy(layer(x).flatten(0, 1), targets.flatten(), reduction="sum") / 77
    expected = torch.autograd.grad(whole, (x, layer.weight))
    chunked = layer(x, targets)
    torch.testing.assert_close(chunked, whole.reshape(1))
    chunked.backward()
    torch.testing.assert_close((x.grad, layer.weight.grad), expected)


def test_padding_is_never_predicted_and_learns_nothing(gradient_by, monkeypatch):
    monkeypatch.setattr(head, "FEWEST_CHUNK_TOKENS", 7)
    torch.manual_seed(0)
    padded, x, targets = Head(16, 48, 37), torch.randn(1, 15, 16), torch.randint(0, 37, (1, 15))
    padded.to_gradient = gradient_by
    whole = Head(16, 37)
    whole.weight.data.copy_(padded.weight[:37])
    torch.testing.assert_close(padded(x), whole(x))
    losses = [layer(x, targets) for layer in (padded, whole)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(padded.weight.grad[:37], whole.weight.grad)
    assert not padded.weight.grad[37:].any()


def test_what_is_compiled_scatters_nothing_and_returns_no_second_gradient():
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(to_gradient, backend=aot_autograd(fw_compiler=keep), fullgraph=True, dynamic=False)
    logits, layer = torch.randn(6, 48, dtype=torch.bfloat16), Head(16, 48, 37)
    given = logits.float().requires_grad_()
    targets = torch.randint(0, 37, (6,))
    expected = F.cross_entropy(given[:, :37], targets, reduction="sum")
    with torch.no_grad():
        loss = compiled(logits, targets, layer)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits.float(), torch.autograd.grad(expected, given)[0], rtol=2**-8, atol=1e-6)
    (graph,) = graphs
    assert not [node for node in graph.graph.nodes if "scatter_add" in str(node.target)]


def test_sums_over_chunks_in_bfloat16_stay_near_to_float32(monkeypatch):
    monkeypatch.setattr(head, "FEWEST_CHUNK_TOKENS", 32)
    torch.manual_seed(0)
    exact, rounded, x = Head(64, 128), Head(64, 128).bfloat16(), torch.randn(1, 256, 64)
    rounded.weight.data.copy_(exact.weight)
    targets = torch.randint(0, 128, (1, 256))
    exact(x, targets).backward()
    rounded(x.bfloat16(), targets).backward()
    assert (rounded.weight.grad.float() - exact.weight.grad).norm() < 0.01 * exact.weight.grad.norm()


def test_a_chunk_has_an_eighth_of_the_tokens_but_enough_for_the_product():
    assert [chunk_tokens(tokens) for tokens in (100, 2048, 8192, 8193, 65536)] == [1024, 1024, 1024, 1025, 8192]
    assert [chunk_tokens(8192, chunks) for chunks in (1, 2, 16)] == [8192, 4096, 1024]


def test_only_a_chunk_of_the_logits_exists_at_a_time(monkeypatch):
    monkeypatch.setattr(head, "FEWEST_CHUNK_TOKENS", 64)
    layer, x, targets = Head(8, 4096), torch.randn(1, 512, 8), torch.randint(0, 4096, (1, 512))
    logits = 4 * 512 * 4096
    with LiveTensors() as whole:
        F.cross_entropy(layer(x).flatten(0, 1), targets.flatten(), reduction="sum").backward()
    layer.weight.grad = None
    with LiveTensors() as chunked:
        layer(x, targets).backward()
    assert whole.peak_bytes > 2 * logits
    assert chunked.peak_bytes < logits / 8 + 3 * 4 * 8 * 4096


@pytest.mark.parametrize(
    ("plan", "rank", "vocab"),
    [
        pytest.param({}, 0, 32768, marks=pytest.mark.slow),
        pytest.param({"pp": 2}, 1, 32768, marks=pytest.mark.long),
        pytest.param({"tp": 2}, 0, 65536, marks=pytest.mark.long),
        pytest.param({"dp": 2, "zero_stage": 3, "recompute": "full"}, 0, 32768, marks=pytest.mark.long),
        pytest.param({"pp": 2, "vpp": 2, "schedule": "zbv"}, 0, 32768, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_no_plan_makes_more_logits_than_a_chunk(plan, rank, vocab, make_job):
    shapes = {"layers": 4, "hidden": 16, "ffn": 16, "vocab": vocab, "seq_len": 1024}
    job = make_job(plan={"micro_batch_size": 8, "grad_accum_steps": 2} | plan, model=shapes)
    peak = exact_peak(job, rank)
    # 1024 of 8192 tokens, 32768 words of each rank, in float32: 128 MiB; all of them would be 1 GiB a copy.
    assert peak.peak_bytes - peak.lasting_bytes < 1.5 * 4 * 1024 * 32768


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ({"tp": 2, "micro_batch_size": 8}, {"vocab": 50257, "hidden": 16}),
        # Four ranks, of which the last holds padding alone.
        ({"tp": 4, "micro_batch_size": 8}, {"vocab": 9}),
        pytest.param(
            {"tp": 2, "pp": 2, "zero_stage": 0},
            {"vocab": 51, "vocab_multiple": 16, "tied_head": True},
        ),
        pytest.param({"tp": 2, "dp": 2, "zero_stage": 3}, {"vocab": 51, "vocab_multiple": 16}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_padding_of_the_vocabulary_does_not_change_the_losses(plan, model, run_job, make_job):
    whole = run_job(make_job(model=model | {"vocab_multiple": 0}, plan={"micro_batch_size": 8})).losses
    assert run_job(make_job(model=model, plan=plan)).losses == pytest.approx(whole, abs=1e-4)
