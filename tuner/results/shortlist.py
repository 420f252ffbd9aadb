"""The few of many measured trials that a campaign's best settings are found among, by some numbers of each.

Of the choice, the first places and the front their ranking says what the ranking of all trials says: a trial is left
out only where it can be none of these, and where what is said of these does not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.digest import Digest
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.summary import Score
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.results.ranking import Ranked, rank
from meshtune.tuner.results.recommendation import recommend_among

# The first places that are looked at for a choice; it is seldom further down.
FIRST = 20


@dataclass(frozen=True, slots=True)
class Shortlist:
    """trials: the few, in the order of their numbers. ranking: of these, with their ranks among all."""

    trials: tuple[Trial, ...]
    ranking: list[Ranked]


class _Place(NamedTuple):
    """A plan in the ranking of all, which places are in the order of. lower: the score, negated. peak_bytes: on the
    fullest rank, in the fuller of its runs."""

    lower: float
    number: int
    tokens_per_s: float
    peak_bytes: float | None


def shortlist(
    campaign: Campaign, scores: Sequence[Score], top: int, load: Callable[[Collection[int]], Sequence[Trial]]
) -> Shortlist:
    """scores: of all that count, in the order of their numbers. top: how many first places are asked for. load: the
    trials with these numbers, with a Digest each."""
    places = _places(campaign, scores)
    ranks = {place.number: position for position, place in enumerate(places, start=1)}
    compared, known = _compared(scores), dict[int, Trial]()
    first, unusable = max(top, FIRST), set[int]()
    while True:
        front = _front([place for place in places if place.number not in unusable])
        wanted = compared.union(place.number for place in (*places[:first], *front))
        if missing := wanted - known.keys():
            known |= {trial.number: trial for trial in load(missing)}
        trials = tuple(known[number] for number in sorted(known))
        ranking = [replace(entry, rank=ranks[entry.trial.number]) for entry in rank(campaign, trials)]
        choice = recommend_among(campaign.spec, ranking).choice
        # All above the choice are told of, or could have been it.
        needed = len(places) if choice is None else choice.rank
        found = {entry.trial.number for entry in ranking if not entry.usable}
        if needed <= first and found.isdisjoint(place.number for place in front):
            return Shortlist(trials, ranking)
        first, unusable = max(first, needed), found


def _compared(scores: Sequence[Score]) -> set[int]:
    """What others are compared with: the baseline, the confirmations, and what these repeat."""
    again = {score.plan_key for score in scores if score.origin == Origin.CONFIRMATION}
    return {score.number for score in scores if score.origin == Origin.BASELINE or score.plan_key in again}


def _places(campaign: Campaign, scores: Sequence[Score]) -> list[_Place]:
    """As `rank` orders them."""
    yardstick = yardstick_of(campaign.spec)
    sign = 1.0 if yardstick.objective.smaller_is_better else -1.0
    again = {score.plan_key: score for score in scores if score.origin == Origin.CONFIRMATION}
    places = []
    for score in scores:
        if score.origin == Origin.CONFIRMATION or score.step_time_s is None:
            continue
        counts, step_s, fullest = score, score.step_time_s, score.peak_bytes
        second = again.get(score.plan_key)
        if second is not None and second.step_time_s is not None:
            counts, step_s = second, second.step_time_s
            fullest = max((peak for peak in (fullest, second.peak_bytes) if peak is not None), default=None)
        job = _job(counts.tokens_per_step, counts.devices, counts.model_flops_per_token)
        tokens_per_s = counts.tokens_per_step / step_s
        places.append(_Place(sign * yardstick.of(job, step_s), score.number, tokens_per_s, fullest))
    return sorted(places)


@lru_cache(maxsize=256)
def _job(tokens_per_step: int, devices: int, model_flops_per_token: float | None) -> Digest:
    """What a yardstick asks of a measurement beside the step time: the same for most trials of a campaign."""
    return Digest(
        step_times_s=(),
        tokens_per_step=tokens_per_step,
        devices=devices,
        model_flops_per_token=model_flops_per_token,
        median_s=0.0,
        low_s=0.0,
        high_s=0.0,
    )


def _front(places: Sequence[_Place]) -> list[_Place]:
    """As `front_of`, of places that may all be used."""
    known = [(place.peak_bytes, place) for place in places if place.peak_bytes is not None]
    known.sort(key=lambda pair: (-pair[1].tokens_per_s, pair[0]))
    least, front = inf, []
    for peak_bytes, place in known:
        if peak_bytes < least:
            least = peak_bytes
            front.append(place)
    return front
