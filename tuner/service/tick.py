"""One tick of one campaign: look at its jobs, let `decide` say what follows, and act. Each act is safe to repeat."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace

from meshtune.runners.base import Cause, JobState, JobStatus, NoTimeLeft, Refused
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.campaign import decide as decisions
from meshtune.tuner.campaign.calibration import CALIBRATION
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.decide import FAULTS_S, PolledJob, decide, incumbent_step_time_s, nodes_to_avoid
from meshtune.tuner.campaign.node_kinds import comparable
from meshtune.tuner.campaign.spec import job_of
from meshtune.tuner.campaign.stopping import ADVICE, search_end
from meshtune.tuner.campaign.trial import Choice, Origin, Trial, TrialState
from meshtune.tuner.campaign.waiting import overdue_text
from meshtune.tuner.search.base import SearchError, propose
from meshtune.tuner.service.ask_tell import result_of
from meshtune.tuner.service.calibrations import keep_calibration
from meshtune.tuner.service.clocks import by_our_clock, skew_s
from meshtune.tuner.service.job_files import Reports
from meshtune.tuner.service.quotas import CampaignQuotas
from meshtune.tuner.service.session import Session, senseless
from meshtune.tuner.service.telemetry import ServiceMetrics
from meshtune.tuner.service.trouble import MOST_TRIES, refused
from meshtune.tuner.store import AlreadyExists, IllegalMove, Outdated, Store, StoreError

# A tick acts for no longer: hundreds of jobs to send keep neither an order to cancel nor other campaigns waiting.
LONG_TICK_S = 0.5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticker:
    """The parts of a service that a tick needs. clock: seconds since the epoch."""

    store: Store
    home: Home
    quotas: CampaignQuotas
    reports: Reports
    metrics: ServiceMetrics
    clock: Callable[[], float]

    def tick(self, session: Session, may_ask: Callable[[], bool]) -> bool:
        """As `Service.tick`; a campaign that is paused or over by then is to be released."""
        acted = False
        try:
            begun = time.monotonic()
            for intent in self._decide(session):
                if not isinstance(intent, decisions.AskSearch) or may_ask():
                    acted |= self._act(intent, session)
                if session.over or (acted and time.monotonic() - begun > LONG_TICK_S):
                    break  # what is left is decided again, on what is new by then
        except AlreadyExists:
            # Somebody put the plan in by hand since the campaign was read: decide again.
            known = len(session.trials)
            session.look()
            if len(session.trials) == known:
                raise
        except NoTimeLeft as error:
            acted = True
            with suppress(IllegalMove):
                self._pause(session, str(error))
        except Outdated:
            pass  # Somebody changed the campaign since it was read: decide again.
        except IllegalMove:
            # Somebody paused or cancelled the campaign since it was read: decide again on what it is now.
            if self.store.campaign(session.campaign.id).state is session.campaign.state:
                raise
        return acted

    def _decide(self, session: Session) -> list[decisions.Intent]:
        """What follows, within the quotas of all campaigns."""
        campaign, trials = session.count_time(), session.trials
        seen, now = self._observe(session), self.clock()
        if campaign.state is not CampaignState.RUNNING:
            return decide(campaign, trials, seen, now)
        exhausted = self.quotas.exhausted(campaign, now)
        share = None if exhausted else self.quotas.share(campaign, now)
        trials_left = None if exhausted else self.quotas.trials_left(campaign.owner, now)
        intents = decide(campaign, trials, seen, now, share, trials_left)
        if exhausted and any(isinstance(each, decisions.Starting) for each in intents):
            return [decisions.Pause(exhausted)]
        return intents

    def _observe(self, session: Session) -> Mapping[int, PolledJob]:
        campaign = session.campaign
        by_job = {
            trial.last.job_id: trial
            for trial in session.trials
            if not trial.state.final and trial.last.job_id is not None and trial.state is not TrialState.PLANNED
        }
        statuses: Mapping[str, JobStatus] = {}
        kind = campaign.spec.runner.kind
        if by_job:
            with self.metrics.polling(kind, lambda: session.runner.answered_ago_s):
                statuses = session.runner.poll(list(by_job))
            self.metrics.refusals.labels(kind).inc(session.runner.refusals())
        queued = (status for status in statuses.values() if status.state is JobState.QUEUED)
        session.hindered = next((status.warning for status in queued if status.warning), "")
        now, polled = self.clock(), {}
        present_s, unbroken_s = session.hold.holder.presence.look()
        age_s = session.runner.answered_ago_s
        listened_s = min(unbroken_s, present_s - session.opened_s)
        running_s = session.observed([(by_job[job_id].last, status) for job_id, status in statuses.items()])
        for job_id, status in statuses.items():
            trial = by_job[job_id]
            job, sent_at = trial.last.job_name, trial.last.submitted_at
            waited_s, silent_s = session.waited_s(trial.last) - age_s, session.silent_s(job, status.lease)
            # Of a job that was seen running before, the start tells less and less.
            new = status.state.final or trial.state is TrialState.SUBMITTED
            if new and (ahead_s := skew_s(status, sent_at, now)) is not None:
                self.metrics.skews.note(f"the runner {kind}", ahead_s)
            directory = self.home.job(campaign.id, job)
            outcome = session.read(trial, directory, status) if status.state.final else None
            if outcome is not None or not status.state.final:
                seen = by_our_clock(status, sent_at, now)
                polled[trial.number] = PolledJob(seen, outcome, running_s[job], waited_s, listened_s, silent_s)
        return polled

    def _act(self, intent: decisions.Intent, session: Session) -> bool:
        """Do what was decided; False when there was nothing to do after all."""
        id, now = session.campaign.id, self.clock()
        kind = session.campaign.spec.runner.kind
        match intent:
            case decisions.Finish(_, outcome):
                self._finish(id, intent, now)
                if outcome.verdict is Verdict.LOST:
                    self.metrics.lost.labels(kind, outcome.failure).inc()
            case decisions.MarkRunning(number, started_at, nodes):
                self.store.mark_running(id, number, started_at=started_at, nodes=nodes, now=now)
            case decisions.NoteWait(number, wait):
                self.store.note_wait(id, number, wait, now=now)
            case decisions.Retry(number):
                last = session.trials[number].last
                self.store.plan_attempt(id, number, now=now)
                self.metrics.repeats.labels(kind).inc()
                why = "" if last.outcome is None else f"{last.outcome.failure}: {last.outcome.reason}"
                words, told = "%s: trial %d is run again, as attempt %d: %s", {"campaign": id, "trial": number}
                _log.info(words, id, number, last.number + 1, why, extra=told)
            case decisions.Submit(number):
                return self._submit(session, session.trials[number])
            case decisions.Cancel(number, reason):
                return session.call_back(session.trials[number], reason)
            case decisions.EndClaim(number, verdict, reason):
                text = result_of(Outcome(verdict=verdict, reason=reason))
                return self.reports.keep(id, session.trials[number].last.job_name, text)
            case decisions.PlanBaseline():
                assert session.campaign.spec.baseline is not None
                self.store.plan_trials(id, [Choice(session.campaign.spec.baseline)], Origin.BASELINE, now=now)
            case decisions.AskSearch(n):
                return self._ask(session, n)
            case decisions.EndSearch(reason):
                self.store.end_search(id, reason, now=now, seen=session.campaign)
            case decisions.Confirm(plans, round):
                again = [Choice(plan) for plan in plans]
                self.store.plan_trials(id, again, Origin.CONFIRMATION, round=round, now=now)
            case decisions.Pause(reason):
                self._pause(session, reason)
            case decisions.Close(state, reason):
                if state is CampaignState.COMPLETED and session.campaign.spec.search.kind == CALIBRATION:
                    state, reason = keep_calibration(self.store, session.campaign, session.trials, reason, now)
                self._rest(session, state, reason)
        return True

    def _finish(self, id: str, intent: decisions.Finish, now: float) -> None:
        """What the database refuses to hold is a crash: it would refuse it for ever."""
        known = {**{field.name: getattr(intent, field.name) for field in fields(intent)}, "now": now}
        try:
            self.store.finish(id, **known)
        except (StoreError, ValueError, ArithmeticError) as error:
            if isinstance(error, StoreError) and type(error) is not StoreError:
                raise
            self.store.finish(id, **known | {"outcome": senseless(error)})

    def _pause(self, session: Session, reason: str) -> None:
        """Another runner may have what this one has not, so the session ends."""
        self._rest(session, CampaignState.PAUSED, f"{reason}; resume it to go on")

    def _rest(self, session: Session, state: CampaignState, reason: str) -> None:
        seen = session.campaign
        self.store.move_campaign(seen.id, state, reason=reason, now=self.clock(), seen=seen)
        session.over = True

    def _submit(self, session: Session, trial: Trial) -> bool:
        """Send the planned attempt, away from nodes that failed; False where the quota has no place for it yet, or the
        runner refuses such jobs."""
        campaign, trials = session.campaign, session.trials
        if session.refusal is not None and session.timer() < session.refusal.again_at:
            return False
        if not self.quotas.claim(campaign, trial.number, self.clock()):
            return False
        name = trial.last.job_name
        directory = self.home.job(campaign.id, name).resolve()
        incumbent_s = incumbent_step_time_s(campaign, trials, trial)
        job = job_of(campaign.spec, trial.plan, name, directory, session.workload, incumbent_s)
        avoid = nodes_to_avoid(trials, trial, node_faults(self.store, campaign, self.clock()))
        job = replace(job, avoid=avoid, labels=campaign.job_labels(trial.number))
        try:
            session.send(trial, self.reports.equip(job, self.clock()))
        except Refused as error:
            self.metrics.refusals.labels(campaign.spec.runner.kind).inc()
            return self._refused(session, trial, str(error))
        session.refusal = None
        return True

    def _refused(self, session: Session, trial: Trial, why: str) -> bool:
        """All jobs of a campaign ask for the same. Where the runner took one, the cluster has changed, and may change
        back: the trial waits, for its queue limit at the most. Where it never did, the campaign fails after some tries,
        whatever the words."""
        session.look()
        session.refusal = refusal = refused(why, session.refusal, session.timer())
        limit_s, wait = session.campaign.spec.trial.queue_limit_s, refusal.trouble.words
        if limit_s is not None and session.timer() - refusal.since > limit_s:
            late = Outcome(verdict=Verdict.CANCELLED, cause=Cause.QUEUE_LIMIT, reason=overdue_text(limit_s, wait))
            session.withdraw(trial, late)
            session.refusal = None
            return True
        taken = any(attempt.job_id is not None for other in session.trials for attempt in other.attempts)
        if taken or refusal.tries < MOST_TRIES:
            if wait == session.trials[trial.number].last.wait:
                return False
            self.store.note_wait(session.campaign.id, trial.number, wait, now=self.clock())
            return True
        reason = f"the runner takes no such jobs, so the spec or the runner's options are wrong: {why}"
        for other in session.trials:
            if not other.state.final:
                session.call_back(other, reason)
        self._rest(session, CampaignState.FAILED, f"{reason}; {ADVICE}")
        return True

    def _ask(self, session: Session, n: int) -> bool:
        """Plan what the search chooses, unless that is its last word: then it is not asked any more.

        A search that has nothing to propose is asked again when a trial has ended: till then it would say the same.
        So is one that fails while trials run; without any, the campaign failed.
        """
        campaign, trials = session.campaign, session.trials
        ended = sum(trial.state.final for trial in trials)
        if session.stuck_at == ended:
            return False
        session.learn_from_others(self.clock())
        try:
            with self.metrics.ask_s.time():
                proposal = propose(session.search, session.task, campaign.spec, comparable(trials), n)
        except SearchError as error:
            if ended < len(trials):
                session.stuck_at = ended
                return False
            self._rest(session, CampaignState.FAILED, f"the search {campaign.spec.search.kind} failed: {error}")
            return True
        space = session.task.space
        untried = space.plans - sum(plan in space for plan in {trial.plan for trial in trials})
        reason = search_end(campaign, trials, proposal, untried)
        now, chance = self.clock(), proposal.chance_left
        if reason:
            self.store.end_search(campaign.id, reason, chance_left=chance, now=now, seen=campaign)
            return True
        self.store.plan_trials(
            campaign.id, proposal.choices, Origin.SEARCH, within_budget=True, chance_left=chance, now=now
        )
        if not proposal.choices:
            session.stuck_at = ended
        return bool(proposal.choices)


def node_faults(store: Store, campaign: Campaign, now: float) -> Mapping[str, int]:
    """How often each node failed lately under jobs of any campaign on the same device."""
    return store.node_faults(campaign.spec.cluster.device.name, now - FAULTS_S)
