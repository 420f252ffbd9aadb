"""The result file comes whole or not at all, says what was written, and names the field that is wrong."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from math import inf, nan

import pytest

from meshtune.runners.hardware import HardwareKind
from meshtune.runners.measuring import is_surely_slower, is_tight
from meshtune.runners.outcome import (
    MAX_STEPS,
    RESULT_FILE,
    Measurement,
    Outcome,
    ResultMalformed,
    ResultMissing,
    Verdict,
    parse_result,
    read_result,
    write_result,
)
from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.checks import InvalidValue

MEASURED = {"step_times_s": [0.25, 0.5, 1.0], "tokens_per_step": 512, "devices": 2}
BARE = Measurement(step_times_s=(0.25, 0.5, 1.0), tokens_per_step=512, devices=2)


def test_no_extra_key_replaces_one_of_the_contract(tmp_path):
    written = Outcome(verdict=Verdict.CRASHED, reason="true")
    write_result(tmp_path, written, {"version": 9, "verdict": "ok", "reason": "false", "plan": {}})
    assert read_result(tmp_path) == written


def test_a_missing_result_is_told_from_a_malformed_one(tmp_path):
    with pytest.raises(ResultMissing, match=r"result.json does not exist"):
        read_result(tmp_path)
    (tmp_path / RESULT_FILE).mkdir()
    with pytest.raises(ResultMalformed, match=r"^result.json is a folder, not a regular file$"):
        read_result(tmp_path)


def test_a_full_disk_leaves_the_earlier_result(tmp_path):
    write_result(tmp_path, Outcome(verdict=Verdict.OOM, reason="first"))
    draft = tmp_path / f".{RESULT_FILE}.{os.getpid()}"
    draft.symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        write_result(tmp_path, Outcome(verdict=Verdict.CRASHED, reason="second"))
    assert caught.value.errno == errno.ENOSPC
    assert read_result(tmp_path).reason == "first"
    assert [path.name for path in tmp_path.iterdir()] == [RESULT_FILE]


def result(**changes: object) -> str:
    """A good result file's text with other top-level keys; `...` leaves one out."""
    document = {"version": 1, "verdict": "ok", "measurement": MEASURED} | changes
    return json.dumps({key: value for key, value in document.items() if value is not ...})


def measured(**changes: object) -> str:
    return result(measurement={key: value for key, value in (MEASURED | changes).items() if value is not ...})


def test_a_good_result_is_read_and_unknown_keys_are_ignored():
    assert parse_result(result()) == Outcome(verdict=Verdict.OK, measurement=BARE)
    assert parse_result(measured(novelty=[1], model_flops_per_token=None)).measurement == BARE
    assert parse_result(result(novelty={"a": None}, phase=None)).measurement == BARE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^is not JSON: "),
        ('{"version": 1, "verd', "^is not JSON: "),
        ("[" * 100_000, "^is nested deeper than 64 levels$"),
        ("[]", "^must be an object, not list$"),
        ("null", "^must be an object, not NoneType$"),
        (result(version=...), "^version: None, but this meshtune reads version 1$"),
        (result(version=2), "^version: 2, but"),
        (result(verdict=...), "^verdict: is missing$"),
        (result(verdict="fine"), "^verdict: must be 'ok', 'oom', .*not 'fine'$"),
        (result(verdict=[]), "^verdict: "),
        (result(measurement=...), "^measurement: is missing, but the verdict is ok$"),
        (result(verdict="oom"), "^measurement: does not go with the verdict oom$"),
        (result(measurement=[1]), r"^measurement: must be a mapping of keys, not \[1\]$"),
        (result(verdict="oom", measurement=..., failed_rank="first"), "^failed_rank: "),
        (result(verdict="oom", measurement=..., failed_rank=-1), "^failed_rank: must be from 0 to 2147483647, not -1$"),
        (result(verdict="oom", measurement=..., phase=["init"]), "^phase: must be string, not"),
        (result(verdict="oom", measurement=..., reason={}), "^reason: must be string, not {}$"),
        (measured(step_times_s=...), r"^measurement\.step_times_s: is missing$"),
        (
            measured(devices=..., tokens_per_step=...),
            r"^measurement\.tokens_per_step: .*; measurement\.devices: is mis",
        ),
        (measured(step_times_s=[]), r"^measurement\.step_times_s: must name at least one step$"),
        (measured(step_times_s="123"), r"^measurement\.step_times_s: "),
        (measured(step_times_s={"1": 2}), r"^measurement\.step_times_s: "),
        (measured(step_times_s=[1.0, "x"]), r"^measurement\.step_times_s\.1: "),
        (
            measured(step_times_s=[1.0, 0.0, -2.0]),
            r"^measurement\.step_times_s: must be positive seconds, from .*, not 0.0, -2.0$",
        ),
        (measured(compile_s=-1), r"^measurement\.compile_s: must be from 0 to 1e\+09, not -1.0$"),
        (measured(step_times_s=[1e-307]), r"^measurement\.step_times_s: .*, not 1e-307$"),
        (measured(step_times_s=[1e308] * 6), r"^measurement\.step_times_s: .*, not 1e\+308, 1e\+308"),
        (measured(warmup_times_s=[1e308]), r"^measurement\.warmup_times_s: .*, not 1e\+308$"),
        (measured(devices=2**40), r"^measurement\.devices: must be at most 2147483647, not 1099511627776$"),
        (measured(peak_flops_per_device=5e-324), r"^measurement\.peak_flops_per_device: "),
        (measured(knobs={"beta": inf}), r"^measurement\.knobs: must be finite, but beta is not$"),
        (
            measured(step_times_s=[nan]),
            r"^measurement\.step_times_s: must be positive seconds, from .*, not nan$",
        ),
        (
            measured(step_times_s=[inf]),
            r"^measurement\.step_times_s: must be positive seconds, from .*, not inf$",
        ),
        (measured(step_times_s=[10**400]), r"^measurement\.step_times_s"),
        (
            measured(warmup_times_s=[nan]),
            r"^measurement\.warmup_times_s: must be positive seconds, from .*, not nan$",
        ),
        (measured(first_losses=[1.0, nan, -inf]), r"^measurement\.first_losses: must be finite, not nan, -inf$"),
        (
            measured(first_gradient_norms=[nan]),
            r"^measurement\.first_gradient_norms: must be finite and at least 0, not",
        ),
        (
            measured(first_gradient_norms=[1, -1.0]),
            r"^measurement\.first_gradient_norms: must be finite and .*not -1\.0$",
        ),
        (measured(peak_memory_bytes=[5, -1]), r"^measurement\.peak_memory_bytes: must be at least 0, not -1$"),
        (measured(peak_memory_bytes=[0.5]), r"^measurement\.peak_memory_bytes\.0: "),
        (measured(tokens_per_step=3.7), r"^measurement\.tokens_per_step: "),
        (measured(tokens_per_step=2**63), r"^measurement\.tokens_per_step: must be a finite number"),
        (result(reason="a\0b"), r"^reason: must be text without NUL"),
        (result(reason="\ud800"), r"^reason: must be text without NUL"),
        (measured(software={"\ud800": "1"}), r"^measurement\.software: must be text without NUL"),
        (measured(tokens_per_step=inf), r"^measurement\.tokens_per_step: "),
        (
            measured(tokens_per_step=0, devices=-2),
            r"^measurement\.tokens_per_step: .*not 0; measurement\.devices: .*-2$",
        ),
        (
            measured(model_flops_per_token=0),
            r"^measurement\.model_flops_per_token: must be from 1e-06 to .*, not 0",
        ),
        (measured(model_flops_per_token=inf), r"^measurement\.model_flops_per_token: must be from 1e-06 to 1e\+30"),
    ],
)
def test_a_malformed_result_names_the_field(text, message):
    with pytest.raises(ResultMalformed, match=message):
        parse_result(text)


def test_words_that_are_longer_than_people_read_are_cut():
    long = parse_result(
        result(reason="r" * 10**6, log_tail="l" * 10**6 + "end", phase="p" * 10**6, verdict="oom", measurement=...)
    )
    assert (len(long.reason), len(long.log_tail), len(long.phase)) == (2000, 16_000, 100)
    assert long.log_tail.endswith("end")


@pytest.mark.parametrize("verdict", Verdict)
def test_a_measurement_goes_with_ok_and_with_nothing_else(verdict):
    with pytest.raises(InvalidValue, match=r"^measurement: "):
        Outcome(verdict=verdict, measurement=None if verdict is Verdict.OK else BARE)


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
    first_gradient_norms=(1.25, 0.0),
    peak_memory_bytes=(10, 11),
    peak_held_bytes=(20, 21),
    profile=PROFILE,
    attention_kernels=("flash",),
    compile_s=12.5,
    hardware=(HardwareKind(device="H100", memory_bytes=2**36, clock_mhz=1980, driver="550.1", nodes=("n1",)),),
)


def test_a_measurement_comes_back_from_its_file_with_its_rates(tmp_path):
    for outcome in (
        Outcome(verdict=Verdict.OK, measurement=FULL),
        Outcome(verdict=Verdict.PRUNED, partial=FULL, reason="given up"),
        Outcome(verdict=Verdict.PRUNED),
    ):
        write_result(tmp_path, outcome)
        assert read_result(tmp_path) == outcome
    assert (FULL.tokens_per_s, FULL.flops_per_s_per_device, FULL.mfu) == (4000, 2e12, pytest.approx(0.2))
    assert BARE.mfu is None


def test_what_own_work_leaves_of_a_timed_step_is_exposed(tmp_path):
    serialised = replace(PROFILE, step_time_s=0.4, serialised=True)
    write_result(tmp_path, Outcome(verdict=Verdict.OK, measurement=replace(FULL, profile=serialised)))
    measured = read_result(tmp_path).measurement
    assert measured.profile.serialised
    assert measured.profile.exposed_s(0.24) == (pytest.approx(0.04), 0.0)
    assert not PROFILE.serialised


ONE_RANK = {"step_time_s": 1, "parts_s": [{}], "waiting_s": [{}], "own_times_s": [[1]], "stages": [0]}


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (ONE_RANK | {"own_times_s": [[]]}, "at least one step"),
        (ONE_RANK | {"own_times_s": [[nan]]}, "not nan"),
        (ONE_RANK | {"parts_s": [{"dp": 1e308}]}, r"not 1e\+308"),
        ({}, "measurement.profile.step_time_s: is missing"),
        ([], "measurement.profile: must be a mapping"),
        ({"step_time_s": 1, "parts_s": [{}], "waiting_s": [], "own_times_s": [[1]], "stages": [0]}, "one value per"),
        (
            {"step_time_s": 1, "parts_s": [3], "waiting_s": [{}], "own_times_s": [[1]], "stages": [0]},
            "profile.parts_s.0: must be",
        ),
        (
            {"step_time_s": 1, "parts_s": [{}], "waiting_s": [{}], "own_times_s": [[]], "stages": [0]},
            "at least one step",
        ),
        ({"step_time_s": 1, "parts_s": [{}], "waiting_s": [{}], "own_times_s": [[nan]], "stages": [0]}, "not nan"),
        ({"step_time_s": 1, "parts_s": [{"dp": 1e308}], "waiting_s": [{}], "own_times_s": [[1]], "stages": [0]}, "1e+"),
    ],
)
def test_a_malformed_profile_is_refused(profile, message):
    document = {"step_times_s": [1], "tokens_per_step": 1, "devices": 1, "profile": profile}
    with pytest.raises(ResultMalformed, match=message):
        parse_result(json.dumps({"version": 1, "verdict": "ok", "measurement": document}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"peak_held_bytes": [1 << 36] * 160_000}, "peak_held_bytes: must have at most 2000000 characters"),
        ({"software": {f"package-{n}": "1.0" for n in range(4000)}}, "software: must have at most 65536 characters"),
        ({"attention_kernels": ["k" * 70_000]}, "attention_kernels: must have at most"),
        ({"knobs": {"threads": "1" * 70_000}}, "knobs: must have at most"),
    ],
)
def test_what_would_make_every_list_of_trials_long_is_refused(given, message):
    with pytest.raises(ResultMalformed, match=f"^measurement.{message}"):
        parse_result(json.dumps({"version": 1, "verdict": "ok", "measurement": MEASURED | given}))


@pytest.mark.parametrize("name", ["first_losses", "first_gradient_norms"])
def test_of_many_losses_the_first_are_kept(name):
    measured = MEASURED | {name: list(range(20_000))}
    kept = parse_result(json.dumps({"version": 1, "verdict": "ok", "measurement": measured})).measurement
    assert getattr(kept, name) == tuple(range(MAX_STEPS))


def test_of_more_steps_than_the_cap_the_last_are_kept_and_no_statistic_costs_more_than_a_sort():
    steps, ranks = [1.0 + 1e-6 * number for number in range(99_000)], 20_000
    profile = {"step_time_s": 1, "parts_s": [{}] * ranks, "waiting_s": [{}] * ranks, "stages": [0] * ranks}
    profile |= {"own_times_s": [[1 + 1e-6 * rank] * 3 for rank in range(ranks)]}
    measured = {**MEASURED, "step_times_s": steps, "warmup_times_s": steps, "profile": profile}
    begun = time.process_time()
    kept = parse_result(json.dumps({"version": 1, "verdict": "ok", "measurement": measured})).measurement
    assert kept.step_times_s == kept.warmup_times_s == tuple(steps[-MAX_STEPS:])
    low, value, high = kept.step_time_interval_s.low, kept.step_time_s, kept.step_time_interval_s.high
    assert low < value < high
    assert value == pytest.approx(kept.median_step_time_s)
    assert kept.profile.straggler is None
    assert is_tight(kept.step_times_s, 0.01)
    assert is_surely_slower(kept.step_times_s, 1.0)
    assert time.process_time() - begun < 3.0  # quadratic ones took 40 s
