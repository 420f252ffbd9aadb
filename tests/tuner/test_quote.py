"""The quote before spending: counts, probabilities, costs and reasons follow from spec and physics, and add up."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import toy
from command_lab import shown

from meshtune.runners.documents import plain
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.physics.constants import DEFAULTS, UNCALIBRATED, Calibration
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.cli.render.predictions import explanation_parts, quote_parts
from meshtune.tuner.prediction.limits import STARTUP_S
from meshtune.tuner.prediction.predict import Basis, check_same, foresee, learn, training_of
from meshtune.tuner.prediction.quote import count_fits, explain, make_quote
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

DEVICE = toy.DEVICE | {"memory_bytes": 2**35, "peak_flops": {"float32": 1e12}}
# Without speeds, as CPUs are described.
BARE = {name: DEVICE[name] for name in ("name", "kind", "memory_bytes")}
MEASURING = {"max_warmup_steps": 1, "min_steps": 6, "max_steps": 6, "profile_steps": 5}
# The constants known exactly, and formulas that are nearly right.
SURE = Basis(calibration=Calibration(DEFAULTS, UNCALIBRATED.covariance * 1e-4, time_log_sd=0.01, memory_log_sd=0.01))


def read(**over):
    """One device without links, two plans."""
    cluster = {"nodes": 1, "devices_per_node": 1, "device": DEVICE, **over.pop("cluster", {})}
    document = {
        "name": "toy",
        "model": "gpt-micro",
        "cluster": cluster,
        "global_batch_size": 8,
        "space": {"micro_batch_size": [1, 2], "zero_stage": [0], "recompute": ["none"]},
        "workload": {"kind": "torch", "measuring": MEASURING},
        "trial": {"time_limit_s": 1e6},
        "search": "random",
        "confirm": 0,
        **over,
    }
    return read_spec(document, None)


def quoted(basis=None, **over):
    return make_quote(*read(**over), basis or Basis())


@pytest.mark.parametrize("bandwidth", [1, 1e30])
@pytest.mark.parametrize("flops", [1, 1e30])
@pytest.mark.parametrize("latency_s", [0, 1e9])
@pytest.mark.parametrize("measured", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_slowest_and_the_fastest_machine_have_a_finite_quote(bandwidth, flops, latency_s, measured):
    """What is no number is a warning of numpy, and that an error."""
    link = {"latency_s": latency_s, "bandwidth_bytes_per_s": bandwidth, "measured": measured}
    product = {"inputs": 1, "outputs": 1, "rows": 1, "forward_flops": flops, "backward_flops": flops}
    rates = {
        "products": [product],
        "layer_bytes_per_s": [{"tokens": 1, "bytes_per_s": bandwidth}],
        "updated_per_s": bandwidth,
        "layer_host_s": latency_s or 1e-300,
    }
    device = DEVICE | {"peak_flops": {"float32": flops}, "memory_bandwidth_bytes_per_s": bandwidth}
    device["measured"] = {"float32": rates} if measured else {}
    made = make_quote(*eight(cluster={"device": device, "node_link": link}, model="gpt-1t"), Basis())
    speeds = [best.speed.tokens_per_s.value for best in made.best]
    assert np.isfinite([*speeds, made.cost.trial_s.high, made.cost.wall_s.high]).all()


def eight(**over):
    """Eight devices with links in a node."""
    cluster = {"devices_per_node": 8, "node_link": toy.LINK, **over.pop("cluster", {})}
    return read(cluster=cluster, space={"micro_batch_size": [1, 2, 4]}, **{"global_batch_size": 64, **over})


# Plans


def test_plans_are_counted_by_their_probability_and_the_expectation_is_the_sum():
    fit = count_fits(np.array([1.0, 0.9, 0.89, 0.5, 0.49, 0.1, 0.09, 0.0]))
    assert (fit.sure, fit.likely, fit.unlikely, fit.hopeless) == (2, 2, 2, 2)
    assert fit.expected == pytest.approx(3.97)


def test_the_best_are_ranked_by_throughput_times_the_probability_to_fit():
    spec, space = eight(model={"preset": "gpt-micro", "layers": 64, "hidden": 2048})
    found = make_quote(spec, space, Basis())
    scores = [one.score for one in found.best]
    assert scores == sorted(scores, reverse=True)
    outlook = foresee(training_of(spec), space.columns, UNCALIBRATED)
    assert scores[0] == pytest.approx(max(outlook.of(row, plan).score for row, plan in enumerate(space)))
    assert len({one.plan for one in found.best}) == 10


def test_the_numbers_of_a_plan_agree_with_each_other():
    spec, space = eight()
    for one in make_quote(spec, space, Basis()).best:
        speed, tokens = one.speed, 64 * spec.model.seq_len
        assert speed.tokens_per_s.value == pytest.approx(tokens / speed.step_s.value)
        assert speed.tokens_per_s.low == pytest.approx(tokens / speed.step_s.high)
        assert speed.tflops_per_device == pytest.approx(
            speed.tokens_per_s.value * spec.model.flops_per_token / 8 / 1e12
        )
        assert speed.mfu == pytest.approx(speed.tflops_per_device / 1.0)
        assert sum(speed.parts_s.values()) == pytest.approx(speed.step_s.value)
        assert sum(speed.shares.values()) == pytest.approx(1)
        assert sum(one.memory_parts_bytes.values()) == pytest.approx(one.peak_bytes.value)


# Cost


def test_device_hours_are_trials_times_steps_and_start_times_devices():
    found = quoted(SURE, space={"micro_batch_size": [1], "zero_stage": [0]})
    step_s, cost = found.best[0].speed.step_s.value, found.cost
    assert found.best[0].p_fits == pytest.approx(1)
    assert (cost.trials, cost.steps, cost.startup_s) == (1, (2 + 6 + 5, 2 + 1 + 6 + 5), STARTUP_S["cuda"])
    assert cost.trial_s.low < cost.trial_s.p50 < cost.trial_s.high
    assert cost.trial_s.p50 == pytest.approx(cost.startup_s + 13.5 * step_s, rel=0.05)
    assert cost.device_hours.low == pytest.approx(cost.trial_s.low / 3600)


def test_a_trial_costs_all_devices_and_parallel_trials_share_the_wall_time():
    spec, space = eight(budget={"trials": 5}, parallel=2)
    cost = make_quote(spec, space, Basis()).cost
    assert cost.device_hours.high == pytest.approx(5 * 8 * cost.trial_s.high / 3600)
    assert cost.wall_s.high == pytest.approx(3 * cost.trial_s.high)


def test_long_steps_are_timed_no_longer_than_the_spec_says():
    measuring = MEASURING | {"max_steps": 30, "max_seconds": 1e-9}
    assert quoted(workload={"kind": "torch", "measuring": measuring}).cost.steps == (13, 14)
    measuring |= {"max_seconds": 1e9}
    assert quoted(workload={"kind": "torch", "measuring": measuring}).cost.steps == (13, 38)


def test_no_trial_takes_longer_than_its_limit_and_one_that_does_not_fit_only_its_start():
    assert quoted(trial={"time_limit_s": 31}, model="gpt3-175b").cost.trial_s.high <= 31
    small = quoted(cluster={"device": DEVICE | {"memory_bytes": 10**5}}).cost
    assert small.trial_s.p50 == pytest.approx(small.startup_s, rel=0.05)


def test_no_more_trials_than_plans_and_a_baseline_outside_of_the_space():
    assert quoted(budget={"trials": 40}).cost.trials == 2
    assert quoted(budget={"trials": 40}, baseline={"micro_batch_size": 2}).cost.trials == 2
    assert quoted(budget={"trials": 40}, baseline={"micro_batch_size": 4}).cost.trials == 3
    assert quoted(budget={"device_hours": 40}).cost.trials == 2


def test_a_budget_that_ends_the_campaign_early_is_told():
    assert quoted().cost.ends_before == ()
    (told,) = quoted(budget={"trials": 2, "device_hours": 0.001}).cost.ends_before
    assert told == "the budget of 0.001 device-hours ends it after about 1 of 2 trials"
    assert "hours of work" in quoted(budget={"wall_time_s": 1}).cost.ends_before[0]


# What is missing


def test_without_speeds_the_quote_says_what_is_missing_and_keeps_plans_and_memory():
    found = quoted(cluster={"devices_per_node": 4, "device": BARE}, space={})
    assert [problem.path for problem in found.missing] == [
        "cluster.device.peak_flops.float32",
        "cluster.device.memory_bandwidth_bytes_per_s",
        "cluster.node_link",
    ]
    assert found.space.legal > 0
    assert 0 < found.fit.expected <= found.space.legal
    assert all(one.speed is None and one.peak_bytes.value > 0 for one in found.best)
    peaks = [one.peak_bytes.value for one in found.best]
    assert peaks == sorted(peaks)
    assert found.cost.trial_s.high == 1e6
    text = shown(*quote_parts(found), soft_wrap=True)
    assert "no times can be predicted" in text
    assert "`meshtune cluster probe`" in text


# Why not


def test_an_illegal_plan_is_told_its_rules_and_what_it_would_have_cost():
    spec, space = eight()
    plan = space.complete(tp=2, pp=4, zero_stage=1)
    found = explain(spec, space, plan, Basis())
    assert list(found.violations) == space.explain(plan)
    assert [broken.constraint for broken in found.violations] == ["zero-needs-dp"]
    assert found.prediction.speed.step_s.value > 0
    assert "would be number" in shown(*explanation_parts(found), soft_wrap=True)


def test_the_best_plan_is_number_one_and_every_other_is_worse_by_the_parts_that_differ():
    spec, space = eight()
    ranks = []
    for plan in space:
        found = explain(spec, space, plan, SURE)
        assert not found.violations
        ranks.append(found.rank)
        more_s = found.prediction.speed.step_s.value - found.best.speed.step_s.value
        missed_s = 0.005 * found.best.speed.step_s.value * len(found.best.speed.parts_s)
        assert sum(found.differences_s.values()) == pytest.approx(more_s, abs=missed_s)
        assert [*map(abs, found.differences_s.values())] == sorted(map(abs, found.differences_s.values()), reverse=True)
        if plan == found.best.plan:
            assert (found.rank, found.differences_s) == (1, {})
            assert "nothing is predicted better" in shown(*explanation_parts(found), soft_wrap=True)
    assert min(ranks) == 1
    assert max(ranks) <= len(space)


def test_steps_of_different_batches_are_compared_for_the_same_work():
    spec, space = read(global_batch_size="free", space={"micro_batch_size": [1], "grad_accum_steps": [1, 4]})
    found = [explain(spec, space, plan, SURE) for plan in space]
    other = next(one for one in found if one.rank == 2)
    assert other.best.plan.grad_accum_steps != other.plan.grad_accum_steps
    assert abs(other.differences_s.get("compute", 0.0)) < 0.1 * other.best.speed.step_s.value


def test_a_plan_for_other_devices_has_no_prediction():
    spec, space = eight()
    found = explain(spec, space, space.complete(tp=8, pp=4), Basis())
    assert found.prediction is None
    assert found.rank is None
    assert found.unpredicted == "it is for 32 devices, and the cluster has 8"
    assert "devices" in [broken.constraint for broken in found.violations]
    json.dumps(plain(found), allow_nan=False)


# What it rests on


@pytest.fixture
def trials(make):
    """Both plans of the toy, measured at `factor` times what is predicted; or out of memory."""

    def build(spec, space, factor, verdict=None):
        built = []
        for number, plan in enumerate(space):
            outlook = foresee(training_of(spec), space.columns, UNCALIBRATED).of(number, plan)
            measured = make.measurement(
                outlook.speed.step_s.value * factor, devices=1, peak_held_bytes=(int(outlook.peak_bytes.value),)
            )
            built.append(make.trial(number, verdict or measured, plan=plan, started_at=10.0, finished_at=110.0))
        return built

    return build


def test_a_quote_says_that_nothing_was_measured():
    assert quoted().basis.words.startswith("uncalibrated: ")
    spec, _ = read()
    basis = learn("toy-1", spec, [])
    assert not basis.calibrated
    assert basis.words.startswith("toy-1 has no measurement to learn from, so uncalibrated: ")
    assert basis.calibration == UNCALIBRATED


def test_trials_move_the_prediction_towards_what_they_measured_and_narrow_it(trials):
    spec, space = read()
    before = make_quote(spec, space, Basis()).best[0].speed.step_s
    basis = learn("toy-1", spec, trials(spec, space, 1.5))
    after = make_quote(spec, space, basis).best[0].speed.step_s
    assert (basis.calibration.times, basis.calibration.memories, basis.calibration.ooms) == (2, 2, 0)
    assert before.value < after.value < 1.6 * before.value
    assert after.high / after.low < before.high / before.low
    assert basis.words == "calibrated by 2 step times, 2 memory peaks and 0 out-of-memory verdicts of toy-1"


def test_a_plan_whose_knobs_make_another_code_is_predicted_and_taught_as_that(make):
    """Trials that took what the physics expects of each code move nothing."""
    knobs = {"dtype": {"values": ["float32", "bfloat16"], "option": "dtype"}}
    device = DEVICE | {"peak_flops": {"float32": 1e12, "bfloat16": 8e12}}
    spec, space = read(cluster={"device": device}, knobs=knobs)
    plain, other = space[0], replace(space[0], knobs={"dtype": "float32"})
    seconds = [explain(spec, space, plan, Basis()).prediction.speed.step_s.value for plan in (plain, other)]
    assert seconds[1] > 1.2 * seconds[0]
    built = [
        make.trial(number, make.measurement(step_s, devices=1), plan=plan)
        for number, (step_s, plan) in enumerate(zip(seconds, (plain, other), strict=True))
    ]
    constants = learn("toy-1", spec, built).calibration.constants
    assert constants.matmul_efficiency == pytest.approx(DEFAULTS.matmul_efficiency, rel=1e-3)
    assert constants.step_overhead_s == pytest.approx(DEFAULTS.step_overhead_s, rel=1e-2)


def test_out_of_memory_verdicts_lower_the_probability_to_fit(trials):
    needed = int(quoted().best[0].peak_bytes.value)
    spec, space = read(cluster={"device": DEVICE | {"memory_bytes": needed}})
    basis = learn("toy-1", spec, trials(spec, space, 1.0, Verdict.OOM))
    assert (basis.calibration.times, basis.calibration.ooms) == (0, 2)
    assert make_quote(spec, space, basis).fit.expected < make_quote(spec, space, Basis()).fit.expected


def test_the_start_is_what_jobs_took_beside_their_steps(trials):
    spec, space = read()
    measured = trials(spec, space, 1.0)
    basis = learn("toy-1", spec, measured)
    steps_s = [8 * trial.measurement.step_time_s for trial in measured]  # six timed, two counted
    assert basis.startup_s == pytest.approx(100 - sum(steps_s) / 2, rel=1e-3)
    assert make_quote(spec, space, basis).cost.startup_s == basis.startup_s


def test_measurements_without_a_peak_to_compare_with_teach_nothing_and_name_the_field(make):
    spec, _ = read(cluster={"device": BARE})
    with pytest.raises(
        InvalidValue, match=r"(?s)cluster\.device\.peak_flops\.float32: .*so the trials of toy-1 calibrate no"
    ):
        learn("toy-1", spec, [make.trial(0, make.measurement(1.0), plan=Plan())])


def test_what_another_device_or_code_measured_is_refused():
    spec, _ = read()
    check_same(spec, spec)
    other = replace(spec, cluster=replace(spec.cluster, device=replace(spec.cluster.device, name="other")))
    with pytest.raises(InvalidValue, match=r"cluster\.device: was measured for other, but the spec has toy"):
        check_same(other, spec)
    bf16, _ = read(workload={"kind": "torch", "dtype": "bfloat16"})
    with pytest.raises(InvalidValue, match="workload: was measured for "):
        check_same(bf16, spec)
