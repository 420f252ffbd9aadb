"""Why each of the best plans is where it is: which parts of the step shrank, and by how much, against the baseline.

By the measured profiles where both plans have one; else by the calibrated physics' parts, and said to be predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.estimates import Training
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.step_parts import PartTime, time_by_part
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.prediction.explain_plan import LEAST_SHARE, WORDS
from meshtune.tuner.prediction.predict import Basis, foresee
from meshtune.tuner.results.analysis.knob_effects import Evidence, signed
from meshtune.tuner.results.ranking import Ranked

TOP = 3
PART_WORDS: Mapping[str, str] = {str(part): words for part, words in WORDS.items()}


@dataclass(frozen=True, slots=True)
class Saving:
    """How many seconds less one part takes in a step of the winner's batch; negative: more."""

    part: str
    less_s: float

    def __str__(self) -> str:
        change = "less" if self.less_s > 0 else "more"
        return f"{seconds(abs(self.less_s))} {change} {PART_WORDS.get(self.part, self.part)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """One of the best plans. step_s: seconds per step as measured. parts: where they go; savings: against `rival`, the
    largest first. Both rest on `evidence`, and are empty without it.

    gain: over the rival, a ratio of speeds minus 1. rival: "the baseline", or for the baseline itself, and without one,
    "the next best"; None where nothing slower was measured.
    """

    rank: int
    trial: int
    plan: Plan
    step_s: float
    parts: tuple[PartTime, ...]
    evidence: Evidence | None
    rival: str | None = None
    rival_trial: int | None = None
    gain: float | None = None
    savings: tuple[Saving, ...] = ()

    def __str__(self) -> str:
        if self.rival is None or self.gain is None:
            return "nothing slower was measured to compare it with"
        compared = f"{signed(self.gain)} against {self.rival} (trial {self.rival_trial})"
        if self.evidence is None:
            return f"{compared}; where the time goes is not known"
        return f"{compared}: {', '.join(map(str, self.savings)) or 'no part differs'} ({self.evidence})"

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "rank": self.rank,
            "trial": self.trial,
            "plan": self.plan.as_dict(),
            "plan_key": self.plan.key,
            "step_s": self.step_s,
            "parts": [asdict(part) for part in self.parts],
            "rival": self.rival,
            "rival_trial": self.rival_trial,
            "gain": self.gain,
            "savings_s": {saving.part: saving.less_s for saving in self.savings},
            "evidence": None if self.evidence is None else str(self.evidence),
            "words": str(self),
        }


def explain_winners(training: Training, ranking: Sequence[Ranked], basis: Basis | None) -> tuple[Winner, ...]:
    """The best of the ranked plans. basis: what predictions rest on; None where there can be none."""
    baseline = next((entry for entry in ranking if entry.trial.origin is Origin.BASELINE), None)
    winners = []
    for place, own in enumerate(ranking[:TOP], start=1):
        slower = ranking[place] if place < len(ranking) else None
        rival = slower if baseline is None or own is baseline else baseline
        name = "the baseline" if rival is baseline else "the next best"
        winners.append(_winner(training, place, own, rival, name, basis))
    return tuple(winners)


def _winner(
    training: Training, place: int, own: Ranked, rival: Ranked | None, name: str, basis: Basis | None
) -> Winner:
    parts, others, evidence = _parts(training, own, rival, basis)
    winner = Winner(
        rank=place,
        trial=own.trial.number,
        plan=own.trial.plan,
        step_s=own.measurement.step_time_s,
        parts=parts,
        evidence=evidence,
    )
    if rival is None:
        return winner
    return replace(
        winner,
        rival=name,
        rival_trial=rival.trial.number,
        gain=own.tokens_per_s.value / rival.tokens_per_s.value - 1,
        savings=_savings(own.trial.plan, parts, rival.trial.plan, others),
    )


def _parts(
    training: Training, own: Ranked, rival: Ranked | None, basis: Basis | None
) -> tuple[tuple[PartTime, ...], tuple[PartTime, ...], Evidence | None]:
    """Both plans' parts, from one source, and which."""
    entries = [own] if rival is None else [own, rival]
    profiled = [time_by_part(entry.measurement.profile) for entry in entries]
    if all(profiled):
        return profiled[0], profiled[-1], Evidence.MEASURED
    if basis is None:
        return (), (), None
    plans = [entry.trial.plan for entry in entries]
    outlook = foresee(training, columns_of(plans), basis.calibration)
    foreseen = [outlook.of(row, plan).speed for row, plan in enumerate(plans)]
    predicted = [
        tuple(PartTime(str(part), one.parts_s[part], share) for part, share in one.shares.items())
        for one in foreseen
        if one is not None
    ]
    return (predicted[0], predicted[-1], Evidence.PREDICTED) if predicted else ((), (), None)


def _savings(plan: Plan, parts: Sequence[PartTime], other: Plan, others: Sequence[PartTime]) -> tuple[Saving, ...]:
    """What shrank first; parts that differ by less than LEAST_SHARE of the rival's step go unmentioned."""
    # With a freed batch the steps of two plans are of different sizes.
    scale = plan.global_batch_size / other.global_batch_size
    own_s, other_s = ({part.part: part.time_s for part in some} for some in (parts, others))
    names = dict.fromkeys([*own_s, *other_s])
    found = [Saving(name, scale * other_s.get(name, 0.0) - own_s.get(name, 0.0)) for name in names]
    least_s = LEAST_SHARE * scale * sum(other_s.values())
    told = [saving for saving in found if abs(saving.less_s) >= least_s and saving.less_s]
    return tuple(sorted(told, key=lambda saving: -saving.less_s))
