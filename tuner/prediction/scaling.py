"""Scaling to other node counts: the best plan, its speed and efficiency at each, and where scaling stops to pay.

For every node count the space is enumerated again and the best plan predicted, so a projection is of the best that can
be done there, not of one plan stretched. Pure: a spec, a basis and node counts in, a value out.

Speed-up and efficiency compare predictions with the prediction at the spec's own node count, so that what is wrong with
all of them alike cancels; the measured best stands beside it. Intervals are of each row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.training import Training, missing
from meshtune.search_spaces.space import Space, SpaceTooLarge
from meshtune.tuner.campaign.spec import CampaignSpec, build_space, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.prediction.predict import Basis, Prediction, Speed, foresee, training_of
from meshtune.tuner.prediction.quote import PART_WORDS


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
    """One node count. best: null where there is no plan, for the `reason`. speedup: of tokens per second, against the
    reference, prediction by prediction. efficiency: the speed-up over the growth in devices. run: where a number of
    tokens was named."""

    scaling: Scaling
    nodes: int
    devices: int
    global_batch_size: int | None
    best: Prediction | None
    reason: str
    speedup: float | None
    efficiency: float | None
    run: TrainingRun | None

    @property
    def speed(self) -> Speed | None:
        return None if self.best is None else self.best.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """The node count at which one kind of scaling falls below the least efficiency; null where none does."""

    scaling: Scaling
    nodes: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBest:
    """The fastest trial at the reference, and the prediction for its plan."""

    trial: int
    plan_key: str
    tokens_per_s: float
    predicted_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The best plan and its efficiency at other node counts. reference_nodes: of the spec; every row is compared with
    it. rows: by scaling, then by node count, the reference always among them. walls: one for each kind of scaling."""

    name: str
    model: str
    device: str
    reference_nodes: int
    measured_best: MeasuredBest | None
    rows: tuple[Row, ...]
    walls: tuple[Wall, ...]
    least_efficiency: float
    tokens: float | None
    basis: Basis


def make_projection(
    spec: CampaignSpec,
    basis: Basis,
    nodes: Sequence[int],
    *,
    least_efficiency: float = 0.8,
    tokens: float | None = None,
    trials: Sequence[Trial] = (),
) -> Projection:
    """The projection of a spec to these node counts. trials: of its campaign, for the measured best.

    Raises InvalidValue for node counts that no cluster has, and for facts that are missing at the largest.
    """
    reference = spec.cluster.nodes
    counts = sorted({reference, *nodes})
    training = training_of(spec)
    trainings = [replace(training, cluster=replace(training.cluster, nodes=count)) for count in counts]
    # Larger clusters miss what smaller ones do, and more.
    if problems := missing(trainings[-1]):
        raise InvalidValue(problems)
    kinds = [Scaling.FREE] if spec.global_batch_size is None else [Scaling.WEAK, Scaling.STRONG]
    rows: list[Row] = []
    walls: list[Wall] = []
    # At the reference all kinds of scaling are the same.
    start = _row(spec, basis, trainings[counts.index(reference)], kinds[0])
    for kind in kinds:
        found = [
            replace(start, scaling=kind) if t.cluster.nodes == reference else _row(spec, basis, t, kind)
            for t in trainings
        ]
        compared = [_compared(row, start, tokens) for row in found]
        rows += compared
        walls.append(_wall(kind, compared, start, least_efficiency))
    return Projection(
        name=spec.name,
        model=spec.model.name,
        device=spec.cluster.device.name,
        reference_nodes=reference,
        measured_best=_measured_best(spec, basis, trials),
        rows=tuple(rows),
        walls=tuple(walls),
        least_efficiency=least_efficiency,
        tokens=tokens,
        basis=basis.judged(training, [row.speed for row in rows]),
    )


def count_combinations(spec: CampaignSpec, nodes: Sequence[int]) -> int:
    """About how many combinations `make_projection` enumerates. Raises InvalidValue for node counts that no cluster
    has."""
    total = 0
    for count in {spec.cluster.nodes, *nodes}:
        cluster = replace(spec.cluster, nodes=count)
        with suppress(SpaceTooLarge):  # which is told in place of a plan
            space = build_space(spec.space, spec.model, cluster, spec.global_batch_size, workload_of(spec))
            total += space.combinations * (1 if spec.global_batch_size is None else 2)
    return total


def _row(spec: CampaignSpec, basis: Basis, training: Training, scaling: Scaling) -> Row:
    """The best plan at one node count, not yet compared with anything."""
    cluster, batch = training.cluster, spec.global_batch_size
    empty = Row(
        scaling=scaling,
        nodes=cluster.nodes,
        devices=cluster.devices,
        global_batch_size=batch,
        best=None,
        reason="",
        speedup=None,
        efficiency=None,
        run=None,
    )
    if batch is not None and scaling is Scaling.WEAK:
        if batch * cluster.nodes % spec.cluster.nodes:
            grown = f"global batch {batch} * {cluster.nodes} / {spec.cluster.nodes} nodes"
            return replace(empty, global_batch_size=None, reason=f"{grown} is no whole number of sequences")
        batch = batch * cluster.nodes // spec.cluster.nodes
        empty = replace(empty, global_batch_size=batch)
    try:
        space = build_space(spec.space, spec.model, cluster, batch, workload_of(spec))
    except SpaceTooLarge as error:
        return replace(empty, reason=str(error))
    if len(space) == 0:
        return replace(empty, reason=_why_none(space, batch))
    outlook = foresee(training, space.columns, basis.calibration)
    first = int(outlook.best(1)[0])
    return replace(empty, best=outlook.of(first, space[first]))


def _why_none(space: Space, batch: int | None) -> str:
    """Why no plan is legal; the batch where it alone forbids all."""
    tp, cp = (max(space.dimensions[name]) for name in ("tp", "cp"))
    size = min(space.dimensions["micro_batch_size"])
    devices = space.context.cluster.devices
    # Ranks that are neither tp nor cp each need a micro-batch of their own: dp * pp of them, where there is a pipeline.
    needed = -(-devices // (tp * cp)) * size
    if batch is not None and needed > batch:
        told = f"{devices} devices / (tp({tp}) * cp({cp})) * micro_batch_size({size}) = {needed} sequences at least"
        return f"no legal plan: {told}, but the global batch is {batch}"
    ranked = sorted(space.counts.rejected.items(), key=lambda item: -item[1])[:3]
    shares = "; ".join(f"{name} rejects {count}" for name, count in ranked)
    return f"no legal plan among {space.counts.combinations} combinations: {shares}"


def _compared(row: Row, start: Row, tokens: float | None) -> Row:
    own, base = row.speed, start.speed
    if own is None:
        return row
    run = None
    if tokens is not None:
        # The faster, the sooner: the ends change places.
        speed = own.tokens_per_s
        time_s = Estimate(tokens / speed.value, tokens / speed.high, tokens / speed.low)
        run = TrainingRun(days=time_s.times(1 / 86400), device_hours=time_s.times(row.devices / 3600))
    if base is None:
        return replace(row, run=run)
    speedup = own.tokens_per_s.value / base.tokens_per_s.value
    return replace(row, speedup=speedup, efficiency=speedup * start.devices / row.devices, run=run)


def _wall(scaling: Scaling, rows: Sequence[Row], start: Row, least: float) -> Wall:
    """The first node count beyond the reference that has no plan or is not efficient enough, and what makes it so."""
    for row in rows:
        if row.nodes <= start.nodes:
            continue
        told = ""
        if row.best is None:
            told = f"ends before {count_nodes(row.nodes)}: {row.reason}"
        elif row.efficiency is not None and row.efficiency < least:
            reached = f"{count_nodes(row.nodes)} ({100 * row.efficiency:.0f} %)"
            told = f"falls below {100 * least:g} % efficiency at {reached}: {_largest_loss(row, start)}"
        if told:
            return Wall(scaling=scaling, nodes=row.nodes, sentence=f"{scaling} scaling {told}")
    farthest = count_nodes(max(row.nodes for row in rows))
    told = f"keeps at least {100 * least:g} % efficiency up to {farthest}"
    return Wall(scaling=scaling, nodes=None, sentence=f"{scaling} scaling {told}")


def _largest_loss(row: Row, start: Row) -> str:
    """The part of the step whose device time per token grew most since the reference."""
    own, base = row.speed, start.speed
    assert own is not None  # the row has an efficiency
    assert base is not None
    # The growth in device time per token, which is the inverse of the efficiency.
    scale = row.devices / own.tokens_per_s.value / (start.devices / base.tokens_per_s.value)
    grown = {part: scale * share - base.shares[part] for part, share in own.shares.items()}
    worst = max(grown, key=lambda part: grown[part])
    now, before = (100 * speed.shares[worst] for speed in (own, base))
    return f"most is lost to {PART_WORDS[worst]}, {now:.0f} % of the step, {before:.0f} % at {count_nodes(start.nodes)}"


def count_nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _measured_best(spec: CampaignSpec, basis: Basis, trials: Sequence[Trial]) -> MeasuredBest | None:
    devices = spec.cluster.devices
    there = [trial for trial in trials if trial.plan.world_size == devices]
    measured = [(trial.measurement.tokens_per_s, trial) for trial in there if trial.measurement is not None]
    if not measured:
        return None
    fastest, trial = max(measured, key=lambda pair: pair[0])
    predicted = foresee(training_of(spec), columns_of([trial.plan]), basis.calibration).of(0, trial.plan).speed
    return MeasuredBest(
        trial=trial.number,
        plan_key=trial.plan.key,
        tokens_per_s=fastest,
        predicted_tokens_per_s=0.0 if predicted is None else predicted.tokens_per_s.value,
    )


def node_counts(text: str, reference: int) -> tuple[int, ...]:
    """The counts in `1,2,4`; of an empty text the reference doubled five times. Raises InvalidValue."""
    words = text.replace(",", " ").split()
    if not words:
        return tuple(reference * 2**power for power in range(6))
    wrong = [word for word in words if not word.isascii() or not word.isdigit() or int(word) < 1]
    if wrong:
        raise InvalidValue([Problem("nodes", f"must be positive whole numbers, not {', '.join(wrong)}")])
    return tuple(int(word) for word in words)
