"""A real probe of a few CPU ranks ends in time, with figures or one reason, and leaves no process."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from jobs import processes_where, wait_for

from meshtune.runners.trainer_answers import (
    Exchange,
    Message,
    Pattern,
    Probed,
    ProbeRequest,
    Rate,
    Tier,
    read_probed,
    write_probed,
)
from meshtune.runners.trainer_client import ProbeFailed, probe
from meshtune.search_spaces.cluster import DeviceKind, LayerRate, LayerRun, MeasuredRates
from meshtune.search_spaces.model import ModelSpec


def rate(what, size, per_s):
    return Rate(what=what, size=size, per_s=per_s, lowest_per_s=per_s, highest_per_s=per_s, samples=3, spread=0.1)


PROBED = Probed(
    host="host",
    measured_at="2026-01-02T03:04:05+00:00",
    software={"torch": "2.13.0"},
    seconds=20.0,
    nodes=1,
    devices_per_node=4,
    kind=DeviceKind.CPU,
    device="a core",
    memory_bytes=2**30,
    matmul=(rate("float32", 256, 3e10), rate("float32", 512, 5e10), rate("bfloat16", 256, 1e9)),
    memory=(rate("copy", 2**26, 1e10), rate("triad", 2**26, 2e10)),
    exchanges=(
        Exchange(
            pattern=Pattern.ALL_REDUCE,
            tier=Tier.NODE,
            ranks=4,
            messages=tuple(
                # 6 hops of 10 us, and 6/4 of the size at 1 GB/s
                Message(size_bytes=size, time_s=6e-5 + 1.5 * size / 1e9, samples=5, spread=0.0)
                for size in (2**10, 2**20)
            ),
        ),
    ),
)


TRAINED = replace(
    PROBED,
    model=ModelSpec(name="small", layers=2, hidden=32, heads=2, ffn=64, vocab=128, seq_len=16),
    rates={"float32": MeasuredRates(layer_bytes_per_s=(LayerRate(tokens=16, bytes_per_s=1e9),), layer_host_s=1e-3)},
    runs={"float32": (LayerRun(2, 1, False, 0.5),)},
)


@pytest.mark.parametrize("probed", [PROBED, TRAINED], ids=["without_a_model", "with_one"])
def test_figures_come_back_from_their_file(probed, tmp_path):
    write_probed(tmp_path, probed)
    assert read_probed(tmp_path) == probed
    assert os.listdir(tmp_path) == ["probe.json"]


def test_a_probe_that_takes_too_long_is_killed_with_all_its_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(ProbeFailed, match=r"took longer than 0\.6 s and was killed"):
        probe(ProbeRequest(seconds=0.1), start_limit_s=0.1)
    told = str(tmp_path).encode()
    wait_for(lambda: not processes_where(lambda process: told in (process / "cmdline").read_bytes()), 20)
    assert os.listdir(tmp_path) == []
