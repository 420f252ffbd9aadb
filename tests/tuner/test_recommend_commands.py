"""`meshtune recommend` as a launch meets it: words, JSON or shell lines, and one message where nothing is known."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    "peak_flops": {"float16": 1e14, "float32": 1e12},
    "memory_bandwidth_bytes_per_s": 1e12,
}
SPEC = {
    "name": "toy",
    "model": {"preset": "gpt-micro", "layers": 16, "hidden": 2048, "ffn": 8192},
    "cluster": {
        "name": "hpc",
        "nodes": 2,
        "devices_per_node": 4,
        "device": DEVICE,
        "node_link": LINK,
        "network_link": LINK,
    },
    "global_batch_size": 64,
    "space": {"micro_batch_size": [1, 2, 4], "zero_stage": [0, 1]},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed"},
    "runner": {"kind": "simulated", "seed": 1},
    "search": "random",
    "budget": {"trials": 6},
    "trial": {"time_limit_s": 21600},
}
ASKED = ("recommend", "--model", "gpt-micro", "--cluster", "hpc", "--simulated", "--nodes")


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    return astuple(run_meshtune(folder, *arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a simulated campaign that is done; tests only look at it."""
    made = tmp_path_factory.mktemp("simulated")
    (made / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    assert run(made, "run", "spec.yaml")[0] == 0
    return made


@pytest.fixture
def meshtune(folder: Path) -> Callable[..., str]:
    """What the command prints when all is well."""

    def answer(*arguments: str) -> str:
        code, out, err = run(folder, *arguments)
        assert (code, err) == (0, "")
        return out

    return answer


def test_the_answer_names_the_plan_its_speed_and_its_source(meshtune):
    told = meshtune(*ASKED, "2")
    best = json.loads(meshtune("best", "last", "--json"))["recommendation"]["setting"]
    assert told.startswith(f"gpt-micro on 2 x hpc (8 devices): {best['plan_key']}\nsimulated: made-up numbers: ")
    assert f"from {json.loads(meshtune('best', 'last', '--json'))['campaign']}, trial " in told
    assert "global batch 64" in told


def test_a_projected_answer_says_so_in_every_form(meshtune):
    assert "not measured: " in meshtune(*ASKED, "4")
    document = json.loads(meshtune(*ASKED, "4", "--json"))
    assert (document["measured"], document["plan"]["dp"] % 2) == (False, 0)
    assert document["sources"][0]["differs"] == ["2 nodes, asked for 4"]
    assert "MESHTUNE_MEASURED=0\n" in meshtune(*ASKED, "4", "--env")


def test_the_lines_for_a_shell_are_those_of_the_document(meshtune):
    document = json.loads(meshtune(*ASKED, "2", "--json"))
    lines = meshtune(*ASKED, "2", "--env").splitlines()
    assert dict(line.split("=") for line in lines) == document["environment"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*ASKED, "256"), "nothing near was measured: the nearest, toy-"),
        ((*ASKED[:-2], "--nodes", "2"), "no campaign and no preset has a cluster 'hpc'"),
        ((*ASKED, "2", "--software", "torch"), "software: must be name=version, separated by commas, not 'torch'"),
    ],
)
def test_where_nothing_is_known_one_message_says_what_is(folder, arguments, words):
    code, out, err = run(folder, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
