"""Does a stored optimum still stand, after a driver or framework upgrade say? Two fresh runs tell, compared with the
recorded ones: the optimum's own, and that of the best other plan.

An optimum stands when it is not surely slower than it was by more than the campaign's tolerance, and the other plan is
not surely faster than it by as much. Sure: beyond the intervals of both runs, widened by how far the campaign's own
second runs lay from the first ones where it has any. Nothing is stored, as with `rerun`: what is measured outside of a
campaign's budget and search is no part of its record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meshtune.runners.outcome import Measurement, Outcome
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.ranking import Ranked, rank, reproduction
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.results.run_variance import Reproduction


class Finding(StrEnum):
    """What became of the optimum. OVERTAKEN: the other plan is better now. FAILED: it does not run any more. UNKNOWN:
    its job was lost or cancelled, which says nothing of the plan."""

    STANDS = "stands"
    SLOWER = "slower"
    OVERTAKEN = "overtaken"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """One plan, recorded and now. before, now: tokens per second and device. change: now over before, minus 1.
    software: versions that changed, by name, "unknown" where one side does not tell. outcome: of the fresh run."""

    trial: int
    plan_key: str
    before: float
    outcome: Outcome
    change: Estimate | None
    software: Mapping[str, tuple[str, str]]

    @property
    def now(self) -> float | None:
        measured = self.outcome.measurement
        return None if measured is None else measured.tokens_per_s_per_device

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "trial": self.trial,
            "plan_key": self.plan_key,
            "verdict": str(self.outcome.verdict),
            "reason": self.outcome.reason,
            "tokens_per_s_per_device": {"recorded": self.before, "now": self.now},
            "change": None if self.change is None else self.change.document(),
            "software_changes": {name: list(versions) for name, versions in self.software.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Revalidation:
    """The answer. rival: the best other plan, None where only one was measured. lead: of the rival over the optimum
    now, a ratio of speeds minus 1; None where one of them has no speed."""

    campaign: str
    finding: Finding
    optimum: Again
    rival: Again | None
    lead: Estimate | None

    @property
    def stands(self) -> bool:
        return self.finding is Finding.STANDS

    def __str__(self) -> str:
        change, lead = self.optimum.change, self.lead
        told = f"{self.optimum.outcome.verdict}: {self.optimum.outcome.reason}"
        if change is None:
            failed = self.finding is Finding.FAILED
            return f"fails now: {told}; tune again" if failed else f"not measured: {told}; try again"
        if self.finding is Finding.OVERTAKEN and lead is not None and self.rival is not None:
            return f"the runner-up, {self.rival.plan_key}, is better now by {_span(lead)}: tune again"
        if self.finding is Finding.SLOWER:
            return f"slower by {_span(Estimate(-change.value, -change.high, -change.low))} than it was"
        return f"stands: {_span(change, sign='+')} against the record"

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "campaign": self.campaign,
            "finding": str(self.finding),
            "stands": self.stands,
            "words": str(self),
            "optimum": self.optimum.document(),
            "rival": None if self.rival is None else self.rival.document(),
            "lead": None if self.lead is None else self.lead.document(),
        }


def to_measure(campaign: Campaign, trials: Sequence[Trial]) -> list[Ranked]:
    """The optimum and the best other plan that may be used; fewer where fewer were measured."""
    choice = recommend(campaign, trials).choice
    if choice is None:
        return []
    others = [entry for entry in rank(campaign, trials) if entry.usable and entry.trial.plan != choice.trial.plan]
    return [choice, *others[:1]]


def judge(
    campaign: Campaign, trials: Sequence[Trial], entries: Sequence[Ranked], outcomes: Sequence[Outcome]
) -> Revalidation:
    """What the fresh runs of `to_measure`'s entries, one outcome each, say of the first."""
    scatter = reproduction(rank(campaign, trials))
    found = [_again(entry, outcome, scatter) for entry, outcome in zip(entries, outcomes, strict=True)]
    optimum, rival = found[0], found[1] if len(found) > 1 else None
    own, other = (None if one is None else one.outcome.measurement for one in (optimum, rival))
    lead = None if own is None or other is None else _compared(other, own, scatter)
    return Revalidation(
        campaign=campaign.id,
        finding=_finding(optimum, lead, campaign.spec.stop.tolerance),
        optimum=optimum,
        rival=rival,
        lead=lead,
    )


def _finding(optimum: Again, lead: Estimate | None, tolerance: float) -> Finding:
    change = optimum.change
    if change is None:
        return Finding.FAILED if optimum.outcome.verdict.informative else Finding.UNKNOWN
    if lead is not None and lead.low > 0 and lead.value > tolerance:
        return Finding.OVERTAKEN
    return Finding.SLOWER if change.high < 0 and -change.value > tolerance else Finding.STANDS


def _again(entry: Ranked, outcome: Outcome, scatter: Reproduction | None) -> Again:
    before, now = entry.measurement, outcome.measurement
    return Again(
        trial=entry.measured_by.number,
        plan_key=entry.trial.plan.key,
        before=before.tokens_per_s_per_device,
        outcome=outcome,
        change=None if now is None else _compared(now, before, scatter),
        software={} if now is None else _changes(before.software, now.software),
    )


def _compared(one: Measurement, other: Measurement, scatter: Reproduction | None) -> Estimate:
    """How much faster one is than the other: a ratio of tokens per second minus 1."""
    steps, others = one.step_time_interval_s, other.step_time_interval_s
    scale = one.tokens_per_step / other.tokens_per_step
    ratio = Estimate(
        scale * other.step_time_s / one.step_time_s, scale * others.low / steps.high, scale * others.high / steps.low
    )
    wide = ratio if scatter is None else scatter.around(ratio, runs=2)
    return Estimate(wide.value - 1, wide.low - 1, wide.high - 1)


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = sorted(before.keys() | now.keys())
    pairs = {name: (before.get(name, "unknown"), now.get(name, "unknown")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _span(value: Estimate, sign: str = "") -> str:
    return f"{100 * value.value:{sign}.1f} % ({100 * value.low:{sign}.1f} to {100 * value.high:{sign}.1f} %)"
