"""How a search ends: when it has found enough, which plans are then measured once more, and the words for it.

Pure, as `tuner.campaign.decide` is. Budgets of time end a campaign without any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.objective import Yardstick
from meshtune.tuner.campaign.proposal import Proposal
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Trial

# With fewer measured plans, what a search says of the others is its prior's word.
LEAST_MEASURED = 3


def search_end(campaign: Campaign, trials: Sequence[Trial], proposal: Proposal, untried: int) -> str:
    """Why this proposal is the search's last word, for people; empty while the search goes on.

    untried: legal plans that were never chosen. A search that has nothing to propose while trials run is asked again
    when one of them has ended.
    """
    spec, chance = campaign.spec, proposal.chance_left
    if not proposal.choices and untried == 0:
        return f"every one of the {campaign.legal} legal plans has been tried"
    measured = sum(trial.measurement is not None for trial in trials)
    if chance is not None and chance < spec.stop.chance and measured >= LEAST_MEASURED:
        plans = "the one untried plan" if untried == 1 else f"any of the {untried} untried plans"
        return chance_text(spec, plans, chance)
    if not proposal.choices and all(trial.state.final for trial in trials):
        return f"the search {spec.search.kind} proposes no further plan"
    return ""


def chance_text(spec: CampaignSpec, plans: str, chance: float) -> str:
    """What a search said of the plans that it did not choose. plans: how to call them."""
    share = "less than 0.01 %" if chance < 1e-4 else f"{100 * chance:.2g} %"
    better = "extends the front" if spec.pareto else "beats the best"
    return f"the probability that {plans} {better} by more than {100 * spec.stop.tolerance:g} % is {share}"


def finalists(spec: CampaignSpec, trials: Sequence[Trial]) -> list[Plan]:
    """The best measured plans, at most `spec.confirm`, the best first; equal ones in the order of choosing. With
    `spec.pareto` those of the front come before all others.

    They stay the same while they are measured again: only first measurements count.
    """
    # The device's peak and its price scale an objective for all plans alike: any will do for their order.
    yardstick = Yardstick(objective=spec.objective, model=spec.model, peak_flops=1.0)
    scored = [
        (yardstick.score(trial.measurement), trial)
        for trial in trials
        if trial.measurement is not None and trial.origin is not Origin.CONFIRMATION
    ]
    scored.sort(key=lambda pair: (-pair[0], pair[1].number))
    measured = [trial for _, trial in scored]
    if spec.pareto:
        measured = _front_first(measured)
    return [trial.plan for trial in measured[: spec.confirm]]


def _front_first(measured: Sequence[Trial]) -> list[Trial]:
    """Trials from the fastest on: first those that need less memory than every faster one, then the others."""
    front, lowest = list[Trial](), inf
    for trial in measured:
        peak = None if trial.measurement is None else trial.measurement.fullest_rank_bytes
        if peak is not None and peak < lowest:
            front.append(trial)
            lowest = peak
    return front + [trial for trial in measured if trial not in front]


def confirmations(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that measure a plan once more."""
    return [trial for trial in trials if trial.origin is Origin.CONFIRMATION]


def closing_reason(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """Why a campaign is complete whose search has ended and whose finalists were measured again, as far as they ran."""
    again = confirmations(trials)
    measured = sum(trial.measurement is not None for trial in again)
    if not again:
        return campaign.search_ended
    if measured < len(again):
        return f"{campaign.search_ended}; of {_the_best(len(again))}, {measured} could be measured again"
    return f"{campaign.search_ended}; {_the_best(len(again))} {'was' if len(again) == 1 else 'were'} measured again"


def phase_text(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """What a campaign does between its first trial and its end, for people; empty for one that is over or ends."""
    if campaign.state not in (CampaignState.RUNNING, CampaignState.PAUSED):
        return ""
    if not campaign.search_ended:
        chance = campaign.chance_left
        said = "" if chance is None else f": {chance_text(campaign.spec, 'an untried plan', chance)}"
        return f"searching{said}"
    plans = finalists(campaign.spec, trials)
    waiting = any(not trial.state.final for trial in trials if trial.origin is not Origin.CONFIRMATION)
    if waiting or not plans:
        return f"the search has ended: {campaign.search_ended}"
    done = sum(trial.state.final for trial in confirmations(trials))
    return f"confirming {_the_best(len(plans))}, {done} done: {campaign.search_ended}"


def _the_best(count: int) -> str:
    return "the best one" if count == 1 else f"the best {count}"
