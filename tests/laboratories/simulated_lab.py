"""A simulated campaign whose trials end in many ways, as one who has run it would have it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

# A part of the trials runs out of memory, some jobs are lost with their nodes, slow ones are given up.
FAILING: dict[str, Any] = {
    "name": "failing",
    "model": "gpt-1t",
    "cluster": {"preset": "frontier", "nodes": 384},
    "global_batch_size": 9600,
    "space": {"tp": [2, 4, 8], "pp": [8, 64, 128], "micro_batch_size": [1, 2, 4], "recompute": ["none", "full"]},
    "workload": "simulated",
    "runner": {"kind": "simulated", "seed": 7, "noise": 0.02, "fault_rate": 0.1},
    "baseline": {"tp": 4, "pp": 128, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "budget": {"trials": 16},
    "trial": {"time_limit_s": 1e6, "racing": True},
}
# What a job may leave in the words of its end: markup, and a formula for a spreadsheet.
HOSTILE = '=HYPERLINK("http://evil.example","x")<script>alert(1)</script>'


@cache
def failing() -> tuple[Campaign, tuple[Trial, ...]]:
    """The campaign, done. Its last two trials are made up: one crashed with hostile words, one pruned after its loss
    was no number any more."""
    with TemporaryDirectory() as folder, Store.open("sqlite://") as store:
        service = Service(store, Home(Path(folder)))
        # The noise of a simulated job follows from its name.
        with patch("meshtune.tuner.service.service.new_id", lambda name: f"{name}-000000"):
            id = service.create(FAILING).id
        drive_one(Driver(service), service, id, lambda: None)
        campaign, trials = store.campaign(id), store.trials(id)
        service.close()
    crashed = Outcome(verdict=Verdict.CRASHED, cause=Cause.USER_BUG, reason=HOSTILE, log_tail=HOSTILE, failed_rank=3)
    diverged = Measurement(step_times_s=(9.0, 9.1), tokens_per_step=128, devices=3072, first_losses=(7.5, float("inf")))
    pruned = Outcome(verdict=Verdict.PRUNED, partial=diverged, reason="slower than the incumbent")
    made_up = [_ended(trials[0], len(trials) + more, outcome) for more, outcome in enumerate((crashed, pruned))]
    return campaign, (*trials, *made_up)


def _ended(like: Trial, number: int, outcome: Outcome) -> Trial:
    attempt = replace(like.last, job_name=f"{like.last.job_name}-{number}", outcome=outcome)
    return replace(like, number=number, origin=Origin.SEARCH, round=0, attempts=(attempt,))
