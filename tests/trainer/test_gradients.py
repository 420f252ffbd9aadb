"""Gradients are summed in float32: the first of a step overwrites, the head's is added where it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from meshtune.runners.trainer import head
from meshtune.runners.trainer.head import GradientSum, Head
from meshtune.runners.trainer.parallel.sharding import FlatAdamW


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_forgets_the_last_step_and_adds_products_in_float32(dtype, monkeypatch):
    monkeypatch.setattr(head, "_ROWS_AT_ONCE", 3)
    torch.manual_seed(0)
    left, right, more = (torch.randn(shape).to(dtype) for shape in ((9, 7), (9, 5), (7, 5)))
    total = GradientSum(torch.full((7, 5), torch.nan))
    total.add_product(left, right, 0.5)
    total.add(more)
    total.add_product(left, right, 0.5)
    assert total.total.dtype is torch.float32
    expected = left.double().T @ right.double() + more.double()
    error = (total.total.double() - expected).abs().max()
    assert error < 4 * torch.finfo(dtype).eps * expected.abs().max()


def test_the_head_adds_to_the_optimizers_sum_over_chunks_and_micro_batches_without_rounding_it(monkeypatch):
    monkeypatch.setattr(head, "FEWEST_CHUNK_TOKENS", 7)
    torch.manual_seed(0)
    layer, heard = Head(16, 37).bfloat16(), []
    layer.weight.register_post_accumulate_grad_hook(lambda weight: heard.append(weight.grad))
    batches = [(torch.randn(1, 56, 16).bfloat16(), torch.randint(0, 37, (1, 56))) for _ in range(2)]
    for x, targets in batches:
        layer(x.requires_grad_(), targets).backward()
    rounded = layer.weight.grad.clone()
    layer.weight.grad, layer.gradient_sum = None, GradientSum(torch.full((37, 16), torch.nan))
    heard.clear()
    for x, targets in batches:
        layer(x, targets).backward()
    # So the optimizer hears of each, which autograd holds nothing of.
    assert heard == [None, None]
    error = (layer.gradient_sum.total - rounded).abs().max()
    assert error < torch.finfo(torch.bfloat16).eps * rounded.abs().max()
    assert (layer.gradient_sum.total.bfloat16() != layer.gradient_sum.total).any()


class Passes(TorchDispatchMode):
    """Counts what is done to whole gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.endswith("_") and args[0].numel() > 1:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_first_gradient_of_a_step_is_copied_and_each_later_one_added(alone):
    used, unused = (nn.Parameter(torch.ones(8)) for _ in range(2))
    optimizer = FlatAdamW([used, unused], 0.1, [alone], shard=False, backward_passes=3)
    for factors in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]):
        with Passes() as passes:
            optimizer.begin_step()
            for factor in factors:
                (used * factor).sum().backward()
        assert passes.counts == {"copy_": 1, "add_": 2}
        optimizer.reduce()
        torch.testing.assert_close(optimizer.gradient(used), torch.full((8,), sum(factors)))
        assert not optimizer.gradient(unused).any()
        optimizer.update()
