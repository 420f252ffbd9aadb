"""From a few nodes to many: the best plan, its speed and its efficiency at other node counts, and where the wall is.

For every node count the space is enumerated again and the best plan predicted, so a projection is of the best that can
be done there, not of one plan stretched. Pure: a spec, a basis and node counts in, a value out.

Speed-up and efficiency compare predictions with the prediction at the spec's own node count, so that what is wrong with
all of them alike cancels; the measured best stands beside it. Intervals are of each row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.estimates import Training
from meshtune.search_spaces.physics.unknown_speeds import missing
from meshtune.search_spaces.space import Space, SpaceTooLarge
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.space import build_space, workload_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.explain_plan import WORDS
from meshtune.tuner.prediction.predict import Basis, Prediction, Speed, foresee, training_of


class Scaling(StrEnum):
    """What becomes of the global batch. WEAK: it grows with the devices. STRONG: it stays as the spec has it. FREE: the
    spec frees it, so it is searched at every node count."""

    WEAK = "weak"
    STRONG = "strong"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Training on a number of tokens, at the predicted speed and without a pause."""

    days: Estimate
    device_hours: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node count. best None: there is no plan, for the `reason`. speedup: of tokens per second, against the
    reference; efficiency: the speed-up over the growth in devices. run: where a number of tokens was named."""

    scaling: Scaling
    nodes: int
    devices: int
    global_batch_size: int | None
    best: Prediction | None = None
    reason: str = ""
    speedup: float | None = None
    efficiency: float | None = None
    run: Run | None = None

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "scaling": str(self.scaling),
            "nodes": self.nodes,
            "devices": self.devices,
            "global_batch_size": self.global_batch_size,
            "best": None if self.best is None else self.best.document(),
            "reason": self.reason,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "run": None if self.run is None else asdict(self.run),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """Where one kind of scaling stops to pay. nodes None: nowhere among the node counts that were asked for."""

    scaling: Scaling
    nodes: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBest:
    """The fastest trial at the reference, and what is predicted for its plan."""

    trial: int
    plan_key: str
    tokens_per_s: float
    predicted_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The answer. reference: the spec's own node count, which every row is compared with. rows: by scaling, then by
    node count, the reference always among them."""

    name: str
    model: str
    device: str
    reference: int
    measured: MeasuredBest | None
    rows: tuple[Row, ...]
    walls: tuple[Wall, ...]
    least_efficiency: float
    tokens: float | None
    basis: Basis

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name,
            "model": self.model,
            "device": self.device,
            "reference_nodes": self.reference,
            "measured_best": None if self.measured is None else asdict(self.measured),
            "rows": [row.document() for row in self.rows],
            "walls": [{**asdict(wall), "scaling": str(wall.scaling)} for wall in self.walls],
            "least_efficiency": self.least_efficiency,
            "tokens": self.tokens,
            "basis": self.basis.document(),
        }


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
    trainings = [_at(spec, count) for count in counts]
    # Larger clusters miss what smaller ones do, and more.
    if problems := missing(trainings[-1]):
        raise InvalidValue(problems)
    kinds = [Scaling.FREE] if spec.global_batch_size is None else [Scaling.WEAK, Scaling.STRONG]
    rows: list[Row] = []
    walls: list[Wall] = []
    # At the reference all kinds of scaling are the same.
    start = _row(spec, basis, trainings[counts.index(reference)], kinds[0])
    for kind in kinds:
        plain = [
            replace(start, scaling=kind) if t.cluster.nodes == reference else _row(spec, basis, t, kind)
            for t in trainings
        ]
        compared = [_compared(row, start, tokens) for row in plain]
        rows += compared
        walls.append(_wall(kind, compared, start, least_efficiency))
    return Projection(
        name=spec.name,
        model=spec.model.name,
        device=spec.cluster.device.name,
        reference=reference,
        measured=_measured_best(spec, basis, trials),
        rows=tuple(rows),
        walls=tuple(walls),
        least_efficiency=least_efficiency,
        tokens=tokens,
        basis=basis,
    )


def _at(spec: CampaignSpec, nodes: int) -> Training:
    training = training_of(spec)
    return replace(training, cluster=replace(training.cluster, nodes=nodes))


def _row(spec: CampaignSpec, basis: Basis, training: Training, scaling: Scaling) -> Row:
    """The best plan at one node count, not yet compared with anything."""
    cluster, batch = training.cluster, spec.global_batch_size
    plain = Row(scaling=scaling, nodes=cluster.nodes, devices=cluster.devices, global_batch_size=batch)
    if batch is not None and scaling is Scaling.WEAK:
        if batch * cluster.nodes % spec.cluster.nodes:
            grown = f"global batch {batch} * {cluster.nodes} / {spec.cluster.nodes} nodes"
            return replace(plain, global_batch_size=None, reason=f"{grown} is no whole number of sequences")
        batch = batch * cluster.nodes // spec.cluster.nodes
        plain = replace(plain, global_batch_size=batch)
    try:
        space = build_space(spec.space, spec.model, cluster, batch, workload_of(spec))
    except SpaceTooLarge as error:
        return replace(plain, reason=str(error))
    if len(space) == 0:
        return replace(plain, reason=_why_none(space, batch))
    outlook = foresee(training, space.columns, basis.calibration)
    first = int(outlook.best(1)[0])
    return replace(plain, best=outlook.of(first, space[first]))


def _why_none(space: Space, batch: int | None) -> str:
    """Why no plan is legal; the batch where it alone forbids all."""
    tp, cp, size = (pick(space.dimensions[name]) for name, pick in _EXTREMES)
    devices = space.context.cluster.devices
    # Ranks that are neither tp nor cp each need a micro-batch of their own: dp * pp of them, where there is a pipeline.
    needed = -(-devices // (tp * cp)) * size
    if batch is not None and needed > batch:
        told = f"{devices} devices / (tp({tp}) * cp({cp})) * micro_batch_size({size}) = {needed} sequences at least"
        return f"no legal plan: {told}, but the global batch is {batch}"
    ranked = sorted(space.counts.broken.items(), key=lambda item: -item[1])[:3]
    shares = "; ".join(f"{name} rejects {count}" for name, count in ranked)
    return f"no legal plan among {space.counts.combinations} combinations: {shares}"


_EXTREMES = (("tp", max), ("cp", max), ("micro_batch_size", min))


def _compared(row: Row, start: Row, tokens: float | None) -> Row:
    own, base = _speed(row), _speed(start)
    if own is None:
        return row
    run = None
    if tokens is not None:
        # The faster, the sooner: the ends change places.
        seconds = [tokens / end for end in (own.tokens_per_s.value, own.tokens_per_s.high, own.tokens_per_s.low)]
        days, hours = ([factor * value for value in seconds] for factor in (1 / 86400, row.devices / 3600))
        run = Run(days=Estimate(*days), device_hours=Estimate(*hours))
    if base is None:
        return replace(row, run=run)
    speedup = own.tokens_per_s.value / base.tokens_per_s.value
    return replace(row, speedup=speedup, efficiency=speedup * start.devices / row.devices, run=run)


def _wall(scaling: Scaling, rows: Sequence[Row], start: Row, least: float) -> Wall:
    """The first node count beyond the reference that has no plan or is not efficient enough, and what makes it so."""
    for row in rows:
        if row.nodes > start.nodes and (told := _wall_sentence(row, start, least)):
            return Wall(scaling=scaling, nodes=row.nodes, sentence=f"{scaling} scaling {told}")
    farthest = count_nodes(max(row.nodes for row in rows))
    told = f"keeps at least {100 * least:g} % efficiency up to {farthest}"
    return Wall(scaling=scaling, nodes=None, sentence=f"{scaling} scaling {told}")


def _wall_sentence(row: Row, start: Row, least: float) -> str:
    """Why this row is beyond the wall; empty for one that is not."""
    if row.best is None:
        return f"ends before {count_nodes(row.nodes)}: {row.reason}"
    if row.efficiency is None or row.efficiency >= least:
        return ""
    reached = f"{count_nodes(row.nodes)} ({100 * row.efficiency:.0f} %)"
    return f"falls below {100 * least:g} % efficiency at {reached}: {_culprit(row, start)}"


def _culprit(row: Row, start: Row) -> str:
    """The part of the step whose device time per token grew most since the reference."""
    own, base = _speed(row), _speed(start)
    if own is None or base is None:
        return "there is nothing to compare it with"
    scale = _device_s_per_token(row, own) / _device_s_per_token(start, base)
    grown = {part: scale * share - base.shares[part] for part, share in own.shares.items()}
    worst = max(grown, key=lambda part: grown[part])
    now, before = (100 * speed.shares[worst] for speed in (own, base))
    return f"most is lost to {WORDS[worst]}, {now:.0f} % of the step, {before:.0f} % at {count_nodes(start.nodes)}"


def count_nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _device_s_per_token(row: Row, speed: Speed) -> float:
    return row.devices / speed.tokens_per_s.value


def _speed(row: Row) -> Speed | None:
    return None if row.best is None else row.best.speed


def _measured_best(spec: CampaignSpec, basis: Basis, trials: Sequence[Trial]) -> MeasuredBest | None:
    measured = [(trial.measurement.tokens_per_s, trial) for trial in trials if trial.measurement is not None]
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
