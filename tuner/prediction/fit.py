"""Whether a training fits into the devices' memory, how fast it is, and what to change: of one model, one cluster and
one recipe, predicted for all plans of a program at once. Nothing is run or stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp
from typing import Any

import numpy as np

from meshtune.search_spaces.columns import Columns, FloatColumn, columns_of, rows, value_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.physics.estimate import heavy_cdf
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile
from meshtune.search_spaces.physics.memory import MemoryPart, Phase, offloaded_bytes, phases
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training, usable_bytes
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan, Recompute
from meshtune.search_spaces.recipe import Adapter, Offload, Optimizer, Recipe
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.prediction.memory_needs import SURE, memory_needs
from meshtune.tuner.prediction.predict import HEAVY_WIDTH, WIDTH, Basis, foresee

# "OOM after hundreds of steps": of a hundred micro-batches one has a row that is longer.
LONGEST = 0.99
MICRO_BATCHES = tuple(size for power in range(11) for size in (2**power, 3 * 2**power // 2) if size > 1 or not power)
# Sequences are multiples of it, and no longer than so many of it: 4 Mi tokens.
SEQUENCE, MAX_SEQUENCES = 256, 2**14
# A change that frees less than this share of the peak helps nobody.
LEAST_GAIN = 0.01
TOKENS = 1e9
# Of a plan, what follows from the others.
_DERIVED = ("dp", "grad_accum_steps")
_AXES = ("recompute", "micro_batch_size", "zero_stage", "zero_group", "tp", "cp", "pp", "ep")
_ZERO = ("every weight on every device (DDP)", "ZeRO 1", "ZeRO 2 (SHARD_GRAD_OP)", "ZeRO 3 (FULL_SHARD)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """space: with the program's abilities and a fixed global batch. framework: the code's profile without the recipe.
    start: the user's setting, None where nobody has one. lengths: tokens of rows, from which the longest one of a
    micro-batch and the mean follow; empty: all rows are as long as the model's seq_len. notes: as of Fit."""

    space: Space
    framework: FrameworkProfile
    recipe: Recipe
    start: Plan | None = None
    lengths: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class Effect(StrEnum):
    """What a change does beside memory and time."""

    NONE = "none"
    NUMERICS = "changes numerics"
    TRAINED = "changes what is trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A plan as predicted; what is unknown is null. seq_len: of the rows that fill the memory. phases_bytes: the peak
    of each phase; parts_bytes: of a step's fullest moment. host_bytes: of a node, for an optimizer that is offloaded.
    price_per_1e9_tokens: in the price's currency. wh_per_1e9_tokens: at the boards' full power."""

    plan: Plan
    plan_key: str
    words: str
    training: str
    seq_len: int
    p_fits: float
    peak_bytes: Estimate
    phases_bytes: Mapping[Phase, float]
    parts_bytes: Mapping[MemoryPart, float]
    host_bytes: float
    step_s: Estimate | None
    tokens_per_s: Estimate | None
    price_per_1e9_tokens: float | None
    wh_per_1e9_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Most:
    """The largest value of something with which a plan surely fits, and the fastest such plan."""

    value: int
    setting: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """gain_bytes: what the peak is less with it. time_share: by how much a step takes longer, 0.1: 10 %; null:
    unknown."""

    words: str
    effect: Effect
    peak_bytes: float
    gain_bytes: float
    p_fits: float
    time_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """sure: a P(fits) from which on a plan is safe. fits: a plan is. best: the fastest safe plan, else the one that is
    nearest to fit. given: the user's own. micro_batch_size, seq_len_most: null where nothing fits. changes: each alone,
    from the given setting, else from the best; those without an effect on what is computed first, then by their cost.
    enough: the smallest change that makes it fit; null where something fits, or nothing would. notes: what a launch
    leaves open, and what is taken for it; of devices, what would help where no change is enough."""

    model: str
    parameters: int
    seq_len: int
    cluster: str
    device_bytes: int
    training: str
    sure: float
    fits: bool
    best: Setting
    given: Setting | None
    micro_batch_size: Most | None
    seq_len_most: Most | None
    changes: tuple[Change, ...]
    enough: Change | None
    notes: tuple[str, ...]
    basis: str


@dataclass(frozen=True, slots=True)
class _Judged:
    """Plans of one training, row by row: `values` by name, of memory by part and phase too."""

    training: Training
    columns: Columns
    values: Mapping[str, FloatColumn]

    @property
    def safe(self) -> Any:
        return self.values["fits"] >= SURE

    def best(self, among: Any) -> int:
        """The fastest of these rows, of which there is one."""
        return int(np.argmax(np.where(among, self.values["score"], -np.inf)))

    def plan(self, row: int) -> Plan:
        return Plan(**{name: value_of(name, int(self.columns[name][row])) for name in PLAN_FIELDS})

    def setting(self, row: int) -> Setting:
        values = {name: float(column[row]) for name, column in self.values.items()}
        plan, cluster = self.plan(row), self.training.cluster
        step = tokens = price = watt_hours = None
        if "step_s" in values:
            factor = exp(WIDTH * values["time_sd"])
            step, tokens = (Estimate.around(values[name], factor) for name in ("step_s", "tokens_per_s"))
            hours = plan.world_size * TOKENS / tokens.value / 3600
            price = cluster.device_hour_price and cluster.device_hour_price * hours
            watt_hours = cluster.device.power_w and cluster.device.power_w * hours
        return Setting(
            plan=plan,
            plan_key=plan.key,
            words=plan_words(plan),
            training=self.training.framework.name,
            seq_len=int(values["seq_len"]),
            p_fits=values["fits"],
            peak_bytes=Estimate.around(values["peak"], exp(HEAVY_WIDTH * values["memory_sd"])),
            phases_bytes={phase: values[phase] for phase in Phase},
            parts_bytes={part: values[part] for part in MemoryPart},
            host_bytes=float(offloaded_bytes(self.training, rows(self.columns, slice(row, row + 1)))[0]),
            step_s=step,
            tokens_per_s=tokens,
            price_per_1e9_tokens=price,
            wh_per_1e9_tokens=watt_hours,
        )


def fit(question: FitQuestion) -> Fit:
    space, training = question.space, _training(question, question.recipe)
    every = _judged(question, training, space.columns)
    fits = bool(every.safe.any())
    best = every.best(every.safe if fits else every.values["fits"] == every.values["fits"].max())
    given = None if question.start is None else _judged(question, training, columns_of([question.start]))
    start, row = (every, best) if given is None else (given, 0)
    enough = None if fits else _enough(question, every, best)
    needs = memory_needs(space, training) if not fits and enough is None else ()
    model, cluster = space.context.model, space.context.cluster
    return Fit(
        model=model.name,
        parameters=model.parameters,
        seq_len=model.seq_len,
        cluster=f"{cluster.devices} x {cluster.device.name}",
        device_bytes=cluster.device.memory_bytes,
        training=training.framework.name,
        sure=SURE,
        fits=fits,
        best=every.setting(best),
        given=None if given is None else given.setting(0),
        micro_batch_size=_largest_micro_batch(question, training) if fits else None,
        seq_len_most=_longest_sequence(question, training) if fits else None,
        changes=_changes(question, start.plan(row), start, row, every),
        enough=enough,
        notes=(*question.notes, *needs),
        basis=Basis().judged(training, ()).words,
    )


def plan_words(plan: Plan, *axes: str) -> str:
    """The plan, or its values of some axes, in words that people have for them."""
    ranks = plan.zero_group or plan.dp * plan.cp
    words = {axis: f"{axis} {degree}" for axis in ("tp", "pp", "cp", "ep") if (degree := getattr(plan, axis)) > 1}
    if plan.dp * plan.cp > 1:
        words["zero_stage"] = f"{_ZERO[plan.zero_stage]}{f' over {ranks} devices' * (plan.zero_stage > 0)}"
    words["recompute"] = "no recomputation" if plan.recompute is Recompute.NONE else f"{plan.recompute} recomputation"
    words["micro_batch_size"] = f"micro-batch {plan.micro_batch_size}, accumulated {plan.grad_accum_steps} times"
    return ", ".join(words.get(axis, f"{axis} {getattr(plan, axis)}") for axis in axes or words)


def _training(question: FitQuestion, recipe: Recipe) -> Training:
    context = question.space.context
    return Training(context.model, context.cluster, with_recipe(question.framework, recipe), recipe)


def _judged(question: FitQuestion, training: Training, columns: Columns) -> _Judged:
    """Columns with the predictions; with lengths each size of micro-batch at the longest row that it is to expect."""
    if not question.lengths:
        return _Judged(training, columns, _values(training, columns))
    values: dict[str, FloatColumn] = {}
    sizes = columns["micro_batch_size"]
    for size in np.unique(sizes):
        within = LONGEST ** (1 / (int(size) * training.recipe.rows_per_sample))
        longest = int(np.quantile(question.lengths, within, method="higher"))
        model = replace(training.model, seq_len=min(longest, training.model.seq_len))
        own = replace(training, model=model)
        for name, column in _values(own, rows(columns, sizes == size)).items():
            values.setdefault(name, np.zeros(len(sizes)))[sizes == size] = column
    return _Judged(training, columns, values)


def _values(training: Training, columns: Columns) -> dict[str, FloatColumn]:
    with np.errstate(all="ignore"):
        found = foresee(training, columns, UNCALIBRATED)
        by_phase = phases(training, columns, UNCALIBRATED.constants)
        peak = np.maximum.reduce(list(by_phase.values()))
        fits = heavy_cdf(np.log(usable_bytes(training) / peak) / found.memory.log_sd)
    values = {"peak": peak, "memory_sd": found.memory.log_sd, "fits": fits, "score": found.score}
    values["seq_len"] = np.full(len(peak), float(training.model.seq_len))
    if found.time is not None:
        sequences = columns["micro_batch_size"] * columns["grad_accum_steps"] * columns["dp"]
        tokens = sequences * training.recipe.rows_per_sample * (training.recipe.mean_tokens or training.model.seq_len)
        speed = tokens / found.time.step_s
        values |= {"step_s": found.time.step_s, "time_sd": found.time.log_sd, "tokens_per_s": speed, "score": speed}
    named: Mapping[Any, FloatColumn] = {**found.memory.parts, **by_phase}
    return values | {str(name): column for name, column in named.items()}


def _layouts(space: Space) -> Columns:
    """The plans of the least micro-batch: each layout once, but for the micro-batch."""
    sizes = space.columns["micro_batch_size"]
    return rows(space.columns, sizes == sizes.min())


def _largest(values: Sequence[int], judge: Any) -> Most | None:
    """The last of ascending values for which a plan surely fits, as memory grows with them."""
    low, high = -1, len(values)
    known: _Judged | None = None
    while high - low > 1:
        middle = (low + high) // 2
        judged = judge(values[middle])
        low, high, known = (middle, high, judged) if judged.safe.any() else (low, middle, known)
    return None if known is None else Most(value=values[low], setting=known.setting(known.best(known.safe)))


def _largest_micro_batch(question: FitQuestion, training: Training) -> Most | None:
    """Whatever the global batch is: a step has one such micro-batch, or as many as a pipeline has stages."""
    layouts = _layouts(question.space)

    def judge(size: int) -> _Judged:
        alike = {"micro_batch_size": np.full_like(layouts["pp"], size), "grad_accum_steps": layouts["pp"]}
        return _judged(question, training, {**layouts, **alike})

    return _largest(MICRO_BATCHES, judge)


def _longest_sequence(question: FitQuestion, training: Training) -> Most | None:
    """Of rows that are all as long, in the least micro-batch."""
    layouts, even = _layouts(question.space), replace(question, lengths=())
    recipe = replace(training.recipe, mean_tokens=0)

    def judge(length: int) -> _Judged:
        longer = replace(training, recipe=recipe, model=replace(training.model, seq_len=length))
        return _judged(even, longer, layouts)

    powers = _largest([SEQUENCE * 2**power for power in range(MAX_SEQUENCES.bit_length())], judge)
    if powers is None:
        return None
    step = max(SEQUENCE, powers.value // 16)
    return _largest(range(powers.value, 2 * powers.value, step), judge)


def _changes(question: FitQuestion, plan: Plan, start: _Judged, row: int, every: _Judged) -> tuple[Change, ...]:
    """Each change alone that frees memory of this plan, as the formulas see it."""
    own = {name: float(column[row]) for name, column in start.values.items()}
    found = [_change(own, every, other, words) for words, other in _of_plan(plan, every)]
    for words, effect, recipe in _of_recipe(question.recipe):
        changed = _judged(question, _training(question, recipe), rows(start.columns, slice(row, row + 1)))
        found.append(_change(own, changed, 0, words, effect))
    helpful = [change for change in found if change.gain_bytes >= LEAST_GAIN * own["peak"]]
    return tuple(sorted(helpful, key=lambda one: (list(Effect).index(one.effect), one.time_share or 0.0)))


def _change(own: Mapping[str, float], changed: _Judged, row: int, words: str, effect: Effect = Effect.NONE) -> Change:
    values = {name: float(column[row]) for name, column in changed.values.items()}
    return Change(
        words=words,
        effect=effect,
        peak_bytes=values["peak"],
        gain_bytes=own["peak"] - values["peak"],
        p_fits=values["fits"],
        time_share=values["step_s"] / own["step_s"] - 1 if "step_s" in values else None,
    )


def _of_plan(plan: Plan, every: _Judged) -> Iterable[tuple[str, int]]:
    """Legal plans that differ from this one along one axis: of each axis the fastest that is safe, else the leanest."""
    own = {name: column[0] for name, column in columns_of([plan]).items()}
    alike = {axis: every.columns[axis] == own[axis] for axis in PLAN_FIELDS if axis not in _DERIVED}
    for axis in _AXES:
        others = [same for name, same in alike.items() if name != axis]
        near = np.logical_and.reduce(others) & ~alike[axis]
        if not near.any():
            continue
        safe = near & every.safe
        leanest = near & (every.values["peak"] == every.values["peak"][near].min())
        row = every.best(safe if safe.any() else leanest)
        yield plan_words(every.plan(row), axis), row


def _of_recipe(recipe: Recipe) -> list[tuple[str, Effect, Recipe]]:
    """Those that change nothing free no memory, and are left out for it."""
    lora = {"adapter": recipe.adapter or Adapter(), "frozen_layers": 0, "frozen_embedding": False, "frozen_head": False}
    quantized = Effect.TRAINED if recipe.adapter is None else Effect.NUMERICS
    changes: tuple[tuple[str, Effect, dict[str, Any]], ...] = (
        ("fused loss (Liger, Cut CE)", Effect.NONE, {"fused_loss": True}),
        ("activations offloaded", Effect.NONE, {"offload_activations": True}),
        ("optimizer offloaded", Effect.NONE, {"offload": Offload.OPTIMIZER}),
        ("optimizer and weights offloaded", Effect.NONE, {"offload": Offload.WEIGHTS}),
        ("8-bit optimizer", Effect.NUMERICS, {"optimizer": Optimizer.ADAMW_8BIT}),
        ("LoRA of rank 16 in place of all weights", Effect.TRAINED, lora),
        ("LoRA on a base of 4 bits (QLoRA)", quantized, {**lora, "base_bits": 4}),
    )
    return [(words, effect, replace(recipe, **change)) for words, effect, change in changes]


def _enough(question: FitQuestion, every: _Judged, row: int) -> Change | None:
    """The first change that makes the nearest plan fit, else those of a recipe together, one after the other."""
    own = {name: float(column[row]) for name, column in every.values.items()}
    alone = _changes(question, every.plan(row), every, row, every)
    if (first := next((one for one in alone if one.p_fits >= SURE), None)) is not None:
        return first
    recipe, taken = question.recipe, list[str]()
    for change in alone:
        offered = {words: changed for words, _, changed in _of_recipe(recipe)}
        if change.words not in offered:
            continue
        recipe, taken = offered[change.words], [*taken, change.words]
        judged = _judged(question, _training(question, recipe), question.space.columns)
        if judged.safe.any():
            return _change(own, judged, judged.best(judged.safe), " and ".join(taken), change.effect)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestModel:
    """method: full, lora or qlora. setting: the fastest safe plan; null, with the model, where none fits."""

    method: str
    model: str | None = None
    parameters: int | None = None
    setting: Setting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """fit: of the model that was named; null where none was. largest: else the largest model that fits, by method."""

    fit: Fit | None = None
    largest: tuple[LargestModel, ...] = ()


def largest_model(method: str, questions: Iterable[FitQuestion]) -> LargestModel:
    """questions: with the largest model first; the first one of which a plan surely fits."""
    for question in questions:
        every = _judged(question, _training(question, question.recipe), question.space.columns)
        if every.safe.any():
            model, setting = question.space.context.model, every.setting(every.best(every.safe))
            return LargestModel(method=method, model=model.name, parameters=model.parameters, setting=setting)
    return LargestModel(method=method)
