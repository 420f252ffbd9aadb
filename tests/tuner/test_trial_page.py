"""Everything of one trial on a terminal, whatever became of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from command_lab import shown

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.tuner.campaign.trial import Expectation, Origin
from meshtune.tuner.campaign.units import gibibytes
from meshtune.tuner.cli.render.trial import trial_page


@pytest.fixture
def measurement(make):
    profile = Profile(
        step_time_s=0.5,
        parts_s=({"compute": 0.4, "tp": 0.1, "dp": 0.0}, {"compute": 0.3, "tp": 0.2, "dp": 0.0}),
        waiting_s=({"tp": 0.05}, {"tp": 0.15}),
        own_times_s=((0.4, 0.4, 0.4), (0.3, 0.3, 0.3)),
        stages=(0, 0),
    )
    return make.measurement(
        0.5,
        devices=2,
        warmup_times_s=(1.0, 0.6),
        first_losses=(7.5, 7.25),
        model_flops_per_token=1e9,
        peak_flops_per_device=1e13,
        peak_memory_bytes=(2**30, 2**29),
        peak_held_bytes=(2**31, 2**30),
        profile=profile,
    )


def test_a_measured_trial_shows_its_medians_with_intervals_its_losses_and_its_attempts(make, measurement):
    text = shown(
        trial_page(make.trial(4, measurement, origin=Origin.SEARCH, attempt=2, started_at=1.0, finished_at=8.0))
    )
    assert "trial 4 of c: tp1 pp1 dp4 mbs1 ga5 zero0" in text
    assert "chosen by: search" in text
    assert "grad_accum_steps 5" in text
    assert "verdict: ok" in text
    assert "step: 500.0 ms, median of 6 steps (2 dropped as warm-up); 95 % interval 499.5 ms to 500.5 ms" in text
    assert "first losses: 7.5, 7.25" in text
    assert "speed: 2,048 tokens/s, 1,024 per device, 1.024 TFLOP/s per device, MFU 10.2 %" in text
    assert "time of this trial: compute 70 %, tp 30 %" in text
    assert "this trial: rank 0 takes 1.33 times as long as its peers for the same work" in text
    attempts = [line.split() for line in text.splitlines() if "c-t0004-a" in line]
    assert [line[:4] for line in attempts] == [
        ["1", "c-t0004-a1", "(id-4-1)", "lost"],
        ["2", "c-t0004-a2", "(id-4-2)", "ok"],
    ]
    assert attempts[0][-2:] == ["node", "down"]


EXPECTATION = Expectation(
    step_time_s=0.4, step_time_low_s=0.3, step_time_high_s=0.55, p_fits=0.972, gain=0.031, peak_bytes=1.5 * 2**30
)


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        ("measured", ["500.0 ms", "2.00 GiB", "it fits", "-"]),
        (Outcome(verdict=Verdict.OOM), ["-", "-", "out of memory", "-"]),
        (Outcome(verdict=Verdict.CRASHED), ["-", "-", "-", "-"]),
        (None, ["-", "-", "-", "-"]),
    ],
)
def test_what_was_expected_stands_beside_what_was_measured(make, measurement, outcome, found):
    trial = make.trial(0, measurement if outcome == "measured" else outcome)
    lines = shown(trial_page(replace(trial, expectation=EXPECTATION))).splitlines()
    expected = {
        "step (95 % interval)": "400.0 ms (300.0 ms to 550.0 ms)",
        "peak of the fullest rank": "1.50 GiB",
        "fits into memory": "97 %",
        "gain over the best before": "+3.1 %",
    }
    for (name, value), measured in zip(expected.items(), found, strict=True):
        (line,) = [line for line in lines if line.strip().startswith(name)]
        assert line.split() == f"{name} {value} {measured}".split()


@pytest.mark.parametrize(("value", "text"), [(2**31, "2.00 GiB"), (2**20, "1 MiB"), (2**20 - 2**10, "1023 KiB")])
def test_memory_is_said_in_its_own_magnitude(value, text):
    assert gibibytes(value) == text


def test_a_confirmation_says_so_and_what_was_not_counted_has_no_table(make):
    text = shown(trial_page(make.trial(4, make.measurement(1.0), origin=Origin.CONFIRMATION)))
    assert "chosen by: confirmation (a plan that was measured before, once more)" in text
    assert "Expected" not in text
    assert "Ranks" not in text


def test_a_failed_trial_shows_rank_phase_the_whole_reason_and_the_end_of_the_log(make):
    outcome = Outcome(
        verdict=Verdict.CRASHED,
        reason="first line\nsecond line [/tmp/x]",
        failed_rank=3,
        phase="backward",
        log_tail="Traceback\n\x1b[31mValueError: [bold]no\x1b[0m\n",
    )
    text = shown(trial_page(make.trial(0, outcome)))
    for word in ("verdict: crashed", " 3 ", " backward ", "first line", "second line [/tmp/x]", "end of the log:"):
        assert word in text
    assert "ValueError: [bold]no" in text
    assert "\x1b" not in text


def test_a_pruned_trial_says_how_far_it_came_and_claims_no_speed(make, measurement):
    outcome = Outcome(verdict=Verdict.PRUNED, partial=measurement, reason="slower than the incumbent")
    text = shown(trial_page(make.trial(0, outcome)))
    assert "pruned after 6 steps at 500.0 ms; no measurement" in text
    assert "slower than the incumbent" in text
    assert "tokens/s" not in text
    assert "tensors" in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_page_stays_within_the_terminal(make, measurement, width):
    text = shown(trial_page(make.trial(0, measurement)), width)
    assert all(len(line) <= width for line in text.splitlines())


def test_attempts_show_their_nodes_their_cause_and_what_they_kept_away_from(make):
    trial = make.trial(0, Outcome(verdict=Verdict.CRASHED, cause=Cause.HANG, reason="silent"), attempt=2)
    first, last = trial.attempts
    lost = replace(first.outcome, cause=Cause.PREEMPTION)
    first = replace(first, nodes=("n1", "n2"), failed_nodes=("n2",), outcome=lost)
    text = shown(trial_page(replace(trial, attempts=(first, replace(last, avoid=("n2", "n7"))))))
    attempts = [line.split() for line in text.splitlines() if "c-t0000-a" in line]
    assert attempts[0][3:8] == ["n1,", "n2", "!", "lost", "(preemption)"]
    assert attempts[1][3:6] == ["-", "crashed", "(hang)"]
    assert "verdict: crashed (hang)" in text
    assert "attempt 2 was to keep away from n2, n7, where it could" in text
