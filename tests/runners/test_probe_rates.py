"""What takes a known time is measured as that, per trip and per size, and large sizes are given up for the budget."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from meshtune.runners.trainer.probe.rates import Place, dtypes, time_matmul, time_memory, time_messages


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A rank without peers."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "meet"), 1), rank=0, world_size=1)
    yield Place(torch.device("cpu"))
    dist.destroy_process_group()


def test_a_trip_is_its_share_of_an_exchange_and_large_messages_go_first_from_a_small_budget(place, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def exchange(buffer):
        now[0] += 0.1

    messages = time_messages(place, exchange, 0.3, trips=2)
    assert [message.size_bytes for message in messages] == [1024 * 4**power for power in range(6)]
    for message in messages:
        assert message.time_s == pytest.approx(0.05)
        assert message.samples == 3


@pytest.fixture
def own_time(monkeypatch):
    """A clock that stands still while others have the processor: what is measured takes none of their time."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)


def test_rates_are_those_of_a_product_and_of_memory(place, own_time):
    torch.set_num_threads(1)
    sizes = time_matmul(place, torch.float32, 0.4)
    assert [rate.size for rate in sizes][:2] == [256, 512]
    left = torch.randn(256, 256)
    # The order of magnitude only: others have a share of the caches and of the memory's bandwidth.
    assert 0.1 < sizes[0].per_s / (2 * 256**3 / _best_s(lambda: left @ left)) < 10
    copied, added = time_memory(place, 0.4)
    target, source = torch.ones(2**24), torch.ones(2**24)
    assert 0.1 < copied.per_s / (2 * 2**26 / _best_s(lambda: target.copy_(source))) < 10
    assert (copied.what, added.what) == ("copy", "triad")
    assert dtypes(place.device) == [torch.float32, torch.bfloat16]


def _best_s(operation):
    times = []
    for _ in range(20):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return min(times)
