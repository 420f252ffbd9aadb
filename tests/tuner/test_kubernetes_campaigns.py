"""A campaign through the tests' API server of Kubernetes, which loses an answer, is silent for a while, and takes a pod
and a node away."""

from __future__ import annotations

import sys
import threading

import pytest

pytest.importorskip("kubernetes")

from driven import Driven
from kubernetes_jobs import IMAGE
from kubernetes_lab import NAMESPACE
from specs import tiny

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

pytestmark = pytest.mark.long


def test_a_campaign_survives_what_a_cluster_does_and_runs_every_attempt_once(kubernetes, tmp_path):
    site = Driven(tmp_path)
    spec = tiny(
        global_batch_size=64,
        space={"micro_batch_size": [1, 2, 4, 8, 16, 32, 64], "recompute": ["none", "full"]},
        workload=site.workload("{micro_batch_size}", "{grad_accum_steps}", "{recompute}", seconds=0.5),
        search="random",
        budget={"trials": 6},
        parallel=2,
        warm_start=False,
        runner={
            "kind": "kubernetes",
            "image": IMAGE,
            "python": sys.executable,
            "namespace": NAMESPACE,
            "host_paths": [str(tmp_path)],
            "call_limit_s": 1,
            "poll_s": 0.1,
        },
    )
    site.home.root.mkdir()
    faults = iter(("answer", "silence", "eviction"))
    seen: set[int] = set()
    with Store.open("sqlite://") as store:
        service, stop = Service(store, site.home), threading.Event()
        id = service.create(spec).id

        def watch() -> None:
            if not store.campaign(id).state.active:
                stop.set()
            done = site.noted().total()
            if done not in seen and done > 0:
                seen.add(done)
                fault = next(faults, "")
                if fault == "answer":
                    kubernetes.loses_answer.set()
                elif fault == "silence":
                    kubernetes.silent.set()
                    threading.Timer(2.5, kubernetes.silent.clear).start()
                elif fault == "eviction":
                    running = [pod for pod in kubernetes.all("Pod") if pod["status"]["phase"] == "Running"]
                    if running:
                        kubernetes.controllers.disrupt(running[0], "EvictionByEvictionAPI", "a drain")

        drive_all(Driver(service), service, stop, watch)
        assert store.campaign(id).state is CampaignState.COMPLETED
        trials = store.trials(id)
        assert [trial.last.outcome.verdict for trial in trials] == [Verdict.OK] * 6
    assert set(site.noted().values()) == {1}
    assert len(site.noted()) >= 6
