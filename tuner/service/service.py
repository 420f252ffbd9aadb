"""The service: creates campaigns and drives them, one tick at a time. The face that the API and the CLI use.

The store is the only memory: kill this process anywhere, start it again, and the campaigns go on. A tick looks at the
jobs, lets `decide` say what follows, and acts; each act is safe to repeat (see `tuner.service.submission`).
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from meshtune.runners.base import JobSpec, NoTimeLeft
from meshtune.runners.workloads.base import Workload
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.access.tokens import Used
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, new_id
from meshtune.tuner.campaign.decide import (
    Ask,
    Cancel,
    Close,
    Confirm,
    EndSearch,
    Finish,
    Intent,
    MarkRunning,
    Observation,
    Pause,
    PlanBaseline,
    Retry,
    Starting,
    Submit,
    decide,
)
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.campaign.placement import FAULTS_S, excluded_nodes, incumbent_step_time_s, nodes_to_avoid
from meshtune.tuner.campaign.proposal import Choice
from meshtune.tuner.campaign.stopping import search_end
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState
from meshtune.tuner.search.ask import propose
from meshtune.tuner.search.base import SearchError
from meshtune.tuner.service.job_reports import Reports
from meshtune.tuner.service.leases import LEASE_S, CampaignBusy, Holder
from meshtune.tuner.service.metrics import ServiceMetrics
from meshtune.tuner.service.quotas import CampaignQuotas, InvalidLimits
from meshtune.tuner.service.session import Session
from meshtune.tuner.service.sessions import Sessions
from meshtune.tuner.service.submission import call_back, send
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import IllegalMove, LeaseLost, Store

# A tick acts for no longer: hundreds of jobs to send keep neither an order to cancel nor other campaigns waiting.
LONG_TICK_S = 0.5


def always() -> bool:
    """For one campaign alone, which holds nobody up."""
    return True


class Service:
    """All campaigns of one home and store. Methods may be called from several threads, `tick` and `release` from one.

    clock: seconds since the epoch. lease_s: see `tuner.service.leases`. public_url: where jobs report to, see
    `tuner.service.job_reports`.
    """

    def __init__(
        self,
        store: Store,
        home: Home,
        clock: Callable[[], float] = time.time,
        *,
        lease_s: float = LEASE_S,
        public_url: str = "",
    ) -> None:
        self.store = store
        self.home = home
        self._clock = clock
        self.sessions = Sessions(store, home, Holder(store, home, lease_s), clock)
        self.metrics = ServiceMetrics(self.sessions.holder.changes, clock)
        self._quotas = CampaignQuotas(store, home.limits)
        self.reports = Reports(home, public_url)

    # Requests of people

    def create(self, document: object, owner: str = "", *, drives: bool = False) -> Campaign:
        """A new campaign from a spec document, RUNNING from now on. Raises InvalidSpec; then nothing was written.

        drives: this process works on it, so that no server takes it first.
        """
        spec, space = read_spec(document, self.home)
        now = self._clock()
        campaign = Campaign(
            id=new_id(spec.name),
            spec=spec,
            state=CampaignState.RUNNING,
            created_at=now,
            updated_at=now,
            running_since=now,
            combinations=space.counts.combinations,
            legal=space.counts.legal,
            owner=owner,
        )
        if drives:
            self.sessions.holder.create(campaign)
        else:
            self.store.create_campaign(campaign)
        return campaign

    def pause(self, campaign_id: str) -> Campaign:
        """Start no more trials; those that run are measured to their end. Raises NotFound, IllegalMove."""
        return self.store.move_campaign(campaign_id, CampaignState.PAUSED, reason="paused", now=self._clock())

    def resume(self, campaign_id: str) -> Campaign:
        """Go on with a paused campaign; one that runs already stays as it is. Raises NotFound, IllegalMove."""
        campaign = self.store.campaign(campaign_id)
        if campaign.state is CampaignState.RUNNING:
            return campaign
        return self.store.move_campaign(campaign_id, CampaignState.RUNNING, reason="", now=self._clock())

    def cancel(self, campaign_id: str) -> Campaign:
        """End the campaign and its running jobs. Raises NotFound, IllegalMove."""
        return self.store.move_campaign(campaign_id, CampaignState.CANCELLING, reason="cancelled", now=self._clock())

    def delete(self, campaign_id: str) -> None:
        """Delete a campaign that is over: its rows in one transaction, then its jobs' folders.

        Raises NotFound, and IllegalMove for a campaign that is not over: then nothing was deleted. Raises OSError where
        the rows are gone and the folder stays.
        """
        self.store.remove_campaign(campaign_id)
        bin = self.home.bin
        bin.mkdir(parents=True, exist_ok=True)
        # By a rename first: a process that dies meanwhile leaves a part of a folder in the bin, which the next deletion
        # empties, and never one in its old place that looks whole.
        with suppress(FileNotFoundError):  # it never had a job, or somebody pruned it
            self.home.campaign(campaign_id).rename(bin / f"{campaign_id}-{uuid.uuid4().hex}")
        for thrown in bin.iterdir():
            shutil.rmtree(thrown, ignore_errors=True)  # another deletion may be at it

    # The loop

    def tick(self, campaign_id: str, may_ask: Callable[[], bool] = always) -> bool:
        """One step of one campaign; True when something was done, so that the next step is worth trying at once.

        may_ask: called before the search is asked; where it says no, that is left to a later step.
        Raises CampaignBusy (another process drives it), StoreError, RunnerError when the runner does not answer, and
        InvalidLimits for quotas that cannot be read: nothing is lost by it, call again later.
        """
        try:
            session = self.sessions.open(campaign_id)
            if session is None:
                return False
            with self.store.leases.guarding(session.hold.lease):
                return self._step(session, may_ask)
        except LeaseLost as lost:
            self.sessions.drop(campaign_id)
            raise CampaignBusy(str(lost)) from None

    def _step(self, session: Session, may_ask: Callable[[], bool]) -> bool:
        """As `tick`, for a campaign in our hands. Raises LeaseLost where it is no more."""
        campaign, trials = session.look()
        if not campaign.state.active:
            self.release(campaign.id)
            return False
        campaign = session.count_time(self._clock())
        acted = False
        try:
            begun = time.monotonic()
            for intent in self._decide(campaign, trials, session):
                if not isinstance(intent, Ask) or may_ask():
                    acted |= self._act(intent, campaign, trials, session)
                if acted and time.monotonic() - begun > LONG_TICK_S:
                    break  # what is left is decided again, on what is new by then
        except NoTimeLeft as error:
            acted = True
            with suppress(IllegalMove):
                self._rest(campaign, str(error))
        except IllegalMove:
            # Somebody paused or cancelled the campaign since it was read: decide again on what it is now.
            if self.store.campaign(campaign.id).state is campaign.state:
                raise
        return acted

    def waits(self, campaign_id: str) -> str:
        """Which quota keeps the campaign from sending another job, empty where none does. Raises NotFound."""
        session = self.sessions.get(campaign_id)
        campaign = self.store.campaign(campaign_id) if session is None else session.campaign
        if campaign.state is not CampaignState.RUNNING:
            return ""
        try:
            return self._quotas.waits(campaign, self._clock())
        except InvalidLimits as error:
            return str(error)

    def used(self, owner: str) -> Used:
        """What the campaigns of this owner use, as the quotas of its token count it."""
        return self.store.access.used(owner, self._clock())

    def current(self, campaign_id: str) -> Campaign:
        """The campaign with the time worked on it until now, saved or not. Raises NotFound."""
        campaign = self.store.campaign(campaign_id)
        session = self.sessions.get(campaign_id)
        return campaign if session is None else replace(campaign, elapsed_s=campaign.elapsed_s + session.unsaved_s)

    def excluded_nodes(self, campaign: Campaign) -> list[str]:
        """The nodes that every new job of the campaign keeps away from, where the runner can."""
        return sorted(excluded_nodes(self.store.trials(campaign.id), self._faults(campaign)))

    def release(self, campaign_id: str) -> None:
        """Let another process drive the campaign. Its running jobs go on and are found again."""
        self.sessions.release(campaign_id)

    def close(self) -> None:
        """Release every campaign."""
        self.sessions.close()

    def job(
        self,
        campaign: Campaign,
        plan: Plan,
        name: str,
        workload: Workload,
        *,
        incumbent_step_time_s: float | None = None,
    ) -> JobSpec:
        """The job that measures `plan` for this campaign, or, with an incumbent, gives it up as slower than that."""
        return workload.materialize(
            name,
            campaign.spec.model,
            plan,
            campaign.spec.cluster,
            self.home.job(campaign.id, name).resolve(),
            seed=campaign.spec.seed,
            time_limit_s=campaign.spec.trial.time_limit_s,
            incumbent_step_time_s=incumbent_step_time_s,
        )

    def _decide(self, campaign: Campaign, trials: Sequence[Trial], session: Session) -> list[Intent]:
        """What follows, within the quotas of all campaigns."""
        seen, now = self._observe(campaign, trials, session), self._clock()
        if campaign.state is not CampaignState.RUNNING:
            return decide(campaign, trials, seen, now)
        exhausted = self._quotas.exhausted(campaign, now)
        share = None if exhausted else self._quotas.share(campaign, now)
        trials_left = None if exhausted else self._quotas.trials_left(campaign.owner, now)
        intents = decide(campaign, trials, seen, now, share, trials_left)
        if exhausted and any(isinstance(each, Starting) for each in intents):
            return [Pause(exhausted)]
        return intents

    def _observe(self, campaign: Campaign, trials: Sequence[Trial], session: Session) -> Mapping[int, Observation]:
        by_job = {
            trial.last.job_id: trial
            for trial in trials
            if not trial.state.final and trial.last.job_id is not None and trial.state is not TrialState.PLANNED
        }
        if not by_job:
            return {}
        found: dict[int, Observation] = {}
        with self.metrics.polling(campaign.spec.runner.kind):
            statuses = session.runner.poll(list(by_job))
        for job_id, status in statuses.items():
            trial = by_job[job_id]
            directory = self.home.job(campaign.id, trial.last.job_name)
            outcome = session.workload.read(directory, status) if status.state.final else None
            found[trial.number] = Observation(status, outcome)
        return found

    def _act(self, intent: Intent, campaign: Campaign, trials: Sequence[Trial], session: Session) -> bool:
        """Do what was decided; False when there was nothing to do after all."""
        now = self._clock()
        match intent:
            case Finish(number, outcome):
                self.store.finish(
                    campaign.id,
                    number,
                    outcome,
                    started_at=intent.started_at,
                    finished_at=intent.finished_at,
                    nodes=intent.nodes,
                    failed_nodes=intent.failed_nodes,
                    now=now,
                )
            case MarkRunning(number, started_at, nodes):
                self.store.mark_running(campaign.id, number, started_at=started_at, nodes=nodes, now=now)
            case Retry(number):
                self.store.plan_attempt(campaign.id, number, now=now)
            case Submit(number):
                return self._submit(campaign, trials, trials[number], session)
            case Cancel(number, reason):
                return call_back(session, trials[number], reason, self._clock)
            case PlanBaseline():
                assert campaign.spec.baseline is not None
                self.store.plan_trials(campaign.id, [Choice(campaign.spec.baseline)], Origin.BASELINE, now=now)
            case Ask(n):
                return self._ask(campaign, trials, n, session)
            case EndSearch(reason):
                self.store.end_search(campaign.id, reason, now=now)
            case Confirm(plans):
                again = [Choice(plan) for plan in plans]
                self.store.plan_trials(campaign.id, again, Origin.CONFIRMATION, now=now)
            case Pause(reason):
                self._rest(campaign, reason)
            case Close(state, reason):
                self._end(campaign, state, reason)
        return True

    def _rest(self, campaign: Campaign, reason: str) -> None:
        """Pause the campaign, and give back what was held for it: another runner may have what this one has not."""
        why = f"{reason}; resume it to go on"
        self.store.move_campaign(campaign.id, CampaignState.PAUSED, reason=why, now=self._clock())
        self.release(campaign.id)

    def _end(self, campaign: Campaign, state: CampaignState, reason: str) -> None:
        """Move the campaign to its final state and give back what was held for it: nobody ticks it again."""
        self.store.move_campaign(campaign.id, state, reason=reason, now=self._clock())
        self.release(campaign.id)

    def _submit(self, campaign: Campaign, trials: Sequence[Trial], trial: Trial, session: Session) -> bool:
        """Send the planned attempt, away from nodes that failed; False where the quota has no place for it yet."""
        if not self._quotas.claim(campaign, trial.number, self._clock()):
            return False
        incumbent_s = incumbent_step_time_s(campaign, trials, trial)
        job = self.job(campaign, trial.plan, trial.last.job_name, session.workload, incumbent_step_time_s=incumbent_s)
        job = replace(job, avoid=nodes_to_avoid(trials, trial, self._faults(campaign)))
        job = self.reports.equip(job, self._clock())
        send(session, trial, job, self._clock)
        return True

    def _faults(self, campaign: Campaign) -> Mapping[str, int]:
        return self.store.node_faults(campaign.spec.cluster.device.name, self._clock() - FAULTS_S)

    def _ask(self, campaign: Campaign, trials: Sequence[Trial], n: int, session: Session) -> bool:
        """Plan what the search chooses, unless that is its last word: then it is not asked any more.

        A search that has nothing to propose is asked again when a trial has ended: till then it would say the same.
        """
        if session.stuck_at == _finished(trials):
            return False
        session.learn_from_others(self._clock())
        try:
            with self.metrics.ask_s.time():
                proposal = propose(session.search, session.task, campaign.spec, trials, n)
        except SearchError as error:
            return self._search_failed(campaign, trials, str(error), session)
        chosen = {trial.plan for trial in trials}
        untried = len(session.task.space) - sum(plan in session.task.space for plan in chosen)
        reason = search_end(campaign, trials, proposal, untried)
        now, chance = self._clock(), proposal.chance_left
        if reason:
            self.store.end_search(campaign.id, reason, chance_left=chance, now=now)
            return True
        self.store.plan_trials(campaign.id, proposal.choices, Origin.SEARCH, chance_left=chance, now=now)
        if not proposal.choices:
            session.stuck_at = _finished(trials)
        return bool(proposal.choices)

    def _search_failed(self, campaign: Campaign, trials: Sequence[Trial], message: str, session: Session) -> bool:
        """The same history fails again: wait for running trials, which change it; without any, the campaign failed."""
        if any(not trial.state.final for trial in trials):
            session.stuck_at = _finished(trials)
            return False
        reason = f"the search {campaign.spec.search.kind} failed: {message}"
        self._end(campaign, CampaignState.FAILED, reason)
        return True


def _finished(trials: Sequence[Trial]) -> int:
    return sum(trial.state.final for trial in trials)
