"""The result file carries all of a measurement, and what a pruned job did is never one."""

from __future__ import annotations

import json

import pytest

from meshtune.runners.measuring.step_breakdown import Profile
from meshtune.runners.outcome import (
    Measurement,
    Outcome,
    ResultMalformed,
    Verdict,
    parse_result,
    read_result,
    write_result,
)
from meshtune.search_spaces.checks import InvalidValue

PROFILE = Profile(
    step_time_s=0.25,
    parts_s=({"compute": 0.2, "dp": 0.05}, {"compute": 0.25, "dp": 0.0}),
    waiting_s=({"dp": 0.04}, {}),
    own_times_s=((0.2, 0.21, 0.2), (0.25, 0.25, 0.26)),
    stages=(0, 0),
)
FULL = Measurement(
    step_times_s=(0.2, 0.25, 0.3),
    tokens_per_step=1000,
    devices=2,
    model_flops_per_token=1e9,
    peak_flops_per_device=1e13,
    warmup_times_s=(0.9,),
    first_losses=(2.5, 2.25),
    peak_memory_bytes=(10, 11),
    peak_held_bytes=(20, 21),
    profile=PROFILE,
)


def test_a_measurement_comes_back_from_its_file(tmp_path):
    for outcome in (
        Outcome(verdict=Verdict.OK, measurement=FULL),
        Outcome(verdict=Verdict.PRUNED, partial=FULL, reason="given up"),
        Outcome(verdict=Verdict.PRUNED),
    ):
        write_result(tmp_path, outcome)
        assert read_result(tmp_path) == outcome


def test_a_pruned_job_has_no_measurement_and_no_other_has_a_partial_one():
    with pytest.raises(InvalidValue, match="measurement: does not go with the verdict pruned"):
        Outcome(verdict=Verdict.PRUNED, measurement=FULL)
    with pytest.raises(InvalidValue, match="partial: does not go with the verdict crashed"):
        Outcome(verdict=Verdict.CRASHED, partial=FULL)


def test_rates_follow_from_the_median():
    assert FULL.tokens_per_s == 4000
    assert FULL.flops_per_s_per_device == 2e12
    assert FULL.mfu == pytest.approx(0.2)
    assert Measurement(step_times_s=(1.0,), tokens_per_step=1, devices=1).mfu is None


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({}, "measurement.profile.step_time_s: is missing"),
        ([], "measurement.profile: must be a mapping"),
        ({"step_time_s": 1, "parts_s": [{}], "waiting_s": [], "own_times_s": [[1]], "stages": [0]}, "one value per"),
        (
            {"step_time_s": 1, "parts_s": [3], "waiting_s": [{}], "own_times_s": [[1]], "stages": [0]},
            "profile.parts_s.0: must be",
        ),
    ],
)
def test_a_malformed_profile_is_refused(profile, message):
    document = {"step_times_s": [1], "tokens_per_step": 1, "devices": 1, "profile": profile}
    with pytest.raises(ResultMalformed, match=message):
        parse_result(json.dumps({"version": 1, "verdict": "ok", "measurement": document}))
