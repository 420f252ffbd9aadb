"""Many tiny jobs that end in every way, and trainers whose ranks are killed in mid-step: no process is left behind."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import pytest
from jobs import children, wait_steps

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.outcome import Verdict
from meshtune.runners.trainer.failure import Phase, read_failures
from meshtune.runners.workloads.torch import TorchWorkload
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

SLOTS = 8  # four jobs at once
OUTSTANDING = 6  # of which two wait
SHORT_S = 0.2


class Fate(StrEnum):
    """What happens to a job."""

    FINISH = "finish"
    KILL_RANK = "kill rank"
    KILL_GRANDCHILD = "kill grandchild"
    KILL_BOTH = "kill both"
    CANCEL = "cancel"
    CANCEL_QUEUED = "cancel queued"
    KILL_AND_CANCEL = "kill and cancel"
    LIMIT = "limit"


WEIGHTS = {
    Fate.FINISH: 4,
    Fate.KILL_RANK: 5,
    Fate.KILL_GRANDCHILD: 4,
    Fate.KILL_BOTH: 2,
    Fate.CANCEL: 3,
    Fate.CANCEL_QUEUED: 1,
    Fate.KILL_AND_CANCEL: 2,
    Fate.LIMIT: 3,
}


@dataclass(slots=True)
class Trial:
    """A job and its fate. victim: the rank that is hit. delay_s: between the victim's first word and the blow."""

    name: str
    fate: Fate
    victim: int
    delay_s: float
    due_at: float | None = None
    struck: bool = False

    @property
    def expected(self) -> set[tuple[JobState, str, int | None]]:
        """The states, reasons and exit codes that tell the truth about it."""
        cancelled = (JobState.CANCELLED, "cancelled", None)
        killed = (JobState.FAILED, f"rank {self.victim} was killed by SIGKILL", -9)
        other = (JobState.FAILED, f"rank {1 - self.victim} was killed by SIGKILL", -9)
        return {
            Fate.FINISH: {(JobState.SUCCEEDED, "", 0)},
            Fate.KILL_RANK: {killed},
            # The shell tells its child's end as its own.
            Fate.KILL_GRANDCHILD: {(JobState.FAILED, f"rank {self.victim} exited with code 137", 137)},
            Fate.KILL_BOTH: {killed, other},
            Fate.CANCEL: {cancelled},
            Fate.CANCEL_QUEUED: {cancelled},
            Fate.KILL_AND_CANCEL: {killed, cancelled},
            Fate.LIMIT: {(JobState.TIMED_OUT, f"ran longer than its time limit of {SHORT_S:g} s", None)},
        }[self.fate]


def submit_trial(lab, number: int, chance: random.Random) -> Trial:
    fate = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    trial = Trial(f"trial{number}", fate, chance.randint(0, 1), chance.choice([0.0, chance.uniform(0, 0.15)]))
    away = chance.choice(["", "setsid"])
    end = f"sleep {chance.uniform(0, 0.1):.2f}" if fate is Fate.FINISH else "wait $!"
    script = f"{away} sleep 300 & echo $$ $! > pids-$RANK; {end}"
    limit_s = SHORT_S if fate is Fate.LIMIT else 60.0
    lab.submit(trial.name, script, processes=2, time_limit_s=limit_s)
    if fate is Fate.CANCEL_QUEUED:
        strike(lab, trial)
    return trial


def pids(lab, name: str, rank: int) -> tuple[int, int] | None:
    """The rank's process and its child's, once it has told them."""
    with suppress(OSError):
        text = (lab.folder / "work" / name / f"pids-{rank}").read_text()
        if text.endswith("\n"):
            own, child = text.split()
            return int(own), int(child)
    return None


def strike(lab, trial: Trial) -> None:
    """Hit the job as its fate wants, when it is time."""
    if trial.struck or trial.fate in (Fate.FINISH, Fate.LIMIT):
        return
    if trial.fate is Fate.CANCEL_QUEUED:
        lab.runner.cancel(trial.name)
        trial.struck = True
        return
    told = pids(lab, trial.name, trial.victim)
    other = pids(lab, trial.name, 1 - trial.victim) if trial.fate is Fate.KILL_BOTH else None
    if told is None or (trial.fate is Fate.KILL_BOTH and other is None):
        return
    trial.due_at = trial.due_at or time.monotonic() + trial.delay_s
    if time.monotonic() < trial.due_at:
        return
    trial.struck = True
    if trial.fate is Fate.KILL_GRANDCHILD:
        os.kill(told[1], signal.SIGKILL)
    elif trial.fate is not Fate.CANCEL:
        os.kill(told[0], signal.SIGKILL)
        if other is not None:
            with suppress(ProcessLookupError):
                os.kill(other[0], signal.SIGKILL)
    if trial.fate in (Fate.CANCEL, Fate.KILL_AND_CANCEL):
        lab.runner.cancel(trial.name)


@pytest.mark.parametrize("jobs", [pytest.param(80, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.long)])
def test_many_jobs_end_as_they_were_made_to_and_leave_nothing(local, jobs):
    local.runner = local.open(slots=SLOTS)
    chance = random.Random(200)
    waiting: dict[str, Trial] = {}
    ended: dict[str, JobStatus] = {}
    wrong: list[str] = []
    number = 0
    deadline = time.monotonic() + 240
    while number < jobs or waiting:
        assert time.monotonic() < deadline, f"{len(ended)} of {jobs} jobs have ended; unfinished: {waiting}"
        while number < jobs and len(waiting) < OUTSTANDING:
            trial = submit_trial(local, number, chance)
            waiting[trial.name] = trial
            number += 1
        for name, status in local.runner.poll(list(waiting)).items():
            strike(local, waiting[name])
            if status.state.final:
                trial, ended[name] = waiting.pop(name), status
                if (status.state, status.reason, status.exit_code) not in trial.expected:
                    wrong.append(f"{trial}: {status}")
        time.sleep(0.01)
    assert len(ended) == jobs
    assert not wrong, "\n".join(wrong)
    assert {status.state for status in ended.values()} == {
        *(JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT)
    }
    assert local.left() == []
    # Every job is what it was, and its ranks' children are gone although no rank lived to end them.
    assert local.runner.poll(list(ended)) == ended
    families = [pids(local, name, rank) for name in ended for rank in (0, 1)]
    assert sum(family is not None for family in families) > jobs


MODEL = ModelSpec(name="tiny", layers=4, hidden=64, heads=4, ffn=128, vocab=256, seq_len=32)
DEVICE = DeviceSpec(name="cpu", kind=DeviceKind.CPU, memory_bytes=2 * 2**30)
CLUSTER = ClusterSpec(name="c", nodes=1, devices_per_node=4, device=DEVICE)
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
        pytest.param(LAYOUTS[1::3], id="weights, chunks of stages", marks=pytest.mark.slow),
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
        local.runner.submit(workload.materialize(name, MODEL, plan, CLUSTER, directory, seed=0, time_limit_s=120))
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
