"""Checks whether a stored optimum still stands, for example after a driver or framework upgrade, by two fresh runs: the
optimum's own, and that of the best other plan.

An optimum stands when it is not surely slower than it was by more than the campaign's tolerance, and the other plan is
not surely faster than it by as much. Sure: beyond the intervals of both runs (`tuner.results.ranking`). Nothing is
stored, as with `rerun`: what is measured outside of a campaign's budget and search is no part of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.second_runs import RunVariance
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.ranking import Ranked, gain_of, rank
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.results.views import view_of


class Standing(StrEnum):
    """The finding on the optimum. OVERTAKEN: the other plan is better now. FAILED: it does not run any more. UNKNOWN:
    its job was lost or cancelled, which says nothing of the plan."""

    STANDS = "stands"
    SLOWER = "slower"
    OVERTAKEN = "overtaken"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChange:
    """Tokens per second and device. now: null where the fresh run has no speed."""

    recorded: float
    now: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """One plan, recorded and now. verdict, reason: of the fresh run. change: the speed now over the recorded one,
    minus 1. software_changes: versions before and now, by name, "unknown" where one side has none."""

    trial: int
    plan_key: str
    verdict: Verdict
    reason: str
    tokens_per_s_per_device: SpeedChange
    change: Estimate | None
    software_changes: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revalidation:
    """The finding on a stored optimum. rival: the best other plan; null where only one was measured. lead: of the rival
    over the optimum now, a ratio of speeds minus 1; null where one of them has no speed."""

    campaign: str
    finding: Standing
    stands: bool
    words: str
    optimum: Remeasured
    rival: Remeasured | None
    lead: Estimate | None


def to_measure(campaign: Campaign, trials: Sequence[Trial]) -> list[Ranked]:
    """The optimum and the best other plan that may be used; fewer where fewer were measured."""
    choice = recommend(campaign, trials).choice
    if choice is None:
        return []
    others = [entry for entry in rank(campaign, trials) if entry.usable and entry.trial.plan != choice.trial.plan]
    return [choice, *others[:1]]


def judge(campaign: Campaign, entries: Sequence[Ranked], outcomes: Sequence[Outcome]) -> Revalidation:
    """The finding on the first of `to_measure`'s entries from fresh runs of them, one outcome each."""
    variance, objective = entries[0].ground.variance, campaign.spec.objective
    runs = [_remeasured(entry, outcome, objective, variance) for entry, outcome in zip(entries, outcomes, strict=True)]
    optimum, rival = runs[0], runs[1] if len(runs) > 1 else None
    own, *others = (outcome.measurement for outcome in outcomes)
    other = others[0] if others else None
    lead = None if own is None or other is None else gain_of(objective, other, own, variance)
    finding, words = _finding(optimum, rival, lead, campaign.spec.stop.tolerance)
    return Revalidation(
        campaign=campaign.id,
        finding=finding,
        stands=finding is Standing.STANDS,
        words=words,
        optimum=optimum,
        rival=rival,
        lead=lead,
    )


def _finding(
    optimum: Remeasured, rival: Remeasured | None, lead: Estimate | None, tolerance: float
) -> tuple[Standing, str]:
    """With its words for people."""
    change, ended = optimum.change, f"{optimum.verdict}: {optimum.reason}"
    if change is None and optimum.verdict.informative:
        return Standing.FAILED, f"fails now: {ended}; tune again"
    if change is None:
        return Standing.UNKNOWN, f"not measured: {ended}; try again"
    if rival is not None and lead is not None and lead.low > 0 and lead.value > tolerance:
        better = f"the runner-up, {rival.plan_key}, is better now by {lead.percent_text()}"
        return Standing.OVERTAKEN, f"{better}: tune again"
    if change.high < 0 and -change.value > tolerance:
        slower = Estimate(-change.value, -change.high, -change.low)
        return Standing.SLOWER, f"slower by {slower.percent_text()} than it was"
    return Standing.STANDS, f"stands: {change.percent_text('+')} against the record"


def _remeasured(entry: Ranked, outcome: Outcome, objective: Objective, variance: RunVariance | None) -> Remeasured:
    before, now = entry.measurement, outcome.measurement
    old, new = before.software, before.software if now is None else now.software
    versions = {name: (old.get(name, "unknown"), new.get(name, "unknown")) for name in sorted(old.keys() | new.keys())}
    return view_of(
        Remeasured,
        outcome,
        entry.trial,
        trial=entry.measured_by.number,
        tokens_per_s_per_device=SpeedChange(
            recorded=before.tokens_per_s_per_device, now=None if now is None else now.tokens_per_s_per_device
        ),
        change=None if now is None else gain_of(objective, now, before, variance),
        software_changes={name: pair for name, pair in versions.items() if pair[0] != pair[1]},
    )
