"""What the measures of a study are taken of: campaigns that ran, a plan in one of them, and what a step of it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from meshtune.runners.outcome import FAILED, Measurement, Verdict
from meshtune.search_spaces.checks import InvalidValue, Problem, problems_as
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.knobs import sized
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of
from meshtune.tuner.campaign.trial import Trial, time_by_part
from meshtune.tuner.prediction.predict import foresee, training_of
from meshtune.tuner.specs.knobs import plan_fields

# Beside the pipeline, at the end of a step.
OUTSIDE_PIPELINE = (str(TimePart.DP), str(TimePart.OPTIMIZER))


class Unanswered(Exception):
    """There is no number, for the reason in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One campaign of a study that ran. seed: None where the spec's own holds."""

    seed: int | None
    campaign: Campaign
    space: Space
    trials: tuple[Trial, ...]

    @property
    def spec(self) -> CampaignSpec:
        return self.campaign.spec

    @property
    def in_order(self) -> list[Trial]:
        """Its trials in the order of planning."""
        return sorted(self.trials, key=lambda trial: trial.number)

    @property
    def ended(self) -> list[Trial]:
        """Those that were not cancelled, in order."""
        return [trial for trial in self.in_order if trial.verdict not in (None, Verdict.CANCELLED)]


# By the names of a study's campaigns; a run for each seed.
Evidence = Mapping[str, Sequence[Run]]
# A plan of a campaign: its baseline, the best that it measured or should measure, or axes and knobs by name.
PlanOf = Literal["baseline", "best"] | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step of a plan takes, measured or predicted. parts_s: where the time goes, in any unit."""

    spec: CampaignSpec
    plan: Plan
    step_s: float
    parts_s: Mapping[str, float]

    @property
    def tokens_per_s(self) -> float:
        return self.plan.global_batch_size * self.spec.model.seq_len / self.step_s

    @property
    def flops_per_device(self) -> float:
        return self.spec.model.flops_per_token * self.tokens_per_s / self.plan.world_size


class StepQuantity(StrEnum):
    """A number of a step. hardware_tflops_per_device counts the layers' forward pass once more under full recomputation
    (Narayanan et al. 2021, equation 3). bubble, bubble_of_pipeline: the bubble's share of the step, and of what the
    step is without the replicas' collectives and the optimizer."""

    MFU = "mfu", "%"
    TFLOPS_PER_DEVICE = "tflops_per_device", "TFLOP/s"
    HARDWARE_TFLOPS_PER_DEVICE = "hardware_tflops_per_device", "TFLOP/s"
    TOKENS_PER_S = "tokens_per_s", "tokens/s"
    TOKENS_PER_S_PER_DEVICE = "tokens_per_s_per_device", "tokens/s/device"
    STEP_TIME = "step_time", "s"
    BUBBLE = "bubble", "%"
    BUBBLE_OF_PIPELINE = "bubble_of_pipeline", "%"

    unit: str

    def __new__(cls, name: str, unit: str) -> StepQuantity:
        member = str.__new__(cls, name)
        member._value_, member.unit = name, unit
        return member

    def of(self, step: Step) -> float:
        """In its unit. Raises Unanswered where a peak or a profile is needed and there is none."""
        model, flops = step.spec.model, step.flops_per_device
        if self is StepQuantity.MFU:
            dtype = workload_of(step.spec).dtype
            peak = step.spec.cluster.device.peak_flops.get(dtype)
            if peak is None:
                raise Unanswered(f"no peak in {dtype} is known of {step.spec.cluster.device.name}")
            return 100 * flops / peak
        if self is StepQuantity.HARDWARE_TFLOPS_PER_DEVICE and step.plan.recompute is Recompute.FULL:
            head = 6.0 * model.hidden * model.vocab
            return flops * (4 / 3 * (model.flops_per_token - head) + head) / model.flops_per_token / 1e12
        if self in (StepQuantity.TFLOPS_PER_DEVICE, StepQuantity.HARDWARE_TFLOPS_PER_DEVICE):
            return flops / 1e12
        if self is StepQuantity.STEP_TIME:
            return step.step_s
        if self in (StepQuantity.BUBBLE, StepQuantity.BUBBLE_OF_PIPELINE):
            outside = OUTSIDE_PIPELINE if self is StepQuantity.BUBBLE_OF_PIPELINE else ()
            whole = sum(time for part, time in step.parts_s.items() if part not in outside)
            if not whole:
                raise Unanswered("the run has no profile")
            return 100 * step.parts_s.get(str(TimePart.BUBBLE), 0.0) / whole
        return step.tokens_per_s / (1 if self is StepQuantity.TOKENS_PER_S else step.plan.world_size)


def plan_in(spec: CampaignSpec, space: Space, chosen: PlanOf) -> Plan:
    """The plan that is named, complete; not for `best`. Raises InvalidValue where there is none or it breaks rules."""
    if chosen == "baseline":
        if spec.baseline is None:
            raise InvalidValue([Problem("plan", "is the baseline, which the spec has not")])
        return spec.baseline
    assert isinstance(chosen, dict)
    with problems_as(InvalidValue, "plan"):
        plan = space.complete(**plan_fields(chosen, space.knobs))
    if broken := space.explain(plan, ignore_bounds=True):
        raise InvalidValue([Problem("plan", f"{plan.key} is not legal: {broken[0]}")])
    return plan


def predicted_step(run: Run, chosen: PlanOf) -> Step:
    """By the physics with its default constants. `best`: of the plan that it expects most of. Raises Unanswered."""
    spec, training = run.spec, training_of(run.spec)
    if chosen == "best":
        outlook = foresee(training, run.space.columns, UNCALIBRATED, per_device=spec.objective.per_device)
        row = int(outlook.best(1)[0])
        plan = run.space[row]
    else:
        plan = plan_in(spec, run.space, chosen)
    at_size = replace(training, cluster=sized(spec.cluster, plan))
    speed = foresee(at_size, columns_of([plan]), UNCALIBRATED).of(0, plan).speed
    if speed is None:
        raise Unanswered("facts about the cluster are missing that times depend on")
    parts = {str(part): seconds for part, seconds in speed.parts_s.items()}
    return Step(spec=spec, plan=plan, step_s=speed.step_s.value, parts_s=parts)


def measured_step(run: Run, chosen: PlanOf) -> Step:
    """Raises Unanswered where the plan was not measured, with how its trial ended."""
    if chosen == "best":
        measured = [(trial, numbers) for trial in run.trials if (numbers := trial.measurement) is not None]
        if not measured:
            raise Unanswered("nothing was measured")
        trial, numbers = max(measured, key=lambda pair: speed_of(run, pair[1]))
    else:
        plan = plan_in(run.spec, run.space, chosen)
        tried = [trial for trial in run.trials if trial.plan == plan]
        ended = [(trial, numbers) for trial in tried if (numbers := trial.measurement) is not None]
        if not ended:
            raise Unanswered(
                f"{plan.key} ended {tried[-1].verdict or tried[-1].state}" if tried else f"{plan.key} never ran"
            )
        trial, numbers = ended[-1]
    parts = {one.part: one.time_s for one in time_by_part(numbers.profile)}
    return Step(spec=run.spec, plan=trial.plan, step_s=numbers.step_time_s, parts_s=parts)


def measured_speeds(run: Run) -> dict[Plan, float]:
    return {trial.plan: speed_of(run, one) for trial in run.trials if (one := trial.measurement) is not None}


def with_failures(run: Run) -> dict[Plan, float]:
    """The same, and a plan that failed as fast as the slowest: what DeepHyper is told of failures."""
    speeds = measured_speeds(run)
    failed = [trial.plan for trial in run.trials if trial.verdict in FAILED]
    return {**dict.fromkeys(failed, min(speeds.values())), **speeds} if speeds else {}


def speed_of(run: Run, measured: Measurement) -> float:
    """As the campaign's objective compares plans: the more the better."""
    return run.spec.objective.speed(measured, measured.step_time_s)
