"""What a projection to other node counts is: its rows, walls and the measurement that it passes through; how node
counts and a layout are written, and a layout without what follows from devices and batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import Checks, Closed, InvalidValue, Problem, problems_as
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.plan_names import in_full
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.prediction.predict import Basis, Prediction, Speed, foresee, training_of

# A plan whose P(fits) is below is taken not to fit.
LEAST_FITS = 0.5
# Each is enumerated.
MAX_NODE_COUNTS = 16
# What follows from the devices and the batch.
DERIVED = ("dp", "grad_accum_steps")
# The axes that make a layout.
LAYOUT = tuple(name for name in PLAN_FIELDS if name not in (*DERIVED, "knobs"))


class Scaling(StrEnum):
    """How the global batch follows the devices. WEAK: it grows with them. STRONG: it stays as in the spec. FREE: the
    spec frees it, so it is searched at every node count."""

    WEAK = "weak"
    STRONG = "strong"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Training on a number of tokens, at the predicted speed and without a pause."""

    days: Estimate
    device_hours: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node count. best: null where there is no plan, for the `reason`. measured: the campaign ran this plan here.
    speedup: of tokens per second, against the reference. efficiency: the speed-up over the growth in devices. run:
    where a number of tokens was named. None of the three where the plan should not fit. note: that it should not, or
    why the efficiency is above 100 %."""

    scaling: Scaling
    nodes: int
    devices: int
    global_batch_size: int | None
    best: Prediction | None
    reason: str
    measured: bool = False
    speedup: float | None = None
    efficiency: float | None = None
    run: TrainingRun | None = None
    note: str = ""

    @property
    def speed(self) -> Speed | None:
        return None if self.best is None else self.best.speed

    @property
    def fits(self) -> bool:
        """The plan ran here, or should fit."""
        return self.measured or (self.best is not None and self.best.p_fits >= LEAST_FITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """The node count at which one kind of scaling falls below the least efficiency; null where none does."""

    scaling: Scaling
    nodes: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBest:
    """The fastest trial on all devices of the spec, or that of the given plan, and the prediction for its plan, before
    predictions are scaled by the ratio of the two."""

    trial: int
    plan_key: str
    tokens_per_s: float
    predicted_tokens_per_s: float

    @property
    def factor(self) -> float:
        """By which predictions are scaled."""
        return self.tokens_per_s / self.predicted_tokens_per_s if self.predicted_tokens_per_s > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The best plan and its efficiency at other node counts. layout: the one that was given for all of them; empty
    where each row has the best plan there. reference_nodes: the smallest count with a plan that should fit for every
    kind of scaling, else that of the spec; rows are compared with it. rows: by scaling, then by node count, the spec's
    always among them. walls: one for each kind of scaling."""

    name: str
    model: str
    device: str
    layout: str
    reference_nodes: int
    measured_best: MeasuredBest | None
    rows: tuple[Row, ...]
    walls: tuple[Wall, ...]
    least_efficiency: float
    tokens: float | None
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionWords(Closed):
    """What POST /v1/projections is told. nodes: counts; none: the spec's, doubled 5 times. plan: one layout for all of
    them, such as `tp=8,pp=16`; empty: the best one of each. Raises InvalidValue."""

    spec: Mapping[str, Any]
    nodes: tuple[int, ...] = ()
    plan: str = ""

    def _check(self, checks: Checks) -> None:
        fit = len(self.nodes) <= MAX_NODE_COUNTS and min(self.nodes, default=1) >= 1
        checks.require(fit, "nodes", f"must be at most {MAX_NODE_COUNTS} counts, each at least 1")


def count_nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def layout_of(text: str) -> Plan | None:
    """The layout in `tp=8,pp=16` or `tp8 pp16`; None for an empty text. Raises InvalidValue, also for a dp: it follows
    from the devices."""
    with problems_as(InvalidValue, "plan"):
        fields = in_full(text)
        if "dp" in fields:
            raise InvalidValue([Problem("dp", "follows from the devices at each node count")])
        return read_value(Plan, fields) if fields else None


def node_counts(text: str, reference: int) -> tuple[int, ...]:
    """The counts in `1,2,4`; of an empty text the reference doubled five times. Raises InvalidValue."""
    words = text.replace(",", " ").split()
    if not words:
        return tuple(reference * 2**power for power in range(6))
    wrong = [word for word in words if not word.isascii() or not word.isdigit() or int(word) < 1]
    if wrong:
        raise InvalidValue([Problem("nodes", f"must be positive whole numbers, not {', '.join(wrong)}")])
    return tuple(int(word) for word in words)


@dataclass(frozen=True, slots=True)
class MeasuredAnchor:
    """A measured trial, and the prediction for its plan."""

    words: MeasuredBest
    trial: Trial
    predicted: Prediction


def anchor_of(spec: CampaignSpec, basis: Basis, trials: Sequence[Trial], plan: Plan | None) -> MeasuredAnchor | None:
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
    return MeasuredAnchor(words, trial, predicted)


def alike(one: Plan, other: Plan) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in LAYOUT)


def anchored(row: Row, anchor: MeasuredAnchor | None, own: int, *, searched: bool) -> Row:
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
    if measured and (run := anchor.trial.measurement) is not None:
        # The interval of the measured steps, around the same value.
        ends = run.step_time_interval_s
        low, high = ends.low / run.step_time_s, ends.high / run.step_time_s
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
