"""The commands that look at a campaign or change it: `analyze`, `recommend`, `edit`, `enqueue`, `resume`, and what
people see of one that stops."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path

import pytest
import toy
import yaml
from command_lab import refused, run_meshtune, said
from service_process import meshtune as meshtune_command

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

pytestmark = pytest.mark.slow

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


SPEC = """# a comment
name: sim
model: gpt-micro
cluster: dgx-h100
global_batch_size: 64
baseline: {tp: 8}
search: random
workload: simulated
runner: simulated
budget: {trials: 3}
confirm: 0
"""


def stored(folder):
    store = Store.open(Home(folder / ".meshtune").database_url)
    (campaign,) = store.campaigns(limit=10)
    return store, campaign


def test_a_campaign_of_the_command_line_is_edited_extended_and_given_plans(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)

    def meshtune(*words):
        return run_meshtune(tmp_path, *words)

    done = meshtune("run", "spec.yaml")
    assert done.code == 0, done
    refused = meshtune("edit", "last")
    assert (refused.code, "say what is to change" in refused.err) == (2, True)
    refused = meshtune("resume", "last")
    assert (refused.code, "there is nothing to resume" in refused.err) == (2, True)
    refused = meshtune("edit", "last", "--trials", "2")
    assert (refused.code, "3 of 2 trials are planned" in refused.err) == (2, True)
    assert meshtune("edit", "last", "--tag", "a", "--tag", "b", "--notes", "mine").out.endswith(
        "changed: tags, notes\n"
    )
    extended = meshtune("edit", "last", "--trials", "5")
    assert "it goes on: `meshtune resume sim-" in extended.out
    put = meshtune("enqueue", "last", "tp=2,pp=2")
    assert (put.code, put.out.startswith("trial 3 of sim-")) == (0, True), put
    wrong = meshtune("enqueue", "last", "tp=3")
    assert (wrong.code, "tp" in wrong.err) == (2, True)
    resumed = meshtune("resume", "last", "--trials", "6")
    assert resumed.code == 0, resumed
    store, campaign = stored(tmp_path)
    with store:
        trials = store.trials(campaign.id)
        assert [str(trial.origin) for trial in trials] == [
            "baseline",
            "search",
            "search",
            "enqueued",
            "search",
            "search",
        ]
        assert (campaign.spec.tags, campaign.spec.notes, campaign.spec.budget.trials) == (("a", "b"), "mine", 6)
        assert store.spec_text(campaign.id) == SPEC
    assert meshtune("edit", "last", "--no-tags").code == 0
    assert stored(tmp_path)[1].spec.tags == ()


def test_the_text_of_a_spec_is_not_kept_where_something_else_runs(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert run_meshtune(tmp_path, "run", "spec.yaml", "--project", "llm").code == 0
    store, campaign = stored(tmp_path)
    with store:
        assert (store.spec_text(campaign.id), campaign.spec.project) == ("", "llm")
    assert yaml.safe_load(SPEC)["name"] == campaign.spec.name


@pytest.fixture
def command(lab, tmp_path):
    """The command in this process, so that its runner is the lab's; the lab's clock is the wall's."""
    lab.machine.clock = time.time
    return lambda *arguments: astuple(run_meshtune(tmp_path, *arguments, "--home", "h"))


@pytest.fixture
def spec(lab, tmp_path):
    def write(**over):
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(lab.document(**over)))
        return "spec.yaml"

    return write


def test_a_bug_of_the_user_is_shown_with_its_log_and_is_a_failure(lab, make, command, spec):
    lab.machine.script = lambda name: make.Behaviour("bug", run_s=0.01)
    code, out, _ = command("run", spec())
    assert code == 1
    lines = out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if " is failed: trial 0 failed for a reason" in line]
    told = "ModuleNotFoundError: No module named 'megatron'"
    assert f"{told}; mend it and start a new campaign" in lines[at]
    assert lines[at + 1 : at + 3] == ["starting", told]
    code, out, err = command("resume", "last")
    assert code == 2
    assert f"{told}; mend it and start a new campaign): there is nothing to resume" in err
    assert "starting" not in err
    code, out, _ = command("show", "--all")
    assert (code, "starting" in out, "mend it" in " ".join(out.split())) == (0, False, True)
    assert "crashed (user_bug)" in command("show", "last")[1]


def test_no_time_left_has_a_code_of_its_own_and_resume_goes_on(lab, make, command, spec):
    lab.machine.script = lambda name: make.Behaviour(run_s=0.01)
    lab.machine.closes = True
    code, out, _ = command("run", spec())
    assert code == 3
    assert " is paused: 12 s are left, and a trial may take 300 s; resume it to go on" in out
    lab.machine.closes = False
    code, out, _ = command("resume", "last")
    assert (code, " is completed: " in out) == (0, True)
    assert set(lab.machine.sent.values()) == {1}


def test_show_says_which_nodes_are_excluded_and_where_attempts_ran(lab, make, command, spec):
    lab.machine.nodes = ("n1", "n2", "n3")
    first = ("t0000-a1", "t0001-a1")
    lab.machine.script = lambda name: make.Behaviour("fault" if name.endswith(first) else "ok", run_s=0.01)
    command("run", spec())
    assert "excluded nodes: n1" in command("show", "last")[1]
    lines = command("show", "last", "--trial", "1")[1].splitlines()
    attempts = [line.split() for line in lines if "t0001-a" in line]
    assert [(words[3:5] if "!" in words else words[3:4]) for words in attempts] == [["n1", "!"], ["n2"]]
    assert "attempt 2 was to keep away from n1, where it could" in lines


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with campaigns of one question by two searches, and of another batch; tests only look at them."""
    folder = tmp_path_factory.mktemp("pair")
    spec = toy.SPEC | {"budget": {"trials": 8}, "baseline": {"tp": 1, "pp": 2}, "search": "random", "confirm": 1}
    kinds = {"one": {}, "two": {"seed": 5}, "three": {"global_batch_size": 128}}
    # Of which some run out of memory.
    kinds["large"] = {"model": "llama3-8b", "cluster": "dgx-h100", "space": {}, "baseline": {"tp": 8}}
    kinds["none"] = {**kinds["large"], "model": "gpt3-175b", "budget": {"trials": 1}}
    for name, changes in kinds.items():
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec | {"name": name, **changes}))
        assert run_meshtune(folder, "run", "spec.yaml").code == (name == "none")
    return folder


def test_two_campaigns_are_told_apart_by_spec_recommended_plan_and_speed(pair):
    words, document = said(pair, "diff", "one", "two"), json.loads(said(pair, "diff", "one", "two", "--json"))
    assert [(one["knob"], one["before"], one["after"]) for one in document["spec"]] == [
        ("name", "one", "two"),
        ("seed", 0, 5),
    ]
    assert words.startswith("specs: name one -> two, seed 0 -> 5\nplans: ")
    best = [json.loads(said(pair, "best", name, "--json"))["recommendation"]["setting"] for name in ("one", "two")]
    assert [trial["plan_key"] for trial in document["trials"]] == [one["plan_key"] for one in best]
    speeds = [one["tokens_per_s"]["value"] for one in best]
    assert document["ratio"]["value"] == pytest.approx(speeds[1] / speeds[0])
    assert document["ratio"]["low"] < document["ratio"]["value"] < document["ratio"]["high"]
    assert f"is {document['ratio']['value']:.2f} times (" in words
    assert all(one["plan_key"] in words for one in best)


def test_campaigns_of_unlike_batches_get_a_sentence_in_place_of_a_ratio(pair):
    document = json.loads(said(pair, "diff", "one", "three", "--json"))
    assert document["ratio"] is None
    assert re.fullmatch(r"three-\w+ is not as one-\w+: global batch 128, not 64", document["notes"][0])
    assert "global batch 128, not 64" in said(pair, "diff", "one", "three")


def test_trials_of_one_and_of_two_campaigns_are_told_apart_with_parts_of_the_step(pair):
    for second in ("one/3", "two/3"):
        words = said(pair, "diff", "one/0", second)
        document = json.loads(said(pair, "diff", "one/0", second, "--json"))
        shares = [{part["part"]: part["share"] for part in parts} for parts in document["parts"]]
        assert all(sum(own.values()) == pytest.approx(1) for own in shares)
        assert f"{shares[0]['compute']:.0%}".removesuffix("%") in re.search(r"(?m)^ compute .*$", words)[0]
        for change in document["plan"]:
            assert str(change["after"]) in words.splitlines()[1]
        assert document["ratio"]["value"] > 0
        assert (document["spec"] == []) is (second == "one/3")
    same = json.loads(said(pair, "diff", "one/0", "one/0", "--json"))
    assert (same["plan"], same["ratio"]) == ([], {"value": 1.0, "low": 1.0, "high": 1.0})


def test_a_failed_trial_has_its_verdict_and_reason_and_no_ratio(pair):
    trials = list(csv.DictReader(said(pair, "export-data", "large").splitlines()))
    failed = next(trial["number"] for trial in trials if trial["verdict"] == "oom")
    words = said(pair, "diff", "large/0", f"large/{failed}")
    assert re.search(r"(?m)^ verdict +ok +oom +$", words)
    assert re.search(r"(?m)^ reason +simulated: .* simulated: out of memory in \w+ on a device of 80.0 GiB +$", words)
    assert re.search(r"(?m)^ step time +[\d.]+ s +- +$", words)
    assert "speed: " not in words
    document = json.loads(said(pair, "diff", "one", f"large/{failed}", "--json"))
    assert document["ratio"] is None
    assert "model llama3-8b, not gpt-micro; device H100-SXM-80GB, not toy" in document["notes"][0]


def test_a_campaign_without_a_speed_has_no_plan_that_could_be_alike(pair):
    words = said(pair, "diff", "one", "none")
    assert "plans: " not in words
    assert re.search(r"none-\w+ has no plan to compare: no trial has a speed", words)


def test_a_trial_that_is_not_there_is_named(pair):
    assert re.search(
        r"campaign one-\w+ has no trial 99; its trials are 0 to \d+", refused(pair, "diff", "last", "one/99")
    )
    assert "has no trial x" in refused(pair, "diff", "one/x", "last")
    assert "there is no campaign nothing" in refused(pair, "diff", "nothing", "last")


def test_on_a_terminal_a_campaign_is_deleted_once_that_is_confirmed(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(toy.SPEC | {"budget": {"trials": 1}, "confirm": 0}))
    id = said(tmp_path, "run", "spec.yaml").partition(":")[0]
    for answer, code, left in ((b"n\n", 1, True), (b"y\n", 0, False)):
        ours, theirs = pty.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        with subprocess.Popen(meshtune_command("delete", id[:-2]), cwd=tmp_path, **streams) as process:
            os.write(ours, answer)
            assert process.wait(timeout=60) == code
        told = os.read(ours, 10_000).decode()
        os.close(ours)
        os.close(theirs)
        assert f"Delete {id}, with all that it measured?" in told
        assert (f"{id} is deleted" in told) is not left
        assert (tmp_path / ".meshtune" / "campaigns" / id).exists() is left
    assert "there is no campaign yet" in refused(tmp_path, "delete", id)
