"""What a campaign will meet and cost, before anything is spent: plans that are legal, that fit, that will be fast.

All of it is predicted, none of it measured; `Quote.basis` says from what. Pure: a spec and its space in, a value out.
Showing it is `tuner.cli.render.quote`'s work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshtune.runners.measuring.step_budget import StepCounts, step_counts
from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.physics.unknown_speeds import missing
from meshtune.search_spaces.space import Counts, Space
from meshtune.tuner.campaign.space import workload_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.prediction.predict import Basis, Outlook, Prediction, foresee, training_of

TOP = 10
# Seconds that a job takes beside its steps (processes, imports, groups, weights) where no campaign was measured.
# CPU: what is left of `make demo`'s 6.5 s per trial (docs/log.md) without its steps. CUDA: a round guess.
STARTUP_S: Mapping[DeviceKind, float] = {DeviceKind.CPU: 5.0, DeviceKind.CUDA: 30.0}
# The edges of the classes that plans are counted in by their probability to fit.
SURE, LIKELY, UNLIKELY = 0.9, 0.5, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many legal plans fit the device's memory. expected: the sum of the plans' probabilities; the others count the
    plans whose probability is at least 0.9, 0.5 to 0.9, 0.1 to 0.5, and below 0.1."""

    expected: float
    sure: int
    likely: int
    unlikely: int
    hopeless: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The ends of what may be."""

    low: float
    high: float

    def times(self, factor: float) -> Span:
        return Span(low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What all trials of a campaign take, if the search does not end it sooner. trials: that the spec allows and the
    space holds, the best ones' second runs included. steps: of one trial, where its job says how long it measures and
    times can be predicted. startup_s: of each trial beside its steps.

    low: every trial takes as few steps as it may; high: as many. Each is for the cheaper, or the dearer, of two
    campaigns: one whose trials are the plans predicted best, one that draws them evenly from the space. Plans that do
    not fit cost their start alone. Not in it: waiting in a queue, attempts that the infrastructure loses, trials that
    are given up early. ends_before: what the spec's budget says to that; empty when the trials are within it.
    """

    trials: int
    steps: tuple[int, int] | None
    startup_s: float
    trial_s: Span
    device_hours: Span
    wall_s: Span
    ends_before: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The answer. best: the plans predicted best, see `Outlook.score`. missing: what must be known of the cluster
    before times can be predicted; not empty exactly when the plans of `best` have no speed."""

    name: str
    model: str
    cluster: str
    devices: int
    device: str
    framework: str
    counts: Counts
    fit: Fit
    best: tuple[Prediction, ...]
    cost: Cost
    missing: tuple[Problem, ...]
    basis: Basis

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        counts = self.counts
        names = ("name", "model", "cluster", "devices", "device", "framework")
        return {
            **{name: getattr(self, name) for name in names},
            "space": {
                "combinations": counts.combinations,
                "legal": counts.legal,
                "rejected": dict(counts.broken),
            },
            "fit": asdict(self.fit),
            "best": [prediction.document() for prediction in self.best],
            "cost": {**asdict(self.cost), "ends_before": list(self.cost.ends_before)},
            "missing": [asdict(problem) for problem in self.missing],
            "basis": self.basis.document(),
        }


def make_quote(spec: CampaignSpec, space: Space, basis: Basis) -> Quote:
    """The quote of a campaign over its space, which is not empty."""
    training = training_of(spec)
    outlook = foresee(training, space.columns, basis.calibration)
    cluster = spec.cluster
    return Quote(
        name=spec.name,
        model=spec.model.name,
        cluster=cluster.name,
        devices=cluster.devices,
        device=cluster.device.name,
        framework=training.framework.name,
        counts=space.counts,
        fit=count_fits(outlook.fits),
        best=tuple(outlook.of(int(row), space[int(row)]) for row in outlook.best(TOP)),
        cost=predict_cost(spec, space, outlook, basis),
        missing=tuple(missing(training)),
        basis=basis,
    )


def count_fits(fits: FloatColumn) -> Fit:
    """The classes of these probabilities."""
    return Fit(
        expected=float(np.sum(fits)),
        sure=int(np.sum(fits >= SURE)),
        likely=int(np.sum((fits >= LIKELY) & (fits < SURE))),
        unlikely=int(np.sum((fits >= UNLIKELY) & (fits < LIKELY))),
        hopeless=int(np.sum(fits < UNLIKELY)),
    )


def predict_cost(spec: CampaignSpec, space: Space, outlook: Outlook, basis: Basis) -> Cost:
    """What the spec's trials take; between a mere start and the time limit each where no more can be said."""
    there = len(space) + (spec.baseline is not None and spec.baseline not in space)
    chosen = min(spec.budget.trials or there, there)
    trials = chosen + min(spec.confirm, chosen)
    startup_s = STARTUP_S[spec.cluster.device.kind] if basis.startup_s is None else basis.startup_s
    counts = _step_counts(spec, space)
    if outlook.time is None or counts is None:
        steps, trial_s = None, Span(low=startup_s, high=max(startup_s, spec.trial.time_limit_s))
    else:
        steps, trial_s = _with_steps(spec, outlook, outlook.time.step_s, counts, trials, startup_s)
    device_hours = trial_s.times(trials * spec.cluster.devices / 3600)
    # The last trials do not fill `parallel` places.
    wall_s = trial_s.times(-(-trials // spec.parallel))
    ends = tuple(_ends_before(spec, trials, device_hours, wall_s))
    return Cost(
        trials=trials,
        steps=steps,
        startup_s=startup_s,
        trial_s=trial_s,
        device_hours=device_hours,
        wall_s=wall_s,
        ends_before=ends,
    )


def _with_steps(
    spec: CampaignSpec, outlook: Outlook, step_s: FloatColumn, counts: StepCounts, trials: int, startup_s: float
) -> tuple[tuple[int, int], Span]:
    """The fewest and the most steps of a trial, and its mean seconds."""
    limit_s = spec.trial.time_limit_s
    most = np.array([counts.most(seconds) for seconds in step_s.tolist()])
    chosen = outlook.best(trials)
    ends: list[list[float]] = []
    for steps in (np.full(len(most), counts.least), most):
        # A plan that does not fit fails in its first steps.
        seconds = np.minimum(limit_s, startup_s + outlook.fits * steps * step_s)
        ends.append([float(np.mean(seconds[chosen])), float(np.mean(seconds))])
    return (counts.least, int(np.max(most))), Span(low=min(ends[0]), high=max(ends[1]))


def _step_counts(spec: CampaignSpec, space: Space) -> StepCounts | None:
    # Nothing is written or run there: how long the job measures stands in its text.
    job = workload_of(spec).materialize(
        "quote", spec.model, space[0], spec.cluster, Path(), seed=spec.seed, time_limit_s=spec.trial.time_limit_s
    )
    return step_counts(job)


def _ends_before(spec: CampaignSpec, trials: int, device_hours: Span, wall_s: Span) -> Sequence[str]:
    """Sentences for the limits that the campaign may meet before its last trial."""
    budget = spec.budget
    limits = (
        (budget.device_hours, device_hours, "device-hours"),
        (None if budget.wall_time_s is None else budget.wall_time_s / 3600, wall_s.times(1 / 3600), "hours of work"),
    )
    found = []
    for limit, needed, unit in limits:
        if limit is not None and limit < needed.high:
            fewest, most = (min(trials, max(1, int(trials * limit / end))) for end in (needed.high, needed.low))
            count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            found.append(f"the budget of {limit:g} {unit} ends it after about {count} of {trials} trials")
    return found
