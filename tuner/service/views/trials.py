"""What the REST API shows of trials: complete, with derived numbers beside raw ones, or one line of numbers each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite

from typing_extensions import TypeAliasType

from meshtune.runners.base import Cause
from meshtune.runners.hardware import HardwareKind
from meshtune.runners.outcome import Measurement, Verdict
from meshtune.runners.step_breakdown import Straggler
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.trial import Attempt, Expectation, Origin, Trial, TrialState
from meshtune.tuner.results.quantities import SettingView, TrialBrief, times_of
from meshtune.tuner.results.views import Page, view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """Where the time of a step went, one value per rank; the parts of a rank add up to `step_time_s`.

    waiting_s: of the collectives' parts, until the last peer arrived. own_time_s: median of the rank's own work.
    stages: pipeline stages. straggler: the rank that is clearly slower than its peers, and by which ratio. serialised:
    nothing overlapped in the profiled steps: communication counts whole, and `step_time_s` is longer than the timed
    steps. exposed_s: of a timed step, at least how much the rank's own work leaves to communication and idle time.
    """

    step_time_s: float
    parts_s: tuple[Mapping[str, float], ...]
    waiting_s: tuple[Mapping[str, float], ...]
    own_time_s: tuple[float, ...]
    stages: tuple[int, ...]
    serialised: bool
    exposed_s: tuple[float, ...]
    straggler: Straggler | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementView:
    """A measurement: raw numbers, and the mean of the steps (step_time_s) with its 95 % interval.

    mfu: a share of the device's peak. first_gradient_norms: of the whole gradient, before clipping; empty where the
    job told none. Per rank: peak_memory_bytes of tensors, peak_held_bytes of the process.
    attention_kernels: which ones ran; empty where unknown. hardware: the kinds of devices that it ran on, with their
    nodes; empty where unknown. knobs: the values that the job saw, empty where it does not say. compile_s: what
    compiling took, which is in no step; null where nothing was compiled.
    """

    step_times_s: tuple[float, ...]
    warmup_times_s: tuple[float, ...]
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    median_step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    flops_per_s_per_device: float | None
    mfu: float | None
    peak_memory_bytes: tuple[int, ...]
    peak_held_bytes: tuple[int, ...]
    first_losses: tuple[float, ...]
    first_gradient_norms: tuple[float, ...]
    attention_kernels: tuple[str, ...]
    hardware: tuple[HardwareKind, ...]
    knobs: Mapping[str, KnobValue]
    compile_s: float | None
    profile: ProfileView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialView:
    """The steps of a pruned job before it gave up. They prove that the plan is slower than another and measure nothing,
    so there is no throughput. A first loss is null where it was no finite number."""

    steps: int
    step_times_s: tuple[float, ...]
    warmup_times_s: tuple[float, ...]
    step_time_s: float
    peak_memory_bytes: tuple[int, ...]
    peak_held_bytes: tuple[int, ...]
    first_losses: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One job. failure: why it failed; null for one that did not. wait: why it waits in a queue, or is refused, in the
    runner's words; empty once it has started. avoid: the nodes that the runner was asked to keep it away from. nodes:
    where it ran, failed_nodes: those of them to blame for its end; empty where the runner knows none.
    """

    number: int
    job_name: str
    job_id: str | None
    state: TrialState
    verdict: Verdict | None
    failure: Cause | None
    reason: str
    failed_rank: int | None
    phase: str | None
    log_tail: str
    partial: PartialView | None
    avoid: tuple[str, ...]
    nodes: tuple[str, ...]
    failed_nodes: tuple[str, ...]
    wait: str
    planned_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial; measurement and partial are those of its last attempt. expectation: what the search expected of the plan
    when it chose it; null for the baseline, a plan put in by hand, a confirmation, and where it expected nothing.
    setting: of its plan, in the answer about one trial; null where that has no second run."""

    number: int
    origin: Origin
    state: TrialState
    verdict: Verdict | None
    plan: Plan
    plan_key: str
    expectation: Expectation | None
    measurement: MeasurementView | None
    partial: PartialView | None
    attempts: list[AttemptView]
    setting: SettingView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    name: str
    bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsView:
    """The logs of one attempt; none where its folder was pruned."""

    files: list[LogView]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What a runner is given to measure a plan. files: by name, in `directory`. script: what a batch scheduler is sent;
    null for a runner that takes none."""

    name: str
    command: tuple[str, ...]
    directory: str
    script: str | None
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPage(Page):
    trials: list[TrialView]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBriefPage(Page):
    trials: list[TrialBrief]


# Named, so that the document has one model for the route's answer.
TrialsAnswer = TypeAliasType("TrialsAnswer", TrialPage | TrialBriefPage)


# Of an attempt that has ended; else so.
_OF_OUTCOME = {"verdict": None, "failure": None, "reason": "", "failed_rank": None, "phase": None, "log_tail": ""}


def trial_view(trial: Trial, setting: SettingView | None = None) -> TrialView:
    attempts = [_attempt_view(attempt) for attempt in trial.attempts]
    measured = trial.measurement
    return view_of(
        TrialView,
        trial,
        measurement=None if measured is None else _measurement_view(measured),
        partial=attempts[-1].partial,
        attempts=attempts,
        setting=setting,
    )


def _measurement_view(measured: Measurement) -> MeasurementView:
    interval, profile = measured.step_time_interval_s, measured.profile
    return view_of(
        MeasurementView,
        measured,
        step_time_low_s=interval.low,
        step_time_high_s=interval.high,
        profile=None
        if profile is None
        else view_of(ProfileView, profile, exposed_s=profile.exposed_s(measured.step_time_s)),
    )


def _attempt_view(attempt: Attempt) -> AttemptView:
    outcome, partial = attempt.outcome, None
    if outcome is not None and (steps := outcome.partial) is not None:
        losses = tuple(loss if isfinite(loss) else None for loss in steps.first_losses)
        partial = view_of(PartialView, steps, steps=len(steps.step_times_s), first_losses=losses)
    return view_of(
        AttemptView,
        attempt,
        **{name: getattr(outcome, name, untold) for name, untold in _OF_OUTCOME.items()},
        partial=partial,
        **times_of(attempt),
    )
