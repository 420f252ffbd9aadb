"""What takes a known time is measured as that, per trip and per size, and large sizes are given up for the budget."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from meshtune.runners.trainer.probe.rates import Place, time_messages


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
