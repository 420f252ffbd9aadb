"""Whole campaigns on simulated clusters: in seconds, through the real service, store and runner."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.second_runs import planned_runs
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.telling import print_best
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

ROOT = Path(__file__).parents[2]
SPEC = {
    "name": "big",
    "model": "gpt-1t",
    "cluster": {"preset": "frontier", "nodes": 384},
    "global_batch_size": 9600,
    "space": {"tp": [2, 4, 8], "pp": [8, 64, 128], "micro_batch_size": [1, 2, 4], "recompute": ["none", "full"]},
    "workload": "simulated",
    "runner": {"kind": "simulated", "seed": 7, "noise": 0.02},
    "baseline": {"tp": 8, "pp": 64, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "search": "random",
    "budget": {"trials": 12},
    "confirm": 0,
    "trial": {"time_limit_s": 1e6},
    "parallel": 2,
}


def campaign(service: Service, **over) -> tuple[Campaign, list[Trial]]:
    """The spec with other sections, run to its end."""
    id = service.create({**SPEC, **over}).id
    drive_one(Driver(service), service, id, lambda: None)
    return service.store.campaign(id), service.store.trials(id)


def simulated(**options) -> dict[str, object]:
    return {"kind": "simulated", "seed": 7, **options}


def test_3072_devices_are_tuned_in_seconds(service):
    start = time.monotonic()
    ended, trials = campaign(service)
    assert time.monotonic() - start < 100
    assert (ended.state, len(trials)) == (CampaignState.COMPLETED, 12)
    assert {trial.verdict for trial in trials} == {Verdict.OK, Verdict.OOM}
    for trial in trials:
        assert trial.outcome.reason.startswith("simulated: ")
        assert trial.measurement is None or trial.measurement.devices == 3072
    assert rank(ended, trials)[0].gain.value >= 0


@pytest.mark.parametrize(
    ("runner", "workload"), [("local", {"kind": "simulated"}), ("simulated", {"kind": "torch", "dtype": "float16"})]
)
def test_simulated_and_real_do_not_go_together(runner, workload, home):
    with pytest.raises(InvalidSpec) as caught:
        read_spec({**SPEC, "runner": runner, "workload": workload}, home)
    told = [problem.message for problem in caught.value.problems if problem.path == "runner.kind"]
    assert told == [
        f"the runner {runner} cannot run the workload {workload['kind']}: `simulated` goes with `simulated` only"
    ]


@pytest.mark.parametrize("name", ["frontier-1t", "mula-220b"])
def test_an_example_recommends_a_setting(name, service, monkeypatch):
    printed = io.StringIO()
    for module in ("telling", "common"):
        monkeypatch.setattr(f"meshtune.tuner.cli.{module}.console", Console(file=printed, width=200))
    text = (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
    ended, trials = campaign(service, **{"confirm": 3, **parse_yaml(text)})
    chosen, (least, most) = planned_runs(ended.spec, ended.legal)
    assert ended.state is CampaignState.COMPLETED
    assert 25 == chosen < chosen + least <= len(trials) <= chosen + most
    assert print_best(ended, trials, 3)
    assert printed.getvalue().startswith("simulated: nothing below was measured on any device\n")
    assert "Recommended: tp" in printed.getvalue()


ENDS = {"first_stage_less_layers": 1, "last_stage_less_layers": 1}
COMMON = {
    "global_batch_size": 2048,
    "workload": "simulated",
    "runner": {"kind": "simulated", "seed": 7, "noise": 0.02},
    "search": "random",
    "budget": {"trials": 3},
    "confirm": 0,
    "trial": {"time_limit_s": 1e6},
}
BLOOM = {
    "model": "bloom-176b",
    "cluster": {"preset": "jean-zay-a100", "nodes": 48},
    "space": {"tp": [4], "pp": [12, 24], "micro_batch_size": [2], "zero_stage": [1], "recompute": ["full"]},
    "baseline": {"tp": 4, "pp": 12, **ENDS, "micro_batch_size": 2, "zero_stage": 1, "recompute": "full"},
}
LLAMA = {
    "model": "llama3-405b",
    "cluster": {"preset": "dgx-h100", "nodes": 2048},
    "space": {"tp": [8], "pp": [8, 16], "micro_batch_size": [1], "zero_stage": [1], "recompute": ["full"]},
    "baseline": {"tp": 8, "pp": 16, **ENDS, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
}


@pytest.mark.parametrize(("published", "dp"), [(BLOOM, 8), (LLAMA, 128)], ids=["bloom", "llama"])
def test_a_published_setting_with_uneven_stages_is_the_baseline_of_a_campaign(published, dp, tmp_path):
    document = {"name": "published", **COMMON, **published}
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path / "home"))
        id = service.create(document).id
        drive_one(Driver(service), service, id, lambda: None)
        trials, state = store.trials(id), store.campaign(id).state
        ranked = rank(store.campaign(id), trials)
        service.close()
    assert state is CampaignState.COMPLETED
    first = trials[0].plan
    assert (first.dp, first.first_stage_less_layers, first.last_stage_less_layers) == (dp, 1, 1)
    assert trials[0].outcome.measurement is not None
    assert trials[0] in [one.trial for one in ranked]
    assert all(trial.plan.first_stage_less_layers + trial.plan.last_stage_less_layers > 0 for trial in trials)


def test_a_baseline_of_equal_stages_that_do_not_come_out_is_refused_with_the_numbers():
    even = {name: value for name, value in BLOOM["baseline"].items() if name not in ENDS}
    with pytest.raises(InvalidSpec, match=r"pp\(12\) \* vpp\(1\) = 12 does not divide layers\(70\)"):
        read_spec({"name": "even", **COMMON, **BLOOM, "baseline": even}, None)
