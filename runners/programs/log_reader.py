"""Reads the logs of other people's trainers: numbers step by step, and what became of the job that wrote them.

Of a step that is told several times the last word counts."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from math import inf, isfinite, nan
from pathlib import Path
from statistics import fmean, median

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.failure_texts import CANNOT_RUN, PRECEDENCE, WAITS, LastWords, is_echo, read_last_words_of
from meshtune.runners.job_files import list_entries
from meshtune.runners.log_lines import lines_of, read_tail, untagged
from meshtune.runners.measuring import MAX_STEP_S, at_mean_tokens
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.log_patterns import (
    COUNTS,
    GRADIENT_NORM,
    LOSS,
    MEAN,
    MEMORY,
    PHASES,
    ROW_TOKENS,
    STEP,
    STEP_TIMES,
    TOTAL_TOKENS,
    Patterns,
    positive,
)
from meshtune.runners.programs.workloads.base import (
    CONTEXT_FILE,
    LogContext,
    failed,
    outcome_without_result,
    read_context,
)
from meshtune.runners.report import MAX_LOSSES
from meshtune.runners.step_breakdown import Profile, StepPhase
from meshtune.search_spaces.checks import MAX_WHOLE
from meshtune.search_spaces.knob_values import KnobValue

# Whom a runner blames for the end of a job, by `runners.processes.gang.exit_text`.
_BLAMED = re.compile(r"^rank (\d+) ")
_MAX_BYTES = 2.0**32  # in any unit: what no device has
# As `log_path` names them: a job may leave files of any name.
_RANK_LOG = re.compile(r"rank-(0|[1-9][0-9]{0,6})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """What one log holds. timings: of every step, in order, in the unit of the pattern. losses: where told, in order.
    gradient_norms: of the first of those steps, as far as each has one. tokens: of each step, or of a row of it, by the
    pattern; NaN where not told. phases_s: of each step, 0 where not told. memory_bytes: the most that was told, by
    rank; None: no line says whose. knobs: what was told last of those that have a pattern. waits: lines of an engine
    that it put rows back."""

    timings: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    phases_s: Mapping[StepPhase, tuple[float, ...]] = field(default_factory=dict)
    memory_bytes: Mapping[int | None, int] = field(default_factory=dict)
    knobs: Mapping[str, str] = field(default_factory=dict)
    waits: int = 0


def read_lines(lines: Iterable[str], patterns: Patterns) -> LogReading:
    """What the lines hold. Where several ranks write into one log, the steps are those of the one that tells most."""
    streams: dict[int | None, _Stream] = {}
    memory: dict[int | None, int] = {}
    knobs: dict[str, str] = {}
    waits = 0
    for line in lines:
        rank, words = untagged(line)
        waits += any(text in words for text in WAITS)
        for name in patterns.knobs:
            if (text := patterns.knob(name, words)) is not None:
                knobs[name] = text
        if patterns.memory is not None and (found := patterns.find(patterns.memory, words)) is not None:
            owner = rank if found.rank is None else found.rank
            size = positive(found)
            if size is not None and size < _MAX_BYTES:
                memory[owner] = max(memory.get(owner, 0), round(size * MEMORY[patterns.memory]))
        timing = positive(patterns.find(patterns.timing, words))
        numbers = {name: found.value for name in _Stream.NAMES if (found := patterns.find(name, words)) is not None}
        if timing is not None or numbers.keys() - {STEP}:
            streams.setdefault(rank, _Stream()).take(numbers, timing)
    best = max(streams.values(), key=lambda stream: len(stream.timings), default=_Stream())
    first = tuple(takewhile(lambda norm: 0 <= norm < inf, best.of_steps(GRADIENT_NORM)))
    tokens = best.told[patterns.tokens]
    if patterns.tokens == TOTAL_TOKENS:
        totals = sorted(tokens.items())
        tokens |= {step: total - before for (_, before), (step, total) in pairwise([(0, 0.0), *totals])}
    return LogReading(
        timings=_in_order(best.timings),
        losses=_in_order(best.told[LOSS]),
        gradient_norms=first,
        tokens=best.of_steps(patterns.tokens) if tokens else (),
        phases_s={phase: best.of_steps(name, 0.0) for name, phase in PHASES.items() if best.told[name]},
        memory_bytes=memory,
        knobs=knobs,
        waits=waits,
    )


class _Stream:
    """The steps that one rank tells, by number; without numbers, by their order."""

    NAMES = (STEP, LOSS, GRADIENT_NORM, *COUNTS, *PHASES)

    def __init__(self) -> None:
        self.timings: dict[int, float] = {}
        self.told: dict[str, dict[int, float]] = {name: {} for name in self.NAMES}
        self._step = 0

    def take(self, numbers: Mapping[str, float], timing: float | None) -> None:
        """Those of one line. What stands in a line of its own belongs to the step that was told last."""
        if isfinite(step := numbers.get(STEP, nan)):
            self._step = int(step)
        elif timing is not None and not self.told[STEP]:
            self._step += 1
        if timing is not None:
            self.timings[self._step] = timing
        for name, value in numbers.items():
            if name != STEP or isfinite(value):
                self.told[name][self._step] = value

    def of_steps(self, name: str, otherwise: float = nan) -> tuple[float, ...]:
        """Of each step that has a time."""
        return tuple(self.told[name].get(step, otherwise) for step in sorted(self.timings))


def _in_order(values: Mapping[int, float]) -> tuple[float, ...]:
    return tuple(values[step] for step in sorted(values))


def outcome_from_log(directory: Path, status: JobStatus, patterns: Patterns, *, steps: int) -> Outcome:
    """What became of a job of a program that reports by its log, from the logs of its ranks in `directory`.

    steps: how many the program was asked to take, warm-up included. The log has no meaning where its context cannot be
    read. Raises OSError. A job that failed after its last step measured all that it was to measure."""
    logs = rank_logs(directory)
    readings = {rank: read_lines(lines_of(path, len(logs)), patterns) for rank, path in logs.items()}
    # In a pipeline the last stage alone knows the loss.
    most = {rank: (len(each.timings), sum(map(isfinite, each.losses)), -rank) for rank, each in readings.items()}
    told_by = max(most, key=most.__getitem__, default=0)
    tail = read_tail(log_path(directory, told_by))
    if status.state in (JobState.CANCELLED, JobState.LOST):
        return outcome_without_result(status, tail)
    try:
        context = read_context(directory)
    except (FileNotFoundError, ValueError) as error:
        left = outcome_without_result(status, tail)
        return replace(left, reason=f"{CONTEXT_FILE} cannot be read: {error}; {left.reason}")
    reading = readings.get(told_by, LogReading())
    if patterns.tokens == ROW_TOKENS:
        reading = replace(reading, tokens=tuple(count * context.rows for count in reading.tokens))
    times = step_times_s(reading, patterns, context)
    ended_well = status.state is JobState.SUCCEEDED
    if len(times) >= steps or (ended_well and len(times) > context.warmup_steps):
        losses = reading.losses[:MAX_LOSSES]
        if wrong := [loss for loss in losses if not isfinite(loss)]:
            return failed(Cause.CRASH, f"a loss of the first steps is {wrong[0]}", log_tail=tail)
        timed = slice(context.warmup_steps, None)
        profile = _profile(times[timed], {phase: taken[timed] for phase, taken in reading.phases_s.items()})
        counts = reading.tokens[timed]
        if all(0 <= count <= MAX_WHOLE for count in counts) and sum(counts) >= 1:
            times[timed], mean = at_mean_tokens(times[timed], counts)
            context = replace(context, tokens_per_step=max(1, round(mean)))
        measurement = context.measurement(
            times,
            first_losses=losses,
            first_gradient_norms=reading.gradient_norms[:MAX_LOSSES],
            profile=profile,
            peak_memory_bytes=_memory(readings),
            knobs=_knobs(readings, told_by, patterns, context),
        )
        notes = [] if len(times) >= steps else [f"the log tells {len(times)} of {steps} steps"]
        if waits := sum(each.waits for each in readings.values()):
            notes.append(f"the engine's keys and values did not fit: it put rows back in {waits} lines of the log")
        return Outcome(verdict=Verdict.OK, measurement=measurement, reason="; ".join(notes))
    if ended_well:
        told = f"took {len(times)} steps, and {context.warmup_steps} of them are warm-up"
        if not times:
            told = f"no line of its logs matches {patterns.timing}: {patterns.source}"
        return failed(Cause.USER_BUG, f"the job ended without an error, but {told}", log_tail=tail)
    outcome = outcome_of_failure(status, logs, patterns, tail)
    if outcome.verdict is Verdict.TIMED_OUT and times:
        told = f"its log tells {len(times)} of {steps} steps, {median(times):.4g} s each"
        return replace(outcome, reason=f"{outcome.reason}; {told}")
    return outcome


def _profile(times_s: Sequence[float], phases_s: Mapping[StepPhase, Sequence[float]]) -> Profile | None:
    """The phases of the timed steps, each as its mean; what is in none is "other". None where no phase was told."""
    if not phases_s or not all(0 <= one <= MAX_STEP_S for each in (times_s, *phases_s.values()) for one in each):
        return None
    parts = {str(phase): fmean(taken) for phase, taken in phases_s.items()}
    step_s = fmean(times_s)
    parts["other"] = max(0.0, step_s - sum(parts.values()))
    return Profile(step_time_s=step_s, parts_s=(parts,), waiting_s=({},), own_times_s=((step_s,),), stages=(0,))


def _knobs(
    readings: Mapping[int, LogReading], told_by: int, patterns: Patterns, context: LogContext
) -> dict[str, KnobValue | None]:
    """What the logs say of the knobs that have a pattern; None where they say nothing of one that was told."""
    texts = {name: text for reading in (*readings.values(), readings[told_by]) for name, text in reading.knobs.items()}
    found: dict[str, KnobValue | None] = {}
    for name in patterns.knobs:
        if (told := context.knobs.get(name)) is not None:
            missing = told.value if told.text is None else None
            found[name] = told.texts.get(texts[name], texts[name]) if name in texts else missing
    return found


def outcome_of_failure(
    status: JobStatus, logs: Mapping[int, Path], patterns: Patterns | None, log_tail: str
) -> Outcome:
    """Why a job failed that left no result file: what its runner knows, what its logs say, what its exit code means.

    logs: by rank. log_tail: for a job whose logs say nothing of a failure. Raises OSError."""
    if status.cause is not None:
        return outcome_without_result(status, log_tail)
    heard = {rank: words for rank, path in logs.items() if (words := read_last_words_of(path, patterns)) is not None}
    rank = min(heard, key=lambda rank: (PRECEDENCE.index(heard[rank].cause), rank), default=None)
    if rank is None or _says_too_little(heard[rank].cause, status, heard):
        if status.exit_code == os.EX_IOERR:
            told = f"{status.reason}: it could write neither its result nor why"
            return failed(Cause.STORAGE, told, log_tail=log_tail)
        if status.exit_code in CANNOT_RUN:
            return failed(Cause.USER_BUG, f"{status.reason}: the command cannot be run", log_tail=log_tail)
        return outcome_without_result(status, log_tail)
    words = heard[rank]
    return failed(
        words.cause,
        words.line,
        failed_rank=rank if words.rank is None else words.rank,
        phase=words.phase,
        log_tail=read_tail(logs[rank]),
    )


def _says_too_little(cause: Cause, status: JobStatus, heard: Mapping[int, LastWords]) -> bool:
    """True where the runner knows better than the logs: what was at its time limit is late, not crashed; what a signal
    ended needs no other reason; and of a rank that died without a word its peers say only that it is gone."""
    if status.state is JobState.TIMED_OUT:
        return cause in (Cause.CRASH, Cause.COMMUNICATION)
    by_signal = (status.exit_code or 0) < 0
    return (by_signal and cause in (Cause.CRASH, Cause.USER_BUG)) or (is_echo(cause) and died_silently(status, heard))


def died_silently(status: JobStatus, heard: Container[int]) -> bool:
    """True where the rank that ended first is not among those that were heard. A runner that names none knows of one by
    its signal alone."""
    match = _BLAMED.match(status.reason)
    return (status.exit_code or 0) < 0 if match is None else int(match[1]) not in heard


def rank_logs(directory: Path) -> dict[int, Path]:
    """The logs of a job's ranks; empty where its folder is gone. Raises OSError."""
    found = sorted(int(match[1]) for name in list_entries(directory) if (match := _RANK_LOG.fullmatch(name)))
    return {rank: log_path(directory, rank) for rank in found}


def _memory(readings: Mapping[int, LogReading]) -> tuple[int, ...]:
    """The peaks that the logs tell, in the order of ranks."""
    peaks: dict[int, int] = {}
    for rank, reading in readings.items():
        for owner, size in reading.memory_bytes.items():
            named = rank if owner is None else owner
            peaks[named] = max(peaks.get(named, 0), size)
    return tuple(peaks[rank] for rank in sorted(peaks))


def step_times_s(reading: LogReading, patterns: Patterns, context: LogContext) -> list[float]:
    """The time of every step in the log, by what a step of this job is."""
    unit = patterns.timing
    if unit in STEP_TIMES:
        return [timing / STEP_TIMES[unit] for timing in reading.timings]
    if unit == MEAN:
        sums = [0.0, *(mean * steps for steps, mean in enumerate(reading.timings, 1))]
        return [after - before for before, after in pairwise(sums)]
    per_step = {
        "steps_per_s": 1.0,
        "samples_per_s": context.rows,
        "tokens_per_s": context.tokens_per_step,
        "tokens_per_s_per_device": context.tokens_per_step / context.devices,
    }[unit]
    if unit.startswith("tokens") and reading.tokens and all(count > 0 for count in reading.tokens):
        rates = zip(reading.tokens, reading.timings, strict=True)
        return [count * per_step / context.tokens_per_step / timing for count, timing in rates]
    return [per_step / timing for timing in reading.timings]
