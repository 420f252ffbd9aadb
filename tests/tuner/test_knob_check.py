"""A job that ran with other knobs than its plan measured another plan: it is a crash that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.decide import Finish, PolledJob, decide
from meshtune.tuner.campaign.eligibility import checked, unconfirmed_knobs
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.specs.read import read_spec

KNOBS = (
    Knob(name="fp8", values=("off", "mxfp8"), argument="--fp8 {value}", omit="off"),
    Knob(name="budget", values=(0.5, 1.0), config="x", words={"1.0": "all"}),
    Knob(name="fast", values=(False, True), env="FAST", words={"true": "1", "false": "0"}),
    Knob(name="devices", values=(1, 2)),
)
DOCUMENT = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8}
SPEC = read_spec(DOCUMENT, None)[0]
SPEC = replace(SPEC, knobs=KNOBS)
PLAN = Plan(knobs={"fp8": "mxfp8", "budget": 0.5, "fast": True, "devices": 1})


def measured(**knobs):
    return Measurement(step_times_s=(1.0,), tokens_per_step=8, devices=1, knobs=knobs)


def outcome(**knobs):
    return Outcome(verdict=Verdict.OK, measurement=measured(**knobs), reason="a note", log_tail="the end")


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"fp8": "mxfp8", "budget": 0.5, "fast": True, "devices": 1},
        {"budget": "0.50", "fast": "1"},
        {"budget": 0.5000000001, "fast": "True", "another": None},
    ],
)
def test_what_agrees_stands(knobs):
    assert checked(SPEC, PLAN, outcome(**knobs)) == outcome(**knobs)


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"fp8": "off"}, "knob fp8 did not arrive: the plan has mxfp8, the job saw off"),
        ({"fp8": "x" * 5000}, f"knob fp8 did not arrive: the plan has mxfp8, the job saw {'x' * 100}"),
        ({"fp8": None}, "knob fp8 did not arrive: the plan has mxfp8, the job saw nothing of it"),
        ({"budget": 1.0}, "knob budget did not arrive: the plan has 0.5, the job saw 1.0"),
        ({"fast": False}, "knob fast did not arrive: the plan has true, the job saw false"),
        ({"fast": "0"}, "knob fast did not arrive: the plan has true, the job saw 0"),
    ],
)
def test_what_did_not_arrive_is_a_crash_that_no_plan_mends(knobs, told):
    found = checked(SPEC, PLAN, outcome(**knobs))
    assert (found.verdict, found.cause, found.measurement) == (Verdict.CRASHED, Cause.USER_BUG, None)
    assert (found.reason, found.log_tail) == (f"{told}; a note", "the end")


def test_every_knob_that_did_not_arrive_is_named():
    assert checked(SPEC, PLAN, outcome(fp8="off", budget=None)).reason.count("did not arrive") == 2


def test_a_job_that_gave_up_is_judged_too_and_a_failed_one_is_not():
    pruned = Outcome(verdict=Verdict.PRUNED, partial=measured(fp8="off"))
    assert checked(SPEC, PLAN, pruned).verdict is Verdict.CRASHED
    failed = Outcome(verdict=Verdict.OOM)
    assert checked(SPEC, PLAN, failed) == failed


def test_what_the_job_said_nothing_about_is_named_but_for_what_it_was_not_told():
    assert unconfirmed_knobs(KNOBS, PLAN, measured(fast=True)) == ("fp8", "budget")
    omitted = replace(PLAN, knobs={**PLAN.knobs, "fp8": "off"})
    assert unconfirmed_knobs(KNOBS, omitted, measured(fast=True)) == ("budget",)


def test_a_campaign_takes_no_such_measurement(make):
    document = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8, "workload": "torch"}
    document["knobs"] = {"threads": {"values": [1, 2], "option": "threads"}}
    spec = read_spec(document, None)[0]
    plan = Plan(tp=4, knobs={"threads": 2})
    trial = make.trial(1, plan=plan, state=TrialState.RUNNING)
    status = JobStatus(state=JobState.SUCCEEDED, finished_at=5.0)
    seen = {1: PolledJob(status, replace(outcome(threads=1), reason=""))}
    (finish,) = decide(make.campaign(spec), [trial], seen, 9.0)
    assert isinstance(finish, Finish)
    assert finish.outcome.reason == "knob threads did not arrive: the plan has 2, the job saw 1"
