"""Which measured plans may be recommended: by their numerics, the hardware they were measured on, and their training;
and whether a job ran with the knobs of its plan, by what it says that it saw of them. Pure.

Numerics are compared with the baseline's; without one, with every knob at its default. An inactive knob counts as its
default. A plan that changes the numerics is measured and shown, and recommended only where the spec accepts it
(`accept: numerics`); its losses are then those of another computation, and need not be the baseline's, as long as they
are finite. Any other plan whose first losses or gradient norms differ by more than the tolerance is never recommended:
losses alone say little of a wrong gradient, since the first one holds none, and AdamW hides its length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from math import inf, isclose, isfinite, isinf

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.knob import Knob, Numerics
from meshtune.search_spaces.knob_values import KnobValue, same_value, word
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.node_kinds import Reference, reference_of
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import gibibytes

ACCEPT = "`accept: numerics` in the spec"
# Two trainings are the same when their first losses differ by at most this, by number format. float32 layouts of the
# built-in trainer agree to 1e-6 (benchmarks/log.md); bfloat16 rounds at 2**-8 per operation.
LOSS_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
# Of their gradient norms the same, relative, beyond the last digit that a program prints.
NORM_TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2}
# Of a first loss that is a multiple of the baseline's: other tokens of the same text differ by less.
_RATIO = 0.05
# What a step's batch is cut into, for people.
_CUTS = (("micro-batches", "grad_accum_steps"), ("replicas", "dp"))
# A rank cannot have held so many times its device's memory: of a host it may take more than its share.
MEMORY_MARGIN = 8
# Of numbers as programs print them.
_TOLERANCE = 1e-6


def tolerance_of(tolerances: Mapping[str, float], dtype: str) -> float:
    """The coarsest for a format without one of its own: a false alarm would hide a good setting."""
    return tolerances.get(dtype, max(tolerances.values()))


@dataclass(frozen=True, slots=True)
class TrainingCheck:
    """The first losses of two trainings, compared, or their gradient norms. equal: None where there are none. step: the
    first (from 0) that differs by more than the tolerance; of equal trainings the one that differs the most.
    difference: of losses. ratio: of norms, to the baseline's."""

    equal: bool | None
    step: int | None = None
    difference: float | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        if self.equal is None:
            return "no losses to compare"
        words = "trains the same" if self.equal else "does not train the same"
        if self.ratio is not None:
            return f"{words}: the gradient norm of step {self.step} is {self.ratio:.3g} times the baseline's"
        return f"{words}: the losses of step {self.step} differ by {self.difference:.2g} from the baseline's"


def check_losses(first: Sequence[float], second: Sequence[float], tolerance: float) -> TrainingCheck:
    """Compare step by step, as far as both go. A loss that is not finite equals nothing, not even another.

    The global batch is fixed and the data are the same, so the first losses of two plans agree up to rounding: later
    ones contain the earlier updates, so a wrong gradient, sum or shard shows there.
    """
    pairs = zip(first, second, strict=False)
    differences = [abs(a - b) if isfinite(a) and isfinite(b) else inf for a, b in pairs]
    if not differences:
        return TrainingCheck(None)
    above = [step for step, difference in enumerate(differences) if difference > tolerance]
    step = above[0] if above else differences.index(max(differences))
    return TrainingCheck(not above, step, differences[step])


def check_norms(first: Sequence[float], base: Sequence[float], tolerance: float) -> TrainingCheck:
    """The same of gradient norms, which are compared no finer than they are printed."""
    ratios = {step: a / b for step, (a, b) in enumerate(zip(first, base, strict=False)) if b}
    if not ratios:
        return TrainingCheck(None)
    digit = 10.0 ** max(min(int(Decimal(str(norm)).as_tuple().exponent) for norm in norms) for norms in (first, base))
    away = {step: abs(ratio - 1) for step, ratio in ratios.items()}
    step = next((step for step in away if away[step] > max(tolerance, 1.5 * digit / base[step])), None)
    least = max(away, key=away.__getitem__) if step is None else step
    return TrainingCheck(step is None, least, ratio=ratios[least])


class Reason(Enum):
    """Why measured plans are never recommended, in words."""

    NUMERICS = "change the numerics"
    HARDWARE = "ran on other hardware"
    TRAINING = "do not train the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the measurements of a campaign are held against. reference: their hardware; None where it is unknown.
    baseline: None where it was not measured. dtype: of the computation."""

    spec: CampaignSpec
    reference: Reference | None
    baseline: Measurement | None
    dtype: str

    def training(self, measured: Measurement) -> TrainingCheck | None:
        """The first losses, and of equal ones the gradient norms, against the baseline's; None without a measured
        baseline, and for another global batch, which trains otherwise by intent."""
        base, dtype = self.baseline, self.dtype
        if base is None or measured.tokens_per_step != base.tokens_per_step:
            return None
        losses = check_losses(measured.first_losses, base.first_losses, tolerance_of(LOSS_TOLERANCES, dtype))
        norms = (measured.first_gradient_norms, base.first_gradient_norms)
        of_norms = check_norms(*norms, tolerance_of(NORM_TOLERANCES, dtype))
        return of_norms if losses.equal is None or (losses.equal and of_norms.equal is False) else losses

    def other_hardware(self, measured: Measurement) -> str:
        """How the hardware differs from the reference, for people; empty where it does not, as far as known."""
        return "" if self.reference is None else self.reference.note(measured)


def ground_of(spec: CampaignSpec, trials: Sequence[Trial]) -> Ground:
    measured = (trial.measurement for trial in trials if trial.origin is Origin.BASELINE)
    baseline, dtype = next(filter(None, measured), None), workload_of(spec).dtype
    return Ground(spec=spec, reference=reference_of(trials), baseline=baseline, dtype=dtype)


def eligibility(ground: Ground, plan: Plan, measured: Measurement) -> Reason | None:
    """Why the plan is never recommended by this measurement; None where it may be."""
    changed = changed_numerics(ground.spec, plan)
    if changed and not ground.spec.accepts_numerics:
        return Reason.NUMERICS
    if ground.other_hardware(measured):
        return Reason.HARDWARE
    return Reason.TRAINING if trains_otherwise(ground.training(measured), changed) else None


def eligible(spec: CampaignSpec, trials: Sequence[Trial]) -> list[Trial]:
    """Those that were measured, and may be recommended by that."""
    ground = ground_of(spec, trials)
    measured = ((trial, trial.measurement) for trial in trials)
    return [trial for trial, found in measured if found is not None and eligibility(ground, trial.plan, found) is None]


def training_words(ground: Ground, plan: Plan, measured: Measurement) -> str:
    """How the training differs from the baseline's, and what the job's number must be; empty where it does not."""
    check, base = ground.training(measured), ground.spec.baseline
    if check is None or not trains_otherwise(check, changed_numerics(ground.spec, plan)):
        return ""
    if plan == base:
        return f"a run of the baseline {check}: runs of this program are not alike, so set its seed"
    what = "loss that a job tells must be the mean" if check.ratio is None else "gradient must be that of the mean loss"
    words = f"{check}; the {what} over the global batch of a step, {plan.global_batch_size} x"
    words += f" {ground.spec.model.seq_len} {ground.spec.model.worded('tokens')}"
    losses = () if check.ratio is not None or ground.baseline is None else ground.baseline.first_losses
    ratio = measured.first_losses[0] / losses[0] if losses and losses[0] else 1.0
    if base is None or isclose(ratio, 1, rel_tol=_RATIO) or not isfinite(ratio):
        return words
    cuts = [(name, getattr(plan, axis), getattr(base, axis)) for name, axis in _CUTS]
    seems = [
        f"as of {form} ({own} here, {other} in the baseline)"
        for name, own, other in cuts
        for form, share in ((f"one of the {name}", other / own), (f"a sum over {name}", own / other))
        if own != other and isclose(ratio, share, rel_tol=_RATIO)
    ]
    return f"{words}: the first one is {ratio:.3g} times the baseline's{', ' if seems else ''}{' or '.join(seems)}"


def first_mismatch(spec: CampaignSpec, trials: Sequence[Trial]) -> str:
    """Of the first trial that does not train as the baseline does, with its number; empty where all do."""
    ground = ground_of(spec, trials)
    told = ((one.number, training_words(ground, one.plan, one.measurement)) for one in trials if one.measurement)
    return next((f"trial {number} {words}" for number, words in told if words), "")


def noted(spec: CampaignSpec, trials: Sequence[Trial], trial: Trial, outcome: Outcome) -> Outcome:
    """The outcome of `trial`, with a reason that says where it does not train as the baseline does; of the baseline
    itself, which trial that ended before it does not."""
    if outcome.measurement is None:
        return outcome
    known = [replace(one, attempts=(replace(one.last, outcome=outcome),)) if one is trial else one for one in trials]
    words = training_words(ground_of(spec, known), trial.plan, outcome.measurement)
    if trial.origin is Origin.BASELINE:
        words = first_mismatch(spec, known)
    return replace(outcome, reason="; ".join(filter(None, (outcome.reason, words))))


def changed_numerics(spec: CampaignSpec, plan: Plan) -> tuple[str, ...]:
    """The knobs by which the plan computes something else than the reference, such as "fp8 = mxfp8"."""
    return tuple(
        f"{knob.name} = {word(own)}"
        for knob in spec.knobs
        if knob.numerics is Numerics.CHANGES
        if not same_value(own := value_in(plan, knob), value_in(spec.baseline, knob))
    )


def numerics_kept(spec: CampaignSpec) -> dict[str, KnobValue]:
    """The values of knobs that a plan must have to be recommended, by name; none where the spec accepts others."""
    if spec.accepts_numerics:
        return {}
    return {knob.name: value_in(spec.baseline, knob) for knob in spec.knobs if knob.numerics is Numerics.CHANGES}


def trains_otherwise(check: TrainingCheck | None, changed: tuple[str, ...]) -> bool:
    """True where the first losses or gradient norms show another training than the baseline's, of a kind that no knob
    declares. check: None where there is nothing to compare. changed: as `changed_numerics` names it."""
    if check is None or check.equal is not False:
        return False
    # No declared change makes a loss that is no number.
    return not changed or (check.difference is not None and isinf(check.difference))


def value_in(plan: Plan | None, knob: Knob) -> KnobValue:
    """The knob's value in a plan; its default where it is inactive there, and without a plan."""
    default = knob.default
    assert default is not None  # every knob has one
    return default if plan is None else plan.knobs.get(knob.name, default)


def impossible(spec: CampaignSpec, measured: Measurement) -> Problem | None:
    """What no device of the campaign can have done, beyond what a `Measurement` itself refuses."""
    memory = spec.cluster.device.memory_bytes
    for name in ("peak_memory_bytes", "peak_held_bytes"):
        if (peak := max(getattr(measured, name), default=0)) > MEMORY_MARGIN * memory:
            return Problem(name, f"must fit a device of {gibibytes(memory)}, and {gibibytes(peak)} do not")
    return None


def checked(spec: CampaignSpec, plan: Plan, outcome: Outcome) -> Outcome:
    """The outcome; a crash where its numbers are `impossible`, or its job saw another value of a knob than the plan, or
    none: it measured another plan. That no plan changes, but the spec or the program."""
    measured = outcome.measurement or outcome.partial
    if measured is None:
        return outcome
    untold, problem = "; ".join(contradictions(spec.knobs, plan, measured.knobs)), impossible(spec, measured)
    wrong = untold or ("" if problem is None else str(problem.under("measurement")))
    if not wrong:
        return outcome
    return Outcome(
        verdict=Verdict.CRASHED,
        cause=Cause.USER_BUG if untold else Cause.CRASH,
        reason="; ".join(told for told in (wrong, outcome.reason) if told),
        log_tail=outcome.log_tail,
    )


def contradictions(knobs: Sequence[Knob], plan: Plan, seen: Mapping[str, KnobValue | None]) -> Iterator[str]:
    """A sentence for each knob of the plan that did not arrive. seen: None for one that the job saw nothing of."""
    known = {knob.name: knob for knob in knobs}
    for name, value in plan.knobs.items():
        if name not in seen or _agree(known.get(name), value, seen[name]):
            continue
        other = seen[name]
        saw = "nothing of it" if other is None else word(other)[:100]
        yield f"knob {name} did not arrive: the plan has {word(value)}, the job saw {saw}"


def unconfirmed_knobs(knobs: Sequence[Knob], plan: Plan, measurement: Measurement) -> tuple[str, ...]:
    """The knobs that the job was told of and said nothing about, by name: that they arrived is not known."""
    return tuple(
        knob.name
        for knob in knobs
        if knob.way != "size"
        and (value := plan.knobs.get(knob.name)) is not None
        and knob.told(value) is not None
        and knob.name not in measurement.knobs
    )


def _agree(knob: Knob | None, value: KnobValue, seen: KnobValue | None) -> bool:
    """True where a job may say this of the value: as the plan has it, or as it was told."""
    if seen is None:
        return False
    told = value if knob is None else knob.told(value)
    return any(_alike(one, word(seen)) for one in {word(value), word(value if told is None else told)})


def _alike(one: str, other: str) -> bool:
    if one == other or (one in ("true", "false") and other.lower() == one):
        return True
    try:
        return isclose(float(one), float(other), rel_tol=_TOLERANCE)
    except ValueError:
        return False
