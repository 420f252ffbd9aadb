"""`meshtune doctor`: one document, an exit code that says whether there is an error, and a test that can fail."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from command_lab import run_meshtune, shown
from recorded_programs import Recorded

from meshtune.runners.devices.facts import Machine
from meshtune.runners.devices.findings import Finding, Level
from meshtune.runners.documents import read_value
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.cli.render.doctor import doctor_page
from meshtune.tuner.service import self_test
from meshtune.tuner.service.self_test import SearchTest, SelfTest, self_test_findings
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.slow

ANSWERS = Path(__file__).parents[1] / "runners" / "machine_answers"


def document(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    done = run_meshtune(folder, "doctor", "--json", *options)
    assert done.out, done.err
    return done.code, json.loads(done.out)


def test_the_whole_is_one_document_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(self_test, "LIMIT_S", 200.0)  # tests share the machine
    _, told = document(tmp_path)
    assert sorted(told) == ["findings", "machine", "self_test"]
    machine = read_value(Machine, told["machine"])
    test = read_value(SelfTest, told["self_test"])
    assert machine.torch is not None
    assert test.search.trials >= 3, test.search.reason
    assert test.search.plans == 30
    assert test.devices.failure == ""
    assert (test.devices.devices, test.devices.trials > 0) == (min(2, machine.host.cores), True)
    assert [*tmp_path.glob("meshtune-doctor-*")] == []
    assert not (tmp_path / ".meshtune").exists()
    text = shown(*doctor_page(machine, test, [read_value(Finding, each) for each in told["findings"]]))
    assert f"planted {test.search.planted}" in text


def test_an_error_makes_the_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    Recorded(tmp_path / "bin", monkeypatch).script("nvidia-smi", f"cat {ANSWERS}/nvidia-smi.xml")
    code, told = document(tmp_path, "--skip-self-test")
    assert (code, told["self_test"]) == (1, None)
    rules = {found["rule"] for found in told["findings"]}
    assert {"torch-cpu-build", "device-in-use", "memory-errors", "clock-slowed"} <= rules
    page = run_meshtune(tmp_path, "doctor", "--skip-self-test")
    assert "2 x NVIDIA H100 80GB HBM3, 79.65 GiB each, driver 550.54.15" in page.out


def test_without_torch_it_says_so_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    _, told = document(tmp_path, "--skip-self-test")
    assert told["machine"]["torch"] is None
    assert "torch-missing" in {found["rule"] for found in told["findings"]}


def test_the_search_is_blamed_where_it_cannot_find_the_planted_setting(tmp_path, monkeypatch):
    # Two trials of 30 plans cannot tell: the test has teeth.
    monkeypatch.setattr(self_test, "SEARCH_TRIALS", 2)
    home = Home(tmp_path)
    with Store.open(home.database_url) as store:
        service = Service(store, home)
        try:
            test = self_test.planted_search(service, random.Random(4))
        finally:
            service.close()
    assert test.trials == 2
    assert test.slower is not None
    assert not test.found


def test_a_self_test_that_takes_too_long_is_ended_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(self_test, "SEARCH_LIMIT_S", 0.2)
    home = Home(tmp_path)
    with Store.open(home.database_url) as store:
        service = Service(store, home)
        try:
            test = self_test.planted_search(service, random.Random(4))
        finally:
            service.close()
        (campaign,) = store.campaigns(limit=9)
    assert (campaign.state, test.reason) == (CampaignState.CANCELLED, "no end within 0.2 s")
    assert test.trials < 3


def search(**over: Any) -> SearchTest:
    known = {"planted": "a=1", "best": "x", "found": True, "slower": 0.0, "trials": 9, "plans": 30, "seconds": 1.0}
    return SearchTest(**{**known, "reason": "the budget", **over})


@pytest.mark.parametrize(
    ("over", "failure", "expected"),
    [
        ({}, "", [(Level.WARNING, "training-unfinished", "no end within 9 s")]),
        ({"found": False, "slower": 0.35}, None, [(Level.WARNING, "optimum-missed", "35%")]),
        ({}, None, []),
        ({"trials": 0, "reason": "no slot"}, None, [(Level.ERROR, "self-test-failed", "no slot")]),
        ({}, "crashed: no NCCL", [(Level.ERROR, "training-failed", "crashed: no NCCL")]),
    ],
)
def test_what_the_self_test_finds(over, failure, expected):
    # None: all went well.
    devices = self_test.DevicesTest(
        kind="cpu",
        devices=2,
        trials=3 if failure is None else 0,
        tokens_per_s=None,
        software={},
        seconds=1.0,
        failure=failure or "",
        reason="no end within 9 s",
    )
    found = self_test_findings(SelfTest(search=search(**over), devices=devices))
    assert [(each.level, each.rule) for each in found] == [(level, rule) for level, rule, _ in expected]
    assert all(words in each.found for each, (_, _, words) in zip(found, expected, strict=True))
