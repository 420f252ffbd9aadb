"""The outcome of a job: its verdict, its measurement, and the result file that carries both.

The result file (`result.json`, version 1; docs/reference/result.md) is the truth: it is written once, by rename, by the
job itself, and beats what a scheduler says. Unknown keys are ignored, so that a newer job can say more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import fsum, inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from meshtune.runners.base import Cause
from meshtune.runners.hardware import MAX_KINDS, Hardware
from meshtune.runners.job_files import UnfitFile, read_document
from meshtune.runners.json_files import JOB_LIMITS, read_json_value, write_whole
from meshtune.runners.measuring import MAX_STEP_S, MIN_STEP_S, Interval, at_mean_tokens, mean_interval
from meshtune.runners.step_breakdown import Profile
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.checks import MAX_WHOLE, Checks, InvalidValue, StrEnum, raising
from meshtune.search_spaces.knob_values import KnobValue

RESULT_FILE = "result.json"
RESULT_VERSION = 1
# Characters that are kept of what a job says of its end.
MAX_REASON, MAX_PHASE, MAX_LOG_TAIL = 2000, 100, 16_000
# FLOP/s or FLOPs. With these bounds and those of seconds all that is derived is finite.
MIN_FLOPS, MAX_FLOPS = 1e-6, 1e30
# Steps that are kept, of timed ones and of warm-up; the statistics of more would tell nothing else.
MAX_STEPS = 10_000
# What tells one training from another, a number for each of the first steps.
OF_FIRST_STEPS = ("first_losses", "first_gradient_norms")
# Characters that lists of trials show with each: of names and versions, and of the numbers of all ranks.
_WORDS = dict.fromkeys(("software", "knobs", "attention_kernels", "hardware"), 65_536)
_MAX_LENGTHS = _WORDS | dict.fromkeys(("peak_memory_bytes", "peak_held_bytes"), 2_000_000)


class ResultError(Exception):
    """The result file cannot be used."""


class ResultMissing(ResultError):
    """No result file (yet); the job may have died before it wrote one."""


class ResultMalformed(ResultError):
    """A result file that breaks the contract; the message says where. Reading again gives the same."""


class Verdict(StrEnum):
    """What became of a trial. A state says how far a trial is, a verdict how it ended."""

    OK = "ok"
    OOM = "oom"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    PRUNED = "pruned"
    CANCELLED = "cancelled"
    LOST = "lost"
    ILLEGAL = "illegal"

    @property
    def informative(self) -> bool:
        """True when the plan itself made this verdict, so that a search may learn from it."""
        return self in (Verdict.OK, Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.PRUNED)

    @property
    def retryable(self) -> bool:
        """True when the infrastructure made it, so that the same plan may be run again."""
        return self is Verdict.LOST


# The verdicts that are failures, each with the cause that it stands for where nobody named another.
FAILED: Mapping[Verdict, Cause] = {
    Verdict.OOM: Cause.OOM,
    Verdict.CRASHED: Cause.CRASH,
    Verdict.TIMED_OUT: Cause.TIME_LIMIT,
    Verdict.LOST: Cause.NODE_FAULT,
    Verdict.ILLEGAL: Cause.ILLEGAL_SETTING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSummary:
    """The numbers of a measurement's steps and ranks that lists and rankings need.

    step_time_low_s, step_time_high_s: the interval of the mean; coverage: what it covers, 0 where that was not kept.
    max_memory_bytes, max_held_bytes: of the fullest rank; None where unknown.
    """

    mean_step_time_s: float
    median_step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    coverage: float = 0.0
    max_memory_bytes: int | None = None
    max_held_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one job measured. Raw numbers only; means and rates are derived, so they cannot disagree.

    step_times_s: the timed optimizer steps, in order; of more than MAX_STEPS the last, as of those of the warm-up.
    tokens_per_step: over all replicas. devices: ranks used.
    model_flops_per_token: see ModelSpec.flops_per_token. warmup_times_s: the steps dropped before.
    peak_flops_per_device: what the device could do in the job's number format. first_losses, first_gradient_norms: of
    the first optimizer steps, to compare with another plan's; norms are of the whole gradient, before it is clipped and
    without the scale of a loss. Per rank: peak_memory_bytes of tensors, and peak_held_bytes of the process
    (accelerators: reserved by the allocator, and of the trainer what is beside it; CPU: growth of resident memory).
    profile: where the time of a step went. software: versions by name ("torch", "cuda" ...) that the numbers hold for;
    empty where unknown. attention_kernels: which ones ran ("flash", "math" ...); empty where unknown. knobs: what the
    job saw of its plan's knobs, by name; null: it saw nothing of it; those that it cannot look at are left out.
    hardware: the kinds of devices of the job, each once; empty where unknown. compile_s: what compiling took beyond a
    plain step; None where nothing was compiled.

    stored_summary: in lists of many trials, what the store read in place of the steps, the ranks and the profile, which
    are empty then; None for every other measurement, whose summary is computed from them.
    """

    step_times_s: tuple[float, ...]
    tokens_per_step: int
    devices: int
    model_flops_per_token: float | None = None
    peak_flops_per_device: float | None = None
    warmup_times_s: tuple[float, ...] = ()
    first_losses: tuple[float, ...] = ()
    first_gradient_norms: tuple[float, ...] = ()
    peak_memory_bytes: tuple[int, ...] = ()
    peak_held_bytes: tuple[int, ...] = ()
    profile: Profile | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    attention_kernels: tuple[str, ...] = ()
    knobs: Mapping[str, KnobValue | None] = field(default_factory=dict)
    hardware: Hardware = ()
    compile_s: float | None = None
    stored_summary: MeasurementSummary | None = None

    def __post_init__(self) -> None:
        # Messages are written for what is wrong alone: a store reads thousands that are right.
        checks = Checks()
        if not self.step_times_s and self.stored_summary is None:
            checks.require(False, "step_times_s", "must name at least one step")
        for name in ("step_times_s", "warmup_times_s"):
            if wrong := [seconds for seconds in getattr(self, name) if not MIN_STEP_S <= seconds <= MAX_STEP_S]:
                words = f"must be positive seconds, from {MIN_STEP_S:g} to {MAX_STEP_S:g}, not {_some(wrong)}"
                checks.require(False, name, words)
            object.__setattr__(self, name, getattr(self, name)[-MAX_STEPS:])
        for name in OF_FIRST_STEPS:
            object.__setattr__(self, name, getattr(self, name)[:MAX_STEPS])
        if wrong := [norm for norm in self.first_gradient_norms if not 0 <= norm < inf]:
            checks.require(False, "first_gradient_norms", f"must be finite and at least 0, not {_some(wrong)}")
        for name in ("peak_memory_bytes", "peak_held_bytes"):
            if below := [peak for peak in getattr(self, name) if peak < 0]:
                checks.require(False, name, f"must be at least 0, not {_some(below)}")
        for name in ("model_flops_per_token", "peak_flops_per_device"):
            flops = getattr(self, name)
            if flops is not None and not MIN_FLOPS <= flops <= MAX_FLOPS:
                checks.require(False, name, f"must be from {MIN_FLOPS:g} to {MAX_FLOPS:g}, not {flops}")
        if self.compile_s is not None and not 0 <= self.compile_s <= MAX_STEP_S:
            checks.require(False, "compile_s", f"must be from 0 to {MAX_STEP_S:g}, not {self.compile_s}")
        if self.tokens_per_step < 1 or self.devices < 1:
            checks.at_least(1, tokens_per_step=self.tokens_per_step, devices=self.devices)
        if self.devices > MAX_WHOLE:
            checks.require(False, "devices", f"must be at most {MAX_WHOLE}, not {self.devices}")
        if wrong := [name for name, value in self.knobs.items() if isinstance(value, float) and not isfinite(value)]:
            checks.require(False, "knobs", f"must be finite, but {_some(wrong)} is not")
        if len(self.hardware) > MAX_KINDS:
            checks.require(False, "hardware", f"must name at most {MAX_KINDS} kinds, not {len(self.hardware)}")
        checks.done()

    @cached_property
    def summary(self) -> MeasurementSummary:
        if self.stored_summary is not None:
            return self.stored_summary
        interval = mean_interval(self.step_times_s)
        return MeasurementSummary(
            mean_step_time_s=fsum(self.step_times_s) / len(self.step_times_s),
            median_step_time_s=median(self.step_times_s),
            step_time_low_s=interval.low,
            step_time_high_s=interval.high,
            coverage=interval.coverage,
            max_memory_bytes=max(self.peak_memory_bytes, default=None),
            max_held_bytes=max(self.peak_held_bytes, default=None),
        )

    @property
    def step_time_s(self) -> float:
        """Mean of the timed steps: what a training takes is so many of them."""
        return self.summary.mean_step_time_s

    @property
    def median_step_time_s(self) -> float:
        """Far below the mean where a few steps are much longer than the others."""
        return self.summary.median_step_time_s

    @property
    def step_time_interval_s(self) -> Interval:
        return Interval(self.summary.step_time_low_s, self.summary.step_time_high_s, self.summary.coverage)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole job."""
        return self.tokens_per_step / self.step_time_s

    @property
    def tokens_per_s_per_device(self) -> float:
        return self.tokens_per_s / self.devices

    @property
    def flops_per_s_per_device(self) -> float | None:
        """Model FLOP/s that each device reached, None where the workload does not say the model's FLOPs."""
        if self.model_flops_per_token is None:
            return None
        return self.model_flops_per_token * self.tokens_per_s_per_device

    @property
    def fullest_rank_bytes(self) -> float | None:
        """What the fullest rank's process held, since that is what runs out; of tensors where that is unknown; None
        where the job told neither."""
        summary = self.summary
        return (summary.max_memory_bytes if summary.max_held_bytes is None else summary.max_held_bytes) or None

    @property
    def max_memory_bytes(self) -> int | None:
        """Tensors of the fullest rank; None where unknown."""
        return self.summary.max_memory_bytes

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s over the device's peak (PaLM, appendix B), None where either is unknown."""
        flops, peak = self.flops_per_s_per_device, self.peak_flops_per_device
        return None if flops is None or peak is None else flops / peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended: a verdict, a measurement exactly when the verdict is OK, and what people need to see.

    partial: the steps that a PRUNED job took before it gave up; they prove that it is slower, and measure nothing.
    cause: why it failed, where somebody said so; see `failure`. Of a CANCELLED one: QUEUE_LIMIT, or nobody says.
    """

    verdict: Verdict
    measurement: Measurement | None = None
    partial: Measurement | None = None
    reason: str = ""
    cause: Cause | None = None
    failed_rank: int | None = None
    phase: str | None = None
    log_tail: str = ""

    def __post_init__(self) -> None:
        verdict, measured = self.verdict, self.measurement is not None
        checks = Checks()
        if measured is not (verdict is Verdict.OK):
            words = f"does not go with the verdict {verdict}" if measured else "is missing, but the verdict is ok"
            checks.require(False, "measurement", words)
        if self.partial is not None and verdict is not Verdict.PRUNED:
            checks.require(False, "partial", f"does not go with the verdict {verdict}")
        if self.failed_rank is not None and not 0 <= self.failed_rank <= MAX_WHOLE:
            checks.require(False, "failed_rank", f"must be from 0 to {MAX_WHOLE}, not {self.failed_rank}")
        withdrawn = verdict is Verdict.CANCELLED and self.cause is Cause.QUEUE_LIMIT
        if self.cause is not None and verdict not in FAILED and not withdrawn:
            checks.require(False, "cause", f"does not go with the verdict {verdict}")
        checks.done()

    @property
    def failure(self) -> Cause | None:
        """Why it failed: the cause that was named, else the verdict's own; None for what did not fail."""
        return failure_of(self.verdict, self.cause)

    @property
    def retryable(self) -> bool:
        """True when the same plan may be run again: the infrastructure lost it, or it never got out of the queue."""
        return self.verdict.retryable or self.cause is Cause.QUEUE_LIMIT


def failure_of(verdict: Verdict, named: Cause | None) -> Cause | None:
    return None if verdict not in FAILED else named or FAILED[verdict]


def write_result(directory: Path, outcome: Outcome, extra: Mapping[str, Any] | None = None) -> Path:
    """Write the result file by rename, so that a reader sees all of it or nothing; return its path.

    `extra` adds keys of the workload's own (time by part, environment ...). Raises OSError (a full disk ...) or
    ValueError (an `extra` with a number that is not finite), and then an earlier result file is untouched.
    """
    # What the contract names comes last: no key of `extra` replaces it.
    document = {**(extra or {}), "version": RESULT_VERSION, **_without_none(asdict(outcome))}
    write_whole(directory / RESULT_FILE, json.dumps(document, indent=1, allow_nan=False), synced=True)
    return directory / RESULT_FILE


def read_result(directory: Path) -> Outcome:
    """The outcome in `directory`'s result file. Raises ResultMissing, ResultMalformed, or OSError where reading again
    may help."""
    path = directory / RESULT_FILE
    try:
        return parse_result(read_document(path))
    except FileNotFoundError:
        raise ResultMissing(f"{path} does not exist") from None
    except UnfitFile as error:
        raise ResultMalformed(str(error)) from None


def parse_result(text: str) -> Outcome:
    """The outcome that a result file's text carries; words longer than people read are cut. Raises ResultMalformed."""
    with raising(ResultMalformed, "", UnreadableText):
        document = read_json(text, JOB_LIMITS, unique_keys=False)
    if not isinstance(document, dict):
        raise ResultMalformed(f"must be an object, not {type(document).__name__}")
    version = document.get("version")
    if version != RESULT_VERSION:
        raise ResultMalformed(f"version: {version!r}, but this meshtune reads version {RESULT_VERSION}")
    with raising(ResultMalformed, "", InvalidValue):
        outcome = read_json_value(Outcome, document)
    if outcome.measurement and (tokens := document["measurement"].get("step_tokens")):
        outcome = replace(outcome, measurement=_by_tokens(outcome.measurement, tokens))
    for name, measured in (("measurement", outcome.measurement), ("partial", outcome.partial)):
        if measured is not None and measured.stored_summary is not None:
            raise ResultMalformed(f"{name}.stored_summary: is the store's; a job names its steps")
        for key, most in _MAX_LENGTHS.items() if measured is not None else ():
            if (length := len(str(getattr(measured, key)))) > most:
                raise ResultMalformed(f"{name}.{key}: must have at most {most} characters, not {length}")
    # Python's JSON reads NaN and Infinity; `write_result` writes neither.
    wrong = [loss for loss in outcome.measurement.first_losses if not isfinite(loss)] if outcome.measurement else []
    if wrong:
        raise ResultMalformed(f"measurement.first_losses: must be finite, not {_some(wrong)}")
    phase = None if outcome.phase is None else outcome.phase[:MAX_PHASE]
    reason, log_tail = outcome.reason[:MAX_REASON], outcome.log_tail[-MAX_LOG_TAIL:]
    return replace(outcome, reason=reason, phase=phase, log_tail=log_tail)


def _by_tokens(measured: Measurement, tokens: object) -> Measurement:
    """The measurement of steps with so many tokens. Raises ResultMalformed."""
    with raising(ResultMalformed, "measurement.step_tokens", InvalidValue):
        counts = read_json_value(tuple[int, ...], tokens)
    fit = any(counts) and all(0 <= count <= MAX_WHOLE for count in counts)
    if len(counts) != len(measured.step_times_s) or not fit:
        told = f"must have the tokens of {len(measured.step_times_s)} steps, not {_some(counts)}"
        raise ResultMalformed(f"measurement.step_tokens: {told}")
    times, mean = at_mean_tokens(measured.step_times_s, counts)
    return replace(measured, step_times_s=tuple(times), tokens_per_step=max(1, round(mean)), model_flops_per_token=None)


def _some(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values[:5])


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        # That a job saw nothing of a knob is said by a null.
        kept = {key: inner for key, inner in value.items() if inner is not None}
        return {key: inner if key == "knobs" else _without_none(inner) for key, inner in kept.items()}
    return value
