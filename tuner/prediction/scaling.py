"""Scaling to other node counts: the best plan, its speed and efficiency at each, and where scaling stops to pay.

For every node count the space is enumerated again and the best plan predicted, so a projection is of the best that can
be done there; or one layout is stretched, where a plan is given: then dp, and with a fixed batch the accumulation,
follow the devices. Pure: a spec, a basis and node counts in, a value out.

Speed-up and efficiency compare with the smallest node count that has a plan which should fit. Where the campaign
measured its best plan, every prediction is scaled by what that plan was measured at over what was predicted for it, so
that the projection passes through the measurement; that factor cancels in speed-ups. Intervals are of each row alone,
and hold the prediction as it is without the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import Training, missing
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space, SpaceTooLarge
from meshtune.tuner.campaign.spec import CampaignSpec, build_space, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate, percent
from meshtune.tuner.prediction.predict import Basis, Prediction, foresee, training_of
from meshtune.tuner.prediction.projection import (
    LAYOUT,
    LEAST_FITS,
    Projection,
    Row,
    Scaling,
    TrainingRun,
    Wall,
    anchor_of,
    anchored,
    count_nodes,
)
from meshtune.tuner.prediction.quote import PART_WORDS

# An efficiency that is above 100 % by less needs no reason.
ROUNDING = 5e-4


def make_projection(
    spec: CampaignSpec,
    basis: Basis,
    nodes: Sequence[int],
    *,
    least_efficiency: float = 0.8,
    tokens: float | None = None,
    trials: Sequence[Trial] = (),
    plan: Plan | None = None,
) -> Projection:
    """The projection of a spec to these node counts. trials: of its campaign, for the measured best. plan: the layout
    for all of them; its dp, and with a fixed batch its accumulation, are those of the devices there.

    Raises InvalidValue for node counts that no cluster has, for facts that are missing at the largest, and for an
    accumulation of the layout where the batch is fixed.
    """
    if plan is not None and plan.grad_accum_steps != 1 and spec.global_batch_size is not None:
        problem = f"follows from the global batch, {spec.global_batch_size} on {count_nodes(spec.cluster.nodes)}"
        raise InvalidValue([Problem("plan.grad_accum_steps", problem)])
    own = spec.cluster.nodes
    counts = sorted({own, *nodes})
    training = training_of(spec)
    trainings = [replace(training, cluster=replace(training.cluster, nodes=count)) for count in counts]
    # Larger clusters miss what smaller ones do, and more.
    if problems := missing(trainings[-1]):
        raise InvalidValue(problems)
    kinds = [Scaling.FREE] if spec.global_batch_size is None else [Scaling.WEAK, Scaling.STRONG]
    anchor = anchor_of(spec, basis, trials, plan)
    # At the spec's own count all kinds of scaling are the same.
    start = _row(spec, basis, trainings[counts.index(own)], kinds[0], plan)
    by_kind: dict[Scaling, list[Row]] = {}
    for kind in kinds:
        unscaled = [
            replace(start, scaling=kind) if t.cluster.nodes == own else _row(spec, basis, t, kind, plan)
            for t in trainings
        ]
        by_kind[kind] = [anchored(row, anchor, own, searched=plan is None) for row in unscaled]
    fitting = [count for at, count in enumerate(counts) if all(by_kind[kind][at].fits for kind in kinds)]
    reference = min(fitting, default=own)
    rows: list[Row] = []
    walls: list[Wall] = []
    for kind in kinds:
        base = by_kind[kind][counts.index(reference)]

        def why_above(row: Row, base: Row = base, kind: Scaling = kind) -> str:
            assert row.best is not None  # it has an efficiency
            there = _row(spec, basis, trainings[counts.index(base.nodes)], kind, row.best.plan)
            return _why_above(row, base, anchored(there, anchor, own, searched=False))

        compared = [_compared(row, base, tokens, why_above) for row in by_kind[kind]]
        rows += compared
        walls.append(_wall(kind, compared, base, least_efficiency))
    # Without what follows from the devices and the batch.
    words = [] if plan is None else [word for word in plan.key.split() if not word.startswith(("dp", "ga"))]
    return Projection(
        name=spec.name,
        model=spec.model.name,
        device=spec.cluster.device.name,
        layout=" ".join(words),
        reference_nodes=reference,
        measured_best=None if anchor is None else anchor.words,
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


def _row(spec: CampaignSpec, basis: Basis, training: Training, scaling: Scaling, given: Plan | None) -> Row:
    """The best plan at one node count, or the given one there, not yet compared with anything."""
    cluster, batch = training.cluster, spec.global_batch_size
    empty = Row(
        scaling=scaling,
        nodes=cluster.nodes,
        devices=cluster.devices,
        global_batch_size=batch,
        best=None,
        reason="",
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
    if given is not None:
        return _stretched(empty, space, basis, training, given)
    if len(space) == 0:
        return replace(empty, reason=_why_none(space, batch))
    outlook = foresee(training, space.columns, basis.calibration)
    # The best of those that should fit; of all, where none should.
    fitting = outlook.fits >= LEAST_FITS
    first = int(np.argmax(np.where(fitting, outlook.score, -1.0) if fitting.any() else outlook.score))
    return replace(empty, best=outlook.of(first, space[first]))


def _stretched(empty: Row, space: Space, basis: Basis, training: Training, given: Plan) -> Row:
    """The row of a given layout. Bounds of the spec do not count, its rules do."""
    batch, devices = empty.global_batch_size, training.cluster.devices
    per_replica = given.tp * given.pp * given.cp
    if devices % per_replica:
        reason = f"tp({given.tp}) * pp({given.pp}) * cp({given.cp}) = {per_replica} does not divide {devices} devices"
        return replace(empty, reason=reason)
    dp = devices // per_replica
    if batch is not None and batch % (given.micro_batch_size * dp):
        reason = f"micro_batch_size({given.micro_batch_size}) * dp({dp}) does not divide the global batch {batch}"
        return replace(empty, reason=reason)
    steps = given.grad_accum_steps if batch is None else batch // (given.micro_batch_size * dp)
    # Where a group would be of all ranks or more, it is of all.
    group = given.zero_group if given.zero_group < dp * given.cp else 0
    plan = replace(given, dp=dp, grad_accum_steps=steps, zero_group=group)
    if violations := space.explain(plan, ignore_bounds=True):
        return replace(empty, reason="not legal: " + "; ".join(map(str, violations)))
    return replace(empty, best=foresee(training, columns_of([plan]), basis.calibration).of(0, plan))


def _why_none(space: Space, batch: int | None) -> str:
    """Why no plan is legal; the batch where it alone forbids all."""
    tp, cp = (max(space.dimensions[name]) for name in ("tp", "cp"))
    size = min(space.dimensions["micro_batch_size"])
    devices = space.context.cluster.devices
    # Ranks that are neither tp nor cp each need a micro-batch of their own: dp * pp of them, where there is a pipeline.
    needed = -(-devices // (tp * cp)) * size
    if batch is not None and needed > batch:
        need = f"{devices} devices / (tp({tp}) * cp({cp})) * micro_batch_size({size}) = {needed} sequences at least"
        return f"no legal plan: {need}, but the global batch is {batch}"
    ranked = sorted(space.counts.rejected.items(), key=lambda item: -item[1])[:3]
    shares = "; ".join(f"{name} rejects {count}" for name, count in ranked)
    return f"no legal plan among {space.counts.combinations} combinations: {shares}"


def _compared(row: Row, start: Row, tokens: float | None, why_above: Callable[[Row], str]) -> Row:
    own, base = row.speed, start.speed
    if own is None or row.best is None:
        return row
    if not row.fits:
        return replace(row, note=_unfit(row.best))
    run = None
    if tokens is not None:
        # The faster, the sooner: the ends change places.
        speed = own.tokens_per_s
        time_s = Estimate(tokens / speed.value, tokens / speed.high, tokens / speed.low)
        run = TrainingRun(days=time_s.times(1 / 86400), device_hours=time_s.times(row.devices / 3600))
    if base is None or not start.fits:
        return replace(row, run=run)
    speedup = own.tokens_per_s.value / base.tokens_per_s.value
    efficiency = speedup * start.devices / row.devices
    note = why_above(row) if efficiency > 1 + ROUNDING else ""
    return replace(row, speedup=speedup, efficiency=efficiency, run=run, note=note)


def _unfit(best: Prediction) -> str:
    return f"should not fit: P(fits) {percent(best.p_fits)}, below {100 * LEAST_FITS:g} %"


def _why_above(row: Row, start: Row, there: Row) -> str:
    """Why a device of the row is faster than at the reference. there: the row's layout at the reference."""
    assert row.best is not None  # both have a speed
    assert start.best is not None
    before, plan = start.best.plan, row.best.plan
    changes = _changes(row, start)
    least = min(changes, key=lambda part: changes[part])
    gain = f"{percent(-changes[least])} of the reference's time per token is saved in {PART_WORDS[least]}"
    differing = [name for name in LAYOUT if getattr(plan, name) != getattr(before, name)]
    if not differing:
        return f"above 100 %: {gain}"
    changed = ", ".join(f"{name} {getattr(before, name)} -> {getattr(plan, name)}" for name in differing)
    where = f"on {count_nodes(start.nodes)}"
    why = f"which is no faster {where}"
    if there.best is None:
        why = f"which is not possible {where} ({there.reason})"
    elif not there.fits:
        why = f"which {_unfit(there.best).replace(':', f' {where}:', 1)}"
    elif start.measured:
        why = f"which was not the fastest measured {where}"
    elif there.speed and start.speed and there.speed.tokens_per_s.value > start.speed.tokens_per_s.value:
        why = f"which ranks lower {where} by its P(fits), {percent(there.best.p_fits)}"
    return f"above 100 %: {changed}, {why}; {gain}"


def _wall(scaling: Scaling, rows: Sequence[Row], start: Row, least: float) -> Wall:
    """The first node count beyond the reference that has no plan or is not efficient enough, and what makes it so."""
    if not start.fits:
        words = "has no plan that should fit to compare with"
        return Wall(scaling=scaling, nodes=None, sentence=f"{scaling} scaling {words}")
    for row in rows:
        if row.nodes <= start.nodes:
            continue
        words = ""
        if row.best is None:
            words = f"ends before {count_nodes(row.nodes)}: {row.reason}"
        elif not row.fits:
            words = f"ends before {count_nodes(row.nodes)}: the best plan {row.note}"
        elif row.efficiency is not None and row.efficiency < least:
            reached = f"{count_nodes(row.nodes)} ({100 * row.efficiency:.0f} %)"
            # The part of the step whose device time per token grew most since the reference.
            worst = max((grown := _changes(row, start)), key=lambda part: grown[part])
            now, before = (100 * one.speed.shares[worst] for one in (row, start) if one.speed is not None)
            shares = f"{now:.0f} % of the step, {before:.0f} % at {count_nodes(start.nodes)}"
            lost = f"most is lost to {PART_WORDS[worst]}, {shares}"
            words = f"falls below {100 * least:g} % efficiency at {reached}: {lost}"
        if words:
            return Wall(scaling=scaling, nodes=row.nodes, sentence=f"{scaling} scaling {words}")
    farthest = count_nodes(max(row.nodes for row in rows))
    words = f"keeps at least {100 * least:g} % efficiency up to {farthest}"
    return Wall(scaling=scaling, nodes=None, sentence=f"{scaling} scaling {words}")


def _changes(row: Row, start: Row) -> dict[TimePart, float]:
    """How much more device time per token each part takes than at the reference, as shares of the reference's."""
    own, base = row.speed, start.speed
    assert own is not None  # the row has an efficiency
    assert base is not None
    # The growth in device time per token, which is the inverse of the efficiency.
    scale = row.devices / own.tokens_per_s.value / (start.devices / base.tokens_per_s.value)
    return {part: scale * share - base.shares[part] for part, share in own.shares.items()}
