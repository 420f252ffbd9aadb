"""Many tiny jobs that end in every way, and trainers whose ranks are killed in mid-step: no process is left behind."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from jobs import children, wait_steps
from places import cluster

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.failure import Phase, read_failures
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

SLOTS = 8  # four jobs at once
OUTSTANDING = 6  # of which two wait
SHORT_S = 0.2
KILLED = (JobState.FAILED, "rank 1 was killed by SIGKILL", -9)
CANCELLED = (JobState.CANCELLED, "cancelled", None)
# What happens to a job: how often, and the states, reasons and exit codes that tell the truth about it.
FATES = {
    "finish": (4, {(JobState.SUCCEEDED, "", 0)}),
    "kill rank": (5, {KILLED}),
    # The shell tells its child's end as its own.
    "kill grandchild": (4, {(JobState.FAILED, "rank 1 exited with code 137", 137)}),
    "cancel": (3, {CANCELLED}),
    "cancel queued": (1, {CANCELLED}),
    "kill and cancel": (2, {KILLED, CANCELLED}),
    "limit": (3, {(JobState.TIMED_OUT, f"ran longer than its time limit of {SHORT_S:g} s", None)}),
}


def submit(lab, name: str, fate: str, chance: random.Random) -> None:
    end = f"sleep {chance.uniform(0, 0.1):.2f}" if fate == "finish" else "wait $!"
    script = f"{chance.choice(['', 'setsid'])} sleep 300 & echo $$ $! > pids-$RANK; {end}"
    lab.submit(name, script, processes=2, time_limit_s=SHORT_S if fate == "limit" else 60.0)
    if fate == "cancel queued":
        lab.runner.cancel(name)


def strike(lab, name: str, fate: str) -> bool:
    """Hit rank 1 or its child, or cancel the job, once the rank has told both; whether there is nothing left to do."""
    if fate in ("finish", "limit", "cancel queued"):
        return True
    told = lab.folder / "work" / name / "pids-1"
    if not told.exists() or not told.read_text().endswith("\n"):
        return False
    rank, child = map(int, told.read_text().split())
    if fate != "cancel":
        os.kill(child if fate == "kill grandchild" else rank, signal.SIGKILL)
    if fate.endswith("cancel"):
        lab.runner.cancel(name)
    return True


@pytest.mark.parametrize("jobs", [pytest.param(80, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.long)])
def test_many_jobs_end_as_they_were_made_to_and_leave_nothing(local, jobs):
    local.runner = local.open(slots=SLOTS)
    chance = random.Random(200)
    fates = chance.choices(list(FATES), [weight for weight, _ in FATES.values()], k=jobs)
    coming = [(f"job{number}", fate) for number, fate in enumerate(fates)]
    waiting: dict[str, str] = {}
    struck: set[str] = set()
    ended: dict[str, JobStatus] = {}
    wrong: list[str] = []
    deadline = time.monotonic() + 240
    while coming or waiting:
        assert time.monotonic() < deadline, f"{len(ended)} of {jobs} jobs have ended; unfinished: {waiting}"
        while coming and len(waiting) < OUTSTANDING:
            name, fate = coming.pop(0)
            submit(local, name, fate, chance)
            waiting[name] = fate
        for name, status in local.runner.poll(list(waiting)).items():
            if name not in struck and strike(local, name, waiting[name]):
                struck.add(name)
            if status.state.final:
                fate, ended[name] = waiting.pop(name), status
                if (status.state, status.reason, status.exit_code) not in FATES[fate][1]:
                    wrong.append(f"{name}, {fate}: {status}")
        time.sleep(0.01)
    assert not wrong, "\n".join(wrong)
    assert local.left() == []
    # Every job is what it was, and its ranks' children are gone although no rank lived to end them.
    assert local.runner.poll(list(ended)) == ended
    assert len(list((local.folder / "work").glob("*/pids-*"))) > jobs


MODEL = ModelSpec(name="tiny", layers=4, hidden=64, heads=4, ffn=128, vocab=256, seq_len=32)
CLUSTER = cluster(1, 4, memory_bytes=2 * 2**30)
# One per way to wait for a peer: gradients, weights, activations, stages, chunks of stages.
LAYOUTS = (
    {"dp": 4, "zero_stage": 1},
    {"dp": 4, "zero_stage": 3},
    {"tp": 4},
    {"pp": 4},
    {"pp": 2, "dp": 2, "vpp": 2, "schedule": "zero_bubble"},
)
IN_A_STEP = {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param(LAYOUTS[4:], id="chunks of stages", marks=pytest.mark.slow),
        pytest.param(LAYOUTS, id="all", marks=pytest.mark.long),
    ],
)
def test_a_trainer_whose_random_rank_is_killed_in_mid_step_is_gone_at_once_and_names_it(local, layouts):
    chance, silent = random.Random(5), 0
    endless = {"max_warmup_steps": 1, "min_steps": 10**7, "max_steps": 10**7, "max_seconds": 10**6}
    workload = TorchWorkload({"measuring": endless})
    for number, layout in enumerate(layouts):
        name = f"trainer{number}"
        directory = local.folder / "work" / name
        plan = Plan(**layout, grad_accum_steps=16 // layout.get("dp", 1))
        local.runner.submit(
            workload.materialize(JobRequest(name, MODEL, plan, CLUSTER, directory, seed=0, time_limit_s=120))
        )
        local.wait_for(lambda: local.servers() and len(children(local.servers()[0])) == 4, 60)
        local.wait_for((directory / "rendezvous").exists, 60)
        ranks = children(local.wait_server())
        wait_steps(ranks)
        time.sleep(chance.uniform(0.0, 0.5))
        victim = chance.randrange(4)
        os.kill(ranks[victim], signal.SIGKILL)
        local.wait_for(lambda: not any(local.alive(rank) for rank in ranks))  # noqa: B023
        outcome = workload.read(directory, local.wait(name))
        assert outcome.verdict is Verdict.CRASHED, outcome
        assert outcome.reason == f"rank {victim} was killed by SIGKILL"
        assert outcome.measurement is None
        witnesses = read_failures(directory)
        silent += not witnesses
        assert all(witness.echo for witness in witnesses), witnesses
        assert {witness.phase for witness in witnesses} <= IN_A_STEP, witnesses
    assert silent <= 1  # the peers have half a second to say what they saw, which can be short on a busy machine
    assert local.left() == []
