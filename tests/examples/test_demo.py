"""`make demo`: it begins with a mistake that people make, and ends in a clear recommendation."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lab import run_campaign

from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "examples" / "demo.yaml").read_text(encoding="utf-8")


def test_the_demo_starts_from_tensor_parallelism_over_all_devices_and_decides_between_two_plans():
    spec, space = read_spec(parse_yaml(TEXT), None)
    assert spec.baseline.tp == spec.cluster.devices == 4
    assert (spec.confirm, spec.budget.trials) == (1, 8)
    assert len(space) > spec.budget.trials


def test_the_form_of_the_dashboard_offers_the_same_demo():
    assert (ROOT / "api" / "examples" / "demo.yaml").read_text(encoding="utf-8") == TEXT


@pytest.mark.long
def test_the_demo_recommends_what_is_several_times_as_fast(tmp_path):
    document = parse_yaml(TEXT) | {"runner": {"kind": "local", "idle_s": 0.5}}
    finished, campaign, trials = run_campaign(tmp_path, document, ROOT, timeout_s=900)
    told = recommend(campaign, trials)
    assert told.better, finished.out + finished.err
    assert told.choice.trial.plan.tp < 4
    assert told.choice.gain.value > 1
