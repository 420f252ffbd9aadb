"""Knobs of somebody's own script are told it and come back; what does not arrive is no measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_lab import run_campaign

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.eligibility import unconfirmed_knobs
from meshtune.tuner.cli.spec_file import read_document
from meshtune.tuner.specs.read import read_spec

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "knobs-command" / "campaign.yaml"


def example(**changes: Any) -> dict[str, Any]:
    document = read_document(EXAMPLE)
    return document | {"runner": {"kind": "local", "idle_s": 0.5}, "confirm": 0} | changes


@pytest.mark.slow
def test_every_knob_arrives_and_is_confirmed(tmp_path):
    document = example(budget={"trials": 8})
    finished, _, trials = run_campaign(tmp_path, document, ROOT)
    assert finished.code == 0, finished.out + finished.err
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 8, finished.out
    knobs = read_spec(document, None)[0].knobs
    assert {name for trial in trials for name in trial.plan.knobs} >= {
        "fp8",
        "torchtitan_compile",
        "workers",
        "devices",
    }
    assert {trial.plan.world_size for trial in trials} == {2, 4}
    for trial in trials:
        seen = trial.outcome.measurement.knobs
        told = {name: value for name, value in trial.plan.knobs.items() if name != "devices"}
        assert {name: str(seen[name]) for name in told} == {name: str(value) for name, value in told.items()}
        assert unconfirmed_knobs(knobs, trial.plan, trial.outcome.measurement) == ()
        assert trial.outcome.measurement.devices == trial.plan.world_size


@pytest.mark.slow
def test_a_script_that_is_deaf_to_a_knob_is_not_measured(tmp_path):
    folder = tmp_path / "deaf"
    folder.mkdir()
    script = (EXAMPLE.parent / "train.py").read_text(encoding="utf-8")
    deaf = script.replace("args = parser.parse_args()", "args = parser.parse_args()\nargs.fp8_recipe = 'off'")
    (folder / "train.py").write_text(deaf, encoding="utf-8")
    document = example(budget={"trials": 2}, catalogs=[], space={"micro_batch_size": [1]}, search="grid")
    document["knobs"] = {"fp8": {"values": ["mxfp8", "tensorwise"], "argument": "--fp8-recipe {value}"}}
    document["workload"] |= {"working_directory": str(folder)}
    document["workload"]["command"] = [word for word in document["workload"]["command"] if "workers" not in word]
    del document["baseline"]
    finished, _, trials = run_campaign(tmp_path, document, ROOT)
    assert finished.code == 1, finished.out
    first = trials[0].outcome
    assert (first.verdict, first.failure) == (Verdict.CRASHED, Cause.USER_BUG)
    assert first.reason == "knob fp8 did not arrive: the plan has mxfp8, the job saw off"


def test_the_values_of_the_example_are_words():
    spec, _ = read_spec(read_document(EXAMPLE), None)
    named = {knob.name: knob for knob in spec.knobs}
    assert named["fp8"].values == ("off", "tensorwise", "mxfp8")
    assert (named["nccl_channels"].way, named["workers"].way, named["offload"].way) == ("env", "placeholder", "config")
