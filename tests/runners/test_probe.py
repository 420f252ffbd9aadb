"""A probe: a real one of a few CPU ranks ends in time, with figures or one reason, and leaves no process; a link's
latency and bandwidth come back from the times they make; a launcher's variables say which rank this is and where they
meet."""

from __future__ import annotations

import os
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import processes_where, wait_for

from meshtune.runners.trainer.probe import NodeLayout, ProbeRefused, count_ranks, lay_out
from meshtune.runners.trainer_answers import (
    Exchange,
    InvalidLaunch,
    Message,
    NoFit,
    Pattern,
    Probed,
    ProbeRequest,
    RankLaunch,
    Rate,
    Tier,
    first_host,
    fit_all_reduce,
    fit_point_to_point,
    read_launch,
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


SIZES = [1024 * 4**power for power in range(9)]
latencies = st.floats(1e-6, 1e-4)
bandwidths = st.floats(1e9, 1e11)


def all_reduce_s(size, ranks, alpha_s, bandwidth):
    return 2 * (ranks - 1) * alpha_s + 2 * (ranks - 1) / ranks * size / bandwidth


@given(latencies, bandwidths, st.integers(2, 1024))
def test_exact_times_give_back_the_link(alpha_s, bandwidth, ranks):
    fit = fit_all_reduce(SIZES, [all_reduce_s(size, ranks, alpha_s, bandwidth) for size in SIZES], ranks)
    assert fit.alpha_s == pytest.approx(alpha_s, rel=1e-6)
    assert fit.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-6)
    assert fit.worst_residual < 1e-6


def test_every_size_counts_the_same_however_long_it_takes():
    times = [1e-5 + size / 1e9 for size in SIZES]
    times[-1] *= 2  # seen by absolute least squares alone, the largest would make the bandwidth half
    fit = fit_point_to_point(SIZES, times)
    assert fit.bandwidth_bytes_per_s > 0.75e9
    assert fit.alpha_s == pytest.approx(1e-5, rel=0.3)


def test_a_negative_latency_becomes_none_and_the_bandwidth_is_fitted_alone():
    # The unconstrained line through these is t = 2 S / 1e9 - 1e-6.
    fit = fit_point_to_point([1000, 2000], [1e-6, 3e-6])
    assert fit.alpha_s == 0
    # minimum of (1000 b / 1e-6 - 1)^2 + (2000 b / 3e-6 - 1)^2, in units of 1e-9: (b - 1)^2 + (2 b / 3 - 1)^2
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e9 / ((1 + 2 / 3) / (1 + 4 / 9)))
    assert fit.worst_residual == pytest.approx(3 / 13)  # b = 15 / 13; the second is the worse one


@pytest.mark.parametrize(
    ("sizes", "times", "word"),
    [
        ([1000, 2000], [2e-6, 1e-6], "larger messages did not take longer"),
        ([1000, 2000, 4000], [1e-6, 1e-6, 1e-6], "larger messages did not take longer"),
        ([1000], [1e-6], "two sizes at least are needed, not 1"),
        ([1000, 1000], [1e-6, 2e-6], "two sizes at least are needed, not 1"),
        ([1000, 2000], [0.0, 1e-6], "must be positive and finite, not 0.0"),
        ([1000, 2000], [-1e-6, 1e-6], "not -1e-06"),
        ([1000, 2000], [nan, 1e-6], "not nan"),
        ([1000, 2000], [1e-6, inf], "not inf"),
    ],
)
def test_times_that_make_no_link_are_refused(sizes, times, word):
    with pytest.raises(NoFit, match=word):
        fit_point_to_point(sizes, times)


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[007-010]",
    "SLURM_JOB_ID": "123456",
}


LAUNCH = RankLaunch(rank=5, world_size=8, local_rank=1, node="2", address="gpu007", port=20000 + 3456)


@pytest.mark.parametrize(
    ("variables", "launch"),
    [
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, None),  # a batch script is no rank
        (TORCHRUN, replace(LAUNCH, node="1", address="n0", port=29500)),
        (SRUN, LAUNCH),  # the first host, and a port of the job
        ({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}, replace(LAUNCH, address="10.0.0.1", port=1234)),
    ],
)
def test_a_launchers_variables_say_who_is_where(variables, launch):
    assert read_launch(variables, "host") == launch


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"WORLD_SIZE": ""}, "WORLD_SIZE must be a whole number under a launcher, not ''"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK must be a whole number"),
        ({"RANK": "8"}, r"RANK\(8\) is no rank of WORLD_SIZE\(8\)"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR must say where the 8 ranks meet"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT must be a port's number, not 'http'"),
    ],
)
def test_variables_that_make_no_launch_are_refused(over, word):
    with pytest.raises(InvalidLaunch, match=word):
        read_launch({**TORCHRUN, **over}, "host")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n0", "n0"),
        ("n0,n1", "n0"),
        ("gpu[007-012,020]", "gpu007"),
        ("gpu[3,5-7],login1", "gpu3"),
        ("login1,gpu[3-4]", "login1"),
        ("n[1-2].site", "n1.site"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes, host):
    assert first_host(nodes) == host


def test_ranks_are_laid_out_by_the_node_that_they_name():
    layout = lay_out(["a", "b", "a", "b"], None)
    assert layout == NodeLayout(((0, 2), (1, 3)))
    assert layout.groups(Tier.NODE) == [(0, 2), (1, 3)]
    assert layout.groups(Tier.NETWORK) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("nodes", "asked", "word"),
    [
        (["a", "a", "b"], None, "as many ranks each, not 1 and 2"),
        (["a", "a"], 4, "--devices-per-node 4, but the launcher started 2 ranks per node"),
    ],
)
def test_a_layout_other_than_asked_for_is_refused(nodes, asked, word):
    with pytest.raises(ProbeRefused, match=word):
        lay_out(nodes, asked)


@pytest.mark.parametrize(
    ("wanted", "accelerators", "cores", "ranks"),
    [
        (None, 8, 96, 8),
        (2, 8, 96, 2),
        (None, 1, 4, 1),
        (None, 0, 1, 2),
        (None, 0, 4, 4),
        (None, 0, 96, 8),
        (3, 0, 1, 3),
    ],
)
def test_a_machine_gets_a_rank_per_accelerator_or_core(wanted, accelerators, cores, ranks):
    assert count_ranks(wanted, accelerators, cores) == ranks
