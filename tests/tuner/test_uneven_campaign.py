"""The two published settings with uneven stages are baselines of simulated campaigns."""

from __future__ import annotations

import pytest

from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

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
