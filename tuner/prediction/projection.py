"""What a projection to other node counts is: its rows, walls and the measurement that it passes through; and how node
counts and a layout are written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.prediction.predict import Basis, Prediction, Speed

# A plan whose P(fits) is below is taken not to fit.
LEAST_FITS = 0.5


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


def count_nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def layout_of(text: str) -> Plan | None:
    """The layout in `tp=8,pp=16`, fields of a plan by name; None for an empty text. Raises InvalidValue, also for a dp:
    it follows from the devices."""
    words = text.replace(",", " ").split()
    fields = dict(word.partition("=")[::2] for word in words)
    try:
        if "dp" in fields:
            raise InvalidValue([Problem("dp", "follows from the devices at each node count")])
        return read_value(Plan, fields) if words else None
    except InvalidValue as error:
        raise InvalidValue([problem.under("plan") for problem in error.problems]) from None


def node_counts(text: str, reference: int) -> tuple[int, ...]:
    """The counts in `1,2,4`; of an empty text the reference doubled five times. Raises InvalidValue."""
    words = text.replace(",", " ").split()
    if not words:
        return tuple(reference * 2**power for power in range(6))
    wrong = [word for word in words if not word.isascii() or not word.isdigit() or int(word) < 1]
    if wrong:
        raise InvalidValue([Problem("nodes", f"must be positive whole numbers, not {', '.join(wrong)}")])
    return tuple(int(word) for word in words)
