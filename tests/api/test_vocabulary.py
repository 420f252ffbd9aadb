"""Fastest once, fastest confirmed, recommended: three words with one number each, over REST and in commands, for a
campaign so noisy that they are three settings."""

import io
from functools import partial
from statistics import geometric_mean

import pytest
from rich.console import Console

from meshtune.runners.documents import plain
from meshtune.tuner.campaign.units import number
from meshtune.tuner.cli.telling import print_best, print_campaign
from meshtune.tuner.results.export import choose
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.record import Record
from meshtune.tuner.results.views import best_view

pytestmark = pytest.mark.slow

NOISY = {
    "model": "llama3-8b",
    "cluster": {"preset": "frontier", "nodes": 2},
    "global_batch_size": 32,
    "space": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "micro_batch_size": [1, 2], "recompute": ["none", "full"]},
    "workload": "simulated",
    "runner": {"kind": "simulated", "seed": 4, "noise": 0.25},
    "baseline": {"tp": 4, "pp": 2, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "budget": {"trials": 40},
    "confirm": 3,
    "trial": {"time_limit_s": 1e6},
}


@pytest.fixture
def noisy(client, create, drive, monkeypatch):
    """The first of ten campaigns whose three words are of three settings. The noise of a simulated job is drawn by its
    name, which begins with the campaign's id."""
    for at in range(2, 12):
        monkeypatch.setattr("meshtune.tuner.service.service.new_id", lambda name, id=f"noisy-{at}": id)
        id = create(**NOISY)
        drive(id)
        best = client.get(f"/v1/campaigns/{id}/best").json()
        words = (best["fastest_once"], best["fastest_confirmed"], best["recommendation"]["setting"])
        if None not in words and len({word["trial"] for word in words}) == len(words):
            return id
        assert client.delete(f"/v1/campaigns/{id}").is_success
    raise AssertionError("no campaign has three settings")


@pytest.fixture
def told(monkeypatch):
    """What a command prints."""

    def run(command, *arguments) -> str:
        printed = io.StringIO()
        console = Console(file=printed, width=300)
        for module in ("telling", "common"):
            monkeypatch.setattr(f"meshtune.tuner.cli.{module}.console", console)
        command(*arguments)
        return printed.getvalue()

    return run


def named(one) -> str:
    return f"{one['plan_key']} (trial {one['trial']}): {number(one['objective']['value'])} tokens/s/device"


def test_each_word_has_one_number_wherever_it_is_shown(client, service, noisy, told):
    summary = client.get(f"/v1/campaigns/{noisy}").json()["summary"]
    best = client.get(f"/v1/campaigns/{noisy}/best").json()
    campaign, trials = service.store.campaign(noisy), service.store.trials(noisy)
    found = {
        "fastest_once": best["fastest_once"],
        "fastest_confirmed": best["fastest_confirmed"],
        "recommended": best["recommendation"]["setting"],
    }
    assert len({one["trial"] for one in found.values()}) == 3
    assert best == plain(best_view(campaign, rank(campaign, trials), 10))  # `meshtune best --json`
    for name, one in found.items():
        assert summary[name] == {key: one[key] for key in summary[name]}
        assert choose(campaign, trials, name.replace("_", "-")).trial.number == one["trial"]
    assert summary["recommended_is_baseline"] is True
    assert best["recommendation"]["reason"].startswith(summary["recommended_reason"])
    listed = client.get("/v1/campaigns").json()["campaigns"][0]
    assert listed["summary"] == summary
    record = Record(campaign=campaign, trials=tuple(trials))
    for text in (
        told(print_best, campaign, trials, 10),
        told(print_campaign, record, "", ()),
    ):
        for words, one in (("Fastest once", found["fastest_once"]), ("Fastest confirmed", found["fastest_confirmed"])):
            assert f"{words}: {named(one)} by " in text
        assert f"Recommended: {named(found['recommended'])}: {best['recommendation']['reason']}." in text
        assert text.startswith("simulated: nothing below was measured on any device\n")


@pytest.fixture
def drifting(create, drive, runner, service):
    """From its second runs on, and in the second round once more, the cluster is three times as slow."""
    id = create(budget={"trials": 12}, confirm=2, confirm_rounds=3)
    trials = partial(service.store.trials, id)
    for round in (1, 2):
        while not any(trial.round == round for trial in trials()):
            service.tick(id)
        runner.slower *= 3.0
    drive(id)
    assert {trial.measurement.step_time_s > 1 for trial in trials() if trial.round} == {False, True}
    return id


def test_gains_are_of_one_round_or_of_first_runs_wherever_they_are_shown(client, service, drifting, told):
    query = {"view": "brief", "page_size": 200}
    trials = client.get(f"/v1/campaigns/{drifting}/trials", params=query).json()["trials"]
    measured = [trial for trial in trials if trial["objective"] is not None]
    reached = {(trial["plan_key"], trial["round"]): trial["objective"]["value"] for trial in measured}
    baseline = trials[0]["plan_key"]
    for trial in measured:
        there = reached.get((baseline, trial["round"]))
        gain = None if there is None else pytest.approx(trial["objective"]["value"] / there - 1)
        assert trial["gain_over_baseline"] == gain
    best = client.get(f"/v1/campaigns/{drifting}/best", params={"top": 50}).json()
    for entry in best["best"]:
        key = entry["plan_key"]
        rounds = [of for plan, of in reached if plan == key and of and (baseline, of) in reached]
        assert entry["gain_rounds"] == len(rounds)
        ratios = [reached[key, of] / reached[baseline, of] for of in rounds or [0]]
        assert entry["gain_over_baseline"]["value"] == pytest.approx(geometric_mean(ratios) - 1)
    counts = [entry["gain_rounds"] for entry in best["best"]]
    assert counts[0] >= 2
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)
    assert best["recommendation"]["better_than_baseline"] is True
    assert best["recommendation"]["setting"]["rank"] == 1
    summary = client.get(f"/v1/campaigns/{drifting}").json()["summary"]
    assert (summary["recommended"]["gain_rounds"], summary["fastest_once"]["gain_rounds"]) == (counts[0], 0)
    printed = told(print_best, service.store.campaign(drifting), service.store.trials(drifting), 50)
    assert (printed.count("%, first run"), printed.count("not confirmed")) == (counts.count(0), 1)


def test_the_fastest_once_is_by_first_runs_and_the_fastest_confirmed_by_second_runs_alone(client, noisy):
    best = client.get(f"/v1/campaigns/{noisy}/best").json()
    trials = client.get(f"/v1/campaigns/{noisy}/trials", params={"view": "brief", "page_size": 200}).json()["trials"]
    measured = [trial for trial in trials if trial["objective"] is not None]
    first = [trial for trial in measured if trial["origin"] != "confirmation"]
    fastest = max(first, key=lambda trial: trial["objective"]["value"])
    once, confirmed = best["fastest_once"], best["fastest_confirmed"]
    assert (once["trial"], once["objective"]["value"]) == (fastest["number"], fastest["objective"]["value"])
    assert once["first_run"] == once["objective"]
    again = [trial for trial in measured if trial["plan_key"] == confirmed["plan_key"] and trial not in first]
    assert confirmed["measured_again"]["runs"] == len(again)
    product = 1.0
    for trial in again:
        product *= trial["objective"]["value"]
    assert confirmed["objective"]["value"] == pytest.approx(product ** (1 / len(again)))
    own = next(trial for trial in first if trial["number"] == confirmed["trial"])
    assert confirmed["first_run"]["value"] == own["objective"]["value"]
