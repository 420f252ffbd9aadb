"""Failed trials of simulated campaigns on Frontier, by search, in the first and in the second half of a campaign.

`python benchmarks/failed_trials.py [--search deephyper,optuna-tpe,optuna-gp,physics] [--seeds 8] [--trials 25]
[--model gpt-1t,gpt3-175b,gpt-22b] [--memory 1.0]`

Three GPTs of the Frontier study (Dash et al. 2023, arXiv 2312.12705) in the space of `examples/frontier-1t.yaml`. What
a plan costs is `schedulers.ground_truth`'s: constants, contention and a residual that no search is told, another
hidden cluster for each seed, 2 % of noise; --memory multiplies all peaks. Each campaign measures its baseline first.
Nodes do not fail.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median

import numpy as np
from replay_runs import PROCESSES, Contender, parse_contenders
from rich.console import Console
from rich.table import Table

from meshtune.runners.outcome import Verdict
from meshtune.runners.schedulers.ground_truth import truth
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

EXAMPLE = Path(__file__).parents[1] / "examples" / "frontier-1t.yaml"
NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """A model on so many nodes of 8 GCDs. pp: of the space. baseline: what differs from the example's."""

    nodes: int
    global_batch_size: int
    pp: tuple[int, ...]
    baseline: dict[str, int | str]


CASES = {
    "gpt-1t": Case(384, 9600, (8, 16, 32, 64, 128), {"tp": 8, "pp": 64}),
    "gpt3-175b": Case(128, 2048, (1, 2, 4, 8, 16, 32), {"tp": 8, "pp": 16}),
    "gpt-22b": Case(8, 512, (1, 2, 4, 8, 16), {"tp": 8, "pp": 2}),
}


@dataclass(frozen=True, slots=True)
class Campaign:
    """scores: tokens per second of each trial, 0 for a failed one. best: of the whole space, by the hidden truth."""

    scores: tuple[float, ...]
    best: float

    def failed(self, half: slice) -> float:
        """The share of searched trials, the baseline left out."""
        return self.scores[1:][half].count(0.0) / max(1, len(self.scores[1:][half]))


@cache
def task_of(name: str) -> tuple[Task, Plan]:
    """The task and its baseline."""
    case, document = CASES[name], parse_yaml(EXAMPLE.read_text(encoding="utf-8"))
    spec, space = read_spec(
        {
            **document,
            "model": name,
            "cluster": {"preset": "frontier", "nodes": case.nodes},
            "global_batch_size": case.global_batch_size,
            "space": {**document["space"], "pp": list(case.pp)},
            "baseline": {**document["baseline"], **case.baseline},
        },
        None,
    )
    assert spec.baseline is not None
    return Task(space=space, training=training_of(spec)), spec.baseline


@dataclass(frozen=True, slots=True)
class World:
    """What each legal plan and the baseline do on one hidden cluster: seconds per step, None where it does not fit, and
    bytes at the fullest rank."""

    name: str
    seed: int
    costs: Mapping[Plan, tuple[float | None, float]]

    @classmethod
    def of(cls, name: str, seed: int, memory: float) -> World:
        task, baseline = task_of(name)
        training, costs = task.training, {}
        for plan in (*task.space, baseline):
            true = truth(training, plan, seed)
            peak_bytes = memory * true.peak_bytes
            fits = peak_bytes <= training.cluster.device.memory_bytes
            costs[plan] = (true.step_s if fits else None, peak_bytes)
        return cls(name, seed, costs)

    @property
    def fitting(self) -> int:
        """How many legal plans fit."""
        return sum(self.costs[plan][0] is not None for plan in task_of(self.name)[0].space)

    def observe(self, plan: Plan, noise: float = 0.0) -> Observation:
        step_s, peak_bytes = self.costs[plan]
        if step_s is None:
            return Observation(plan=plan, verdict=Verdict.OOM)
        step_s *= float(np.exp(noise))
        score = plan.global_batch_size * task_of(self.name)[0].training.model.seq_len / step_s
        return Observation(plan=plan, verdict=Verdict.OK, score=score, step_time_s=step_s, peak_bytes=peak_bytes)


def play(world: World, contender: Contender, trials: int) -> Campaign:
    (task, baseline), noise = task_of(world.name), np.random.default_rng(world.seed).normal(0.0, NOISE, trials)
    search, seen = contender.create(world.seed), [world.observe(baseline, noise[0])]
    while len(seen) < trials and (plans := search.ask(task, tuple(seen), 1).plans):
        seen.append(world.observe(plans[0], noise[len(seen)]))
    best = max(world.observe(plan).score or 0.0 for plan in task.space)
    return Campaign(tuple(one.score or 0.0 for one in seen), best)


def show(name: str, contenders: Sequence[Contender], given: argparse.Namespace, console: Console) -> None:
    seeds, trials, half = given.seeds, given.trials, (given.trials - 1) // 2
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        worlds = list(pool.map(World.of, repeat(name), range(seeds), repeat(given.memory)))
        played = {one.label: list(pool.map(play, worlds, repeat(one), repeat(trials))) for one in contenders}
    fit = [world.fitting for world in worlds]
    legal = f"{len(task_of(name)[0].space)} legal plans, of which {min(fit)} to {max(fit)} fit"
    table = Table(title=f"{name}: {legal}; {seeds} campaigns of {trials} trials", title_justify="left")
    for heading in ("search", "failed", "most", "first half", "second half", "best found, share of the best"):
        table.add_column(heading, justify="right")
    for label, campaigns in played.items():
        shares = [mean(one.failed(part) for one in campaigns) for part in (slice(None), slice(half), slice(half, None))]
        most = max(one.failed(slice(None)) for one in campaigns)
        found = median(max(one.scores) / one.best for one in campaigns)
        figures = [f"{value:.0%}" for value in (shares[0], most, *shares[1:])]
        table.add_row(label, *figures, f"{found:.2f}")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="failed_trials.py", description="Failed trials of simulated campaigns.")
    parser.add_argument("--search", metavar="NAME,...", default="deephyper,optuna-tpe,optuna-gp,physics")
    parser.add_argument("--model", metavar="NAME,...", default=",".join(CASES))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--trials", type=int, default=25)
    parser.add_argument("--memory", type=float, default=1.0, help="factor on all true peaks; default 1")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in given.model.split(","):
        show(name, parse_contenders(given.search), given, Console(width=140))
    return 0


if __name__ == "__main__":
    sys.exit(main())
