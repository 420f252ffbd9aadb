"""Two services on one PostgreSQL share a real Slurm with 200 trials in flight; one is killed. By a ledger that the jobs
write: each trial ran once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driven import Driven
from postgres_lab import PostgresLab
from slurm_lab import SlurmLab, wait_for
from specs import tiny

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

PROGRAM = Path(__file__).parents[1] / "laboratories" / "leased_service.py"
CAMPAIGNS, EACH = 8, 25
LEASE_S, LIMIT_S = 3.0, 900.0


def spec_of(site: Driven, number: int) -> dict[str, Any]:
    plan = ["{micro_batch_size}", "{zero_stage}", "{grad_accum_steps}", "{pp}", "{tp}", "{recompute}"]
    return tiny(
        name=f"shared{number}",
        global_batch_size=2**14,
        space={
            "micro_batch_size": [2**power for power in range(14)],
            "zero_stage": [0],
            "recompute": ["none", "full"],
        },
        workload=site.workload(*plan, seconds=0.5),
        search="random",
        stop={"chance": 0},
        parallel=EACH,
        trial={"time_limit_s": 120},
        runner={"kind": "slurm", "poll_s": 1.0},
        budget={"trials": EACH},
    )


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.postgres
@pytest.mark.timeout(1200)
def test_two_services_share_a_slurm_and_one_is_killed_and_nothing_is_lost_or_doubled(
    tmp_path: Path, slurm: SlurmLab
) -> None:
    site = Driven(tmp_path)
    home = site.home
    home.root.mkdir()
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # all are in flight before the first ends
    with PostgresLab() as server:
        url = server.create("shared")
        with Store.open(url) as store:
            service = Service(store, home)
            ids = [service.create(spec_of(site, number)).id for number in range(CAMPAIGNS)]
            services = [
                subprocess.Popen([sys.executable, str(PROGRAM), url, str(home.root), str(LEASE_S)], cwd=tmp_path)
                for _ in range(2)
            ]
            try:

                def sent() -> int:
                    return sum(
                        trial.state is TrialState.SUBMITTED
                        for campaign_id in ids
                        for trial in store.trials(campaign_id)
                    )

                wait_for(lambda: sent() == CAMPAIGNS * EACH, "fewer than 200 trials are in flight", LIMIT_S)
                drivers = store.leases.drivers().by_campaign
                assert {any(f":{each.pid}:" in one for one in drivers.values()) for each in services} == {True}
                slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
                wait_for(lambda: site.noted("end").total() > 20, "too few have ended", LIMIT_S)
                services[0].kill()
                services[0].wait()
                wait_for(
                    lambda: all(store.campaign(campaign_id).state.final for campaign_id in ids),
                    "not all campaigns are done",
                    LIMIT_S,
                )
                trials = [trial for campaign_id in ids for trial in store.trials(campaign_id)]
                assert {store.campaign(campaign_id).state for campaign_id in ids} == {CampaignState.COMPLETED}
                assert len(trials) == CAMPAIGNS * EACH
                assert {trial.verdict for trial in trials} == {Verdict.OK}
                assert site.noted("start") == site.noted("end") == {trial.last.job_name: 1 for trial in trials}
            finally:
                for each in services:
                    each.terminate()
                for each in services:
                    each.wait(60)
