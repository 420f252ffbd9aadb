"""The objectives in their units, by hand: a step of 1024 tokens on 4 devices."""

from __future__ import annotations

import pytest

from meshtune.tuner.campaign.objective import Objective, Yardstick, yardstick_of


@pytest.fixture
def yardstick(lab):
    model = lab.spec().model
    return lambda objective, **more: Yardstick(objective=objective, model=model, **more)


@pytest.mark.parametrize(
    ("objective", "known", "unit", "value"),
    [
        (Objective.TOKENS_PER_S_PER_DEVICE, {}, "tokens/s/device", 128.0),
        (Objective.STEP_TIME, {}, "s", 2.0),
        (Objective.TFLOPS_PER_DEVICE, {}, "TFLOP/s", 128e9 / 1e12),
        (Objective.MFU, {"peak_flops": 1e12}, "%", 12.8),
        (Objective.COST, {}, "device-hours/1e9 tokens", 1e9 / 128 / 3600),
        (Objective.COST, {"device_hour_price": 2.5}, "cost/1e9 tokens", 2.5 * 1e9 / 128 / 3600),
    ],
)
def test_an_objective_has_its_value_in_its_unit(make, yardstick, objective, known, unit, value):
    found, measured = yardstick(objective, **known), make.measurement(2.0, model_flops_per_token=1e9)
    assert found.unit == unit
    assert found.of(measured, 2.0) == pytest.approx(value)


@pytest.mark.parametrize("objective", Objective)
def test_the_faster_of_two_scores_higher_whatever_is_measured(make, yardstick, objective):
    found = yardstick(objective, peak_flops=1e12, device_hour_price=3.0)
    assert found.score(make.measurement(1.0)) > found.score(make.measurement(1.01))


def test_a_specs_yardstick_knows_its_clusters_peak_and_price(lab):
    cluster = {"preset": "local-cpu", "device": {"peak_flops": {"float32": 1e12}}, "device_hour_price": 0.04}
    found = yardstick_of(lab.spec(objective="cost", cluster=cluster))
    assert (found.objective, found.peak_flops, found.device_hour_price) == (Objective.COST, 1e12, 0.04)
    assert yardstick_of(lab.spec()).device_hour_price is None
