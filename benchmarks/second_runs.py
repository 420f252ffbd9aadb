"""How often do second runs in turns name a better plan, rightly and wrongly? Draws campaigns whose truth is known.

`python benchmarks/second_runs.py [--campaigns 100] [--seed 1] [--only equal]`. A campaign measures 15 plans once, of
which plan 0 is the baseline, and then what `tuner.campaign.second_runs` asks for; `recommend` chooses. All runs have
log-normal noise, and the cluster drifts between rounds by half as much. `equal`: all plans are as fast as the baseline.
`+10 %`: one is 10 % faster, the others 0 to 15 % slower. Four tables: by scatter and prior; of equal plans with more
finalists and rounds; of gains as of the demo; and with a slow spell in the second runs, and jobs that are lost.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign import second_runs
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial, TrialState
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import recommend_among
from meshtune.tuner.specs.read import read_spec

PLANS = 15
COLUMNS = ("rightly better", "wrongly better", "second runs", "rounds", "90 % interval covers", "half of it")
ROUNDS = 14
SCATTERS = (0.001, 0.01, 0.05, 0.15)
KINDS = (DeviceKind.CUDA, DeviceKind.CPU)
WORLDS = tuple(product(KINDS, SCATTERS))
# Finalists and rounds of campaigns of equal plans.
EQUAL = ((1, ROUNDS), (3, 2), (8, 6), (8, 12))
TABLES = ("rates", "equal", "demo", "spells")
console = Console(width=180)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true of a campaign. scatter: of runs. gain: of plan 1 over the baseline; 0: all plans are equal. slow:
    how much slower so many second runs in a row are as `spell` has it; lost: the share of second runs that are."""

    kind: DeviceKind = DeviceKind.CPU
    scatter: float
    gain: float = 0.0
    confirm: int = 3
    rounds: int = ROUNDS
    slow: float = 0.0
    spell: int = 4
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class End:
    """Of one campaign. truth: the recommended plan's real gain, 0 for the baseline. covered, half: of the recommended
    plan's gain, or the best other plan's, in logarithms; None where none ran again."""

    better: bool
    truth: float
    runs: int
    rounds: int
    covered: bool | None
    half: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=TABLES, action="append")
    given = parser.parse_args()
    wanted = given.only or TABLES
    with ProcessPoolExecutor() as pool:

        def draw(**world: Any) -> Future[list[End]]:
            return pool.submit(simulate, given.campaigns, given.seed, World(**world))

        if "rates" in wanted:
            rates = [
                ((kind, f"{scatter:.1%}", truth_of(gain)), draw(kind=kind, scatter=scatter, gain=gain))
                for kind, scatter, gain in product(KINDS, SCATTERS, (0.0, 0.02, 0.1))
                if gain != 0.02 or scatter == SCATTERS[0]
            ]
            show(("prior", "runs scatter by", "truth"), rates)
        if "equal" in wanted:
            equal = [
                [draw(kind=kind, scatter=scatter, confirm=confirm, rounds=rounds) for kind, scatter in WORLDS]
                for confirm, rounds in EQUAL
            ]
            names = (f"{kind} {scatter:.1%}" for kind, scatter in WORLDS)
            table = Table("confirm", "confirm_rounds", *names, box=MARKDOWN)
            for (confirm, rounds), row in zip(EQUAL, equal, strict=True):
                table.add_row(str(confirm), str(rounds), *(share(end.better for end in ends.result()) for ends in row))
            console.print(table)
        if "demo" in wanted:
            demo = [
                ((f"{scatter:.0%}", f"{1 + gain:g} times"), draw(scatter=scatter, gain=gain))
                for scatter, gain in product((0.15, 0.25), (1.0, 2.0, 3.0))
            ]
            show(("runs scatter by", "best plan"), demo)
        if "spells" in wanted:
            happens = {"4 runs in a row 30 % slower": {"slow": 0.3}, "one of ten runs is lost": {"lost": 0.1}}
            spells = [
                ((kind, f"{scatter:.1%}", truth_of(gain), words), draw(kind=kind, scatter=scatter, gain=gain, **more))
                for (kind, scatter), gain in product(zip(KINDS, (0.001, 0.05), strict=True), (0.0, 0.1))
                for words, more in happens.items()
            ]
            show(("prior", "runs scatter by", "truth", "what happens"), spells)


def show(heads: Sequence[str], rows: Sequence[tuple[Sequence[str], Future[list[End]]]]) -> None:
    table = Table(*heads, *COLUMNS, box=MARKDOWN)
    for names, ends in rows:
        table.add_row(*names, *cells(ends.result()))
    console.print(table)


def truth_of(gain: float) -> str:
    return f"+{gain:.0%}" if gain else "equal"


def cells(ends: Sequence[End]) -> tuple[str, ...]:
    known = [end for end in ends if end.covered is not None]
    return (
        share(end.better and end.truth > 0 for end in ends),
        share(end.better and end.truth <= 0 for end in ends),
        f"{np.mean([end.runs for end in ends]):.1f}",
        f"{np.mean([end.rounds for end in ends]):.1f}",
        share(bool(end.covered) for end in known) if known else "",
        f"{100 * np.median([end.half for end in known if end.half is not None]):.1f} %" if known else "",
    )


def share(those: Iterable[bool]) -> str:
    return f"{100 * np.mean(list(those)):.1f} %"


def named_of_equal(campaigns: int, seed: int, world: World) -> float:
    """The share of campaigns that recommend a plan as better."""
    return sum(end.better for end in simulate(campaigns, seed, world)) / campaigns


def simulate(campaigns: int, seed: int, world: World) -> list[End]:
    random = np.random.default_rng(seed)
    spec = campaign_spec(world)
    return [_campaign(spec, random, world) for _ in range(campaigns)]


def campaign_spec(world: World) -> CampaignSpec:
    document = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8, "baseline": {"tp": 1}}
    spec = read_spec(document, None)[0]
    cluster = replace(spec.cluster, device=replace(spec.cluster.device, kind=world.kind))
    return replace(spec, cluster=cluster, confirm=world.confirm, confirm_rounds=world.rounds)


def _campaign(spec: CampaignSpec, random: np.random.Generator, world: World) -> End:
    plans = [Plan(dp=4, micro_batch_size=1, grad_accum_steps=1 + number) for number in range(PLANS)]
    truth = dict(zip(plans, [0.0] * PLANS, strict=True))
    if world.gain:
        slower = -random.uniform(0.0, 0.15, PLANS)
        truth.update(zip(plans[1:], slower[1:], strict=True))
        truth[plans[1]] = log(1 + world.gain)
    trials = [
        _trial(
            number, plan, Origin.SEARCH if number else Origin.BASELINE, truth[plan] + random.normal(0, world.scatter)
        )
        for number, plan in enumerate(plans)
    ]
    drift: dict[int, float] = {}
    begins = PLANS + int(random.integers(8))
    with patch.object(second_runs, "_contenders", remembering(second_runs._contenders)):
        while (turn := second_runs.next_turn(spec, trials)) is not None:
            shift = drift.setdefault(turn.round, random.normal(0, world.scatter / 2))
            for plan in turn.missing:
                speed = truth[plan] + shift + random.normal(0, world.scatter)
                speed -= log(1 + world.slow) * (begins <= len(trials) < begins + world.spell)
                lost = world.lost > 0 and random.random() < world.lost
                trials.append(_trial(len(trials), plan, Origin.CONFIRMATION, None if lost else speed, turn.round))
    campaign = Campaign(
        id="c",
        spec=spec,
        state=CampaignState.COMPLETED,
        created_at=0.0,
        updated_at=0.0,
        combinations=PLANS,
        legal=PLANS,
    )
    ranking = rank(campaign, trials)
    found = recommend_among(spec, ranking)
    assert found.choice is not None
    others = [entry for entry in ranking if entry.gain_rounds and entry.trial.number]
    best = found.choice if found.better else next(iter(others), None)
    covered = half = None
    if best is not None and best.gain is not None:
        real = exp(truth[best.trial.plan]) - 1
        covered = best.gain.low <= real + 1e-12 and real - 1e-12 <= best.gain.high
        half = log((1 + best.gain.high) / (1 + best.gain.value))
    rounds = max((trial.round for trial in trials), default=0)
    return End(found.better, truth[found.choice.trial.plan], len(trials) - PLANS, rounds, covered, half)


def remembering(decide: Callable[..., list[Plan]]) -> Callable[..., list[Plan]]:
    """Decides each round of one campaign once, while `next_turn` goes through all of them each time."""
    known: dict[int, list[Plan]] = {}

    def contenders(spec: Any, trials: Any, fit: Any, before: Any, rounds: int, first: int) -> list[Plan]:
        if rounds not in known:
            known[rounds] = decide(spec, trials, fit, before, rounds, first)
        return known[rounds]

    return contenders


def _trial(number: int, plan: Plan, origin: Origin, log_speed: float | None, round: int = 0) -> Trial:
    if log_speed is None:
        outcome = Outcome(verdict=Verdict.LOST)
    else:
        measured = Measurement(step_times_s=(exp(-log_speed),) * 8, tokens_per_step=1024, devices=4)
        outcome = Outcome(verdict=Verdict.OK, measurement=measured)
    attempt = Attempt(number=1, job_name=f"c-{number}", state=TrialState.DONE, planned_at=0.0, outcome=outcome)
    return Trial(campaign_id="c", number=number, plan=plan, origin=origin, attempts=(attempt,), round=round)


if __name__ == "__main__":
    main()
