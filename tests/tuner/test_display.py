"""Terminal output: every state of a campaign, everything of one trial, and the screen of `meshtune run`; no text is
taken for markup."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from command_lab import shown
from rich.text import Text

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Expectation, Origin, TrialState
from meshtune.tuner.campaign.units import gibibytes, number, seconds
from meshtune.tuner.cli.following import LiveScreen
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.terminal import Terminal
from meshtune.tuner.cli.render.trial import trial_page
from meshtune.tuner.cli.render.winners import recommendation_text
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import recommend


@pytest.fixture
def every_trial(make):
    """A trial in every state and with every verdict."""
    trials = [make.trial(0, make.measurement(2.0), origin=Origin.BASELINE, finished_at=9.0)]
    trials.append(make.trial(1, make.measurement(0.001, peak_memory_bytes=(3 * 2**30,)), finished_at=9.0, attempt=3))
    for verdict in Verdict:
        if verdict is not Verdict.OK:
            trials.append(make.trial(len(trials), verdict, finished_at=9.0))
    for state in (TrialState.PLANNED, TrialState.SUBMITTED, TrialState.RUNNING):
        trials.append(make.trial(len(trials), state=state, started_at=5.0))
    return trials


@pytest.mark.parametrize("state", CampaignState)
@pytest.mark.parametrize("trouble", ["", "the runner: [/no] answer"])
def test_progress_of_a_campaign_in_any_state(lab, make, every_trial, state, trouble):
    campaign = make.campaign(lab.spec(baseline={"tp": 1}, budget={"trials": 20}), state, elapsed_s=75.0, legal=30)
    text = shown(display.progress(campaign, every_trial, rank(campaign, every_trial), trouble))
    assert "9/20 trials" in text
    assert "Fastest once: tp1 pp1 dp4 mbs2 ga2 zero0 (trial 1): " in text
    assert "worked 75.0 s" in text
    assert "failures: 1 oom, 1 crashed, 1 timed_out, 1 pruned, 1 cancelled, 1 lost, 1 illegal" in text
    assert "running: trial 11" in text
    assert trouble in text


def test_a_trial_that_waits_says_since_when_and_why_on_every_page(lab, make):
    trial = make.trial(0, state=TrialState.SUBMITTED)
    waiting = replace(trial, attempts=(replace(trial.last, submitted_at=43_380.0, wait="[bold]JobHeldAdmin"),))
    told = "queued since 1970-01-01 12:03 UTC: [bold]JobHeldAdmin"
    campaign = make.campaign(lab.spec())
    assert f"submitted: trial 0, {trial.plan.key}, {told}" in shown(display.progress(campaign, [waiting], [], ""))
    for page in (display.trials_table([waiting]), trial_page(waiting)):
        assert told in shown(page)
    running = replace(waiting, attempts=(replace(waiting.last, state=TrialState.RUNNING),))
    assert "JobHeldAdmin" not in shown(display.trials_table([running]))


def test_progress_never_promises_more_trials_than_there_are_plans(lab, make):
    campaign = make.campaign(lab.spec(budget={"trials": 50}), legal=10)
    assert "0/10 trials" in shown(display.progress(campaign, [], [], ""))
    campaign = make.campaign(lab.spec(budget={"trials": 50}, baseline={"zero_stage": 3}), legal=10)
    assert "0/11 trials" in shown(display.progress(campaign, [], [], ""))


def test_the_time_left_follows_the_pace_and_the_wall_time_budget(lab, make):
    trials = [make.trial(number, make.measurement(1.0), finished_at=30.0) for number in range(2)]
    campaign = make.campaign(lab.spec(budget={"trials": 8}, parallel=2))
    assert display.left(campaign, trials) == "90.0 s"
    campaign = make.campaign(lab.spec(budget={"trials": 8, "wall_time_s": 50}), elapsed_s=40.0)
    assert display.left(campaign, trials) == "10.0 s"


def test_the_table_of_the_best_shows_the_measure_its_interval_memory_and_gain(lab, make, every_trial):
    campaign = make.campaign(lab.spec(baseline={"tp": 1}))
    text = shown(display.best_table(campaign, rank(campaign, every_trial), 10))
    assert "tokens/s/device" in text
    assert "  baseline " in text
    assert "3.00 GiB" in text
    assert "1.0 ms" in text
    assert "+199900.0 %" in text
    assert len([line for line in text.splitlines() if "tp1" in line]) == 2
    assert "  baseline " not in shown(display.best_table(campaign, rank(campaign, every_trial), 1))


@pytest.mark.parametrize("width", [40, 80, 100])
def test_narrow_tables_wrap_and_cut_nothing_off(lab, make, every_trial, width):
    campaign = make.campaign(lab.spec(baseline={"tp": 1}))
    for table in (
        display.best_table(campaign, rank(campaign, every_trial), 10),
        display.trials_table(every_trial),
        display.campaigns_table([display.CampaignRow(campaign, datetime.fromtimestamp(0, UTC), {"ok": 3})]),
    ):
        # Every character of the wide table is there, or what is left out is named and every plan is whole.
        wide, narrow = ("".join(shown(table, width=w).split()).replace("\u2500", "") for w in (400, width))
        plans = [word for word in shown(table, width=400).split() if word.startswith(("tp", "mbs", "zero", "c1"))]
        assert sorted(narrow) == sorted(wide) or (
            "leftouthere:" in narrow and [word for word in shown(table, width=width).split() if word in plans] == plans
        )
        assert all(len(line) <= width for line in shown(table, width=width).splitlines())


@pytest.fixture
def profile():
    """Three quarters computing, a quarter tensor parallelism, a trace of bubble; of two ranks the second is slow."""
    return Profile(
        step_time_s=1.0,
        parts_s=({"compute": 0.746, "tp": 0.25, "bubble": 0.004},) * 2,
        waiting_s=({},) * 2,
        own_times_s=((0.1, 0.1, 0.1), (0.2, 0.2, 0.2)),
        stages=(0, 0),
    )


def test_below_the_best_it_is_said_where_the_time_of_the_best_and_the_baseline_goes(lab, make, runs, profile):
    other = replace(profile, parts_s=({"compute": 0.6, "dp": 0.4},) * 2, own_times_s=((0.1,),) * 2)
    trials = runs((1.0, {"profile": profile}), (0.5, {"profile": other}), (0.7, {"profile": other}))
    campaign = make.campaign(lab.spec(baseline={"tp": 1}))
    ranking = rank(campaign, trials)
    assert [note.plain for note in display.best_notes(campaign, ranking, 10)] == [
        "time of the best (trial 1): compute 60 %, dp 40 %",
        "time of the baseline (trial 0): compute 75 %, tp 25 %",
        "the baseline (trial 0): rank 1 takes 2.00 times as long as its peers for the same work",
    ]
    alone = rank(campaign, trials[:1])
    assert display.best_notes(campaign, alone, 10)[0].plain.startswith(
        "time of the best and the baseline (trial 0): compute"
    )


def test_parts_of_steps_in_which_nothing_overlaps_are_shown_as_such(lab, make, profile):
    serialised = replace(profile, own_times_s=((0.6,), (0.8,)), serialised=True)
    trials = [make.trial(0, make.measurement(1.0, profile=serialised), origin=Origin.BASELINE)]
    notes = display.best_notes(make.campaign(lab.spec(baseline={"tp": 1})), rank(make.campaign(lab.spec()), trials), 10)
    told = "of steps in which nothing overlaps; in timed ones own work left at least 30 % unfilled"
    assert notes[1].plain.strip() == told


def test_a_setting_that_trains_otherwise_is_marked_and_explained(lab, make, runs):
    trials = runs((1.0, {"first_losses": (2.0, 1.5)}), (0.5, {"first_losses": (2.0, 1.0)}))
    campaign = make.campaign(lab.spec(baseline={"tp": 1}))
    ranking = rank(campaign, trials)
    assert " 1 ! " in shown(display.best_table(campaign, ranking, 10))
    assert [note.plain for note in display.best_notes(campaign, ranking, 10)] == [
        "! trial 1 does not train the same: the losses of step 1 differ by 0.5 from the baseline's; never recommended"
    ]


def test_settings_that_were_measured_again_are_shown_with_both_trials_and_both_values(lab, make, runs, profile):
    again = {0: (0.8, {"profile": profile}), 1: Verdict.OOM, 2: Verdict.LOST}
    trials = runs(0.5, 0.6, 0.7, 0.8, baseline=False, again=again)
    campaign = make.campaign(lab.spec())
    ranking = rank(campaign, trials)
    text = shown(display.best_table(campaign, ranking, 10))
    for cell in (" 0+4 ", " 1+5 ! ", " 2+6 ", " 3 "):
        assert cell in text
    unit = "tokens/s/device"
    about_time, _, *notes = (note.plain for note in display.best_notes(campaign, ranking, 10))
    assert about_time == "time of the best (trial 4): compute 75 %, tp 25 %"
    assert notes == [
        "second runs of 1 plan: -37.5 % against the first run; single runs scatter by 27 %",
        f"trial 0, second run (trial 4): 320 after 512 {unit} (-37.5 % in speed)",
        f"! trial 1, second run (trial 5): oom after 426.7 {unit}; never recommended",
        "trial 2, second run (trial 6): lost, which says nothing of the plan",
    ]


def test_the_front_is_marked_and_has_a_table_of_what_is_left_of_the_device(lab, make, runs):
    cluster = {"preset": "local-cpu", "device": {"memory_bytes": 64 * 2**30}}
    campaign = make.campaign(lab.spec(pareto=True, cluster=cluster, objective="step_time"))
    given = [(0.46, 48), (0.5, 36), (0.6, 40), (1.0, 65)]
    trials = runs(*((step, {"peak_held_bytes": (size * 2**30,)}) for step, size in given), baseline=False)
    ranking = rank(campaign, trials)
    table = shown(display.best_table(campaign, ranking, 10))
    assert [f" {number} * " in table for number in range(4)] == [True, True, False, False]
    lines = [line.split() for line in shown(display.front_table(campaign, ranking)).splitlines()]
    assert [line[-6:] for line in lines if "tp1" in line] == [
        ["0.46", "0.0", "%", "16.00", "GiB", "25%"],
        ["0.5", "8.0", "%", "28.00", "GiB", "44%"],
    ]
    assert " * " not in shown(display.best_table(make.campaign(lab.spec(cluster=cluster)), ranking, 10))
    full = shown(display.front_table(campaign, rank(campaign, trials[3:])))
    assert "-1.00 GiB" in full
    assert "-2%" in full


def test_a_pruned_trial_is_told_by_its_steps(make):
    partial = make.measurement(0.5, spread=0.0)
    trial = make.trial(3, Outcome(verdict=Verdict.PRUNED, partial=partial, reason="slower"))
    assert "pruned after 6 steps at 500.0 ms" in shown(display.trials_table([trial]))
    assert display.trial_line(trial) == f"trial 3: {trial.plan.key}: pruned after 6 steps at 500.0 ms"


def test_the_table_of_trials_shows_every_state_and_reason(every_trial):
    text = shown(display.trials_table(every_trial))
    for word in (*Verdict, TrialState.PLANNED, TrialState.SUBMITTED, TrialState.RUNNING, Origin.BASELINE):
        assert f" {word} " in text
    assert "it was oom" in text


def test_reasons_that_look_like_markup_are_shown_as_they_are(make):
    outcome = Outcome(verdict=Verdict.CRASHED, reason="[rank0]: no such file [/tmp/x] :bomb:\nmore")
    trial = make.trial(0, outcome)
    assert "[rank0]: no such file [/tmp/x] :bomb:" in shown(display.trials_table([trial]))
    assert display.trial_line(trial).endswith(": crashed: [rank0]: no such file [/tmp/x] :bomb:")


def test_recommendations_are_sentences(lab, make, every_trial):
    campaign = make.campaign(lab.spec(baseline={"tp": 1}))
    text = recommendation_text(recommend(campaign, make.thrice(every_trial))).plain
    assert text.startswith("Recommended: tp1 pp1 dp4 mbs2 ga2 zero0 (trial 1): 256,000 tokens/s/device: +199900.0 %")
    assert text.endswith("faster than the baseline; second run: +0.0 % against its first run.")
    assert recommendation_text(recommend(campaign, ())).plain == ("No recommendation: no plan was measured.")


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
        compile_s=12.5,
        profile=profile,
    )


def test_a_measured_trial_shows_its_means_with_intervals_its_losses_and_its_attempts(make, measurement):
    text = shown(
        trial_page(make.trial(4, measurement, origin=Origin.SEARCH, attempt=2, started_at=1.0, finished_at=8.0))
    )
    assert "trial 4 of c: tp1 pp1 dp4 mbs1 ga5 zero0" in text
    assert "chosen by: search" in text
    assert "grad_accum_steps 5" in text
    assert "verdict: ok" in text
    assert "step: 500.0 ms, mean of 6 steps (2 dropped as warm-up), after 12.5 s of compiling; 95 % interval" in text
    assert "interval 499.6 ms to 500.4 ms; median 500.0 ms" in text
    assert "first losses: 7.5, 7.25" in text
    assert "speed: 2,048 tokens/s, 1,024 per device, 1.024 TFLOP/s per device, MFU 10.2 %" in text
    assert "time of this trial: compute 70 %, tp 30 %" in text
    assert "this trial: rank 0 takes 1.33 times as long as its peers for the same work" in text
    attempts = [line.split() for line in text.splitlines() if "c-t0004-a" in line]
    assert [line[:4] for line in attempts] == [
        ["1", "c-t0004-a1", "(id-4-1)", "lost"],
        ["2", "c-t0004-a2", "(id-4-2)", "ok"],
    ]
    assert "attempt 1: node down" in text.splitlines()


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


def test_a_confirmation_says_so_and_what_was_not_counted_has_no_table(make):
    text = shown(trial_page(make.trial(4, make.measurement(1.0), origin=Origin.CONFIRMATION)))
    assert "chosen by: second run" in text
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
    text = shown(trial_page(make.trial(0, measurement)), width=width)
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


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [
        (seconds, 0.0005, "0.5 ms"),
        (seconds, 0.25, "250.0 ms"),
        (seconds, 1, "1.0 s"),
        (seconds, 119.94, "119.9 s"),
        (seconds, 121, "2 min 01 s"),
        (seconds, 7260, "2 h 01 min"),
        (number, 1234.6, "1,235"),
        (number, 12.3456, "12.35"),
        (number, 0.00012344, "0.0001234"),
        (number, 0, "0"),
        (gibibytes, 2**31, "2.00 GiB"),
        (gibibytes, 2**20, "1 MiB"),
        (gibibytes, 2**20 - 2**10, "1023 KiB"),
    ],
)
def test_quantities_are_said_as_people_do(say, value, text):
    assert say(value) == text


def test_the_log_of_the_trial_that_crashed_first_is_told_as_it_comes(make):
    log = "\n".join(f"line {number}" for number in range(9)) + "\nsrun: error: n1: no such step\n"
    crash = Outcome(verdict=Verdict.CRASHED, reason="the job script failed", log_tail=log)
    trials = [
        make.trial(0, make.measurement(1.0), finished_at=1.0),
        make.trial(1, Outcome(verdict=Verdict.OOM, reason="oom", log_tail="out of memory"), finished_at=2.0),
    ]
    assert display.first_log_lines(trials) == []
    first = make.trial(2, crash, finished_at=3.0)
    other = make.trial(3, Outcome(verdict=Verdict.CRASHED, log_tail="another"), finished_at=4.0)
    lines = display.first_log_lines([*trials, other, first])
    assert lines[0] == "the log of trial 2 ends (`meshtune show` has more):"
    assert lines[1:] == [*(f"    line {number}" for number in range(5, 9)), "    srun: error: n1: no such step"]
    # What ends the campaign is told with its end.
    hopeless = make.trial(0, Outcome(verdict=Verdict.CRASHED, cause=Cause.USER_BUG, log_tail=log), finished_at=1.0)
    assert display.first_log_lines([hopeless]) == []


NOW = Text("running: trial 30")


@pytest.fixture
def screen(lab, make):
    """The lines of a screen of this size after the baseline (2 s a step), so many trials of 1 s, and one that runs."""

    def draw(count: int, *, width: int, height: int, **plan: object) -> list[str]:
        trials = [make.trial(0, make.measurement(2.0), origin=Origin.BASELINE, finished_at=9.0)]
        for at in range(1, count):
            trials.append(make.trial(at, make.measurement(1.0), finished_at=9.0 + at))
        trials.append(make.trial(30, state=TrialState.RUNNING, started_at=5.0))
        out = io.StringIO()
        terminal = Terminal(file=out, width=width, height=height, force_terminal=True, color_system=None)
        terminal.print(LiveScreen(make.campaign(lab.spec(baseline={"tp": 1})), trials, NOW))
        return out.getvalue().splitlines()

    return draw


@pytest.mark.parametrize("width", [80, 200])
def test_finished_trials_are_listed_newest_last_with_their_speed_against_the_baseline(screen, width):
    lines = screen(3, width=width, height=24)
    assert lines[0].split()[:3] == ["trial", "plan", "ended"]
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert lines[1].endswith("baseline")
    assert "+100.0 %" in lines[2]
    assert lines[4] == NOW.plain
    assert len(lines) == 5


@pytest.mark.parametrize(("width", "height"), [(80, 12), (200, 12), (34, 12), (80, 4), (80, 1)])
def test_a_screen_is_never_longer_than_the_terminal_and_shows_the_newest(screen, width, height):
    lines = screen(25, width=width, height=height)
    assert len(lines) <= max(1, height - 1)
    assert lines[-1] == NOW.plain
    if height > 4:
        assert lines[0].endswith("earlier")
        numbers = [line.split()[0] for line in lines if line.strip()[:1].isdigit() and "earlier" not in line]
        assert numbers[-1] == "24"


def test_a_failed_trial_has_its_verdict_and_no_number(lab, make):
    trials = [make.trial(0, Verdict.OOM, finished_at=9.0), make.trial(1, make.measurement(1.0), finished_at=10.0)]
    out = io.StringIO()
    Terminal(file=out, width=120, height=24).print(LiveScreen(make.campaign(lab.spec()), trials, NOW))
    failed, measured = out.getvalue().splitlines()[1:3]
    assert failed.split()[-1] == "oom"
    assert "ok" in measured.split()
    assert "%" not in measured  # there is no baseline
