"""Where the time goes is told by part, rank by rank: spans become parts, exclusive and complete, and what must be zero
is."""

from __future__ import annotations

import pytest

from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.step_breakdown import Part
from meshtune.runners.trainer.job import Measuring
from meshtune.runners.trainer.timing.breakdown import last_arrivals, sum_parts
from meshtune.runners.trainer.timing.stopwatch import GroupCall, Span

LONG = pytest.mark.long

MEASURING = Measuring(max_warmup_steps=1, min_steps=3, max_steps=3, profile_steps=3)
# Large enough that a step is work, not talk.
SHAPES = {"hidden": 64, "ffn": 128, "seq_len": 32}

OWN = {Part.COMPUTE, Part.OPTIMIZER}
CASES = [
    pytest.param({"micro_batch_size": 4}, set(), id="one process", marks=LONG),
    pytest.param({"dp": 2, "zero_stage": 1}, {Part.DP}, id="dp2 zero1"),
    pytest.param({"dp": 2, "zero_stage": 3}, {Part.DP}, id="dp2 zero3"),
    pytest.param({"tp": 2, "micro_batch_size": 8}, {Part.TP}, id="tp2"),
    pytest.param({"pp": 2}, {Part.SEND_RECEIVE}, id="pp2 1f1b"),
    pytest.param({"cp": 2, "micro_batch_size": 8}, {Part.CP, Part.DP}, id="cp2", marks=LONG),
    pytest.param({"cp": 2, "context": "ring", "micro_batch_size": 8}, {Part.CP, Part.DP}, id="cp2 ring"),
    pytest.param({"pp": 2, "dp": 2, "zero_stage": 3}, {Part.DP, Part.SEND_RECEIVE}, id="pp2 dp2 zero3", marks=LONG),
    # Gathers of cut experts are a part as the physics has it, tp (docs/explanation/physics.md).
    pytest.param({"dp": 4, "ep": 2, "etp": 2, "micro_batch_size": 2}, {Part.TP, Part.EP, Part.DP}, id="dp4 ep2 etp2"),
    # The ranks of ep are those of tp.
    pytest.param(
        {"tp": 2, "dp": 2, "ep": 2, "etp": 1, "micro_batch_size": 4},
        {Part.TP, Part.EP, Part.DP},
        id="tp2 dp2 ep2 etp1",
    ),
    pytest.param(
        {"tp": 2, "dp": 2, "micro_batch_size": 4, "zero_stage": 1}, {Part.TP, Part.DP}, id="tp2 dp2 zero1", marks=LONG
    ),
]


@pytest.mark.parametrize(("plan", "axes"), CASES)
def test_the_parts_are_those_of_the_layout_and_add_up_to_the_step(plan, axes, run_job, make_job):
    experts = {"experts": 4, "top_k": 2} if "ep" in plan else {}
    finished = run_job(make_job(plan=plan, model=SHAPES | experts, measuring=MEASURING))
    profile = finished.measurement.profile
    assert profile is not None
    assert not profile.serialised
    assert len(profile.parts_s) == finished.measurement.devices
    for parts, waiting in zip(profile.parts_s, profile.waiting_s, strict=True):
        assert sum(parts.values()) == pytest.approx(profile.step_time_s, rel=0.1)
        assert {part for part, seconds in parts.items() if seconds > 0} - {Part.BUBBLE} == OWN | axes
        assert set(waiting) == axes - {Part.SEND_RECEIVE}
        assert all(0 <= waited <= parts[part] for part, waited in waiting.items())
    assert [len(times) for times in profile.own_times_s] == [3] * finished.measurement.devices
    assert profile.stages == tuple(
        rank * plan.get("pp", 1) // len(profile.stages) for rank in range(len(profile.stages))
    )


def test_a_tied_weight_of_a_pipeline_is_summed_between_stages(run_job, make_job):
    model = SHAPES | {"tied_head": True, "layers": 4}
    profile = run_job(make_job(plan={"pp": 4}, model=model, measuring=MEASURING)).measurement.profile
    assert all(parts[Part.DP] == 0 < parts[Part.SEND_RECEIVE] for parts in profile.parts_s)


# What keeps rank 1 from working costs it no time of the processor, as being stopped would. It lasts as long as it says
# or longer, however busy the machine is; the work itself takes a fiftieth of it.
HELD_UP = """
import os
import time
from meshtune.runners.trainer.model import Layer

forward = Layer.forward

def forward_late(layer, *arguments):
    if os.environ["RANK"] == "1":
        time.sleep(0.05)
    return forward(layer, *arguments)

Layer.forward = forward_late
"""


def test_a_rank_that_is_held_up_is_named(run_job, make_job):
    # A step has 4 micro-batches of 2 layers.
    measuring = Measuring(max_warmup_steps=0, min_steps=1, max_steps=1)
    finished = run_job(make_job(plan={"dp": 2}, measuring=measuring), HELD_UP)
    outcome = read_result(finished.directory)
    profile = outcome.measurement.profile
    found = profile.straggler
    assert found is not None, finished.output
    assert found.rank == 1
    assert found.ratio > 1.5
    assert min(profile.own_times_s[1]) > 0.4
    # Its peer waits for it, and is not blamed for that.
    assert profile.waiting_s[0][Part.DP] > 0.5 * profile.step_time_s > profile.parts_s[0][Part.COMPUTE]
    assert "rank 1 takes" in outcome.reason
    assert outcome.reason in finished.output


def test_steps_are_timed_for_the_least_seconds_and_their_warm_up_lasts_no_longer(run_job, make_job):
    measuring = Measuring(max_warmup_steps=500, min_steps=2, max_steps=2, min_seconds=1.0, profile_steps=0)
    measured = run_job(make_job(plan={"dp": 2}, measuring=measuring)).measurement
    assert len(measured.step_times_s) > measuring.max_steps
    assert sum(measured.step_times_s) >= measuring.min_seconds > sum(measured.step_times_s[:-1])
    assert sum(measured.warmup_times_s[:-1]) < measuring.min_seconds


def test_a_job_that_is_slower_than_the_incumbent_stops_early_and_measures_nothing(run_job, make_job):
    measuring = Measuring(max_warmup_steps=0, min_steps=200, max_steps=200, min_seconds=600)
    finished = run_job(make_job(plan={"dp": 2}, measuring=measuring, incumbent_step_time_s=1e-4))
    outcome = read_result(finished.directory)
    assert finished.status == 0
    assert outcome.verdict is Verdict.PRUNED
    assert outcome.measurement is None
    assert len(outcome.partial.step_times_s) == 8
    assert outcome.partial.profile is None
    assert outcome.reason.startswith("given up after 8 steps: a step takes ")
    assert outcome.reason in finished.output


REDUCE = ((0, 1), "", 0)
TENSOR = ((0, 1), "0>1", 0)


def test_a_call_is_waiting_until_its_last_member_has_arrived():
    spans = [
        Span(0.0, 1.0, Part.COMPUTE),
        Span(1.0, 3.0, GroupCall(REDUCE, Part.DP)),
        Span(3.0, 7.0, GroupCall(TENSOR, Part.SEND_RECEIVE)),
        Span(7.0, 8.0, Part.OPTIMIZER),
    ]
    last = last_arrivals([{REDUCE: 1.0, TENSOR: 0.0}, {REDUCE: 2.5, TENSOR: 6.0}])
    parts, waiting = sum_parts(spans, last)
    assert {part: seconds for part, seconds in parts.items() if seconds} == {
        "compute": 1.0,
        "dp": 2.0,
        "bubble": 3.0,
        "send_receive": 1.0,
        "optimizer": 1.0,
    }
    assert waiting == {"dp": 1.5}
    assert sum(parts.values()) == pytest.approx(8.0)
