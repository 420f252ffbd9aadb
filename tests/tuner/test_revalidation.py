"""Does a stored optimum still stand: every finding, with its numbers, and nothing stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from meshtune.runners.outcome import Outcome, Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.revalidation import Finding, judge, to_measure
from meshtune.tuner.service.service import remeasure
from meshtune.tuner.store import Store

ROOT = Path(__file__).parents[2]
BEST, SECOND, THIRD = (Plan(dp=4, micro_batch_size=size) for size in (1, 2, 4))


@pytest.fixture
def campaign(lab, make):
    return make.campaign(lab.spec(), CampaignState.COMPLETED)


@pytest.fixture
def trials(make):
    """BEST took 1 s a step, SECOND 1.1 s, THIRD 1.2 s."""

    def build(software=None, again=None):
        known = {"software": software or {}}
        found = [
            make.trial(number, make.measurement(step, **known), plan=plan)
            for number, (step, plan) in enumerate(((1.0, BEST), (1.1, SECOND), (1.2, THIRD)))
        ]
        if again is not None:
            found.append(make.trial(3, make.measurement(again, **known), plan=BEST, origin=Origin.CONFIRMATION))
        return found

    return build


def judged(campaign, trials, *ends):
    """What these ends of the fresh runs say: seconds a step, measurements or outcomes."""
    entries = to_measure(campaign, trials)
    return judge(campaign, trials, entries, ends[: len(entries)])


@pytest.fixture
def ok(make):
    return lambda step, **more: Outcome(verdict=Verdict.OK, measurement=make.measurement(step, **more))


def test_the_optimum_and_the_best_other_plan_are_measured(campaign, trials):
    assert [entry.trial.plan for entry in to_measure(campaign, trials())] == [BEST, SECOND]
    assert [entry.trial.plan for entry in to_measure(campaign, trials()[2:])] == [THIRD]
    assert to_measure(campaign, []) == []


def test_a_plan_that_does_not_train_as_the_baseline_is_no_runner_up(lab, make):
    campaign = make.campaign(lab.spec(baseline={"tp": 1}), CampaignState.COMPLETED)
    trained, other = {"first_losses": (7.0, 6.9)}, {"first_losses": (3.0, 2.0)}
    found = [
        make.trial(0, make.measurement(1.2, **trained), plan=THIRD, origin=Origin.BASELINE),
        make.trial(1, make.measurement(1.0, **trained), plan=BEST),
        make.trial(2, make.measurement(1.1, **other), plan=SECOND),
    ]
    assert [entry.trial.plan for entry in to_measure(campaign, found)] == [BEST, THIRD]


@pytest.mark.parametrize(
    ("optimum", "rival", "finding", "words"),
    [
        ((1.0, 0.001), (1.1, 0.001), Finding.STANDS, "stands: +0.0 % (-0.2 to +0.2 %) against the record"),
        ((0.5, 0.001), (0.6, 0.001), Finding.STANDS, "stands: +100.0 %"),
        ((1.25, 0.001), (1.4, 0.001), Finding.SLOWER, "slower by 20.0 % (19.8 to 20.2 %) than it was"),
        # Within the tolerance, or the noise.
        ((1.015, 0.001), (1.2, 0.001), Finding.STANDS, "stands: -1.5 %"),
        ((1.1, 0.2), (1.2, 0.001), Finding.STANDS, "stands: -9.1 %"),
        (
            (1.0, 0.001),
            (0.8, 0.001),
            Finding.OVERTAKEN,
            f"the runner-up, {SECOND.key}, is better now by 25.0 % (24.8 to 25.3 %): tune again",
        ),
        ((1.0, 0.001), (0.985, 0.001), Finding.STANDS, "stands"),
        ((1.0, 0.001), (0.9, 0.2), Finding.STANDS, "stands"),
        ((1.0, 0.001), Verdict.OOM, Finding.STANDS, "stands"),
        (Verdict.OOM, (1.1, 0.001), Finding.FAILED, "fails now: oom: it broke; tune again"),
        (Verdict.LOST, (1.1, 0.001), Finding.UNKNOWN, "not measured: lost: it broke; try again"),
    ],
)
def test_fresh_runs_of_both_plans_decide(campaign, trials, ok, optimum, rival, finding, words):
    """optimum, rival: seconds of a step and their spread, or a verdict."""
    ends = [
        Outcome(verdict=given, reason="it broke") if isinstance(given, Verdict) else ok(given[0], spread=given[1])
        for given in (optimum, rival)
    ]
    found = judged(campaign, trials(), *ends)
    assert (found.finding, found.stands) == (finding, finding is Finding.STANDS)
    assert found.words.startswith(words)
    assert (found.optimum.tokens_per_s_per_device.now is None) == isinstance(optimum, Verdict)


def test_how_well_the_campaign_reproduced_itself_widens_the_interval(campaign, trials, ok):
    shaky = trials(again=1.1)  # 10 % slower at once
    assert judged(campaign, shaky, ok(1.25), ok(1.4)).finding is Finding.STANDS
    assert judged(campaign, trials(again=1.0), ok(1.25), ok(1.4)).finding is Finding.SLOWER


def test_versions_that_changed_are_told(campaign, trials, ok):
    before, now = {"torch": "2.12", "driver": "570", "python": "3.11"}, {"torch": "2.13", "driver": "570", "nccl": "3"}
    found = judged(campaign, trials(software=before), ok(1.0, software=now), ok(1.1))
    assert found.optimum.software_changes == {
        "nccl": ("unknown", "3"),
        "python": ("3.11", "unknown"),
        "torch": ("2.12", "2.13"),
    }


def test_a_machine_that_changed_is_found_by_fresh_jobs_and_nothing_is_stored(lab, make):
    lab.machine.script = lambda name: make.Behaviour(run_s=0.0 if "-again-" in name else 1.0)
    id = lab.create(budget={"trials": 3})
    lab.run(id)
    campaign, recorded, before = lab.campaign(id), lab.trials(id), lab.store.events(id)
    slow = lab.machine.step_s
    lab.machine.step_s = lambda plan: 2 * slow(plan)
    entries = to_measure(campaign, recorded)
    outcomes = [outcome for _, outcome in remeasure(lab.service, campaign, [entry.trial for entry in entries])]
    found = judge(campaign, recorded, entries, outcomes)
    assert found.finding is Finding.SLOWER
    assert found.optimum.change.value == pytest.approx(-0.5)
    assert lab.store.events(id) == before


@pytest.mark.slow
def test_the_command_measures_two_plans_again_on_the_local_runner(tmp_path):
    spec = {
        "name": "tiny",
        "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
        "cluster": {"preset": "local-cpu", "devices_per_node": 2},
        "global_batch_size": 8,
        "workload": {"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 6, "max_steps": 6}},
        "search": "random",
        "runner": {"kind": "local", "idle_s": 5},
        "budget": {"trials": 2},
        "confirm": 0,
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))

    def meshtune(*arguments):
        command = [sys.executable, "-m", "meshtune.tuner.cli", *arguments]
        environment = {**os.environ}
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)

    assert meshtune("run", "spec.yaml").returncode == 0
    done = meshtune("revalidate", "last", "--json")
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == (0 if found["stands"] else 1)
    assert found["finding"] in ("stands", "slower", "overtaken")
    for plan in (found["optimum"], found["rival"]):
        assert plan["verdict"] == "ok"
        assert plan["tokens_per_s_per_device"]["now"] > 0
        assert plan["software_changes"] == {}
    assert found["optimum"]["plan_key"] != found["rival"]["plan_key"]
    with Store.open(Home(tmp_path / ".meshtune").database_url) as store:
        assert len(store.trials(found["campaign"])) == 2
