"""What follows from a finished campaign, for a user: `analyze`, `recommend`, and predictions that learn from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import toy
import yaml
from command_lab import refused, run_meshtune, said

ASKED = ("recommend", "--model", "gpt-micro", "--cluster", "hpc", "--simulated", "--nodes")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a simulated campaign that is done; tests only look at it."""
    folder = tmp_path_factory.mktemp("simulated")
    spec = toy.SPEC | {"budget": {"trials": 14}, "baseline": {"tp": 1, "pp": 1}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    result = run_meshtune(folder, "run", "spec.yaml")
    assert result.code == 0, result
    return folder


@pytest.fixture
def meshtune(simulated: Path) -> Callable[..., str]:
    return partial(said, simulated)


def test_a_simulated_campaign_is_analysed_in_words_and_in_json(meshtune):
    words, document = meshtune("analyze", "last"), json.loads(meshtune("analyze", "last", "--json"))
    assert document["simulated"] is True
    assert words.startswith("simulated: nothing below was measured on any device\n")
    assert document["sensitivity"]["importances"]
    assert all(one["knob"] in words for one in document["sensitivity"]["importances"])
    assert {effect["evidence"] for effect in document["effects"]} == {"simulated", "predicted"}
    assert document["effects"][0]["words"] in words
    assert document["winners"][0]["words"] in words
    assert document["failures"]["all"]["trials"] == document["trials"] >= 14
    assert "basis of what is predicted: calibrated by " in words
    assert json.loads(meshtune("analyze", "last", "--json")) == document


def test_the_best_known_plan_is_named_with_its_speed_and_its_source_in_every_form(meshtune):
    told, document = meshtune(*ASKED, "2"), json.loads(meshtune(*ASKED, "2", "--json"))
    best = json.loads(meshtune("best", "last", "--json"))
    key = best["recommendation"]["setting"]["plan_key"]
    assert told.startswith(f"gpt-micro on 2 x hpc (8 devices): {key}\nsimulated: made-up numbers: ")
    assert f"from {best['campaign']}, trial " in told
    assert "global batch 64" in told
    assert dict(line.split("=") for line in meshtune(*ASKED, "2", "--env").splitlines()) == document["environment"]


def test_a_projected_answer_says_so_in_every_form(meshtune):
    assert "not measured: " in meshtune(*ASKED, "4")
    document = json.loads(meshtune(*ASKED, "4", "--json"))
    assert (document["measured"], document["plan"]["dp"] % 2) == (False, 0)
    assert document["sources"][0]["differs"] == ["2 nodes, asked for 4"]
    assert "MESHTUNE_MEASURED=0\n" in meshtune(*ASKED, "4", "--env")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*ASKED, "256"), "nothing near was measured: the nearest, toy-"),
        ((*ASKED[:-2], "--nodes", "2"), "no campaign and no preset has a cluster 'hpc'"),
        ((*ASKED, "2", "--software", "torch"), "software: must be name=version, separated by commas, not 'torch'"),
    ],
)
def test_where_nothing_is_known_one_message_says_what_is(simulated, arguments, words):
    assert words in refused(simulated, *arguments)


def test_a_campaign_calibrates_the_projection_and_the_quote(simulated):
    plain = json.loads(run_meshtune(simulated, "estimate", "spec.yaml", "--json").out)
    learnt = json.loads(run_meshtune(simulated, "estimate", "spec.yaml", "--calibrate", "last", "--json").out)
    assert learnt["basis"]["learnt_from"]["times"] > 0
    assert learnt["basis"]["campaign"].endswith("(simulated)")

    def width(document):
        step = document["best"][0]["speed"]["step_s"]
        return step["high"] / step["low"]

    assert width(learnt) < width(plain)
    projected = said(simulated, "project", "last", "--nodes", "2,4")
    assert "measured: trial " in projected
    assert "calibrated by " in projected


def test_a_campaign_of_another_device_teaches_the_spec_nothing(simulated, tmp_path):
    other = {**toy.SPEC, "cluster": {**toy.SPEC["cluster"], "device": {**toy.DEVICE, "name": "other"}}}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    told = refused(simulated, "estimate", tmp_path / "other.yaml", "--calibrate", "last")
    assert "cluster.device: was measured for toy, but the spec has other" in told
