"""Ask and tell, for people with their own loop: trials of campaigns whose runner is `external` are claimed, each by one
program, and its word of how a trial went is put where a job's would be: into its result file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from meshtune.runners.base import JobState, WorkerLease
from meshtune.runners.documents import plain
from meshtune.runners.measuring import is_surely_slower
from meshtune.runners.outcome import OF_FIRST_STEPS, RESULT_VERSION, Measurement, Outcome, Verdict, parse_result
from meshtune.runners.registry import EXTERNAL
from meshtune.runners.schedulers.external import ExternalRunner, NotClaimed
from meshtune.search_spaces.checks import Checks, Closed, InvalidValue, Limit, Text, raising
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.changes import CannotChange
from meshtune.tuner.campaign.decide import incumbent_step_time_s
from meshtune.tuner.campaign.eligibility import impossible
from meshtune.tuner.campaign.listing import TrialsWanted
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of
from meshtune.tuner.campaign.trial import Attempt, Trial, TrialState

if TYPE_CHECKING:  # clients read these values, and need no database
    from meshtune.tuner.service.job_files import Reports
    from meshtune.tuner.store import Store

# Of trials that wait or run, looked at for one request.
MAX_OPEN = 1000
# Whose jobs are a user's own command line; that of the others is of programs of ours.
_WITH_ARGUMENTS = ("command", "megatron", "deepspeed", "torchtitan")
# Of a completion, as a measurement has them.
_MEASURED = ("step_times_s", "warmup_times_s", *OF_FIRST_STEPS, "peak_memory_bytes", "peak_held_bytes", "software")
# Whose completion may have steps.
_TIMED = (Verdict.OK, Verdict.PRUNED)
# What a program may say of a trial that it could not measure.
TELLABLE = (Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.PRUNED, Verdict.LOST, Verdict.ILLEGAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A trial that is the caller's to measure. claim: for its completion. arguments: the command line that would run
    it, where the spec's workload is a user's program; else empty. time_limit_s: untold for so long, it times out."""

    trial: int
    claim: str
    plan: Plan
    plan_key: str
    knobs: Mapping[str, KnobValue]
    arguments: tuple[str, ...]
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions:
    """state, reason: the campaign's; once it is over there are no more."""

    suggestions: list[Suggestion]
    state: CampaignState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Closed):
    """count: trials at the most. wait_s: how long to wait for the first one. worker: a name; what it has not completed
    comes first. lease_s: its longest silence, after which its trials are lost; null: their time limit alone counts."""

    count: Annotated[int, Limit(1, 100, whole=True)] = 1
    wait_s: Annotated[float, Limit(0, 30)] = 0.0
    worker: Annotated[str, Text(r"^[^\x00-\x1f\x7f]*$", "be one line of at most 100 characters", None, 100)] = ""
    lease_s: Annotated[float, Limit(5, 86400)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Closed):
    """claim: of the suggestion. step_times_s: of all steps timed so far; of two reports the longer counts."""

    claim: str
    step_times_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """should_stop: no more steps of the trial are of use; why: reason. lease_s: the longest silence from now on."""

    should_stop: bool
    reason: str
    lease_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Closed):
    """How a trial went: what was measured, or a verdict. step_times_s: of each timed optimizer step; none: as reported.
    The others as in a job's result file; per rank where they are lists of bytes. claim: of the suggestion."""

    step_times_s: tuple[float, ...] = ()
    warmup_times_s: tuple[float, ...] = ()
    first_losses: tuple[float, ...] = ()
    first_gradient_norms: tuple[float, ...] = ()
    peak_memory_bytes: tuple[int, ...] = ()
    peak_held_bytes: tuple[int, ...] = ()
    software: dict[str, str] = field(default_factory=dict)
    knobs: dict[str, KnobValue | None] = field(default_factory=dict)
    verdict: str = ""
    reason: str = ""
    log_tail: str = ""
    failed_rank: int | None = None
    claim: str = ""

    def _check(self, checks: Checks) -> None:
        problem = f"must be one of {', '.join(TELLABLE)}, or left out with step_times_s, not {self.verdict[:60]!r}"
        if self.step_times_s:
            problem = f"does not go with step_times_s: {self.verdict[:60]!r}"
        known = _TIMED if self.step_times_s else (*_TIMED, *TELLABLE)
        checks.require(self.verdict.lower() in ("", *known), "verdict", problem)

    @property
    def ending(self) -> Verdict:
        """OK where none is named."""
        return Verdict(self.verdict.lower() or Verdict.OK)

    def outcome(self, spec: CampaignSpec, plan: Plan) -> Outcome:
        """Raises InvalidValue for numbers that nobody can have measured."""
        verdict = self.ending
        facts: dict[str, Any] = {"reason": self.reason, "log_tail": self.log_tail, "failed_rank": self.failed_rank}
        if not self.step_times_s and verdict is not Verdict.OK:
            return Outcome(verdict=verdict, **facts)
        measurement = Measurement(
            tokens_per_step=plan.global_batch_size * spec.model.seq_len,
            devices=plan.world_size,
            model_flops_per_token=spec.model.flops_per_token if spec.model.known else None,
            peak_flops_per_device=spec.cluster.device.peak_flops.get(workload_of(spec).dtype),
            knobs=self.knobs,
            **{name: getattr(self, name) for name in _MEASURED},
        )
        if (problem := impossible(spec, measurement)) is not None:
            raise InvalidValue([problem])
        facts["partial" if verdict is Verdict.PRUNED else "measurement"] = measurement
        return Outcome(verdict=verdict, **facts)


class AskTell:
    """Of the campaigns of one home. Methods may be called from any thread and process."""

    def __init__(self, store: Store, home: Home, reports: Reports) -> None:
        self._store, self._reports = store, reports
        self._runner = ExternalRunner(home.runner(EXTERNAL))

    def suggest(self, campaign_id: str, ask: Ask, by: str = "", claimant: str = "") -> Suggestions:
        """Claim trials that wait; none where there are none. by, claimant: as `ExternalRunner.claim`. Raises NotFound,
        CannotChange, RunnerUnavailable."""
        campaign = self._campaign(campaign_id)
        wanted = TrialsWanted(state=(TrialState.SUBMITTED, TrialState.RUNNING), limit=MAX_OPEN)
        page = self._store.pages.trials(campaign_id, wanted, listed=True)
        trials = {trial.last.job_name: trial for _, trial, _ in page if isinstance(trial, Trial)}
        open_ = [] if campaign.state is CampaignState.CANCELLING else list(trials)
        lease = WorkerLease(worker=ask.worker, seconds=ask.lease_s)
        claimed = self._runner.claim(open_, ask.count, by, claimant, lease)
        suggestions = [
            Suggestion(
                trial=trial.number,
                claim=job.name,
                plan=trial.plan,
                plan_key=trial.plan.key,
                knobs=dict(trial.plan.knobs),
                arguments=job.command if campaign.spec.workload.kind in _WITH_ARGUMENTS else (),
                time_limit_s=campaign.spec.trial.limit_s,
            )
            for job, trial in ((job, trials[job.name]) for job in claimed)
        ]
        return Suggestions(suggestions=suggestions, state=campaign.state, reason=campaign.reason)

    def complete(self, campaign_id: str, number: int, completion: Completion, claimant: str = "") -> Trial:
        """Write the result of a claimed trial, which ends when the driver has read it. The same word once more changes
        nothing. One that names no claim is of the latest, where nothing speaks against that: a trial that was lost may
        have been claimed anew. Raises NotFound, InvalidValue, CannotChange for a claim that is not the trial's, is over
        or completed otherwise, RunnerUnavailable."""
        campaign, trial = self._campaign(campaign_id), self._store.trial(campaign_id, number)
        named = [attempt for attempt in trial.attempts if attempt.job_name == completion.claim]
        attempt, earlier = [*named, trial.last][0], [] if completion.claim else trial.attempts[:-1]
        job = attempt.job_name
        with raising(CannotChange, f"trial {number} of campaign {campaign_id} cannot be completed", NotClaimed):
            if completion.claim and not named:
                raise NotClaimed(f"it has no claim {completion.claim[:100]!r}")
            if not completion.step_times_s and completion.ending in _TIMED:
                known, end = self._told(campaign_id, attempt)
                if known is None and completion.ending is Verdict.OK:
                    raise NotClaimed(f"no steps of it are known, and {end}")
                completion = replace(completion, step_times_s=() if known is None else known.step_times_s)
            text = result_of(completion.outcome(campaign.spec, trial.plan))
            parse_result(text)
            if any(self._reports.kept(campaign_id, other.job_name) == text for other in earlier):
                raise NotClaimed("an earlier claim of it was completed so: name the claim")
            if not attempt.state.final:
                with self._runner.telling(job) as whose:
                    if earlier and whose not in ("", claimant):
                        raise NotClaimed("another token has claimed it anew: name the claim")
                    if self._reports.keep(campaign_id, job, text):
                        return trial
            if self._reports.kept(campaign_id, job) != text:
                end = self._told(campaign_id, attempt)[1]
                raise NotClaimed(f"{end}; the trial is {trial.state}: ask for it while it waits, else `:rerun` it")
        return trial

    def heartbeat(self, campaign_id: str, number: int, report: Report) -> Heartbeat:
        """Renew the lease of a claim, whose worker is to stop where that is over or the trial is surely slower than the
        best. Raises NotFound, InvalidValue, CannotChange for a claim that never was, RunnerUnavailable."""
        campaign, trial = self._campaign(campaign_id), self._store.trial(campaign_id, number)
        given_up = Completion(verdict=Verdict.PRUNED, step_times_s=report.step_times_s)
        steps = given_up.outcome(campaign.spec, trial.plan).partial
        named = [attempt for attempt in trial.attempts if attempt.job_name == report.claim]
        status = self._runner.heartbeat(report.claim, () if steps is None else steps.step_times_s) if named else None
        if status is None or status.state is JobState.QUEUED:
            raise CannotChange(f"trial {number} of campaign {campaign_id} has no claim {report.claim[:100]!r}")
        reason = ""
        if status.lease is None:
            _, reason = self._told(campaign_id, named[0])
        elif campaign.state is CampaignState.CANCELLING:
            reason = f"the campaign is cancelling: {campaign.reason}"
        elif steps is not None and campaign.spec.trial.racing:
            best_s = incumbent_step_time_s(campaign, self._store.pages.listed(campaign_id), trial)
            if best_s is not None and is_surely_slower(steps.step_times_s, best_s):
                reason = f"steps of {steps.step_time_s:.4g} s are surely slower than the incumbent's of {best_s:.4g} s"
        return Heartbeat(should_stop=reason != "", reason=reason, lease_s=(status.lease or WorkerLease()).seconds)

    def _told(self, campaign_id: str, attempt: Attempt) -> tuple[Measurement | WorkerLease | None, str]:
        """The steps of a claim's result, and how it ended; before that, the steps that were reported."""
        kept = self._reports.kept(campaign_id, attempt.job_name)
        told = parse_result(kept) if kept else attempt.outcome
        if told is None:
            return self._runner.poll([attempt.job_name])[attempt.job_name].lease, "nobody measures it"
        return told.measurement or told.partial, ": ".join(filter(None, (f"it is {told.verdict}", told.reason)))

    def _campaign(self, campaign_id: str) -> Campaign:
        campaign = self._store.campaign(campaign_id)
        if (kind := campaign.spec.runner.kind) != EXTERNAL:
            reason = f"the runner {kind} measures the trials of campaign {campaign_id}"
            raise CannotChange(f"{reason}; only those of the runner {EXTERNAL} are asked for and told of")
        return campaign


def result_of(outcome: Outcome) -> str:
    """As `write_result` has it."""
    document = {name: value for name, value in plain(outcome).items() if value is not None}
    if outcome.measurement is not None:
        document["measurement"].pop("stored_summary")
    return json.dumps({"version": RESULT_VERSION, **document}, indent=1)
