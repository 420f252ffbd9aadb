"""Why the best plans win: the parts of the step that shrank against the baseline, and by how much.

By the measured profiles where both plans have one; else by the calibrated physics' parts, and marked as predicted. The
knobs that differ are named: the physics knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshtune.search_spaces.changes import Moves, knob_changes
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.trial import PartTime, time_by_part
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.prediction.predict import Basis, foresee
from meshtune.tuner.prediction.quote import MIN_SHARE, PART_WORDS
from meshtune.tuner.results.analysis.knob_effects import Evidence
from meshtune.tuner.results.ranking import Ranked, baseline_of
from meshtune.tuner.results.views import view_of

TOP = 3
# With profiles come parts that the physics has no name for.
_WORDS: Mapping[str, str] = {str(part): words for part, words in PART_WORDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """One of the best plans, or the recommended one. step_s: seconds per step as measured. parts, rival_parts: of the
    step and of the rival's; savings_s: seconds per step that each part takes less than with the rival, the largest
    first. All three rest on `evidence`, and are empty without it. rival: "the baseline", or for the baseline itself,
    and without one, "the next best"; null where nothing slower was measured. gain: over the rival, a ratio of speeds
    minus 1. gain_rounds: as of RankedView, beside the rival. knobs: those beyond the layout that differ from the
    rival's."""

    rank: int
    trial: int
    plan: Plan
    plan_key: str
    step_s: float
    parts: tuple[PartTime, ...]
    rival_parts: tuple[PartTime, ...]
    rival: str | None
    rival_trial: int | None
    gain: float | None
    gain_rounds: int
    knobs: Moves
    savings_s: Mapping[str, float]
    evidence: Evidence | None
    words: str


def explain_winners(
    training: Training,
    ranking: Sequence[Ranked],
    basis: Basis | None,
    runs: Evidence = Evidence.MEASURED,
    recommended: Ranked | None = None,
) -> tuple[Winner, ...]:
    """The best of the ranked plans, and the recommended one after them where it is none of these. basis: of
    predictions; None where there can be none. runs: what they are."""
    baseline = baseline_of(ranking)
    winners = []
    for place, own in enumerate(ranking, start=1):
        if place > TOP and own is not recommended:
            continue
        slower = next((one for one in ranking[place:] if own.over(one).value > 0), None)
        rival = slower if baseline is None or own is baseline else baseline
        parts, rival_parts, evidence = _parts(training, own, rival, basis, runs)
        name, gain, savings_s = None, None, dict[str, float]()
        knobs: Moves = ()
        words = "nothing slower was measured to compare it with"
        if rival is not None:
            name = "the baseline" if rival is baseline else "the next best"
            gain = own.over(rival).value
            knobs = knob_changes(rival.trial.plan, own.trial.plan)
            savings_s = _savings_s(own.trial.plan, parts, rival.trial.plan, rival_parts)
            changed = f" with {', '.join(map(str, knobs))}" if knobs else ""
            words = f"{own.text_over(rival)} against {name} (trial {rival.trial.number}){changed}"
            words += _reason(savings_s, evidence, knobs)
        winners.append(
            view_of(
                Winner,
                own.trial,
                rank=place,
                trial=own.trial.number,
                step_s=own.step_time_s,
                parts=parts,
                rival_parts=rival_parts,
                rival=name,
                rival_trial=None if rival is None else rival.trial.number,
                gain=gain,
                gain_rounds=0 if rival is None else len(own.pairs(rival)),
                knobs=knobs,
                savings_s=savings_s,
                evidence=evidence,
                words=words,
            )
        )
    return tuple(winners)


def _reason(savings_s: Mapping[str, float], evidence: Evidence | None, knobs: Moves) -> str:
    if evidence is None:
        return "; where the time goes is not known"
    savings = [
        f"{seconds(abs(less_s))} {'less' if less_s > 0 else 'more'} {_WORDS.get(part, part)}"
        for part, less_s in savings_s.items()
    ]
    unknown = ", the knobs apart" if knobs and evidence is Evidence.PREDICTED else ""
    return f": {', '.join(savings) or 'no part differs'} ({evidence}{unknown})"


def _parts(
    training: Training, own: Ranked, rival: Ranked | None, basis: Basis | None, runs: Evidence
) -> tuple[tuple[PartTime, ...], tuple[PartTime, ...], Evidence | None]:
    """Both plans' parts, from one source, and which."""
    entries = [own] if rival is None else [own, rival]
    profiled = [time_by_part(run.profile) for run in ([own.measurement] if rival is None else own.alike(rival))]
    if all(profiled):
        return profiled[0], profiled[-1], runs
    if basis is None:
        return (), (), None
    plans = [entry.trial.plan for entry in entries]
    outlook = foresee(training, columns_of(plans), basis.calibration)
    predicted = [
        tuple(PartTime(str(part), speed.parts_s[part], share) for part, share in speed.shares.items())
        for row, plan in enumerate(plans)
        if (speed := outlook.of(row, plan).speed) is not None
    ]
    return (predicted[0], predicted[-1], Evidence.PREDICTED) if predicted else ((), (), None)


def _savings_s(plan: Plan, parts: Sequence[PartTime], other: Plan, others: Sequence[PartTime]) -> dict[str, float]:
    """The largest first; parts that differ by less than MIN_SHARE of the rival's step are left out."""
    # With a freed batch the steps of two plans are of different sizes.
    scale = plan.global_batch_size / other.global_batch_size
    own_s, other_s = ({part.part: part.time_s for part in some} for some in (parts, others))
    saved_s = {name: scale * other_s.get(name, 0.0) - own_s.get(name, 0.0) for name in [*own_s, *other_s]}
    least_s = MIN_SHARE * scale * sum(other_s.values())
    ordered = sorted(saved_s.items(), key=lambda item: -item[1])
    return {name: saved for name, saved in ordered if saved and abs(saved) >= least_s}
