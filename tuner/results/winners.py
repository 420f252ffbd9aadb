"""The three words for what a campaign found, each with one number wherever it is shown.

*Fastest once*: the plan with the best objective by its first run, whatever became of it afterwards. The best of many
noisy runs is high by luck too. *Fastest confirmed*: the best of those that were measured again and never failed, by its
second runs alone. *Recommended*: what `recommend` chooses, which may be the baseline.
Second runs are looked at in the objective's unit, so the three may be three plans (docs/explanation/measuring.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.results.ranking import Ranked
from meshtune.tuner.results.recommendation import Recommendation, recommend_among

# What people and programs call them: of exports, jobs and tables.
RECOMMENDED = "recommended"
FASTEST_ONCE = "fastest-once"
FASTEST_CONFIRMED = "fastest-confirmed"


@dataclass(frozen=True, slots=True)
class Winners:
    """fastest_once: with the numbers of its first run alone. fastest_confirmed: None where nothing was measured again.
    Both None where nothing was measured."""

    fastest_once: Ranked | None
    fastest_confirmed: Ranked | None
    recommendation: Recommendation

    @property
    def recommended(self) -> Ranked | None:
        return self.recommendation.choice


def winners_of(spec: CampaignSpec, ranking: Sequence[Ranked]) -> Winners:
    """ranking: of all measured plans, or of those that come first by their first runs and all that ran again."""
    # Of equal ones the trial with the lowest number.
    once = min(ranking, key=lambda entry: (-entry.first_score, entry.trial.number), default=None)
    confirmed = [entry for entry in ranking if entry.confirmed]
    return Winners(
        fastest_once=None if once is None else once.once,
        fastest_confirmed=max(confirmed, key=lambda entry: entry.ground.effects[entry.trial.plan], default=None),
        recommendation=recommend_among(spec, ranking),
    )
