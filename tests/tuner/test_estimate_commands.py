"""`meshtune estimate`, `project` and `run --dry-run` as a user meets them: words, JSON, and mistakes in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import command_lab
import pytest
import toy
import yaml

from meshtune.tuner.results.export import FORMATS


@pytest.fixture
def meshtune(tmp_path: Path) -> Callable[..., str]:
    """The command in a folder with spec.yaml; what it prints, when all is well."""
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(toy.SPEC))
    return partial(command_lab.said, tmp_path)


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(toy.SPEC))
    return partial(command_lab.refused, tmp_path)


def test_a_quote_stores_nothing_and_says_the_same_in_words_and_in_json(meshtune, tmp_path):
    words = meshtune("estimate", "spec.yaml")
    document = json.loads(meshtune("estimate", "spec.yaml", "--json"))
    assert f"{document['space']['legal']} legal plans" in words
    assert document["best"][0]["plan_key"] in words
    for word in ("basis: uncalibrated", "ranked by tokens/s x P(fits)", "device-hours", "zero-needs-dp"):
        assert word in words
    assert document["basis"]["calibrated"] is False
    assert set(document["space"]["rejected"]) > {"zero-needs-dp"}
    assert os.listdir(tmp_path) == ["spec.yaml"]


def test_why_not_a_plan_is_answered_for_legal_and_illegal_ones(meshtune):
    legal = json.loads(meshtune("estimate", "spec.yaml", "--plan", "tp=2,pp=2", "--json"))
    assert (legal["legal"], legal["broken"]) == (True, [])
    assert 1 <= legal["rank"] <= legal["of"]
    illegal = meshtune("estimate", "spec.yaml", "--plan", "tp=8")
    assert "illegal\n" in illegal
    assert "tp-in-node: tp(8) does not divide the 4 devices of a node" in illegal


def test_options_that_do_not_go_together_are_refused(refused):
    assert "--rank goes with --exact" in refused("estimate", "spec.yaml", "--rank", "0")
    told = refused("estimate", "spec.yaml", "--exact", "--calibrate", "last")
    assert "--calibrate goes with predictions" in told
    assert "warp: is not a known key" in refused("estimate", "spec.yaml", "--plan", "warp=9")


def test_a_projection_of_a_spec_says_that_nothing_was_measured(meshtune, tmp_path):
    words = meshtune("project", "spec.yaml", "--nodes", "1,2,4", "--tokens", "1e12")
    assert "basis: uncalibrated" in words
    assert "days for 1e+12 tokens" in words
    assert "Strong scaling: the global batch stays" in words
    assert "measured best" not in words
    document = json.loads(meshtune("project", "spec.yaml", "--nodes", "1,2,4", "--json"))
    assert {row["nodes"] for row in document["rows"]} == {1, 2, 4}
    assert document["measured_best"] is None
    assert all(wall["sentence"] in words for wall in document["walls"])
    assert os.listdir(tmp_path) == ["spec.yaml"]


def test_one_layout_is_projected_on_every_node_count(meshtune):
    words = meshtune("project", "spec.yaml", "--nodes", "1,2,4", "--plan", "tp=2,micro_batch_size=1")
    assert "each row is of the layout tp2 pp1 mbs1 zero0" in words
    document = json.loads(meshtune("project", "spec.yaml", "--nodes", "1,2,4", "--plan", "tp=2,pp=3", "--json"))
    assert {row["reason"].split(" does")[0] for row in document["rows"]} == {"tp(2) * pp(3) * cp(1) = 6"}


def test_mistakes_in_a_projection_are_one_message(refused, tmp_path):
    assert "plan.dp: follows from the devices" in refused("project", "spec.yaml", "--plan", "tp=2,dp=2")
    assert "plan.tpp: " in refused("project", "spec.yaml", "--plan", "tpp=2")
    assert "nodes: must be positive whole numbers, not 0" in refused("project", "spec.yaml", "--nodes", "1,0")
    assert "--tokens: must be positive, not -5" in refused("project", "spec.yaml", "--tokens=-5")
    assert "nowhere.yaml: No such file" in refused("project", "nowhere.yaml")
    assert "there is no database yet" in refused("project", "last")
    cluster = {name: value for name, value in toy.SPEC["cluster"].items() if name != "network_link"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**toy.SPEC, "cluster": {**cluster, "nodes": 1}}))
    told = refused("project", "spec.yaml", "--nodes", "1,2")
    assert "cluster.network_link: is not known, but the cluster has 2 nodes" in told
    assert "meshtune cluster probe" in told


SPEC = {
    "name": "tiny",
    "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
    "cluster": {"preset": "local-cpu", "devices_per_node": 2},
    "global_batch_size": 8,
    "budget": {"trials": 4},
}


@pytest.fixture
def rehearse(tmp_path: Path) -> Callable[..., str]:
    """What the command prints for the spec with changes; it must leave nothing but the spec."""

    def run(**over: object) -> str:
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**SPEC, **over}))
        out = command_lab.said(tmp_path, "run", "spec.yaml", "--dry-run")
        assert set(os.listdir(tmp_path)) - {"bin"} == {"spec.yaml"}
        return out

    return run


def test_the_quote_and_the_job_of_the_baseline_are_shown(rehearse):
    shown = rehearse(baseline={"tp": 2, "micro_batch_size": 4})
    assert "legal plans" in shown
    assert "second runs" in shown
    assert "first trial: tp2 pp1 dp1 mbs4 ga2 zero0 (the baseline), in " in shown
    assert "--- job.json\n{" in shown
    assert '"name": "dry-run-t0000-a1"' in shown
    assert "the runner local starts 2 processes: " in shown
    assert "-m meshtune.runners.trainer job.json" in shown


def test_without_a_baseline_the_plan_that_is_predicted_best_comes_first(rehearse):
    assert "(predicted best), in " in rehearse()


@pytest.mark.parametrize(
    ("runner", "answer"),
    [
        ("slurm", "slurm does not answer: scontrol: "),
        ("pbs", "pbs was not asked: no test of a job that is not sent is"),
    ],
)
def test_the_script_of_a_batch_runner_is_shown_and_what_the_scheduler_says(rehearse, recorded, runner, answer):
    recorded.script("scontrol", "echo no controller >&2; exit 1")
    shown = rehearse(runner=runner)
    script = shown.partition(f"--- {FORMATS[runner].script}\n")[2]
    assert "--- gang.json\n{" in shown
    assert script.startswith("#!/bin/")
    assert "dry-run-t0000-a1" in script
    assert script.splitlines()[-1].startswith(answer)
