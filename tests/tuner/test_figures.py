"""Figures of a real simulated campaign with failures: the same for the same values, with their text as text."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from simulated_lab import failing

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.units import number
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.analysis.memory_failures import memory_failures
from meshtune.tuner.results.figures import progress, settings
from meshtune.tuner.results.figures.canvas import svg
from meshtune.tuner.results.ranking import rank

pytestmark = pytest.mark.slow

CAMPAIGN, TRIALS = failing()
SPACE = space_of(CAMPAIGN.spec)
# By their names, functions that draw one of the campaign, and one of a campaign that has just begun.
FIGURES = {
    "best so far": lambda trials: progress.best_so_far(CAMPAIGN, trials),
    "failures": lambda trials: progress.failures_over_time(analyse(CAMPAIGN, SPACE, trials).failures),
    "out of memory": lambda trials: progress.out_of_memory_by_knob(memory_failures(SPACE, trials)),
    "second runs": lambda trials: progress.second_runs(rank(CAMPAIGN, trials)),
    "timeline": lambda trials: progress.timeline(CAMPAIGN, trials),
    "parts": lambda trials: settings.step_parts([("setting", entry) for entry in rank(CAMPAIGN, trials)[:3]]),
    "forecasts": lambda trials: settings.predicted_against_measured(
        CAMPAIGN, analyse(CAMPAIGN, SPACE, trials).hindsight
    ),
    "effects": lambda trials: settings.knob_effects(analyse(CAMPAIGN, SPACE, trials).effects),
    "heat map": lambda trials: settings.heat_map(CAMPAIGN, trials, "tp", "pp"),
    "scaling": lambda trials: settings.scaling(
        {"measured": [(one.devices, one.efficiency) for one in analyse(CAMPAIGN, SPACE, trials).scaling]}
    ),
}


def texts(text: str) -> list[str]:
    return [str(found.text) for found in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_for_the_same_values_and_a_new_campaign_has_one_too(name):
    assert svg(FIGURES[name](TRIALS)) == svg(FIGURES[name](TRIALS))
    assert texts(svg(FIGURES[name]([])))


def test_failures_are_marked_by_their_kinds_and_their_numbers():
    told = texts(svg(progress.best_so_far(CAMPAIGN, TRIALS)))
    count = sum(trial.verdict is Verdict.OOM for trial in TRIALS)
    assert {f"out of memory ({count})", "crashed (1)", "given up as slower (1)", "baseline"} <= set(told)
    assert "tokens/s/device" in told


@pytest.mark.parametrize("name", ["best so far", "timeline", "forecasts"])
def test_what_was_simulated_is_never_called_measured(name):
    told = " ".join(texts(svg(FIGURES[name](TRIALS))))
    assert "simulated" in told
    assert "measured" not in told


def test_a_cell_of_the_heat_map_has_the_figure_of_its_best_setting_as_the_table_has():
    ranking, told = rank(CAMPAIGN, TRIALS), texts(svg(FIGURES["heat map"](TRIALS)))
    cells: dict[tuple[int, int], list[float]] = {}
    for entry in ranking:
        cells.setdefault((entry.trial.plan.tp, entry.trial.plan.pp), []).append(entry.objective.value)
    assert {number(max(values)) for values in cells.values()} <= set(told)
    assert any(number(one.objective.value) != number(one.first_run.value) for one in ranking if one.again)


def test_what_ran_out_of_memory_is_counted_once_for_each_plan_and_pairs_name_the_culprit():
    found = memory_failures(SPACE, TRIALS)
    worst = found[0]
    assert (worst.knob, worst.culprits[0].change.after) == ("pp", 8)
    assert [(one.value, one.oom, one.plans) for one in worst.values] == [(8, 2, 2), (64, 1, 10), (128, 1, 4)]
    assert [one.explained for one in found] == sorted((one.explained for one in found), reverse=True)
    assert "2 of 2" in texts(svg(progress.out_of_memory_by_knob(found)))


def test_a_node_whose_name_is_a_formula_or_no_xml_is_drawn_as_it_is_called():
    def on(node: str):
        return replace(TRIALS[0], attempts=(replace(TRIALS[0].last, nodes=(node,)),))

    told = texts(svg(progress.timeline(CAMPAIGN, [on(r"$\frac{$"), on("a<b>\x00&\ud800")])))
    assert {r"$\frac{$", "a<b>\ufffd&\ufffd"} <= set(told)


def test_threads_draw_side_by_side():
    alone = svg(progress.best_so_far(CAMPAIGN, TRIALS))
    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(lambda _: svg(progress.best_so_far(CAMPAIGN, TRIALS)), range(8)))
    assert set(drawn) == {alone}


def test_figures_need_no_pyplot_and_change_no_setting():
    told = (
        # Not of the backend: to ask for it is to choose one, which imports pyplot.
        "import sys, matplotlib; now = lambda: {name: matplotlib.rcParams[name] for name in matplotlib.rcParams"
        " if not name.startswith('backend')};"
        "before = now();"
        "from meshtune.tuner.results.figures import canvas, progress, settings;"
        "canvas.svg(settings.scaling({}));"
        "assert now() == before and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", told], check=True)
