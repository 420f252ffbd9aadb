"""Projections: other node counts by the same physics, compared with the reference, up to the wall that they name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import toy
from command_lab import shown

from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import DEFAULTS, UNCALIBRATED, Calibration
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import build_space
from meshtune.tuner.campaign.units import percent
from meshtune.tuner.cli.render.predictions import projection_parts
from meshtune.tuner.prediction.predict import Basis, foresee, learn, training_of
from meshtune.tuner.prediction.projection import Scaling, layout_of, node_counts
from meshtune.tuner.prediction.scaling import make_projection
from meshtune.tuner.specs.read import read_spec

FAST = {"latency_s": 1e-9, "bandwidth_bytes_per_s": 1e15}
SLOW = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e7}
DEVICE = toy.DEVICE | {"memory_bytes": 2**40, "memory_bandwidth_bytes_per_s": 1e13}
STAGES = {"tp": [1], "pp": [1, 2, 4], "micro_batch_size": [1], "zero_stage": [0]}
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


def projected(nodes=(1, 2, 4, 8), basis=SURE, least_efficiency=0.8, tokens=None, trials=(), plan=None, **over):
    options = {"least_efficiency": least_efficiency, "tokens": tokens, "trials": trials, "plan": plan}
    return make_projection(read(**over), basis, nodes, **options)


def rows(found, scaling):
    return [row for row in found.rows if row.scaling is scaling]


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


def test_the_smallest_node_count_with_a_plan_that_should_fit_is_the_reference():
    found = projected(nodes=[1, 2, 4], space=STAGES, cluster={"device": DEVICE | {"memory_bytes": 3500 * 2**20}})
    fits = {row.nodes: row.best.p_fits for row in rows(found, Scaling.WEAK)}
    assert fits[1] < 0.5 < fits[2]
    assert found.reference_nodes == 2
    assert [row.efficiency for row in found.rows if row.nodes == 2] == [1, 1]
    assert projected(nodes=[1, 2, 4]).reference_nodes == 1


def test_a_plan_that_does_not_fit_has_neither_efficiency_nor_days_and_says_so():
    small = {"device": DEVICE | {"memory_bytes": 3500 * 2**20}}
    found = projected(nodes=[1, 2, 4], space=STAGES, cluster=small, tokens=1e12)
    first, *others = rows(found, Scaling.WEAK)
    assert (first.speedup, first.efficiency, first.run) == (None, None, None)
    assert first.note == f"should not fit: P(fits) {percent(first.best.p_fits)}, below 50 %"
    assert all(row.run is not None and row.efficiency is not None for row in others)
    assert f"1 node: {first.note}" in shown(*projection_parts(found), soft_wrap=True)


def test_a_plan_that_should_fit_goes_before_a_faster_one_that_should_not():
    small = {"device": DEVICE | {"memory_bytes": 4100 * 2**20}}
    space = {"tp": [1], "pp": [1], "micro_batch_size": [4], "zero_stage": [1], "recompute": ["none", "full"]}
    found = projected(nodes=[2], space=space, cluster=small, basis=Basis())
    recomputing = rows(found, Scaling.WEAK)[0].best
    assert recomputing.p_fits > 0.5
    other = projected(nodes=[2], space=space | {"recompute": ["none"]}, cluster=small, basis=Basis())
    faster = rows(other, Scaling.WEAK)[0].best
    assert faster.p_fits < 0.5
    assert faster.speed.tokens_per_s.value > recomputing.speed.tokens_per_s.value


def test_an_efficiency_above_one_says_which_layout_the_memory_lets_in_and_what_it_saves():
    small = {"device": DEVICE | {"memory_bytes": 4100 * 2**20}}
    space = {"tp": [1], "pp": [1], "micro_batch_size": [4], "zero_stage": [1], "recompute": ["none", "full"]}
    found = rows(projected(nodes=[2, 4, 8], space=space, cluster=small), Scaling.WEAK)
    assert [row.efficiency > 1.01 for row in found] == [False, False, True]
    assert [row.note for row in found[:2]] == ["", ""]
    told = r"above 100 %: recompute full -> none, which should not fit on 2 nodes: P\(fits\) [\d.]+ %, below 50 %; "
    assert re.match(told, found[2].note)
    assert found[2].note.endswith(" of the reference's time per token is saved in recomputation")


def test_a_search_that_missed_the_best_layout_is_no_reference_for_more_than_all_of_it_without_a_word(make):
    spec = read(space=ANY_DP)
    best, slow = (make_projection(spec, SURE, [2], plan=Plan(pp=pp)).rows[0].best.plan for pp in (1, 4))
    trials = [make.trial(0, make.measurement(1.0), plan=slow)]
    far = rows(make_projection(spec, SURE, [4], trials=trials), Scaling.WEAK)[1]
    assert far.best.plan.pp == best.pp
    assert far.efficiency > 1
    assert "pp 4 -> 1, which was not the fastest measured on 2 nodes; " in far.note


def test_one_layout_is_stretched_over_every_node_count():
    layout = Plan(tp=1, pp=2, micro_batch_size=2)
    found = projected(nodes=[1, 2, 4, 8, 32], plan=layout)
    for row in found.rows:
        if row.best is not None:
            plan = row.best.plan
            assert (plan.tp, plan.pp, plan.micro_batch_size, plan.zero_stage) == (1, 2, 2, 0)
            assert (plan.dp, plan.global_batch_size) == (row.devices // 2, row.global_batch_size)
    assert all(row.best is not None for row in rows(found, Scaling.WEAK))
    assert rows(found, Scaling.STRONG)[-1].reason == (
        "micro_batch_size(2) * dp(32) does not divide the global batch 32"
    )
    assert found.layout == "tp1 pp2 mbs2 zero0"


def test_a_group_of_all_ranks_or_more_is_of_all():
    layout = Plan(tp=1, micro_batch_size=2, zero_stage=1, zero_group=4)
    small = [row.best.plan for row in rows(projected(nodes=[1, 2], plan=layout), Scaling.STRONG)]
    assert [(plan.dp, plan.zero_stage, plan.zero_group) for plan in small] == [(2, 1, 0), (4, 1, 0)]


def test_a_layout_that_is_not_legal_says_which_rule_it_breaks():
    for row in projected(nodes=[1, 2], plan=Plan(tp=1, pp=2, vpp=3)).rows:
        assert row.best is None
        assert row.reason.startswith("not legal: ")
    for row in projected(nodes=[2], plan=Plan(tp=8)).rows:
        assert row.reason == "tp(8) * pp(1) * cp(1) = 8 does not divide 4 devices"


def test_what_follows_from_devices_and_batch_is_no_part_of_a_layout():
    assert layout_of("") is None
    assert layout_of("tp=2,pp=4") == Plan(tp=2, pp=4)
    with pytest.raises(InvalidValue, match=r"plan\.dp: follows from the devices"):
        layout_of("tp=2,dp=2")
    with pytest.raises(InvalidValue, match=r"plan\.grad_accum_steps: follows from the global batch, 32 on 2 nodes"):
        projected(plan=layout_of("grad_accum_steps=2"))


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


def test_a_projection_passes_through_the_measured_best_and_its_efficiency_is_that_of_the_predictions(make):
    spec = read()
    plan = rows(make_projection(spec, Basis(), [2]), Scaling.WEAK)[0].best.plan
    trials = [make.trial(0, make.measurement(1.0), plan=plan)]
    found, alone = (make_projection(spec, SURE, [2, 4], trials=measured) for measured in (trials, ()))
    for scaling in Scaling.WEAK, Scaling.STRONG:
        anchor, far = rows(found, scaling)
        assert anchor.measured
        assert anchor.best.speed.tokens_per_s.value == pytest.approx(found.measured_best.tokens_per_s)
        assert anchor.best.speed.step_s.value == pytest.approx(sum(anchor.best.speed.parts_s.values()), rel=1e-6)
        unanchored = rows(alone, scaling)[1]
        assert far.efficiency == pytest.approx(unanchored.efficiency)
        ratio = far.best.speed.tokens_per_s.value / unanchored.best.speed.tokens_per_s.value
        assert ratio == pytest.approx(found.measured_best.factor) != 1


def test_the_measured_best_stands_beside_its_prediction(make):
    spec = read()
    plan = rows(make_projection(spec, Basis(), [2]), Scaling.WEAK)[0].best.plan
    trials = [make.trial(0, make.measurement(2.0), plan=plan), make.trial(1, make.measurement(1.0), plan=plan)]
    basis = learn("toy-1", spec, trials)
    found = make_projection(spec, basis, [2, 4], trials=trials)
    assert (found.measured_best.trial, found.measured_best.tokens_per_s) == (1, pytest.approx(1024))
    assert found.measured_best.plan_key == plan.key
    outlook = foresee(training_of(spec), columns_of([plan]), basis.calibration)
    assert found.measured_best.predicted_tokens_per_s == outlook.of(0, plan).speed.tokens_per_s.value != 1024
    text = shown(*projection_parts(found), soft_wrap=True)
    assert "measured: trial 1" in text
    assert f"scaled by {found.measured_best.factor:.3g}" in text
    assert "calibrated by 2 step times, " in text
