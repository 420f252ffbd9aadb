"""The service: creates campaigns and drives them, one tick at a time. The face that the API and the CLI use.

The store is the only memory: kill this process anywhere, start it again, and the campaigns go on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from meshtune.runners.base import JobState, JobStatus, Runner, RunnerUnavailable
from meshtune.runners.outcome import Outcome
from meshtune.runners.registry import create_runner
from meshtune.search_spaces.space import Counts
from meshtune.tuner.access.tokens import Used
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home, new_id
from meshtune.tuner.campaign.decide import excluded_nodes
from meshtune.tuner.campaign.spec import CampaignSpec, job_of, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.service.answers import SchedulerSilence
from meshtune.tuner.service.ask_tell import AskTell
from meshtune.tuner.service.calibrations import known_basis
from meshtune.tuner.service.changing import Changing
from meshtune.tuner.service.cleaning import Leftovers, discard, find_leftovers, job_files
from meshtune.tuner.service.clocks import uptime
from meshtune.tuner.service.job_files import Reports
from meshtune.tuner.service.leases import LEASE_S, CampaignBusy, Holder
from meshtune.tuner.service.quotas import CampaignQuotas, InvalidLimits
from meshtune.tuner.service.session import Sessions
from meshtune.tuner.service.telemetry import ServiceMetrics
from meshtune.tuner.service.tick import Ticker, node_faults
from meshtune.tuner.service.trouble import Trouble, TroubleKind
from meshtune.tuner.specs.read import limits_left_open, read_spec
from meshtune.tuner.store import LeaseLost, Store

# Between two looks: short at first, for jobs that take a second, and gentle to a scheduler whose jobs wait for hours.
LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 2.0


def always() -> bool:
    """For one campaign alone, which holds nobody up."""
    return True


class Service:
    """All campaigns of one home and store. Methods may be called from several threads; `tick` and `release` for one
    campaign from one thread.

    clock: seconds since the epoch. timer: seconds on a clock that nobody sets. lease_s: see `tuner.service.leases`.
    public_url: where jobs report to, see `tuner.service.job_files`.
    """

    def __init__(
        self,
        store: Store,
        home: Home,
        clock: Callable[[], float] = time.time,
        *,
        timer: Callable[[], float] = uptime,
        lease_s: float = LEASE_S,
        public_url: str = "",
    ) -> None:
        self.store = store
        self.home = home
        self._clock = clock
        # What routes and commands read, and the audit log and tokens, as the store has them.
        self.campaign, self.campaigns = store.campaign, store.campaigns
        self.ownerships, self.verdict_counts = store.ownerships, store.verdict_counts
        self.trial, self.trials = store.trial, store.trials
        self.events, self.newest_event, self.figures = store.events, store.newest_event, store.figures
        self.pages, self.access = store.pages, store.access
        self.answers = SchedulerSilence()
        self.sessions = Sessions(store, home, Holder(store, home, lease_s), clock, timer, self.answers)
        # Another process may drive the campaign then: its running jobs go on and are found again.
        self.release, self.close = self.sessions.release, self.sessions.close
        self.metrics = ServiceMetrics(self.sessions.holder.changes, self.sessions.holder.skews, clock)
        self._quotas = CampaignQuotas(store, home.limits)
        self.changing = Changing(store, self._quotas, clock)
        self.reports = Reports(home, public_url)
        self.ask_tell = AskTell(store, home, self.reports)
        self._ticker = Ticker(
            store=store, home=home, quotas=self._quotas, reports=self.reports, metrics=self.metrics, clock=clock
        )

    def create(self, document: object, owner: str = "", *, drives: bool = False, text: str = "") -> Campaign:
        """A new campaign from a spec document, RUNNING from now on. Raises InvalidSpec; then nothing was written.

        drives: this process works on it, so that no server takes it first. text: the document as it was written, which
        is kept for people.
        """
        spec, space = read_spec(document, self.home)
        spec = limits_left_open(document, spec, space, known_basis(self.store, spec)).laid_over(spec)
        return self.add(spec, space.totals, owner, drives=drives, text=text)

    def add(
        self, spec: CampaignSpec, counts: Counts, owner: str = "", *, drives: bool = False, id: str = "", text: str = ""
    ) -> Campaign:
        """As `create`, from a spec that was read. counts: of its space, in which a plan is legal. id: the campaign's,
        which no other has; empty for a new one of its name."""
        now = self._clock()
        campaign = Campaign(
            id=id or new_id(spec.name),
            spec=spec,
            state=CampaignState.RUNNING,
            created_at=now,
            updated_at=now,
            running_since=now,
            combinations=counts.combinations,
            legal=counts.legal,
            owner=owner,
        )
        if drives:
            self.sessions.holder.create(campaign, text)
        else:
            campaign = self.store.create_campaign(campaign, text=text)
        return campaign

    def pause(self, campaign_id: str) -> Campaign:
        """Start no more trials; those that run are measured to their end. Raises NotFound, IllegalMove."""
        return self.store.move_campaign(campaign_id, CampaignState.PAUSED, reason="paused", now=self._clock())

    def resume(self, campaign_id: str) -> Campaign:
        """Go on with a paused campaign; one that runs already stays as it is. Raises NotFound, IllegalMove."""
        return self.changing.change(campaign_id, {}, resume=True)

    def cancel(self, campaign_id: str) -> Campaign:
        """End the campaign and its running jobs. Raises NotFound, IllegalMove."""
        return self.store.move_campaign(campaign_id, CampaignState.CANCELLING, reason="cancelled", now=self._clock())

    def delete(self, campaign_id: str) -> None:
        """Delete a campaign that is over: its rows in one transaction, then its jobs' folders.

        Raises NotFound, and IllegalMove for a campaign that is not over: then nothing was deleted. Raises OSError where
        the rows are gone and the folder stays.
        """
        self.home.bin.mkdir(parents=True, exist_ok=True)  # where there is no space for it, nothing is deleted
        self.store.remove_campaign(campaign_id)
        remembered = [path for id, path in job_files(self.home) if id == campaign_id]
        discard(self.home, [self.home.campaign(campaign_id), *remembered])

    def clean(self, retention_s: float, *, remove: bool) -> dict[str, Leftovers]:
        """What jobs left, by campaigns that ended so long ago; with `remove` it is gone then. Raises OSError."""
        before = self._clock() - retention_s
        found = find_leftovers(self.home, self.store.ended_before(before), before)
        if remove:
            discard(self.home, [path for left in found.values() for path in left.paths])
            for campaign_id in found:
                with suppress(OSError):  # it holds more, or is gone
                    self.home.campaign(campaign_id).rmdir()
        return found

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
                session.look()
                acted = session.campaign.state.active and self._ticker.tick(session, may_ask)
                if session.over or not session.campaign.state.active:
                    self.release(campaign_id)
                return acted
        except LeaseLost as lost:
            self.sessions.drop(campaign_id)
            raise CampaignBusy(str(lost)) from None

    def waits(self, campaign_id: str) -> Trouble | None:
        """What keeps the campaign from getting on, None where nothing does: a runner that refuses its jobs or what
        they wait for, a quota, or a job's files that are still being read. Raises NotFound."""
        session = self.sessions.get(campaign_id)
        campaign = self.store.campaign(campaign_id) if session is None else session.campaign
        if session is not None and (reading := session.reading) is not None and reading.age_s > 5:
            return Trouble(f"what the job {reading.job_name} left has not been read for {reading.age_s:.0f} s")
        if campaign.state is not CampaignState.RUNNING:
            return None
        if session is not None and session.refusal is not None:
            return session.refusal.trouble
        if session is not None and session.hindered:
            return Trouble(session.hindered, TroubleKind.REFUSED)
        try:
            quota = self._quotas.waits(campaign, self._clock())
        except InvalidLimits as error:
            return Trouble(str(error))
        return Trouble(quota) if quota else None

    def silence_s(self, campaign_id: str) -> float:
        """For how long the campaign's scheduler has owed an answer, 0 where it owes none."""
        session = self.sessions.get(campaign_id)
        return 0.0 if session is None else self.answers.silence_s(session.runner.scheduler)

    def used(self, owner: str) -> Used:
        return self.store.access.used(owner, self._clock())

    def current(self, campaign_id: str) -> Campaign:
        """The campaign with the time worked on it until now, saved or not. Raises NotFound."""
        campaign = self.store.campaign(campaign_id)
        session = self.sessions.get(campaign_id)
        return campaign if session is None else replace(campaign, elapsed_s=campaign.elapsed_s + session.unsaved_s)

    def excluded_nodes(self, campaign: Campaign) -> list[str]:
        """The nodes that every new job of the campaign keeps away from, where the runner can."""
        faults = node_faults(self.store, campaign, self._clock())
        return sorted(excluded_nodes(faults))


def remeasure(service: Service, campaign: Campaign, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
    """Run each trial's plan again, one after the other; yield each with its new outcome.

    A job that is still there when this is left, by whatever way, is cancelled. Raises RunnerError when a job cannot be
    sent, or its end is not heard of within twice the trial's time limit since it was first seen running.
    """
    spec = campaign.spec
    workload = workload_of(spec)
    runner = create_runner(spec.runner.kind, service.home.runner(spec.runner.kind), spec.cluster, spec.runner.options)
    try:
        for trial in trials:
            name = f"{campaign.id}-t{trial.number:04d}-again-{uuid.uuid4().hex[:6]}"
            directory = service.home.job(campaign.id, name).resolve()
            job = job_of(spec, trial.plan, name, directory, workload)
            job_id = runner.submit(replace(job, labels=campaign.job_labels(trial.number)))
            status = _await_end(runner, job_id, 2 * spec.trial.limit_s + 60.0)
            yield trial, workload.read(directory, status)
    finally:
        runner.close()


def _await_end(runner: Runner, job_id: str, patience_s: float) -> JobStatus:
    """The job's final status. Left in any other way, the job is cancelled."""
    give_up = time.monotonic() + patience_s
    pause_s, trouble, begun = LEAST_PAUSE_S, "it still runs", False
    try:
        while True:
            asked_at = time.monotonic()
            try:
                status = runner.poll([job_id])[job_id]
            except RunnerUnavailable as error:
                trouble = str(error)
            else:
                if status.state.final:
                    return status
                if not begun:
                    give_up = time.monotonic() + patience_s
                begun = begun or status.state is JobState.RUNNING
            if asked_at >= give_up:
                raise RunnerUnavailable(f"{job_id} has not ended within {patience_s:g} s: {trouble}")
            time.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, 1.2 * pause_s)
    except BaseException:
        with suppress(RunnerUnavailable):
            runner.cancel(job_id)
        raise
