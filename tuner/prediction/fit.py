"""Whether a training fits into the devices' memory, how fast it is, and what to change: of one model, one cluster and
one recipe, predicted for all plans of a program at once. Nothing is run or stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

import numpy as np

from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import Columns, columns_of, rows, value_of
from meshtune.search_spaces.physics.constants import Constants
from meshtune.search_spaces.physics.estimate import estimate_phases, log_peak, log_step
from meshtune.search_spaces.physics.memory import Phase, phases
from meshtune.search_spaces.physics.rollout import engine_of
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training, missing, usable_bytes
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan, Recompute
from meshtune.search_spaces.recipe import Adapter, Offload, Optimizer, Recipe, Rollout
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.units import gibibytes
from meshtune.tuner.prediction.memory_needs import MAX_TIMES_NODES, SURE, sure_plans
from meshtune.tuner.prediction.predict import Basis, Prediction, foresee, training_of

# "OOM after hundreds of steps": of a hundred micro-batches one has a row that is longer.
LONGEST = 0.99
MICRO_BATCHES = range(1, 2**10 + 1)
# To 4 Mi tokens.
SEQUENCES = range(2**8, 2**22 + 1, 2**8)
# Of the plans that may fit so many are judged with their spread at a time, the fastest first.
TOGETHER = 64
# No usual node has a host with more memory: 2 TB in a DGX H100 and in AWS' p5.
MOST_HOST_BYTES = 2**41
# A change that frees less than this share of the peak helps nobody.
LEAST_GAIN = 0.01
TOKENS = 1e9
# Axes of a plan, in the order in which changes are told that cost the same; what is left of it follows from the others.
_AXES = ("recompute", "micro_batch_size", "zero_stage", "zero_group", "tp", "cp", "pp", "ep")
# What a change does beside memory and time.
NUMERICS, TRAINED = "changes numerics", "changes what is trained"
_DERIVED = ("dp", "grad_accum_steps")
SHARES = {tenths / 10 for tenths in range(1, 10)}
_ZERO = ("every weight on every device (DDP)", "ZeRO 1", "ZeRO 2 (SHARD_GRAD_OP)", "ZeRO 3 (FULL_SHARD)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Of a setting whose rows are generated. p_fits, phases_s: of the phases of a step. wanted, in_flight: rows of one
    engine at once at the most, and as many as there is room for with answers of mean length: where they are fewer,
    others wait. *_idle: the share of a step in which devices of the engines' own, and those of the training, wait."""

    p_fits: Mapping[Phase, float]
    wanted: float
    in_flight: float
    phases_s: Mapping[Phase, float]
    training_idle: float
    engines_idle: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One share of the engine with one micro-batch. phase: the one that fits least, with p_fits. waits: of the rows
    that an engine may have in flight some find no room (vLLM preempts them: slow, and alive)."""

    share: float
    micro_batch: int
    p_fits: float
    phase: Phase
    waits: bool
    step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A plan of one training as predicted; or a change, as what it leads to. words: of the plan, or of the change.
    training: the code and the recipe. seq_len: of the rows that fill the memory. phases_bytes: the peak of each phase.
    price_per_1e9_tokens: in the price's currency; wh_per_1e9_tokens: at the boards' full power; null where unknown.
    Of a change, gain_bytes: what the peak is less with it; time_share: by how much a step takes longer, 0.1: 10 %, null
    where unknown."""

    words: str
    model: str
    parameters: int
    training: str
    seq_len: int
    prediction: Prediction
    phases_bytes: Mapping[Phase, float]
    price_per_1e9_tokens: float | None
    wh_per_1e9_tokens: float | None
    generated: Generated | None
    effect: str = ""
    gain_bytes: float = 0.0
    time_share: float | None = None

    @property
    def safe(self) -> bool:
        return self.prediction.p_fits >= SURE and self.prediction.host_optimizer_bytes <= MOST_HOST_BYTES

    def against(self, own: Setting, words: str, effect: str = "") -> Setting:
        """As a change of another setting."""
        speed, before = self.prediction.speed, own.prediction.speed
        return replace(
            self,
            words=words,
            effect=effect,
            gain_bytes=own.prediction.peak_bytes.value - self.prediction.peak_bytes.value,
            time_share=speed.step_s.value / before.step_s.value - 1 if speed and before else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """spec: its baseline is the user's setting, None where nobody has one. space: of the spec. program: the stages of
    ZeRO and the offload that it has, as [fit] in runners/programs/profiles/table.toml has them; empty: not known.
    lengths: tokens of rows, from which the longest one of a micro-batch follows; empty: all rows are as long as the
    model's seq_len. notes: as of Fit."""

    spec: CampaignSpec
    space: Space
    program: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    basis: Basis = field(default_factory=Basis)

    def best(self, columns: Columns, recipe: Recipe | None = None, seq_len: int = 0) -> Setting:
        """The fastest of these plans that is safe, else the one that is nearest to fit. recipe: in place of the spec's.
        seq_len: of all rows."""
        recipe = self.spec.training if recipe is None else recipe
        if seq_len:
            recipe = replace(recipe, mean_tokens=seq_len if recipe.rollout else 0)
        training = training_of(replace(self.spec, training=recipe))
        sizes = columns["micro_batch_size"]
        groups = [(sizes > 0, seq_len or training.model.seq_len)]
        if self.lengths and not seq_len:
            shares = {size: LONGEST ** (1 / (size * training.recipe.rows_per_sample)) for size in np.unique(sizes)}
            longest = {size: np.quantile(self.lengths, share, method="higher") for size, share in shares.items()}
            groups = [(sizes == size, min(int(most), training.model.seq_len)) for size, most in longest.items()]
        found = []
        for some, tokens in groups:
            own = replace(training, model=replace(training.model, seq_len=tokens))
            with np.errstate(all="ignore"):
                for plans in _likely(own, rows(columns, some), self.basis.calibration.constants):
                    outlook = foresee(own, plans, self.basis.calibration)
                    safe_speed = np.where(outlook.fits >= SURE, outlook.score / outlook.fits, 0.0)
                    if safe_speed.any():
                        break
            nearest = np.lexsort((outlook.memory.peak_bytes, -outlook.fits.round(3)))[0]
            row = int(np.argmax(safe_speed) if safe_speed.any() else nearest)
            found.append((safe_speed[row], outlook.fits[row], -tokens, outlook, row))
        *_, outlook, row = max(found, key=lambda one: one[:3])
        one, cluster = rows(outlook.columns, slice(row, row + 1)), self.spec.cluster
        plan = Plan(**{name: value_of(name, int(one[name][0])) for name in PLAN_FIELDS})
        prediction, own = outlook.of(row, plan), outlook.training
        speed, rollout = prediction.speed, recipe.rollout
        devices = plan.world_size + (rollout.devices if rollout else 0)
        hours = devices * TOKENS / speed.tokens_per_s.value / 3600 if speed else None
        by_phase = phases(own, one, self.basis.calibration.constants)
        return Setting(
            words=plan_words(plan),
            model=own.model.name,
            parameters=own.model.parameters,
            training=own.framework.name,
            seq_len=own.model.seq_len,
            prediction=prediction,
            phases_bytes={phase: float(size[0]) for phase, size in by_phase.items()},
            price_per_1e9_tokens=hours and cluster.device_hour_price and hours * cluster.device_hour_price,
            wh_per_1e9_tokens=hours and cluster.device.power_w and hours * cluster.device.power_w,
            generated=self._generated(own, rollout, one, prediction) if rollout else None,
        )

    def _generated(self, own: Training, rollout: Rollout, one: Columns, prediction: Prediction) -> Generated:
        plan, calibration, speed = prediction.plan, self.basis.calibration, prediction.speed
        step_rows = np.array([rollout.updates * plan.micro_batch_size * plan.grad_accum_steps * plan.dp])
        rows, most, _ = engine_of(own, rollout).flight(step_rows, plan.world_size)
        seconds, engines_idle = dict[Phase, float](), 0.0
        if speed:
            # Engines that run ahead, beside nothing: no step waits for their longest answers.
            apart = replace(rollout, behind=0, answer_tokens=rollout.mean_answer_tokens) if rollout.behind else rollout
            alone = replace(own, recipe=replace(own.recipe, rollout=apart))
            parts = {part: float(time[0]) for part, time in time_parts(alone, one, calibration.constants).items()}
            seconds = {phase: parts.pop(TimePart(phase)) for phase in (Phase.GENERATION, Phase.LOG_PROBS)}
            engines_idle = 1 - (parts.pop(TimePart.REFIT) + seconds[Phase.GENERATION]) / speed.step_s.value
            seconds[Phase.STEADY] = sum(parts.values())
        sizes = estimate_phases(own, one, calibration).items()
        return Generated(
            p_fits={phase: float(size.fits(usable_bytes(own))[0]) for phase, size in sizes},
            wanted=min(float(rows[0]), rollout.max_rows),
            in_flight=float(most[0]),
            phases_s=seconds,
            training_idle=speed.shares[TimePart.GENERATION] if speed and rollout.devices else 0.0,
            engines_idle=engines_idle if rollout.devices else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """fits: a plan is safe, which is one with P(fits) of 0.9 or more. best: the fastest safe plan, else the one that is
    nearest to fit. given: the user's own. largest_micro_batch, longest_sequence: the fastest plan that is safe with the
    most of it; null where nothing fits. changes: each alone, from the given setting, else from the best; by what they
    cost of time, and behind the others those of what is trained. enough: a change that makes it fit; null where
    something fits, or nothing would. diagram: where rows are generated, shares of the engine with micro-batches of the
    given setting, else of the best; fastest_cell: of its safe ones. notes: what a launch leaves open, and what is taken
    for it; of devices, what would help where no change is enough."""

    cluster: str
    seq_len: int
    fits: bool
    best: Setting
    given: Setting | None
    largest_micro_batch: Setting | None
    longest_sequence: Setting | None
    changes: tuple[Setting, ...]
    enough: Setting | None
    diagram: tuple[Cell, ...]
    fastest_cell: Cell | None
    notes: tuple[str, ...]
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """fit: of the model that was named. largest: where none was, the largest model that fits, by method; null: none
    does."""

    fit: Fit | None = None
    largest: Mapping[str, Setting | None] | None = None


def fit(question: FitQuestion) -> Fit:
    spec, space, basis = question.spec, question.space, question.basis
    best = question.best(space.columns)
    given = None if spec.baseline is None else question.best(columns_of([spec.baseline]))
    start = given or best
    changes = _changes(question, start)
    # Each layout once, in the least micro-batch; a step has one of the largest, or as many as a pipeline has stages.
    sizes = space.columns["micro_batch_size"]
    layouts = rows(space.columns, sizes == sizes.min())
    free, ones = {**layouts, "grad_accum_steps": layouts["pp"]}, np.ones_like(layouts["pp"])
    largest = longest = enough = None
    if best.safe:
        rollout = spec.training.rollout
        if rollout is None or not rollout.update_tokens:  # else passes are as full whatever the micro-batch is
            largest = _largest(MICRO_BATCHES, lambda size: question.best({**free, "micro_batch_size": size * ones}))
        longest = _largest(SEQUENCES, lambda tokens: question.best(layouts, None, tokens))
    else:  # of the recipe, in any layout
        enough = next((one for one in chain(changes, _of_recipe(question, start, layouts)) if one.safe), None)
    diagram = tuple(_diagram(question, start.prediction.plan))
    safe = [cell for cell in diagram if cell.p_fits >= SURE and cell.step_s is not None]
    needs = [] if best.safe or enough else [_devices_needed(question)]
    return Fit(
        cluster=f"{spec.cluster.devices} x {spec.cluster.device.name}",
        seq_len=spec.model.seq_len,
        fits=best.safe,
        best=best,
        given=given,
        largest_micro_batch=largest,
        longest_sequence=longest,
        changes=changes,
        enough=enough,
        diagram=diagram,
        fastest_cell=min(safe, key=lambda cell: (cell.waits, cell.step_s or 0.0), default=None),
        notes=(*question.notes, *needs),
        basis=basis.judged(training_of(spec), [best.prediction.speed]).words,
    )


def _diagram(question: FitQuestion, plan: Plan) -> Iterator[Cell]:
    recipe, each = question.spec.training, plan.micro_batch_size * plan.grad_accum_steps
    if (rollout := recipe.rollout) is None:
        return
    sizes = {plan.micro_batch_size, *(2**power for power in range(11) if each % 2**power == 0)}
    shares = {rollout.share, *SHARES} if rollout.share else {0.0}
    for share, size in product(sorted(shares), sorted(sizes)):
        packed = size * question.spec.model.seq_len // plan.cp * (rollout.update_tokens > 0)
        own = replace(recipe, rollout=replace(rollout, share=share, update_tokens=packed))
        setting = question.best(columns_of([replace(plan, micro_batch_size=size, grad_accum_steps=each // size)]), own)
        rows, speed = setting.generated, setting.prediction.speed
        assert rows is not None
        phase, p_fits = min(rows.p_fits.items(), key=lambda one: one[1])
        yield Cell(share, size, p_fits, phase, rows.in_flight < rows.wanted, speed.step_s.value if speed else None)


def _devices_needed(question: FitQuestion) -> str:
    """How many times the nodes would hold the training, with as many rows for each device."""
    spec, times = question.spec, 1
    while times < MAX_TIMES_NODES:
        times *= 2
        cluster = replace(spec.cluster, nodes=spec.cluster.nodes * times)
        wide = replace(spec, cluster=cluster, global_batch_size=times * (spec.global_batch_size or 1), baseline=None)
        if sure_plans(space_of(wide), training_of(wide), question.basis.calibration):
            return f"{cluster.devices} such devices ({cluster.nodes} nodes) would hold it"
    return f"nor would up to {MAX_TIMES_NODES} times the nodes"


def plan_words(plan: Plan, *axes: str) -> str:
    """The plan, or its values of some axes, in words that people have for them."""
    ranks = plan.zero_group or plan.dp * plan.cp
    words = {axis: f"{axis} {degree}" for axis in ("tp", "pp", "cp", "ep") if (degree := getattr(plan, axis)) > 1}
    if plan.dp * plan.cp > 1:
        words["zero_stage"] = f"{_ZERO[plan.zero_stage]}{f' over {ranks} devices' * (plan.zero_stage > 0)}"
    words["recompute"] = "no recomputation" if plan.recompute is Recompute.NONE else f"{plan.recompute} recomputation"
    accumulated = f", accumulated {plan.grad_accum_steps} times" * (plan.grad_accum_steps > 1)
    words["micro_batch_size"] = f"micro-batch {plan.micro_batch_size}{accumulated}"
    return ", ".join(words.get(axis, f"{axis} {getattr(plan, axis)}") for axis in axes or words)


def _likely(training: Training, columns: Columns, constants: Constants) -> Iterator[Columns]:
    """Of many plans those that are expected to fit, some at a time, the fastest first; at last the leanest."""
    peak = log_peak(training, columns, constants)
    within = peak <= np.log(usable_bytes(training))
    c, cost = rows(columns, within), peak[within]
    if not missing(training):
        cost = log_step(training, c, constants) - np.log(c["micro_batch_size"] * c["grad_accum_steps"] * c["dp"])
    order = np.argsort(cost)
    for start in range(0, len(order), TOGETHER):
        yield rows(c, order[start : start + TOGETHER])
    yield rows(columns, np.argsort(peak)[:TOGETHER])


def _largest(values: Sequence[int], setting_of: Callable[[int], Setting]) -> Setting | None:
    """The setting of the last of ascending values for which a plan is safe, as memory grows with them."""
    low, high, known = -1, len(values), None
    while high - low > 1:
        middle = (low + high) // 2
        setting = setting_of(values[middle])
        low, high, known = (middle, high, setting) if setting.safe else (low, middle, known)
    return known


def _changes(question: FitQuestion, own: Setting) -> tuple[Setting, ...]:
    """Each change alone that frees memory of this setting, as the formulas see it."""
    every, plan = question.space.columns, own.prediction.plan
    alone = columns_of([plan])
    alike = {axis: every[axis] == alone[axis][0] for axis in PLAN_FIELDS if axis not in _DERIVED}
    found = []
    for axis in _AXES:
        near = np.logical_and.reduce([same for name, same in alike.items() if name != axis]) & ~alike[axis]
        tried = [rows(every, near)] if near.any() else []
        if axis == "zero_stage" and question.program and plan.pp == 1 < plan.dp * plan.cp:
            # A launch has one stage; its program has others.
            stages = question.program["space"].get(axis, range(4))
            tried = [columns_of([replace(plan, zero_stage=one, zero_group=0)]) for one in reversed(stages)]
        for columns in tried:
            changed = question.best(columns)
            found.append(changed.against(own, plan_words(changed.prediction.plan, axis)))
    found += _of_recipe(question, own, alone)
    helpful = [one for one in found if one.gain_bytes >= LEAST_GAIN * own.prediction.peak_bytes.value]
    return tuple(sorted(helpful, key=lambda one: (one.effect == TRAINED, round(one.time_share or 0.0, 2))))


def _of_recipe(question: FitQuestion, own: Setting, columns: Columns) -> Iterator[Setting]:
    """Changes of the recipe, in the best of these plans that can have them."""
    recipe, program, device = question.spec.training, question.program, question.spec.cluster.device
    lora = {"adapter": recipe.adapter or Adapter(), "frozen_layers": 0, "frozen_embedding": False, "frozen_head": False}
    offered: list[tuple[str, str, dict[str, Any]]] = [
        ("fused loss (Liger, Cut CE)", "", {"fused_loss": True}),
        ("8-bit optimizer", NUMERICS, {"optimizer": Optimizer.ADAMW_8BIT}),
        ("LoRA of rank 16 in place of all weights", TRAINED, lora),
        ("LoRA on a base of 4 bits (QLoRA)", TRAINED, {**lora, "base_bits": 4}),
        ("activations offloaded", "", {"offload_activations": True}),
        ("optimizer offloaded", "", {"offload": Offload.OPTIMIZER}),
        ("optimizer and weights offloaded", "", {"offload": Offload.WEIGHTS}),
    ]
    if (rollout := recipe.rollout) and rollout.share:
        offered += [
            ("weights offloaded for a generation", "", {"rollout": replace(rollout, weights_leave=True)}),
            ("optimizer offloaded for a generation", "", {"rollout": replace(rollout, optimizer_leaves=True)}),
            ("the engine sleeps for an update", "", {"rollout": replace(rollout, sleeps=True)}),
            ("a smaller share", "", {"rollout": replace(rollout, share=max(0.1, rollout.share - 0.1))}),
            (f"an engine over {2 * rollout.tp} devices", "", {"rollout": replace(rollout, tp=2 * rollout.tp)}),
        ]
    shared = device.shares_host_memory or device.kind is DeviceKind.CPU
    stages = np.where(columns["dp"] * columns["cp"] > 1, columns["zero_stage"], program.get("stage_alone", 0))
    for words, effect, fields in offered:
        kept = program.get("offload", {}).get(fields["offload"], ()) if "offload" in fields else range(4)
        able = np.isin(stages, kept)
        able &= program.get("quantizes", True) or "base_bits" not in fields
        able &= not shared or "offloaded" not in words
        if able.any():
            kind = NUMERICS if effect == TRAINED and recipe.adapter else effect
            changed = question.best(rows(columns, able), replace(recipe, **fields))
            host = changed.prediction.host_optimizer_bytes
            most = f", more than {gibibytes(MOST_HOST_BYTES)}" * (host > MOST_HOST_BYTES)
            yield changed.against(own, f"{words}{f' ({gibibytes(int(host))} of host memory{most})' * (host > 0)}", kind)
