"""The screen of `meshtune run`: the finished trials that a terminal has lines for, above what runs now."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.cli.following import LiveScreen
from meshtune.tuner.cli.render.terminal import Terminal

NOW = Text("running: trial 30")


@pytest.fixture
def screen(lab, make):
    """The lines of a screen of this size after the baseline (2 s a step), so many trials of 1 s, and one that runs."""

    def draw(count: int, *, width: int, height: int, **plan: object) -> list[str]:
        trials = [make.trial(0, make.measurement(2.0), origin=Origin.BASELINE, finished_at=9.0)]
        for number in range(1, count):
            trials.append(make.trial(number, make.measurement(1.0), finished_at=9.0 + number))
        trials.append(make.trial(30, state=TrialState.RUNNING, started_at=5.0))
        out = io.StringIO()
        terminal = Terminal(file=out, width=width, height=height, force_terminal=True, color_system=None)
        terminal.print(LiveScreen(make.campaign(lab.spec(baseline={"tp": 1})), trials, NOW))
        return out.getvalue().splitlines()

    return draw


@pytest.mark.parametrize("width", [80, 200])
def test_finished_trials_are_listed_newest_last_with_their_speed_against_the_baseline(screen, width):
    lines = screen(3, width=width, height=24)
    assert lines[0].split()[:3] == ["trial", "setting", "ended"]
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
