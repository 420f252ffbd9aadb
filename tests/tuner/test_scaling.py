"""Projections: other node counts by the same physics, compared with the reference, up to the wall that they name."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from meshtune.runners.workloads.torch import TorchWorkload
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.physics.calibration import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.tuner.campaign.spec import build_space
from meshtune.tuner.cli.render.predictions import projection_parts
from meshtune.tuner.prediction.predict import Basis, foresee, learn, training_of
from meshtune.tuner.prediction.scaling import Scaling, make_projection, node_counts
from meshtune.tuner.specs.read import read_spec

FAST = {"latency_s": 1e-9, "bandwidth_bytes_per_s": 1e15}
SLOW = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e7}
DEVICE = {
    "name": "toy",
    "kind": "cuda",
    "memory_bytes": 2**40,
    "peak_flops": {"float32": 1e12},
    "memory_bandwidth_bytes_per_s": 1e13,
}
ANY_DP = {"tp": [1, 2], "pp": [1, 2, 4], "micro_batch_size": [1], "zero_stage": [0]}
SURE = Basis(calibration=Calibration(DEFAULTS, UNCALIBRATED.covariance * 1e-4, time_log_sd=0.01, memory_log_sd=0.01))


def read(**over):
    """Two nodes of two devices, joined without cost; plain data parallelism."""
    links = {"node_link": FAST, "network_link": FAST}
    document = {
        "name": "toy",
        "model": {"preset": "gpt-micro", "layers": 8, "hidden": 1024, "ffn": 4096},
        "cluster": {"nodes": 2, "devices_per_node": 2, "device": DEVICE, **links, **over.pop("cluster", {})},
        "global_batch_size": 32,
        "space": {"tp": [1], "pp": [1], "micro_batch_size": [1], "zero_stage": [0]},
        "workload": "torch",
        "search": "random",
        **over,
    }
    return read_spec(document, None)[0]


def projected(nodes=(1, 2, 4, 8), basis=SURE, least_efficiency=0.8, tokens=None, trials=(), **over):
    return make_projection(read(**over), basis, nodes, least_efficiency=least_efficiency, tokens=tokens, trials=trials)


def rows(found, scaling):
    return [row for row in found.rows if row.scaling is scaling]


def shown(page):
    out = io.StringIO()
    for part in page:
        Console(file=out, width=300, markup=False, emoji=False, highlight=False).print(part, soft_wrap=True)
    return out.getvalue()


# Rows


def test_weak_scaling_grows_the_batch_and_strong_scaling_keeps_it():
    found = projected()
    assert [(row.nodes, row.devices, row.global_batch_size) for row in rows(found, Scaling.WEAK)] == [
        (1, 2, 16),
        (2, 4, 32),
        (4, 8, 64),
        (8, 16, 128),
    ]
    assert {row.global_batch_size for row in rows(found, Scaling.STRONG)} == {32}
    for row in found.rows:
        assert row.best.plan.world_size == row.devices
        assert row.best.plan.global_batch_size == row.global_batch_size


def test_a_row_is_the_best_plan_of_the_space_at_its_node_count():
    spec = read(space={})
    found = make_projection(spec, SURE, [4])
    row = rows(found, Scaling.STRONG)[-1]
    cluster = replace(spec.cluster, nodes=4)
    space = build_space(spec.space, spec.model, cluster, 32, TorchWorkload({}))
    outlook = foresee(replace(training_of(spec), cluster=cluster), space.columns, SURE.calibration)
    assert row.best == outlook.of(space.index_of(row.best.plan), row.best.plan)
    assert outlook.score.max() == pytest.approx(row.best.p_fits * row.best.speed.tokens_per_s.value)


def test_the_reference_is_always_there_and_has_efficiency_one():
    found = projected(nodes=[8])
    for scaling in (Scaling.WEAK, Scaling.STRONG):
        start, far = rows(found, scaling)
        assert (start.nodes, start.speedup, start.efficiency) == (2, 1, 1)
        assert far.efficiency == pytest.approx(far.speedup * 4 / 16)
        ratio = far.best.speed.tokens_per_s.value / start.best.speed.tokens_per_s.value
        assert far.speedup == pytest.approx(ratio)


def test_a_batch_that_does_not_grow_by_a_whole_number_is_told():
    row = rows(projected(nodes=[1], cluster={"nodes": 3}, global_batch_size=6 * 5, space=ANY_DP), Scaling.WEAK)[0]
    assert row.global_batch_size == 10
    found = projected(nodes=[1], cluster={"nodes": 4}, global_batch_size=10, space=ANY_DP)
    row = rows(found, Scaling.WEAK)[0]
    assert found.walls[0].nodes is None  # fewer nodes than the reference are no wall
    assert row.best is None
    assert row.reason == "global batch 10 * 1 / 4 nodes is no whole number of sequences"


def test_a_free_batch_is_searched_at_every_node_count():
    space = {"tp": [1], "pp": [1], "micro_batch_size": [1], "zero_stage": [0], "grad_accum_steps": [1, 2]}
    found = projected(global_batch_size="free", space=space)
    assert {row.scaling for row in found.rows} == {Scaling.FREE}
    assert {row.best.plan.grad_accum_steps for row in found.rows} == {2}
    assert [wall.scaling for wall in found.walls] == [Scaling.FREE]


def test_tokens_become_days_and_device_hours():
    for row in projected(tokens=1e12).rows:
        speed, run = row.best.speed, row.run
        assert run.days.value * 86400 * speed.tokens_per_s.value == pytest.approx(1e12)
        assert run.days.low == pytest.approx(1e12 / speed.tokens_per_s.high / 86400)
        assert run.days.low < run.days.value < run.days.high
        assert run.device_hours.value == pytest.approx(run.days.value * 24 * row.devices)
    assert all(row.run is None for row in projected().rows)


# Walls


def test_a_slow_network_is_named_where_its_share_ends_the_scaling():
    found = projected(cluster={"nodes": 1, "network_link": SLOW}, nodes=[1, 2, 4])
    for wall in found.walls:
        assert wall.nodes == 2
        assert "falls below 80 % efficiency at 2 nodes" in wall.sentence
        assert "most is lost to data-parallel communication" in wall.sentence
    shares = [row.best.speed.shares["dp"] for row in rows(found, Scaling.STRONG)]
    assert shares[1] > 0.2 + shares[0]


def test_a_batch_smaller_than_the_replicas_ends_strong_scaling_with_the_numbers():
    found = projected(nodes=[8, 16, 32])
    *held, last = rows(found, Scaling.STRONG)
    assert all(row.best is not None for row in held)
    assert last.best is None
    assert last.reason == (
        "no legal plan: 64 devices / (tp(1) * cp(1)) * micro_batch_size(1) = 64 sequences at least, "
        "but the global batch is 32"
    )
    assert (last.speedup, last.efficiency, last.run) == (None, None, None)
    weak, strong = projected(nodes=[32]).walls
    assert weak.nodes is None
    assert strong.sentence == f"strong scaling ends before 32 nodes: {last.reason}"


# Mistakes


@pytest.mark.parametrize("text", ["0", "1,0", "-2", "two", "1.5", "1,,x", "\u00b2"])
def test_node_counts_that_are_not_positive_whole_numbers_are_refused(text):
    with pytest.raises(InvalidValue, match="nodes: must be positive whole numbers, not "):
        node_counts(text, 1)


def test_node_counts_are_read_and_default_to_doubling():
    assert node_counts("1, 2,16", 4) == (1, 2, 16)
    assert node_counts("", 3) == (3, 6, 12, 24, 48, 96)


def test_several_nodes_without_a_network_name_the_field():
    one = {"nodes": 1, "network_link": None}
    assert projected(nodes=[1], cluster=one).rows
    with pytest.raises(InvalidValue, match=r"cluster\.network_link: is not known, but the cluster has 4 nodes") as told:
        projected(nodes=[1, 2, 4], cluster=one)
    assert len(told.value.problems) == 1


# What it rests on


def test_the_measured_best_stands_beside_its_prediction(make):
    spec = read()
    plan = rows(make_projection(spec, Basis(), [2]), Scaling.WEAK)[0].best.plan
    trials = [make.trial(0, make.measurement(2.0), plan=plan), make.trial(1, make.measurement(1.0), plan=plan)]
    basis = learn("toy-1", spec, trials)
    found = make_projection(spec, basis, [2, 4], trials=trials)
    assert (found.measured_best.trial, found.measured_best.tokens_per_s) == (1, pytest.approx(1024))
    assert found.measured_best.plan_key == plan.key
    predicted = rows(found, Scaling.WEAK)[0].best.speed.tokens_per_s.value
    assert found.measured_best.predicted_tokens_per_s == pytest.approx(predicted)
    text = shown(projection_parts(found))
    assert "measured best: trial 1" in text
    assert "calibrated by 2 step times, " in text


def test_a_projection_is_printed_with_its_days_and_walls():
    found = projected(nodes=[2, 32], tokens=1e12)
    text = shown(projection_parts(found))
    assert "Strong scaling: the global batch stays" in text
    assert "days for 1e+12 tokens" in text
    assert found.walls[1].sentence in text
    assert "measured best" not in text
