"""The result file comes whole or not at all, says what was written, and names the field that is wrong."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.runners.documents import plain
from meshtune.runners.outcome import (
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
from meshtune.search_spaces.checks import InvalidValue

MEASURED = {"step_times_s": [0.25, 0.5, 1.0], "tokens_per_step": 512, "devices": 2}
BARE = Measurement(step_times_s=(0.25, 0.5, 1.0), tokens_per_step=512, devices=2)
positive = st.floats(min_value=1e-300, max_value=1e300)
whole = st.integers(1, 2**63)
measurements = st.builds(
    Measurement,
    step_times_s=st.lists(positive, min_size=1, max_size=9).map(tuple),
    tokens_per_step=whole,
    devices=whole,
    model_flops_per_token=st.none() | positive,
    warmup_times_s=st.lists(positive, max_size=3).map(tuple),
    first_losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    peak_memory_bytes=st.lists(st.integers(0, 2**60), max_size=3).map(tuple),
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
outcomes = st.builds(Outcome, verdict=st.just(Verdict.OK), measurement=measurements) | st.builds(
    Outcome,
    verdict=st.sampled_from([verdict for verdict in Verdict if verdict is not Verdict.OK]),
    reason=texts,
    failed_rank=st.none() | st.integers(0, 1000),
    phase=st.none() | texts,
    log_tail=texts,
)


@settings(max_examples=50, deadline=None)
@given(outcomes)
def test_what_was_written_is_read(tmp_path_factory, outcome):
    directory = tmp_path_factory.getbasetemp()
    assert write_result(directory, outcome, {"build_s": 1.5}) == directory / RESULT_FILE
    assert read_result(directory) == outcome
    assert json.loads((directory / RESULT_FILE).read_text())["build_s"] == 1.5


def test_nothing_but_the_result_is_left_in_the_directory(tmp_path):
    write_result(tmp_path, Outcome(verdict=Verdict.OOM))
    assert [path.name for path in tmp_path.iterdir()] == [RESULT_FILE]


def test_no_extra_key_replaces_one_of_the_contract(tmp_path):
    written = Outcome(verdict=Verdict.CRASHED, reason="true")
    write_result(tmp_path, written, {"version": 9, "verdict": "ok", "reason": "false", "plan": {}})
    assert read_result(tmp_path) == written


def test_a_missing_result_is_told_from_a_malformed_one(tmp_path):
    with pytest.raises(ResultMissing, match=r"result.json does not exist"):
        read_result(tmp_path)
    (tmp_path / RESULT_FILE).mkdir()
    with pytest.raises(ResultMissing, match="cannot be read: Is a directory"):
        read_result(tmp_path)


def test_bytes_that_are_no_text_are_malformed(tmp_path):
    (tmp_path / RESULT_FILE).write_bytes(b'{"version": 1, "verdict": "oom", "reason": "\xff\xfe"}')
    with pytest.raises(ResultMalformed, match="not UTF-8"):
        read_result(tmp_path)


WRITER = """
import sys
from pathlib import Path
from meshtune.runners.outcome import Measurement, Outcome, Verdict, write_result
directory, number = Path(sys.argv[1]), 0
print("ready", flush=True)
while True:
    number += 1
    measurement = Measurement(step_times_s=(float(number),) * (number % 7 * 500 + 1), tokens_per_step=number, devices=1)
    write_result(directory, Outcome(verdict=Verdict.OK, measurement=measurement))
"""


def test_a_reader_never_sees_half_a_file(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True)
    seen = set()
    try:
        assert writer.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 120
        while len(seen) < 60 and time.monotonic() < deadline:
            try:
                measured = read_result(tmp_path).measurement
            except ResultMissing:
                assert not seen
                continue
            assert set(measured.step_times_s) == {float(measured.tokens_per_step)}
            assert len(measured.step_times_s) == measured.tokens_per_step % 7 * 500 + 1
            seen.add(measured.tokens_per_step)
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert len(seen) >= 60
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


def test_a_directory_that_is_none_raises_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("text")
    for directory in (tmp_path / "file", tmp_path / "none"):
        with pytest.raises(OSError):
            write_result(directory, Outcome(verdict=Verdict.OOM))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_extra_number_that_is_not_finite_leaves_the_earlier_result(tmp_path):
    write_result(tmp_path, Outcome(verdict=Verdict.OOM, reason="first"))
    with pytest.raises(ValueError, match="Out of range float"):
        write_result(tmp_path, Outcome(verdict=Verdict.OOM, reason="second"), {"build_s": nan})
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
        ("", "^not JSON: "),
        ('{"version": 1, "verd', "^not JSON: "),
        ("[" * 100_000, "^not JSON: "),
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
        (result(verdict="oom", measurement=..., failed_rank=-1), "^failed_rank: must be at least 0, not -1$"),
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
            r"^measurement\.step_times_s: must be positive seconds, not 0.0, -2.0$",
        ),
        (measured(step_times_s=[nan]), r"^measurement\.step_times_s: must be positive seconds, not nan$"),
        (measured(step_times_s=[inf]), r"^measurement\.step_times_s: must be positive seconds, not inf$"),
        (measured(step_times_s=[10**400]), r"^measurement\.step_times_s"),
        (measured(warmup_times_s=[nan]), r"^measurement\.warmup_times_s: must be positive seconds, not nan$"),
        (measured(first_losses=[1.0, nan, -inf]), r"^measurement\.first_losses: must be finite, not nan, -inf$"),
        (measured(peak_memory_bytes=[5, -1]), r"^measurement\.peak_memory_bytes: must be at least 0, not -1$"),
        (measured(peak_memory_bytes=[0.5]), r"^measurement\.peak_memory_bytes\.0: "),
        (measured(tokens_per_step=3.7), r"^measurement\.tokens_per_step: "),
        (measured(tokens_per_step=inf), r"^measurement\.tokens_per_step: "),
        (
            measured(tokens_per_step=0, devices=-2),
            r"^measurement\.tokens_per_step: .*not 0; measurement\.devices: .*-2$",
        ),
        (measured(model_flops_per_token=0), r"^measurement\.model_flops_per_token: must be positive and finite, not 0"),
        (measured(model_flops_per_token=inf), r"^measurement\.model_flops_per_token: must be positive and finite"),
    ],
)
def test_a_malformed_result_names_the_field(text, message):
    with pytest.raises(ResultMalformed, match=message):
        parse_result(text)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([*Verdict, "1", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
KEYS = ("verdict", "measurement", "reason", "failed_rank", "phase", "log_tail")
documents = st.fixed_dictionaries(
    {"version": st.just(1)},
    optional={key: anything for key in KEYS}
    | {
        "verdict": st.sampled_from([*Verdict]) | anything,
        "measurement": st.fixed_dictionaries({key: st.just(value) | anything for key, value in MEASURED.items()})
        | st.dictionaries(st.sampled_from(list(MEASURED)), anything),
    },
)


@settings(max_examples=500, deadline=None)
@given(documents.map(json.dumps) | anything.map(json.dumps) | st.text())
def test_any_text_is_an_outcome_or_malformed(text):
    try:
        outcome = parse_result(text)
    except ResultMalformed:
        return
    assert isinstance(outcome.verdict, Verdict)
    assert outcome.failed_rank is None or type(outcome.failed_rank) is int
    json.dumps(plain(outcome), allow_nan=False)


@pytest.mark.parametrize("verdict", Verdict)
def test_a_measurement_goes_with_ok_and_with_nothing_else(verdict):
    with pytest.raises(InvalidValue, match=r"^measurement: "):
        Outcome(verdict=verdict, measurement=None if verdict is Verdict.OK else BARE)


def test_rates_follow_from_the_raw_numbers():
    measurement = Measurement(
        step_times_s=(4.0, 0.5, 0.25, 0.5), tokens_per_step=1000, devices=4, model_flops_per_token=6e9
    )
    assert measurement.step_time_s == 0.5
    assert measurement.tokens_per_s == 2000
    assert measurement.tokens_per_s_per_device == 500
    assert measurement.flops_per_s_per_device == 3e12
    assert (measurement.step_time_interval_s.low, measurement.step_time_interval_s.high) == (0.25, 4.0)
    assert BARE.flops_per_s_per_device is None


def test_what_the_plan_made_is_informative_and_what_the_infrastructure_made_is_retryable():
    assert {verdict for verdict in Verdict if verdict.informative} == set(Verdict) - {
        *(Verdict.CANCELLED, Verdict.LOST, Verdict.ILLEGAL)
    }
    assert [verdict for verdict in Verdict if verdict.retryable] == [Verdict.LOST]
