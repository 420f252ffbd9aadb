"""One question to a search: the campaign as it sees it, and an answer that keeps the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshtune.tuner.campaign.objective import Yardstick, yardstick_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Proposal, Trial
from meshtune.tuner.search.base import Observation, Search, SearchError, Task


def history(spec: CampaignSpec, trials: Sequence[Trial]) -> list[Observation]:
    """The campaign as a search sees it, in the order of choosing; a plan that was confirmed stands there twice."""
    yardstick = yardstick_of(spec)
    return [seen_of(trial, yardstick) for trial in trials]


def seen_of(trial: Trial, yardstick: Yardstick) -> Observation:
    """One trial as a search sees it."""
    measured = trial.measurement
    if measured is None:
        return Observation(plan=trial.plan, verdict=trial.verdict, held_s=trial.last.running_s or None)
    return Observation(
        plan=trial.plan,
        verdict=trial.verdict,
        score=yardstick.score(measured),
        step_time_s=measured.step_time_s,
        peak_bytes=measured.fullest_rank_bytes,
        held_s=trial.last.running_s or None,
    )


def propose(search: Search, task: Task, spec: CampaignSpec, trials: Sequence[Trial], n: int) -> Proposal:
    """Up to n new plans from the search. Raises SearchError for one that is illegal or not new, for a chance that is
    none, and for a crash."""
    seen = history(spec, trials)
    try:
        proposal = search.ask(task, seen, n)
    except SearchError:
        raise
    except Exception as error:  # a defect of a search library must not take the service down
        raise SearchError(f"{type(error).__name__}: {error}") from error
    known = {entry.plan for entry in seen}
    for plan in proposal.plans[:n]:
        broken = task.space.explain(plan)
        if broken:
            raise SearchError(f"it proposed the illegal plan {plan.key}: {broken[0]}")
        if plan in known:
            raise SearchError(f"it proposed the plan {plan.key} again")
        known.add(plan)
    if proposal.chance_left is not None and not 0 <= proposal.chance_left <= 1:
        raise SearchError(f"it gave the chance left as {proposal.chance_left}, which is no probability")
    return replace(proposal, choices=proposal.choices[:n])
