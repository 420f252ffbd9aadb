"""The job file survives a round trip, broken ones name the field, and unsupported ones are refused with numbers."""

from __future__ import annotations

import json

import pytest

from meshtune.runners.told_knobs import ToldKnob
from meshtune.runners.trainer.job import JobMalformed, parse_job, render_job, require_supported
from meshtune.search_spaces.checks import InvalidValue


def test_a_job_file_says_what_was_written(make_job):
    job = make_job(plan={"tp": 2, "zero_stage": 3}, model={"norm": "layernorm"}, memory_limit_bytes=5, seed=7)
    assert parse_job(render_job(job)) == job


# What a knob says must be possible; what the spec says holds where it is.
COMPILE = {"mine": ToldKnob(value=True, way="option", place="compile", text="true")}
SELECTIVE = {"mine": ToldKnob(value="attention", way="option", place="selective", text="attention")}


def broken(job, *path_and_value):
    document = json.loads(render_job(job))
    *path, key, value = path_and_value
    inner = document
    for step in path:
        inner = inner[step]
    inner[key] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("version", 2), "version 1"),
        (("seed", "many"), "seed: "),
        (("colour", "red"), "colour: "),
        (("plan", "tp", 0), "plan.tp: must be at least 1, not 0"),
        (("plan", "colour", 1), "plan.colour: "),
        (("model", "heads", 5), "model.kv_heads: .*"),
        (("dtype", "float8"), "dtype: "),
        (("incumbent_step_time_s", 0), "incumbent_step_time_s: must be positive, not 0"),
        (("measuring", "start_limit_s", 0), "measuring.start_limit_s: must be positive, not 0"),
        (("measuring", "stall_s", 0), "measuring.stall_s: must be positive, not 0"),
        (("measuring", "max_steps", 1), r"max_steps\(1\) is below min_steps\(2\)"),
    ],
)
def test_a_malformed_job_file_names_the_field(change, message, make_job):
    with pytest.raises(JobMalformed, match=message):
        parse_job(broken(make_job(), *change))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"version": 1}'])
def test_a_file_that_holds_no_job_is_refused(text):
    with pytest.raises(JobMalformed):
        parse_job(text)


@pytest.mark.parametrize(
    ("plan", "model", "message"),
    [
        ({"cp": 3}, {}, r"plan.cp: cp\(3\) does not cut seq_len\(16\) into 6"),
        ({"cp": 2, "context": "ring"}, {"seq_len": 18}, r"plan.cp: cp\(2\) does not cut seq_len\(18\) into 4"),
        ({"cp": 4, "context": "ulysses"}, {}, r"plan.cp: .*= 4 does not divide kv_heads\(2\)"),
        ({"dp": 2, "ep": 2}, {}, "plan.ep: the model has no experts"),
        ({"dp": 2, "ep": 2}, {"experts": 3, "top_k": 1}, r"ep\(2\) does not divide experts\(3\)"),
        (
            {"tp": 2, "dp": 2, "ep": 4},
            {"experts": 4, "top_k": 1},
            r"plan.ep: etp\(2\) \* ep\(4\) = 8 does not divide tp\(2\) \* cp\(1\) \* dp\(2\) = 4",
        ),
        ({"tp": 2, "etp": 1}, {}, r"plan.etp: etp\(1\) needs experts"),
        (
            {"tp": 2, "etp": 1, "sequence_parallel": False},
            {"experts": 4, "top_k": 1},
            r"plan.etp: etp\(1\) needs experts, and the sequence split over tp\(2\)",
        ),
        ({"dp": 4, "etp": 4}, {"experts": 4, "top_k": 1, "ffn": 66}, r"plan.etp: etp\(4\) does not divide ffn\(66\)"),
        (
            {"dp": 4, "zero_stage": 1, "zero_group": 3},
            {},
            r"zero_group\(3\) with zero_stage\(1\) does not cut dp \* cp = 4 ranks into groups",
        ),
        ({"dp": 4, "zero_group": 2}, {}, r"zero_group\(2\) with zero_stage\(0\) does not cut"),
        ({"dp": 4, "zero_stage": 1, "zero_group": 4}, {}, r"plan.zero_group: zero_group\(4\) with"),
        (
            {"dp": 4, "ep": 4, "zero_stage": 1, "zero_group": 2},
            {"experts": 4, "top_k": 1},
            r"plan.zero_group: dp\(4\) .* do not divide the replicas of experts, 4 ranks / \(etp\(1\) \* ep\(4\)\)",
        ),
        ({"vpp": 2, "schedule": "interleaved"}, {}, r"plan.vpp: vpp\(2\) does not go with .* pp\(1\)"),
        ({"pp": 2, "vpp": 1, "schedule": "zbv"}, {}, r"plan.vpp: .*zbv needs vpp\(2\)"),
        ({"pp": 2, "vpp": 2, "schedule": "zbv", "zero_stage": 3}, {"layers": 4}, "plan.zero_stage: .*wrongly"),
        ({"pp": 2, "vpp": 2, "schedule": "zbv", "recompute": "selective"}, {"layers": 4}, "plan.recompute: "),
        (
            {"pp": 2, "vpp": 2, "schedule": "interleaved", "grad_accum_steps": 5},
            {"layers": 4},
            r"grad_accum_steps\(5\) to be a multiple of its 2 rounds",
        ),
        ({"tp": 8}, {}, r"plan.tp: tp\(8\) does not divide heads\(4\)"),
        ({"tp": 2}, {"seq_len": 15}, r"tp\(2\) does not divide seq_len\(15\) / cp\(1\)"),
        ({"tp": 2}, {"heads": 6, "kv_heads": 3, "hidden": 48}, r"tp\(2\) and kv_heads\(3\)"),
        ({"pp": 4}, {}, r"pp\(4\) \* vpp\(1\) is above layers\(2\)"),
        ({"pp": 2, "grad_accum_steps": 1}, {}, r"1f1b needs grad_accum_steps\(1\) of at least pp\(2\)"),
    ],
)
def test_what_the_trainer_cannot_run_is_refused_with_the_numbers(plan, model, message, make_job):
    with pytest.raises(InvalidValue, match=message):
        require_supported(make_job(plan=plan, model=model))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"window": 4}}, r"^model\.window: the trainer has no such layers"),
        ({"model": {"mtp_layers": 1}}, r"^model\.mtp_layers: "),
        ({"model": {"experts": 4, "top_k": 1, "shared_ffn": 32}}, r"^model\.shared_ffn: "),
        ({"prefetch": 1}, r"prefetch\(1\) needs weights that are gathered layer by layer"),
        (
            {"plan": {"dp": 2, "zero_stage": 3}, "gather_ahead": False},
            "gather_ahead: false needs the gathering of ZeRO 1",
        ),
        ({"attention": "efficient"}, "efficient is a kernel of cuda alone"),
        ({"attention": "cudnn"}, "cudnn is a kernel of cuda alone"),
        ({"plan": {"cp": 2}, "attention": "math"}, r"attention: math with cp\(2\) and all_gather"),
        ({"plan": {"cp": 2}, "compile": True, "knobs": COMPILE}, "compile: the compiler cannot follow all_gather"),
        (
            {"plan": {"recompute": "full"}, "selective": "attention", "knobs": SELECTIVE},
            r"selective\(attention\) means nothing with recompute\(full\)",
        ),
        ({"async_tp": True}, "async_tp: async_tp needs compile"),
        ({"async_tp": True, "compile": True}, "async_tp: async_tp runs on cuda only"),
        (
            {"async_tp": True, "compile": True, "device": "cuda", "plan": {"tp": 2, "sequence_parallel": False}},
            r"async_tp: async_tp with tp\(2\) needs sequence_parallel",
        ),
        ({"float8": True, "model": {"experts": 4, "top_k": 2}}, "float8: goes with neither experts"),
        ({"float8": True, "plan": {"tp": 4}}, "float8: goes with neither"),
        ({"float8": True, "plan": {"tp": 2}}, "8 is a side of a product in 8 bits"),
        ({"float8": True, "device": "cuda"}, "float8: runs on cuda beside 16 bits, and on cpu, not on cuda with fl"),
        ({"float8": True, "device": "xpu", "dtype": "bfloat16"}, "not on xpu with bfloat16"),
        (
            {"plan": {"cp": 2, "context": "ring"}, "device": "xpu"},
            "ring has fused kernels for cpu and cuda; on xpu use ulysses",
        ),
        (
            {"model": {"experts": 3, "top_k": 2}, "router": "balanced"},
            r"router: experts\(3\) do not share seq_len\(\d+\) / cp\(1\) \* top_k\(2\) tokens evenly",
        ),
        (
            {"model": {"experts": 4, "top_k": 2}, "router": "skewed", "imbalance": 2.5},
            r"imbalance: imbalance\(2.5\) is above experts\(4\) / top_k\(2\) = 2, where",
        ),
    ],
)
def test_settings_that_the_trainer_cannot_run_are_refused(changes, message, make_job):
    with pytest.raises(InvalidValue, match=message):
        require_supported(make_job(**changes))


def test_what_the_trainer_can_run_is_let_through(make_job):
    require_supported(make_job(dtype="float16", device="cuda"))
    require_supported(make_job(dtype="float16"))
    require_supported(make_job(plan={"tp": 4, "pp": 2, "dp": 2, "zero_stage": 3}))
    require_supported(make_job(plan={"pp": 2, "grad_accum_steps": 1, "schedule": "gpipe"}))
