"""Recommends one plan, and only what was measured better than the baseline: twice, where plans were measured again.

A plan is worth a change where it ran again beside the baseline, round by round, and is surely faster by at least the
spec's tolerance, by the mean of its steps and by their median too: first runs alone name nobody. What is never
recommended, `tuner.campaign.eligibility` says, and a second run that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.eligibility import ACCEPT, Reason
from meshtune.tuner.campaign.second_runs import PairedGain, falling
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import percent
from meshtune.tuner.results.ranking import NO_LOSSES, Ranked, baseline_of, rank

# Of the front, in the reason; the others are in its table.
MAX_ALTERNATIVES = 3
# The most that anybody is told to make.
MAX_ROUNDS = 100
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The plan to use. better: it was measured better than the baseline beyond the noise. why: a sentence for
    people. more: the same of the choice itself, of plans that rank above it, and of alternatives."""

    choice: Ranked | None
    better: bool
    why: str
    more: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """All that there is to say, for people."""
        return "; ".join([self.why, *self.more])


def recommend(campaign: Campaign, trials: Sequence[Trial]) -> Recommendation:
    """The plan to use. Where memory left over counts too, it is the fastest of the front, and the reason names what
    the others give up and gain."""
    return recommend_among(campaign.spec, rank(campaign, trials))


def recommend_among(spec: CampaignSpec, ranking: Sequence[Ranked]) -> Recommendation:
    """The same for a campaign whose ranking is known."""
    if not ranking:
        return Recommendation(None, False, "no plan was measured")
    usable = [entry for entry in ranking if entry.usable and not (spec.pareto and entry.headroom_bytes is None)]
    confirmed = [entry for entry in usable if entry.confirmed]
    choice, better, reason = _choose(spec, ranking, confirmed or usable)
    words = [few] if (few := comparable_text(ranking)) else []
    if choice is not None and choice.changed_numerics:
        words.append(f"changes the numerics: {', '.join(choice.changed_numerics)}")
    if choice is not None and choice.hides_losses:
        words.append(NO_LOSSES)
    if choice is not None and choice.confirmation is not None and choice.confirmation.change is not None:
        words.append(f"second run: {100 * choice.confirmation.change:+.1f} % against its first run")
    words += _passed_over(ranking, choice, twice=bool(confirmed))
    if spec.pareto and choice is not None:
        words += _alternatives(ranking, choice)
    return Recommendation(choice, better, reason, tuple(words))


def comparable_text(ranking: Sequence[Ranked]) -> str:
    """How many of the measured plans may be recommended, and why not the others; empty where all may."""
    counts = Counter(entry.ineligible for entry in ranking if entry.ineligible is not None)
    if not counts:
        return ""
    why = ", ".join(f"{count} {reason.value}" for reason, count in counts.items())
    text = f"{len(ranking)} measured, {len(ranking) - counts.total()} comparable: {why}"
    # Equal differences from the baseline are those of equal trainings.
    differences = Counter(str(entry.training) for entry in ranking if entry.trains_otherwise)
    if (alike := max(differences.values(), default=0)) > len(ranking) / 2:
        text += f"; {alike} of those train the same as one another: the baseline may be the odd one"
    return text


def choice_among_first(spec: CampaignSpec, ranking: Sequence[Ranked], first: Collection[int]) -> Ranked | None:
    """The choice from a part of the ranking: the trials that come `first` by the objective, by their numbers, the
    baseline, and all plans that were to be measured again; None where the other plans have a say."""
    choice = recommend_among(spec, ranking).choice
    if choice is None or choice.confirmed or choice.trial.number in first:
        return choice
    # Only what ran again takes its place from the baseline, and of the others the first that is usable is named.
    among = any(entry.usable and entry.trial.number in first for entry in ranking)
    return choice if among and choice.trial.origin is Origin.BASELINE else None


def _choose(
    spec: CampaignSpec, ranking: Sequence[Ranked], candidates: Sequence[Ranked]
) -> tuple[Ranked | None, bool, str]:
    """The choice, whether it is better than the baseline, and why."""
    baseline = baseline_of(ranking)
    if baseline is not None and not baseline.failed_again:
        return _against(spec, baseline, candidates, all(entry.usable for entry in ranking))
    if not candidates:
        return None, False, "no plan that was measured can be used"
    if spec.baseline is None:
        why = "the spec names no baseline to compare with"
    elif baseline is None:
        elsewhere = candidates[0].gain is not None
        why = "the baseline is of another size" if elsewhere else "the baseline itself has no measurement"
    else:
        why = f"the baseline itself {_failure(baseline)}"
    measured = "with second runs" if candidates[0].confirmed else "measured"
    return candidates[0], False, f"the fastest plan {measured}; {why}"


def _against(
    spec: CampaignSpec, baseline: Ranked, candidates: Sequence[Ranked], whole: bool
) -> tuple[Ranked, bool, str]:
    """whole: there is no other plan, which may be faster and cannot be used."""
    faster = [entry for entry in candidates if entry.gain is not None and entry.gain.value > 0]
    if not faster:
        again = any(entry.confirmed for entry in candidates)
        which = [*(["has a second run"] if again else []), *([] if whole else ["may be recommended"])]
        none = f"no plan{' that ' if which else ''}{' and '.join(which)}"
        return baseline, False, f"{none} {'is' if again else 'was measured'} faster than the baseline"
    # Not always the first: a noisy measurement may rank above a sure one.
    for entry in faster:
        if entry.worth_it and entry.faster_by_median:
            return entry, True, f"{entry.gain_text} faster than the baseline"
    best = faster[0]
    reason = f"the fastest other plan, {best.trial.plan.key}, is {best.gain_text} faster: {_doubt(spec, best)}"
    return baseline, False, f"keep the baseline; {reason}"


def _doubt(spec: CampaignSpec, entry: Ranked) -> str:
    """Why a plan that is faster than the baseline is not recommended."""
    gain, variance = entry.gain, entry.ground.variance
    if variance is None or not isinstance(gain, PairedGain):
        return "it takes runs beside the baseline's to know (confirm)"
    if entry.worth_it:
        return "by the mean of its steps, and not by their median"
    if gain.value < spec.stop.tolerance:
        noise = "not beyond the noise, and " if gain.high >= spec.stop.tolerance else ""
        return f"{noise}less than stop.tolerance, {percent(spec.stop.tolerance)}, however many rounds find the same"
    more = max(1, ceil(variance.rounds_to_tell(gain) - gain.rounds))
    if more > MAX_ROUNDS:
        return f"not beyond the noise, and more than {MAX_ROUNDS} further rounds would not tell"
    rounds = "1 more round" if more == 1 else f"some {more} more rounds"
    anew = f"a new campaign, with confirm_rounds: {gain.rounds + more}"
    return f"not beyond the noise; {rounds} would tell whether that is real ({anew})"


def _passed_over(ranking: Sequence[Ranked], choice: Ranked | None, *, twice: bool) -> list[str]:
    """Says which plans had a faster first run than the choice, and why they were no candidates; a sentence a kind.

    twice: only plans that were measured twice were candidates.
    """
    above = [entry for entry in ranking if choice is None or entry.first_score > choice.first_score]
    but = "" if choice is None else "had a faster first run, but "
    by_entry = [
        (
            _failure(entry) if entry.failed_again else "",
            str(entry.training) if entry.trains_otherwise else "",
            _unaccepted(entry) if entry.ineligible is Reason.NUMERICS and not entry.trains_otherwise else "",
            f"was {entry.other_hardware}" if entry.other_hardware else "",
            "has no second run" if twice and entry.usable and not entry.confirmed else "",
        )
        for entry in above
    ]
    sentences = []
    for whys in zip(*by_entry, strict=True):
        alike = [f"{entry.trial.plan.key} {but}{why}" for entry, why in zip(above, whys, strict=True) if why]
        others = f" ({len(alike) - 1} more likewise)" if len(alike) > 1 else ""
        sentences += [alike[0] + others] if alike else []
    return sentences


def _unaccepted(entry: Ranked) -> str:
    gain = "" if entry.gain is None else f", {entry.gain_text} faster than the baseline"
    return f"changes the numerics ({', '.join(entry.changed_numerics)}){gain}: {ACCEPT} would allow it"


def _failure(entry: Ranked) -> str:
    verdict = None if entry.confirmation is None else entry.confirmation.trial.verdict
    return f"ended {verdict} in its second run"


def front_of(ranking: Sequence[Ranked]) -> list[Ranked]:
    """The Pareto front of speed and memory left over, the fastest first; of equal plans the one that ranks first.

    Merits and peaks count as measured: of two plans within each other's noise one may push the other off the front.
    Plans whose peak is unknown are not on it, nor those that are never recommended.
    """
    known = [(entry.headroom_bytes, entry) for entry in ranking if entry.headroom_bytes is not None and entry.usable]
    known.sort(key=lambda pair: (pair[1].merit, pair[0], -pair[1].rank), reverse=True)
    return [entry for _, entry in falling(known, lambda pair: -pair[0])]


def _alternatives(ranking: Sequence[Ranked], choice: Ranked) -> list[str]:
    """Sentences for the front's slower plans with more memory left than the choice."""
    headroom_bytes = choice.headroom_bytes
    if headroom_bytes is None:
        return []
    alternatives = [
        f"or {entry.trial.plan.key}: {entry.text_over(choice)} in speed, "
        f"{(entry.headroom_bytes - headroom_bytes) / GIB:.3g} GiB more headroom"
        for entry in front_of(ranking)
        if entry.headroom_bytes is not None and entry.headroom_bytes > headroom_bytes and entry.rank > choice.rank
    ]
    more = len(alternatives) - MAX_ALTERNATIVES
    return [*alternatives[:MAX_ALTERNATIVES], *([f"{more} more on the front"] if more > 0 else [])]
