"""`meshtune analyze` as a user meets it: after a simulated campaign, in words and in JSON, and refused in one line."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

import pytest
import yaml
from command_lab import run_meshtune

LINK = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e11}
DEVICE = {
    "name": "toy",
    "kind": "cuda",
    "memory_bytes": 2**36,
    "peak_flops": {"float16": 1e14},
    "memory_bandwidth_bytes_per_s": 1e12,
}
SPEC = {
    "name": "toy",
    "model": {"preset": "gpt-micro", "layers": 16, "hidden": 2048, "ffn": 8192},
    "cluster": {"nodes": 2, "devices_per_node": 4, "device": DEVICE, "node_link": LINK, "network_link": LINK},
    "global_batch_size": 64,
    "space": {"micro_batch_size": [1, 2, 4], "zero_stage": [0, 1]},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed"},
    "runner": {"kind": "simulated", "seed": 1},
    "search": "random",
    "budget": {"trials": 14},
    "baseline": {"tp": 1, "pp": 1},
    "trial": {"time_limit_s": 21600},
}


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code, and what was printed to either stream."""
    return astuple(run_meshtune(folder, *arguments))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a simulated campaign that is done; tests only look at it."""
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    code, _, err = run(folder, "run", "spec.yaml")
    assert code == 0, err
    return folder


def test_a_simulated_campaign_is_told_in_words_and_in_json(simulated):
    code, words, err = run(simulated, "analyze", "last")
    assert (code, err) == (0, "")
    code, text, err = run(simulated, "analyze", "last", "--json")
    assert (code, err) == (0, "")
    document = json.loads(text)
    assert document["simulated"] is True
    assert words.startswith("simulated: nothing below was measured on any device\n")
    assert document["sensitivity"]["importances"]
    assert all(one["knob"] in words for one in document["sensitivity"]["importances"])
    assert {effect["evidence"] for effect in document["effects"]} == {"measured", "predicted"}
    assert document["effects"][0]["words"] in words
    assert document["winners"][0]["words"] in words
    assert document["failures"]["all"]["trials"] == document["trials"] >= 14
    assert "basis of what is predicted: calibrated by " in words


def test_the_same_trials_give_the_same_analysis(simulated):
    assert run(simulated, "analyze", "last", "--json") == run(simulated, "analyze", "last", "--json")


def test_an_unknown_campaign_is_refused_with_the_known_ones(simulated, tmp_path):
    code, out, err = run(simulated, "analyze", "nobody")
    assert (code, out) == (2, "")
    assert "there is no campaign nobody; known: toy-" in err
    code, out, err = run(tmp_path, "analyze", "last")
    assert (code, out) == (2, "")
    assert "there is no database yet" in err
