"""Trials until a search is near the best of a simulated training with knobs (docs/explanation/search.md).

`python benchmarks/knobs.py [--seeds 5] [--json OUT] [--landscapes NAME,...] [--most 150]
[--searches physics,deephyper,optuna-tpe,random,one-at-a-time]`

The landscapes are those of `knob_landscapes`, the effects hidden from the searches. Each run measures a baseline, then
one plan at a time, until one is within 5 % of the best plan that fits; failed trials count, the baseline does not.
Exit status: 0, or 2 where an argument or a search is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from knob_by_hand import by_hand
from knob_draws import rng_of
from knob_landscapes import HELD_OUT, IDLE, LANDSCAPES, task_of
from knob_rollouts import RolloutWorld
from knob_worlds import Simulated, World
from replay_runs import PROCESSES, parse_contenders
from rich.console import Console
from rich.progress import track
from rich.table import Table

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.base import Observation, SearchError

BY_HAND = "one-at-a-time"
SEARCHES = ("physics", "deephyper", "optuna-tpe", "random", BY_HAND)
NEAR = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """trials: until the first plan that is near the best, or as many as were allowed. failed: of those that were
    started. ask_s: seconds per proposal."""

    landscape: str
    search: str
    number: int
    reached: bool
    trials: int
    failed: int
    ask_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some runs; one that did not reach the best counts as all trials that were allowed. ask_s: seconds per
    proposal."""

    trials_median: float
    trials_p90: float
    reached: float
    trials_mean: float
    failed_median: float
    ask_s: float

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Figures:
        trials = [run.trials for run in runs]
        return cls(
            trials_median=float(np.median(trials)),
            trials_p90=float(np.percentile(trials, 90)),
            reached=float(np.mean([run.reached for run in runs])),
            trials_mean=float(np.mean(trials)),
            failed_median=float(np.median([run.failed for run in runs])),
            ask_s=float(np.mean([run.ask_s for run in runs])),
        )


@lru_cache(maxsize=4)
def world_of(landscape: str, number: int) -> Simulated:
    chosen = LANDSCAPES[landscape]
    return RolloutWorld(chosen, number) if chosen.generates else World.of(chosen, number)


def play(landscape: str, number: int, search: str, most: int) -> Run:
    """One run. Raises SearchError."""
    world = world_of(landscape, number)
    baseline = world.observe(world.baseline)
    proposals = _proposals(world, search, baseline)
    trials, failed, asked_s, seen = 0, 0, 0.0, None
    while trials < most:
        began = time.perf_counter()
        try:
            plan = proposals.send(seen)
        except StopIteration:
            break
        asked_s += time.perf_counter() - began
        trials += 1
        seen = world.observe(plan)
        failed += seen.score is None
        if world.is_near(plan, NEAR):
            return Run(landscape, search, number, True, trials, failed, asked_s / trials)
    return Run(landscape, search, number, False, most, failed, asked_s / max(1, trials))


def _proposals(world: Simulated, search: str, baseline: Observation) -> Any:
    """A generator of plans that is sent what each measured. Raises SearchError."""
    return by_hand(world.task.space, baseline) if search == BY_HAND else _asked(world, search, baseline)


def _asked(world: Simulated, name: str, baseline: Observation) -> Iterator[Plan]:
    (contender,) = parse_contenders(name)
    search, seen = contender.create(int(rng_of(world.landscape.name, world.seed).integers(2**31))), [baseline]
    while plans := search.ask(world.task, tuple(seen), 1).plans:
        broken = world.task.space.explain(plans[0])
        if broken:
            raise SearchError(f"search {name} proposed {plans[0].key}: {broken[0]}")
        measured: Any = yield plans[0]
        seen.append(measured)


def play_all(landscapes: Sequence[str], searches: Sequence[str], seeds: int, most: int) -> Iterator[Run]:
    """Every run, by landscape, seed and search. They do not depend on the processes."""
    jobs = [(name, number, search) for name in landscapes for number in range(seeds) for search in searches]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield from pool.map(play, *zip(*jobs, strict=True), repeat(most, len(jobs)))


def document(runs: Sequence[Run], searches: Sequence[str]) -> dict[str, Any]:
    """What `--json` writes."""
    held_out = [run for run in runs if run.landscape in HELD_OUT]
    landscapes = list(dict.fromkeys(run.landscape for run in runs))
    return {
        "summary": by_search(runs, searches),
        "held_out": by_search(held_out, searches) if held_out else {},
        "trials_per_idle_knob": {search: per_idle for search in searches if (per_idle := idle(runs, search))},
        "landscapes": {
            name: {
                "plans": task_of(name).space.plans,
                "layouts": len(task_of(name).space),
                **by_search([run for run in runs if run.landscape == name], searches),
            }
            for name in landscapes
        },
        "runs": [asdict(run) for run in runs],
    }


def by_search(runs: Sequence[Run], searches: Sequence[str]) -> dict[str, dict[str, float]]:
    return {search: asdict(Figures.of([run for run in runs if run.search == search])) for search in searches}


def idle(runs: Sequence[Run], search: str) -> dict[str, float]:
    """How many more trials each knob that does nothing costs; empty where that was not run."""
    plain, having, many = IDLE
    trials = [{run.number: run.trials for run in runs if (run.search, run.landscape) == (search, name)} for name in
              (having, plain)]  # fmt: skip
    more = [(trials[0][number] - trials[1][number]) / many for number in trials[0].keys() & trials[1].keys()]
    return {"mean": float(np.mean(more)), "median": float(np.median(more))} if more else {}


def show(figures: dict[str, Any], searches: Sequence[str], most: int, console: Console) -> None:
    """The tables for people: median / 90th percentile of trials, and the share of runs that got there."""
    table = Table(title=f"Trials to within {NEAR:.0%} of the best: median / p90 (reached, of {most} at the most)")
    table.add_column("landscape")
    table.add_column("plans", justify="right")
    for search in searches:
        table.add_column(search, justify="right")
    for name, row in figures["landscapes"].items():
        table.add_row(name, f"{row['plans']:.1e}", *(_cell(row[search]) for search in searches))
    for title, row in (("all", figures["summary"]), ("held out", figures["held_out"])):
        if row:
            table.add_section()
            table.add_row(title, "", *(_cell(row[search]) for search in searches))
    console.print(table)
    for search, more in figures["trials_per_idle_knob"].items():
        console.print(f"{search}: {more['mean']:+.2f} trials per knob that does nothing (median {more['median']:+.2f})")
    told = ", ".join(f"{search} {figures['summary'][search]['ask_s']:.2f} s" for search in searches)
    console.print(f"time per proposal: {told}")


def _cell(row: dict[str, float]) -> str:
    return f"{row['trials_median']:.0f} / {row['trials_p90']:.0f} ({row['reached']:.0%})"


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)


def _landscapes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in LANDSCAPES:
            raise argparse.ArgumentTypeError(f"no landscape {name!r}; known: {', '.join(LANDSCAPES)}")
    return names


def _searches(text: str) -> list[str]:
    try:
        parse_contenders(",".join(name for name in text.split(",") if name != BY_HAND) or "random")
    except SearchError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return text.split(",")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="knobs.py", description="Trials until a search is near the best, with knobs.")
    parser.add_argument("--seeds", type=_at_least_one, default=5, help="draws of each landscape; default 5")
    parser.add_argument("--landscapes", type=_landscapes, default=list(LANDSCAPES), metavar="NAME,...")
    parser.add_argument("--searches", type=_searches, default=list(SEARCHES), metavar="NAME,...")
    parser.add_argument("--most", type=_at_least_one, default=150, help="trials of one run; default 150")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the figures there")
    given = parser.parse_args(arguments)
    console, bar = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    total = len(given.landscapes) * given.seeds * len(given.searches)
    played = play_all(given.landscapes, given.searches, given.seeds, given.most)
    try:
        runs = list(track(played, "playing", total=total, console=bar, transient=True, disable=not bar.is_terminal))
    except SearchError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    figures = document(runs, given.searches)
    show(figures, given.searches, given.most, console)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
