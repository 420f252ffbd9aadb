"""The report of a real simulated campaign: it says what the other commands say, and nothing of a job becomes markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from simulated_lab import HOSTILE, failing

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.units import number, percent, seconds
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.report.campaigns import render_report
from meshtune.tuner.results.report.page import PageTable, Section, page
from meshtune.tuner.results.views import best_view

CAMPAIGN, TRIALS = failing()


class Reader(HTMLParser):
    """The texts of a page, its tags, and all values of attributes by their names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_data(self, data):
        self.texts.append(data.strip())

    def of(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def text() -> str:
    return render_report([(CAMPAIGN, TRIALS)])


@pytest.fixture(scope="module")
def read(text) -> Reader:
    return Reader(text)


def test_its_numbers_are_those_of_best(read):
    best = best_view(CAMPAIGN, rank(CAMPAIGN, TRIALS), 10)
    setting = best.recommendation.setting
    for view in (setting, best.fastest_confirmed, best.fastest_once):
        one = view.objective
        assert f"{number(one.value)} ({number(one.low)} to {number(one.high)})" in read.texts
        assert {str(view.trial), view.plan_key, seconds(view.step_time_s), percent(view.mfu)} <= set(read.texts)
    assert setting.gain_over_baseline.percent_text("+") in read.texts
    assert f"Recommended: {best.recommendation.reason}." in read.texts


def test_it_says_plainly_that_nothing_was_measured(read):
    assert "Simulated: nothing below was measured on any device." in read.texts
    real = replace(CAMPAIGN, spec=replace(CAMPAIGN.spec, runner=replace(CAMPAIGN.spec.runner, kind="slurm")))
    assert "Simulated" not in render_report([(real, TRIALS[:1])])


def test_it_tells_failures_and_what_causes_out_of_memory_and_every_trial(read):
    ended = [trial for trial in TRIALS if trial.verdict is not Verdict.CANCELLED]
    failed = sum(trial.measurement is None and trial.verdict is not Verdict.PRUNED for trial in ended)
    assert any(told.startswith(f"{failed} of {len(ended)} trials failed") for told in read.texts)
    assert "Out of memory goes with recompute = none the most: 2 of the 2 plans that had it." in read.texts
    assert any(told.startswith("All else equal, recompute full -> none made a plan run out") for told in read.texts)
    assert {trial.plan.key for trial in TRIALS} <= set(read.texts)
    assert any("recompute: full" in told and "warm_start: true" in told for told in read.texts)


def test_the_words_of_a_job_are_text(text, read):
    assert HOSTILE in read.texts
    assert "<script" not in text


def test_it_names_nothing_that_a_browser_would_fetch_and_no_id_twice(text, read):
    assert {"script", "img", "link", "iframe", "object"}.isdisjoint(read.tags)
    targets = [value for name in ("href", "xlink:href", "src") for value in read.of(name)]
    assert targets
    assert all(value.startswith("#") and value[1:] in read.of("id") for value in targets)
    assert "@import" not in text
    assert "url(http" not in text
    assert len(read.of("id")) == len(set(read.of("id")))


def test_a_campaign_that_has_just_begun_has_a_report_and_several_are_compared_first(read):
    alone = Reader(render_report([(CAMPAIGN, [])]))
    assert "Nothing was measured." in alone.texts
    larger = replace(
        CAMPAIGN, id="larger-000000", spec=replace(CAMPAIGN.spec, cluster=replace(CAMPAIGN.spec.cluster, nodes=768))
    )
    trials = [replace(trial, campaign_id=larger.id) for trial in TRIALS]
    both = Reader(render_report([(CAMPAIGN, TRIALS), (larger, trials)]))
    place = both.texts.index
    assert place("Campaigns side by side") < place("What was asked")
    assert both.texts.count("What was found") == 2 * read.texts.count("What was found")
    assert len(both.of("id")) == len(set(both.of("id")))


def test_a_page_takes_any_sections_and_escapes_them():
    table = PageTable(columns=("<b>",), rows=[("<i>",)], caption="<u>")
    sections = [Section(heading="<s>", prose=["<p onclick=x>"], tables=[table], verbatim="<pre>")]
    read = Reader(page("<title>", sections, subtitle=["<em>"], notices=["<q>"]))
    assert {"<b>", "<i>", "<u>", "<s>", "<p onclick=x>", "<pre>", "<em>", "<q>", "<title>"} <= set(read.texts)
    assert {"b", "i", "u", "s", "em", "q"}.isdisjoint(read.tags)
