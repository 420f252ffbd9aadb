"""The few of many measured trials that a campaign's best settings are found among, by some numbers of each.

Of the choice, the first places and the front their ranking says what the ranking of all trials says: a trial is left
out only where it can be none of these, and where what is said of these does not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from runners.outcome import Measurement
from tuner.campaign import Campaign
from tuner.prediction import fullest_rank_bytes
from tuner.ranking import Ranked, rank
from tuner.recommend import recommend_among
from tuner.trial import Origin, Trial
from tuner.yardstick import yardstick_of

# The first places that are looked at for a choice; it is seldom further down.
FIRST = 20


@dataclass(frozen=True, slots=True)
class Score:
    """A trial that was measured, or a confirmation that ended without: then its measurement is None. A Digest is enough
    of a measurement, and needs no losses here."""

    number: int
    origin: Origin
    plan_key: str
    measurement: Measurement | None


@dataclass(frozen=True, slots=True)
class Shortlist:
    """trials: the few, in the order of their numbers. ranking: of these, with their ranks among all."""

    trials: tuple[Trial, ...]
    ranking: list[Ranked]


@dataclass(frozen=True, slots=True)
class _Place:
    """A plan in the ranking of all. peak_bytes: on the fullest rank, in the fuller of its runs."""

    number: int
    score: float
    tokens_per_s: float
    peak_bytes: float | None


def shortlist(
    campaign: Campaign, scores: Sequence[Score], top: int, load: Callable[[Collection[int]], Sequence[Trial]]
) -> Shortlist:
    """scores: of all that count, in the order of their numbers. top: how many first places are asked for. load: the
    trials with these numbers, with a Digest each."""
    places = _places(campaign, scores)
    ranks = {place.number: position for position, place in enumerate(places, start=1)}
    known = _by_number(load(_compared(scores)))
    first, unusable = max(top, FIRST), set[int]()
    while True:
        front = _front([place for place in places if place.number not in unusable])
        wanted = {place.number for place in (*places[:first], *front)}
        if missing := wanted - known.keys():
            known |= _by_number(load(missing))
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
    again = {score.plan_key for score in scores if score.origin is Origin.CONFIRMATION}
    return {score.number for score in scores if score.origin is Origin.BASELINE or score.plan_key in again}


def _places(campaign: Campaign, scores: Sequence[Score]) -> list[_Place]:
    """As `rank` orders them."""
    yardstick = yardstick_of(campaign.spec)
    again = {score.plan_key: score.measurement for score in scores if score.origin is Origin.CONFIRMATION}
    places = []
    for score in scores:
        if score.origin is Origin.CONFIRMATION or score.measurement is None:
            continue
        first, second = score.measurement, again.get(score.plan_key)
        counts = second or first
        peaks = [fullest_rank_bytes(first), None if second is None else fullest_rank_bytes(second)]
        fullest = max((peak for peak in peaks if peak is not None), default=None)
        places.append(_Place(score.number, yardstick.score(counts), counts.tokens_per_s, fullest))
    return sorted(places, key=lambda place: (-place.score, place.number))


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


def _by_number(trials: Sequence[Trial]) -> dict[int, Trial]:
    return {trial.number: trial for trial in trials}
