"""How often do second runs in turns name a better plan, rightly and wrongly? Draws campaigns whose truth is known.

`python benchmarks/second_runs.py [--campaigns 300] [--seed 1]`. A campaign measures 15 plans once, of which plan 0 is
the baseline, and then what `tuner.campaign.second_runs` asks for; `recommend` chooses. All runs have log-normal noise,
and the cluster drifts between rounds by half as much. `equal`: all plans are as fast as the baseline. `+10 %`: one is
10 % faster, the others 0 to 15 % slower. `--equal` draws campaigns of equal plans alone, with more candidates and looks
too: by design at most 5 % of them recommend something, whatever these are.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.second_runs import next_turn
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Attempt, Origin, Trial, TrialState
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.specs.read import read_spec

PLANS = 15
COLUMNS = ("runs scatter by", "truth", "confirm", "rightly better", "wrongly better", "second runs", "gain's covers")
COLUMNS += ("half the interval",)
# Finalists and rounds, and how far runs scatter, of campaigns of equal plans.
EQUAL = ((1, 2), (1, 6), (3, 2), (3, 6), (3, 12), (8, 6))
SCATTERS = (0.001, 0.01, 0.03, 0.1)


@dataclass(frozen=True, slots=True)
class End:
    """Of one campaign. truth: the recommended plan's real gain, 0 for the baseline. covered, width: of the best other
    plan's gain, in logarithms; None where it had none."""

    better: bool
    truth: float
    runs: int
    covered: bool
    width: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--equal", action="store_true")
    given = parser.parse_args()
    if given.equal:
        table = Table("confirm", "confirm_rounds", *(f"scatter {noise:.1%}" for noise in SCATTERS), box=MARKDOWN)
        for confirm, rounds in EQUAL:
            shares = [named_of_equal(given.campaigns, given.seed, noise, confirm, rounds) for noise in SCATTERS]
            table.add_row(str(confirm), str(rounds), *(f"{share:.1%}" for share in shares))
        Console(width=140).print(table)
        return
    table = Table(*COLUMNS, box=MARKDOWN)
    for noise in (0.01, 0.03, 0.05, 0.1):
        for gain in (0.0, 0.1):
            for confirm in (1, 3):
                table.add_row(*row(given.campaigns, given.seed, noise, gain, confirm))
    Console(width=140).print(table)


def row(campaigns: int, seed: int, noise: float, gain: float, confirm: int) -> tuple[str, ...]:
    ends = simulate(campaigns, seed, noise=noise, gain=gain, confirm=confirm)
    shares = (
        [end.better and end.truth > 0 for end in ends],
        [end.better and end.truth <= 0 for end in ends],
        [end.covered for end in ends],
    )
    right, wrong, covered = (f"{100 * np.mean(share):.1f} %" for share in shares)
    runs, width = f"{np.mean([end.runs for end in ends]):.1f}", f"{100 * np.median([end.width for end in ends]):.1f} %"
    return f"{noise:.0%}", f"+{gain:.0%}" if gain else "equal", str(confirm), right, wrong, runs, covered, width


def named_of_equal(campaigns: int, seed: int, noise: float, confirm: int, rounds: int) -> float:
    """The share of campaigns of equal plans that recommend one as better."""
    ends = simulate(campaigns, seed, noise=noise, gain=0.0, confirm=confirm, rounds=rounds)
    return sum(end.better for end in ends) / campaigns


def simulate(campaigns: int, seed: int, *, noise: float, gain: float, confirm: int, rounds: int = 6) -> list[End]:
    random = np.random.default_rng(seed)
    spec = replace(campaign_spec(confirm), confirm_rounds=rounds)
    return [_campaign(spec, random, noise, gain) for _ in range(campaigns)]


def campaign_spec(confirm: int) -> CampaignSpec:
    document = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 8, "baseline": {"tp": 1}}
    return replace(read_spec(document, None)[0], confirm=confirm)


def _campaign(spec: CampaignSpec, random: np.random.Generator, noise: float, gain: float) -> End:
    plans = [Plan(dp=4, micro_batch_size=1, grad_accum_steps=1 + number) for number in range(PLANS)]
    truth = dict(zip(plans, [0.0] * PLANS, strict=True))
    if gain:
        slower = -random.uniform(0.0, 0.15, PLANS)
        truth.update(zip(plans[1:], slower[1:], strict=True))
        truth[plans[1]] = log(1 + gain)
    trials = [
        _trial(number, plan, Origin.SEARCH if number else Origin.BASELINE, truth[plan] + random.normal(0, noise))
        for number, plan in enumerate(plans)
    ]
    drift: dict[int, float] = {}
    while (turn := next_turn(spec, trials)) is not None:
        shift = drift.setdefault(turn.round, random.normal(0, noise / 2))
        for plan in turn.missing:
            speed = truth[plan] + shift + random.normal(0, noise)
            trials.append(_trial(len(trials), plan, Origin.CONFIRMATION, speed, turn.round))
    campaign = Campaign(
        id="c",
        spec=spec,
        state=CampaignState.COMPLETED,
        created_at=0.0,
        updated_at=0.0,
        combinations=PLANS,
        legal=PLANS,
    )
    found = recommend(campaign, trials)
    assert found.choice is not None
    chosen = found.choice.gain
    real = exp(truth[found.choice.trial.plan]) - 1
    covered = chosen is None or (chosen.low <= real + 1e-12 and real - 1e-12 <= chosen.high)
    width = 0.0 if chosen is None else log((1 + chosen.high) / (1 + chosen.value))
    return End(found.better, truth[found.choice.trial.plan], len(trials) - PLANS, covered, width)


def _trial(number: int, plan: Plan, origin: Origin, log_speed: float, round: int = 0) -> Trial:
    measured = Measurement(step_times_s=(exp(-log_speed),) * 8, tokens_per_step=1024, devices=4)
    outcome = Outcome(verdict=Verdict.OK, measurement=measured)
    attempt = Attempt(number=1, job_name=f"c-{number}", state=TrialState.DONE, planned_at=0.0, outcome=outcome)
    return Trial(campaign_id="c", number=number, plan=plan, origin=origin, attempts=(attempt,), round=round)


if __name__ == "__main__":
    main()
