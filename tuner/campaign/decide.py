"""decide(): the next steps of a campaign, as a pure function of its trials and jobs.

Values in, intents out: no clock, no database, no runner. The service acts on the intents and calls again, so an intent
may be lost by a crash at any moment and is simply decided again. Nothing here is remembered between calls.

Decided as well, when a job is sent: the nodes that it keeps away from (docs/how-to/limits.md), and the step time that
it must beat: with racing, off by default, a trial that is surely slower than the best ends as PRUNED, without a
measurement, and the search learns nothing from slow plans. Neither a withdrawal from a queue nor a preemption says
anything of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from types import MappingProxyType

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.registry import EXTERNAL
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.eligibility import checked, eligible, noted
from meshtune.tuner.campaign.node_kinds import is_elsewhere, judged, nodes_of_other_kinds
from meshtune.tuner.campaign.second_runs import next_turn
from meshtune.tuner.campaign.stopping import closing_reason, hopeless_reason, late_baseline, loses_every_job
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState, first_runs
from meshtune.tuner.campaign.waiting import overdue_reason, wait_of, withdrawn_reason

# A runner ends jobs at their time limit; one that runs this much longer is cancelled by us.
OVERTIME_S = 60.0
# After an absence of ours no claim ends for so long: a program that found nobody to tell has tried again by then.
GRACE_S = 60.0
# So many failures exclude a node: one may be the job's, a second one under another job is the node's.
EXCLUDED_AT = 2
# Whose planned trials are sent first.
_TURNS = (Origin.BASELINE, Origin.ENQUEUED, Origin.SEARCH, Origin.CONFIRMATION)
# Failures count for so long, and until the node runs a job well: one that was mended comes back.
FAULTS_S = 86400.0


@dataclass(frozen=True, slots=True)
class PolledJob:
    """One look at an attempt's job. Its status has times by our clock; running_s: how long it has run, by one clock
    that nobody sets; of a claimed one, without our absences. waited_s: how long ago it was sent, by that clock, when
    the runner was asked. listened_s, silent_s: for how long there has been no absence, and no word of the worker."""

    status: JobStatus
    # There exactly when the status is final.
    outcome: Outcome | None = None
    running_s: float = 0.0
    waited_s: float = 0.0
    listened_s: float = 0.0
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanBaseline:
    """Propose the user's present plan, before anything else."""


@dataclass(frozen=True, slots=True)
class AskSearch:
    """Let the search choose up to n plans."""

    n: int


@dataclass(frozen=True, slots=True)
class EndSearch:
    """Choose no more plans from now on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Plan second runs of these, for fresh jobs."""

    plans: tuple[Plan, ...]
    round: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Send the trial's planned attempt, unless the runner has it already."""

    number: int


@dataclass(frozen=True, slots=True)
class NoteWait:
    """The trial's attempt is still queued, and this is why, as far as the runner says."""

    number: int
    wait: str


@dataclass(frozen=True, slots=True)
class MarkRunning:
    number: int
    started_at: float
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The trial's attempt ended."""

    number: int
    outcome: Outcome
    started_at: float | None
    finished_at: float
    nodes: tuple[str, ...] = ()
    failed_nodes: tuple[str, ...] = ()
    running_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Plan one more attempt for a trial that the infrastructure lost, or that was withdrawn from a queue."""

    number: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the trial's attempt: ask the runner, or withdraw it when the runner never got it."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class EndClaim:
    """Tell of the trial what nobody has told, unless somebody does so first: its time or its worker's lease is up."""

    number: int
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Start nothing more until somebody resumes the campaign."""

    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    state: CampaignState
    reason: str


# The intents that lead to another job.
Starting = PlanBaseline | AskSearch | Confirm | Submit | Retry
Intent = Starting | EndSearch | NoteWait | MarkRunning | Finish | Cancel | EndClaim | Pause | Close


def decide(
    campaign: Campaign,
    trials: Sequence[Trial],
    observations: Mapping[int, PolledJob],
    now: float,
    share: int | None = None,
    trials_left: int | None = None,
) -> list[Intent]:
    """The next steps; news of jobs come first and alone, since everything else is decided on a history that holds them.
    Why a job waits is no such news: some schedulers say it anew with each look.

    observations: by trial number, for attempts that were submitted and looked at just now. share: how many jobs the
    campaign may have in flight; no more plans are chosen, so that they are chosen when they can run. trials_left: how
    many trials its owner may plan just now. None: no limit.
    """
    if news := _news(campaign, trials, observations, now):
        return news
    next_steps = _next_steps(campaign, trials, observations, share, trials_left)
    return [*_waits(trials, observations), *next_steps]


def _next_steps(
    campaign: Campaign,
    trials: Sequence[Trial],
    observations: Mapping[int, PolledJob],
    share: int | None,
    trials_left: int | None,
) -> list[Intent]:
    unfinished = [trial for trial in trials if not trial.state.final]
    if campaign.state is CampaignState.CANCELLING:
        return _wind_down(unfinished, CampaignState.CANCELLED, campaign.reason or "cancelled")
    known = [(trial, observations[trial.number]) for trial in unfinished if trial.number in observations]
    overtime = [*_overtime(campaign, known), *_overdue(campaign, known)]
    if campaign.state is not CampaignState.RUNNING:
        return overtime
    if spent := time_spent(campaign, trials, observations):
        return _wind_down(unfinished, CampaignState.COMPLETED, spent)
    if failure := hopeless_reason(trials):
        return _wind_down(unfinished, CampaignState.FAILED, failure)
    if lost := loses_every_job(campaign, trials):
        return [Pause(lost)]
    if why := withdrawn_reason(campaign, trials) or late_baseline(campaign, trials):
        return [*overtime, Pause(why)]
    if campaign.spec.baseline is not None and all(trial.origin is Origin.ENQUEUED for trial in trials):
        return overtime if trials_left == 0 else [*overtime, PlanBaseline()]
    attempts = campaign.spec.trial.attempts
    retries: list[Intent] = [
        Retry(trial.number) for trial in trials if trial.may_retry(attempts) or trial.late_baseline
    ]
    submits = _submits(campaign, unfinished)
    if retries:
        return [*overtime, *retries]
    room = campaign.spec.parallel - len(unfinished)
    room = room if trials_left is None else min(room, trials_left)
    if campaign.search_ended:
        return [*overtime, *submits, *_conclude(campaign, trials, room)]
    room = room if share is None else min(room, share - len(unfinished))
    return [*overtime, *submits, *_search(campaign, trials, room)]


def device_seconds(trials: Sequence[Trial], observations: Mapping[int, PolledJob] = MappingProxyType({})) -> float:
    """Devices times the seconds that a campaign's jobs held them; of those that run, as observed or last saved."""
    total = 0.0
    for trial in trials:
        held = sum(attempt.running_s for attempt in trial.attempts)
        if trial.number in observations and not trial.state.final:
            held += max(0.0, observations[trial.number].running_s - trial.last.running_s)
        total += held * trial.plan.world_size
    return total


def time_spent(
    campaign: Campaign, trials: Sequence[Trial], observations: Mapping[int, PolledJob] = MappingProxyType({})
) -> str:
    """Why a budget that ends every trial is spent; empty while none is."""
    budget = campaign.spec.budget
    if budget.wall_time_s is not None and campaign.elapsed_s >= budget.wall_time_s:
        return f"the wall-time budget of {budget.wall_time_s:g} s is spent"
    if budget.device_hours is not None and device_seconds(trials, observations) / 3600.0 >= budget.device_hours:
        return f"the budget of {budget.device_hours:g} device-hours is spent"
    return ""


def _search(campaign: Campaign, trials: Sequence[Trial], room: int) -> list[Intent]:
    """Ask for plans while the budget has some left. Other ends of a search are its own answers, when it is asked."""
    most, planned = campaign.spec.budget.trials, len(first_runs(trials))
    if most is not None and planned >= most:
        return [EndSearch(f"the budget of {most} trials is spent")]
    n = room if most is None else min(room, most - planned)
    return [AskSearch(n)] if n > 0 else []


def _submits(campaign: Campaign, unfinished: Sequence[Trial]) -> list[Intent]:
    """Send what is planned, no more than may be in flight: people may put in any number. The baseline goes first, what
    people chose before what the search chose."""
    planned = [trial for trial in unfinished if trial.state is TrialState.PLANNED]
    planned.sort(key=lambda trial: (_TURNS.index(trial.origin), trial.number))
    free = campaign.spec.parallel - (len(unfinished) - len(planned))
    return [Submit(trial.number) for trial in planned[: max(0, free)]]


def _conclude(campaign: Campaign, trials: Sequence[Trial], room: int) -> list[Intent]:
    """After the search: await what runs, measure the best plans again in turns, close."""
    if any(not trial.state.final for trial in trials if trial.origin is not Origin.CONFIRMATION):
        return []
    if (turn := next_turn(campaign.spec, trials)) is not None:
        coming = turn.missing[: max(0, room)]
        return [Confirm(coming, turn.round)] if coming else []
    if any(not trial.state.final for trial in trials):
        return []  # what somebody asked to be measured once more
    return [Close(CampaignState.COMPLETED, closing_reason(campaign, trials))]


def _news(
    campaign: Campaign, trials: Sequence[Trial], observations: Mapping[int, PolledJob], now: float
) -> list[Intent]:
    intents: list[Intent] = []
    for trial in trials:
        seen = observations.get(trial.number)
        if seen is None or trial.state.final:
            continue
        if seen.outcome is not None:
            status = seen.status
            ended = now if status.finished_at is None else status.finished_at
            outcome, failed_nodes = checked(campaign.spec, trial.plan, seen.outcome), status.failed_nodes
            if outcome.verdict is Verdict.CANCELLED and (late := overdue_reason(campaign, trial, seen.waited_s)):
                outcome = replace(outcome, reason=late, cause=Cause.QUEUE_LIMIT)
            attempts = 0 if campaign.state is CampaignState.CANCELLING else campaign.spec.trial.attempts
            outcome, unlike = judged(trials, trial, outcome, status.nodes, attempts)
            outcome = noted(campaign.spec, trials, trial, outcome)
            failed_nodes = tuple(dict.fromkeys((*failed_nodes, *unlike)))
            known = (status.started_at, ended, status.nodes, failed_nodes, seen.running_s)
            intents.append(Finish(trial.number, outcome, *known))
            if trial.origin is Origin.BASELINE:
                break  # what ends beside it is compared with it
        elif seen.status.state is JobState.RUNNING and trial.state is TrialState.SUBMITTED:
            intents.append(MarkRunning(trial.number, seen.status.started_at or now, seen.status.nodes))
    return intents


def _waits(trials: Sequence[Trial], observations: Mapping[int, PolledJob]) -> list[Intent]:
    """Why the queued jobs wait, where that is new."""
    polled = [(trial, observations[trial.number].status) for trial in trials if trial.number in observations]
    queued = [(trial, status) for trial, status in polled if trial.state is TrialState.SUBMITTED]
    waits = [(trial, wait_of(status)) for trial, status in queued if status.state is JobState.QUEUED]
    return [NoteWait(trial.number, wait) for trial, wait in waits if wait != trial.last.wait]


def _overdue(campaign: Campaign, known: Sequence[tuple[Trial, PolledJob]]) -> list[Intent]:
    """Withdraw what had waited longer than the queue limit, and still waited, when the runner was asked."""
    queued = [(trial, seen.waited_s) for trial, seen in known if seen.status.state is JobState.QUEUED]
    if campaign.spec.runner.kind == EXTERNAL and any(seen.listened_s < GRACE_S for _, seen in known):
        return []  # nobody could claim them while we were away
    return [Cancel(trial.number, late) for trial, s in queued if (late := overdue_reason(campaign, trial, s))]


def _wind_down(unfinished: Sequence[Trial], state: CampaignState, reason: str) -> list[Intent]:
    if unfinished:
        return [Cancel(trial.number, reason.partition("\n")[0]) for trial in unfinished]
    return [Close(state, reason)]


def _overtime(campaign: Campaign, known: Sequence[tuple[Trial, PolledJob]]) -> list[Intent]:
    limit = campaign.spec.trial.limit_s
    if campaign.spec.runner.kind == EXTERNAL:
        heard = [(trial.number, seen) for trial, seen in known if seen.listened_s >= GRACE_S]
        return [EndClaim(number, *end) for number, seen in heard if (end := _end_of_claim(seen, limit))]
    late = [trial for trial, seen in known if seen.running_s > limit + OVERTIME_S]
    return [Cancel(trial.number, f"ran longer than its time limit of {limit:g} s") for trial in late]


def _end_of_claim(seen: PolledJob, limit_s: float) -> tuple[Verdict, str] | None:
    lease = seen.status.lease
    if lease is not None and lease.seconds is not None and seen.silent_s >= lease.seconds:
        times = lease.step_times_s
        steps = f"{len(times)} step{'s' * (len(times) > 1)} of {fsum(times) / len(times):.4g} s" if times else "no step"
        silence = f"was silent for {seen.silent_s:.0f} s of a lease of {lease.seconds:g} s"
        return Verdict.LOST, f"worker {lease.worker or 'without a name'} {silence}; it had reported {steps}"
    late = f"its claim told no result within its time limit of {limit_s:g} s"
    return (Verdict.TIMED_OUT, late) if seen.running_s >= limit_s else None


def nodes_to_avoid(trials: Sequence[Trial], trial: Trial, faults: Mapping[str, int]) -> tuple[str, ...]:
    """The nodes, by name. trials: the campaign's. faults: failures by node under all campaigns, as `standing_faults`
    counts those of the last FAULTS_S."""
    ended = [attempt for other in trials for attempt in other.attempts if attempt.state.final]
    ended.sort(key=lambda attempt: attempt.finished_at or 0.0)
    own = standing_faults(
        [
            (attempt.nodes, attempt.failed_nodes, attempt.outcome is not None and attempt.outcome.verdict is Verdict.OK)
            for attempt in ended
            if not is_elsewhere(attempt)
        ]
    )
    failed = {node for attempt in trial.attempts for node in attempt.failed_nodes if own[node]}
    # A second run elsewhere is the least of these wishes, and a runner that finds too few nodes drops all of them: on a
    # cluster of several kinds it would be measured on another one.
    elsewhere = nodes_of_other_kinds(trials)
    if not elsewhere and trial.origin is Origin.CONFIRMATION:
        elsewhere = {node for first in first_runs(trials) if first.plan == trial.plan for node in first.last.nodes}
    return tuple(sorted(failed | excluded_nodes(faults) | elsewhere))


def excluded_nodes(faults: Mapping[str, int]) -> set[str]:
    """The nodes that every new attempt keeps away from."""
    return {node for node, count in faults.items() if count >= EXCLUDED_AT}


def standing_faults(runs: Sequence[tuple[Sequence[str], Sequence[str], bool]]) -> Counter[str]:
    """How often each node failed since it last ran a job well. runs: oldest first, the nodes of each, those of them
    that failed, and whether it was measured."""
    faults: Counter[str] = Counter()
    for nodes, failed, well in runs:
        for node in nodes if well else ():
            faults[node] = 0
        faults.update(failed)
    return faults


def incumbent_step_time_s(campaign: Campaign, trials: Sequence[Trial], trial: Trial) -> float | None:
    """The upper end of the best measured trial's interval, scaled to the tokens that `trial` does in a step, and to its
    devices where the objective is of one device.

    None: no racing, nothing measured yet, or a trial that must be measured to its end: the baseline, which everything
    is compared with, and a confirmation. A plan that is never recommended is no rival.
    """
    if not campaign.spec.trial.racing or trial.origin is not Origin.SEARCH:
        return None
    spec, objective = campaign.spec, campaign.spec.objective
    measured = [known.measurement for known in eligible(spec, trials) if known.measurement is not None]
    if not measured:
        return None
    best = max(measured, key=lambda measurement: objective.speed(measurement, measurement.step_time_s))
    tokens = trial.plan.global_batch_size * spec.model.seq_len
    share = tokens / trial.plan.world_size if objective.per_device else tokens
    return share / objective.speed(best, best.step_time_interval_s.high)
