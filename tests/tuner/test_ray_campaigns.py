"""Two campaigns on one real Ray cluster, which each could fill alone, hold it for equal times."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from driven import Driven
from ray_lab import RayLab
from specs import tiny

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.long


def spec(site: Driven, cluster: RayLab, name: str, seconds: float, trials: int) -> dict[str, Any]:
    return tiny(
        name=name,
        global_batch_size=64,
        space={"micro_batch_size": [1, 2, 4, 8, 16, 32, 64], "recompute": ["none", "full"]},
        workload=site.workload("{micro_batch_size}", "{grad_accum_steps}", "{recompute}", seconds=seconds),
        search="random",
        budget={"trials": trials},
        parallel=4,
        warm_start=False,
        runner={"kind": "ray", "address": cluster.address},
    )


def test_two_campaigns_share_one_ray_cluster_fairly(ray_cluster, tmp_path):
    site = Driven(tmp_path)
    home = site.home
    home.root.mkdir()
    home.limits.write_text("devices: 4\n")
    with Store.open("sqlite://") as store:
        service, stop = Service(store, home), threading.Event()
        # One comes with long jobs and a head start of a whole cluster, the other with short ones.
        ids = [
            service.create(spec(site, ray_cluster, name, seconds, trials)).id
            for name, seconds, trials in (("long", 2.4, 6), ("short", 1.2, 12))
        ]

        def watch() -> None:
            if not any(store.campaign(id).state.active for id in ids):
                stop.set()

        drive_all(Driver(service), service, stop, watch)
        assert [store.campaign(id).state for id in ids] == [CampaignState.COMPLETED] * 2
        assert [len(store.trials(id)) for id in ids] == [6, 12]
        attempts = {id: [trial.last for trial in store.trials(id)] for id in ids}
    every = [(attempt.started_at, attempt.finished_at) for each in attempts.values() for attempt in each]
    assert max(sum(begin <= moment < end for begin, end in every) for moment, _ in every) == 4
    # Held from when Ray has a job: how long it takes to start one on a busy machine costs short jobs twice as much.
    spans = [[(attempt.submitted_at, attempt.finished_at) for attempt in each] for each in attempts.values()]
    # Counted once the second has its half: how long the head start lasts is up to the machine.
    since, until = sorted(begin for begin, _ in spans[1])[1], min(max(end for _, end in each) for each in spans)
    held = [sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in each) for each in spans]
    assert min(held) > 0.7 * max(held), held
