"""The measurement that a projection passes through, and a layout without what follows from devices and batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.prediction.predict import Basis, Prediction, Speed, foresee, training_of
from meshtune.tuner.prediction.projection import MeasuredBest, Row

# What follows from the devices and the batch.
DERIVED = ("dp", "grad_accum_steps")
# The axes that make a layout.
LAYOUT = tuple(name for name in PLAN_FIELDS if name not in (*DERIVED, "knobs"))


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured trial, and the prediction for its plan."""

    words: MeasuredBest
    trial: Trial
    predicted: Prediction


def anchor_of(spec: CampaignSpec, basis: Basis, trials: Sequence[Trial], plan: Plan | None) -> Anchor | None:
    """What the projection passes through: the fastest trial, or the fastest of the given layout where that was
    measured."""
    devices = spec.cluster.devices
    there = [trial for trial in trials if trial.plan.world_size == devices]
    measured = [(trial.measurement.tokens_per_s, trial) for trial in there if trial.measurement is not None]
    if plan is not None:
        measured = [pair for pair in measured if alike(pair[1].plan, plan)] or measured
    if not measured:
        return None
    fastest, trial = max(measured, key=lambda pair: pair[0])
    predicted = foresee(training_of(spec), columns_of([trial.plan]), basis.calibration).of(0, trial.plan)
    words = MeasuredBest(
        trial=trial.number,
        plan_key=trial.plan.key,
        tokens_per_s=fastest,
        predicted_tokens_per_s=0.0 if predicted.speed is None else predicted.speed.tokens_per_s.value,
    )
    return Anchor(words, trial, predicted)


def alike(one: Plan, other: Plan) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in LAYOUT)


def layout_words(plan: Plan) -> str:
    """The key without what follows from the devices and the batch."""
    return " ".join(word for word in plan.key.split() if not word.startswith(("dp", "ga")))


def anchored(row: Row, anchor: Anchor | None, own: int, *, searched: bool) -> Row:
    """The row with its prediction scaled as the measurement asks; at the spec's own count the measurement itself, where
    it is of this layout or the best was searched for."""
    if anchor is None:
        return row
    if row.nodes == own and (searched or (row.best is not None and alike(row.best.plan, anchor.trial.plan))):
        best, measured = anchor.predicted, True
    elif row.best is not None:
        best, measured = row.best, False
    else:
        return row
    if (speed := best.speed) is None:
        return row
    factor = anchor.words.factor
    step_s, tokens_per_s = (scaled(it, by) for it, by in ((speed.step_s, 1 / factor), (speed.tokens_per_s, factor)))
    if measured and (found := anchor.trial.measurement) is not None:
        # The interval of the measured steps, around the same value.
        ends = found.step_time_interval_s
        low, high = ends.low / found.step_time_s, ends.high / found.step_time_s
        step_s = Estimate(step_s.value, step_s.value * low, step_s.value * high)
        tokens_per_s = Estimate(tokens_per_s.value, tokens_per_s.value / high, tokens_per_s.value / low)
    faster = Speed(
        step_s=step_s,
        tokens_per_s=tokens_per_s,
        tflops_per_device=speed.tflops_per_device * factor,
        mfu=speed.mfu * factor,
        parts_s={part: time_s / factor for part, time_s in speed.parts_s.items()},
    )
    return replace(row, best=replace(best, speed=faster), reason="", measured=measured)


def scaled(own: Estimate, factor: float) -> Estimate:
    """With an interval that holds the quantity with and without the factor."""
    scaled = own.times(factor)
    return Estimate(scaled.value, min(own.low, scaled.low), max(own.high, scaled.high))
