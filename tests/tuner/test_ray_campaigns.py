"""Two campaigns on one real Ray cluster, which each could fill alone, hold it for equal times."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from ray_lab import RayLab

from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.long

SCRIPT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from meshtune.runners.report import report
time.sleep(float(sys.argv[2]))
report([0.1] * 15)
"""


def spec(folder: Path, cluster: RayLab, name: str, seconds: float, trials: int) -> dict[str, object]:
    told = ["{micro_batch_size}", "{grad_accum_steps}", "{recompute}"]
    command = ["{python}", str(folder / "train.py"), str(Path(__file__).parents[2]), str(seconds), *told]
    return {
        "name": name,
        "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
        "cluster": {"preset": "local-cpu", "devices_per_node": 1},
        "global_batch_size": 64,
        "space": {"micro_batch_size": [1, 2, 4, 8, 16, 32, 64], "recompute": ["none", "full"]},
        "workload": {"kind": "command", "command": command},
        "search": "random",
        "budget": {"trials": trials},
        "confirm": 0,
        "parallel": 4,
        "warm_start": False,
        "runner": {"kind": "ray", "address": cluster.address},
    }


def test_two_campaigns_share_one_ray_cluster_fairly(ray_cluster, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.limits.write_text("devices: 4\n")
    with Store.open("sqlite://") as store:
        service, stop = Service(store, home), threading.Event()
        # One comes with long jobs and a head start of a whole cluster, the other with short ones.
        ids = [
            service.create(spec(tmp_path, ray_cluster, name, seconds, trials)).id
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
