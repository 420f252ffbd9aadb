"""A Trial is one Plan in one Campaign, proposed by a search (Proposal); an Attempt is one job that tried to measure it.

State says how far an attempt is and only moves forward; the verdict (in its Outcome) says how it ended. A trial is as
far as its last attempt: a LOST one is followed by another attempt, anything else is the trial's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.runners.step_breakdown import Part, Profile, StepPhase
from meshtune.search_spaces.checks import Amount, Chance, Checked, Positive
from meshtune.search_spaces.plan import Plan

# Attempts of a trial at the most, those that do not count included.
MAX_ATTEMPTS = 20
# What ended an attempt without a fault of anything: it does not count against a trial's attempts.
_UNCOUNTED = (Cause.PREEMPTION, Cause.QUEUE_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation(Checked):
    """step_time_s: the median, with the ends of its 95 % interval. p_fits: the probability that the plan fits into
    memory and runs. gain: the expected improvement over the best plan measured before, as a share of its speed, with
    the chance of none counted as 0 (0.03: 3 %). peak_bytes: at the fullest rank."""

    step_time_s: Positive
    step_time_low_s: Positive
    step_time_high_s: Positive
    p_fits: Chance
    gain: Amount
    peak_bytes: Positive


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan to try. expectation: why, in numbers; None for a search that expects nothing."""

    plan: Plan
    expectation: Expectation | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to try next, best first. chance_left: the probability that some plan that is neither tried nor under way
    is better than the best measured one by more than the task's tolerance (of a Pareto task: that one would extend the
    front by more than it); None where the search does not know."""

    choices: tuple[Choice, ...]
    chance_left: float | None = None

    @property
    def plans(self) -> list[Plan]:
        return [choice.plan for choice in self.choices]


def proposal_of(plans: Sequence[Plan]) -> Proposal:
    """Plans of a search that expects nothing of them."""
    return Proposal(tuple(Choice(plan) for plan in plans))


class TrialState(StrEnum):
    """PLANNED is written before anything is sent, SUBMITTED after the runner took it, DONE with an outcome."""

    PLANNED = "planned"
    SUBMITTED = "submitted"
    RUNNING = "running"
    DONE = "done"

    @property
    def final(self) -> bool:
        return self is TrialState.DONE

    def may_become(self, other: TrialState) -> bool:
        """Forward only; skipping is allowed (a job may end between two looks), standing still is no move."""
        order = list(TrialState)
        return order.index(other) > order.index(self)


class Origin(StrEnum):
    """Who chose the plan. ENQUEUED: a person. A CONFIRMATION repeats a measured trial's plan: a fresh job measures it
    once more, before a winner is named or because somebody asked for it."""

    BASELINE = "baseline"
    SEARCH = "search"
    ENQUEUED = "enqueued"
    CONFIRMATION = "confirmation"


# Those of a plan's first run in its campaign, which a budget of trials counts.
FIRST_RUNS = (Origin.BASELINE, Origin.SEARCH, Origin.ENQUEUED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One job for one trial. Times are epoch seconds, by the service's clock. running_s: seconds that the job held its
    devices, measured by one clock that nobody sets; of one that runs, as last saved."""

    # From 1 on.
    number: int
    # The idempotency key towards the runner, unique over all campaigns.
    job_name: str
    state: TrialState
    planned_at: float
    # The runner's own id, from SUBMITTED on.
    job_id: str | None = None
    submitted_at: float | None = None
    # Why it had not started when the runner was last asked: in a queue, or refused (PLANNED). Empty where nobody said.
    wait: str = ""
    # None for a job that never ran.
    started_at: float | None = None
    finished_at: float | None = None
    running_s: float = 0.0
    # The nodes that the runner was asked to keep it away from.
    avoid: tuple[str, ...] = ()
    # The nodes that it ran on, and those of them to blame for its end, where the runner knows.
    nodes: tuple[str, ...] = ()
    failed_nodes: tuple[str, ...] = ()
    # There exactly when the state is DONE.
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One plan in one campaign."""

    campaign_id: str
    # From 0 on within the campaign, in the order of planning.
    number: int
    plan: Plan
    origin: Origin
    # At least one, oldest first.
    attempts: tuple[Attempt, ...]
    # The search's, at the time it chose the plan; None where nobody expected anything.
    expectation: Expectation | None = None
    # Of second runs, from 1 on; 0 for the first run of a plan.
    round: int = 0

    @property
    def plan_key(self) -> str:
        return self.plan.key

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    @property
    def state(self) -> TrialState:
        return self.last.state

    @property
    def outcome(self) -> Outcome | None:
        return self.last.outcome

    @property
    def verdict(self) -> Verdict | None:
        return None if self.last.outcome is None else self.last.outcome.verdict

    @property
    def measurement(self) -> Measurement | None:
        return None if self.last.outcome is None else self.last.outcome.measurement

    @property
    def counted_attempts(self) -> int:
        """Those that count against the spec's: all but those that were preempted, or withdrawn from a queue."""
        ends = [attempt.outcome for attempt in self.attempts]
        return sum(end is None or end.cause not in _UNCOUNTED for end in ends)

    @property
    def device_s(self) -> float:
        """How long jobs that have ended held devices, in seconds of one device."""
        return self.plan.world_size * sum(one.running_s for one in self.attempts if one.state.final)

    def may_retry(self, attempts: int) -> bool:
        """Whether one more attempt may follow. attempts: of the spec; what does not count against them counts against
        MAX_ATTEMPTS."""
        if self.outcome is None or not self.outcome.retryable:
            return False
        return len(self.attempts) < max(MAX_ATTEMPTS, attempts) and self.counted_attempts < attempts

    @property
    def late_baseline(self) -> bool:
        """A baseline that its time limit ended: it runs again, since nothing is compared without it."""
        return self.origin is Origin.BASELINE and self.verdict is Verdict.TIMED_OUT


def first_runs(trials: Sequence[Trial]) -> list[Trial]:
    """Those that a budget of trials counts."""
    return [trial for trial in trials if trial.origin in FIRST_RUNS]


def job_name(campaign_id: str, trial_number: int, attempt_number: int) -> str:
    """The unique, stable name of an attempt's job: what makes submitting idempotent."""
    return f"{campaign_id}-t{trial_number:04d}-a{attempt_number}"


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part of a step. time_s: mean over the ranks. share: of all parts together, which are the step."""

    part: str
    time_s: float
    share: float


def time_by_part(profile: Profile | None) -> tuple[PartTime, ...]:
    """Every part that the profile names, in the order of `Part` and `StepPhase`; nothing without a profile."""
    if profile is None:
        return ()
    named = {name for parts in profile.parts_s for name in parts}
    known = [str(part) for part in (*Part, *StepPhase) if part in named]
    ordered = [*known, *sorted(named - {*known})]
    means = {name: sum(parts.get(name, 0.0) for parts in profile.parts_s) / len(profile.parts_s) for name in ordered}
    total = sum(means.values())
    return tuple(PartTime(name, mean, mean / total if total else 0.0) for name, mean in means.items())
