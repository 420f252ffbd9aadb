"""What the REST API shows of a quote: the shape of `Quote.document()`, as `meshtune estimate --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.runners.documents import read_value
from meshtune.search_spaces.physics.estimates import MemoryPart, TimePart
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.prediction.quote import Cost, Fit, Quote


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedSpace:
    """Combinations spanned, legal plans, and how many combinations each rule rejects (they overlap)."""

    combinations: int
    legal: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedView:
    """How fast a plan is predicted to be, with 95 % intervals. tokens_per_s: of the whole cluster. mfu: a share."""

    step_s: Estimate
    tokens_per_s: Estimate
    tflops_per_device: float
    mfu: float
    parts_s: Mapping[TimePart, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionView:
    """One plan as predicted. p_fits: the probability that its peak is at most the device's memory. speed: null where
    something is not known of the cluster."""

    plan: Plan
    plan_key: str
    p_fits: float
    peak_bytes: Estimate
    memory_parts_bytes: Mapping[MemoryPart, float]
    speed: SpeedView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingView:
    """A fact about the cluster that times depend on, by its path in the spec."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisView:
    """What the predictions rest on. learnt_from: how many step times, memory peaks and out-of-memory verdicts."""

    calibrated: bool
    campaign: str | None
    learnt_from: Mapping[str, int]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteView:
    """What a campaign will meet and cost, predicted. best: ranked by tokens per second times the probability to fit."""

    name: str
    model: str
    cluster: str
    devices: int
    device: str
    framework: str
    space: QuotedSpace
    fit: Fit
    best: list[PredictionView]
    cost: Cost
    missing: list[MissingView]
    basis: BasisView


def quote_view(quote: Quote) -> QuoteView:
    return read_value(QuoteView, quote.document())
