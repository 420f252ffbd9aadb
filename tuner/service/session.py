"""Campaigns in a service's hands: for each its lease, its row and trials, and its search, workload and runner.

All of it can be built again from the store at any time; nothing here is truth. Every change of a trial and of a
campaign's state adds an event in its own transaction, so a look that finds no new event has missed nothing, and costs
one small query however long the history is.

Attempts are sent to the runner exactly once. The attempt's job name is the key: a job that was sent and not written
down is found by it. Every act may be repeated. A process that was stopped may wake after another has taken its campaign
over: its writes are refused, its jobs are still sent. An attempt is therefore marked before it is sent
(`Leases.mark_sending`). The new process looks for a marked attempt once and gives up the name of a job that is not
there; the old process, once awake, calls that job back.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from meshtune.runners.base import Cause, InvalidJob, JobSpec, JobState, JobStatus, RunnerUnavailable, WorkerLease
from meshtune.runners.outcome import MAX_REASON, Outcome, Verdict
from meshtune.runners.programs.workloads.base import Workload
from meshtune.runners.registry import EXTERNAL, create_runner, scheduler_name
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.tuner.campaign.calibration import framework_version
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home, Lesson
from meshtune.tuner.campaign.decide import OVERTIME_S
from meshtune.tuner.campaign.spec import space_of, workload_of
from meshtune.tuner.campaign.trial import Attempt, Trial, TrialState
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Search, Task, task_of
from meshtune.tuner.search.registry import create_search, searches
from meshtune.tuner.search.warm_start import MAX_CAMPAIGNS, MAX_TRIALS_EACH, learn_from, software_of
from meshtune.tuner.service.answers import SchedulerSilence, WatchedRunner
from meshtune.tuner.service.calibrations import known_calibration, readers_of
from meshtune.tuner.service.leases import Hold, Holder
from meshtune.tuner.service.reading import JobReading, read_outcome
from meshtune.tuner.service.trouble import Refusal
from meshtune.tuner.store import LeaseLost, NotFound, Store, StoreUnavailable

# Of more changes than this everything is read again.
MAX_EVENTS = 1000
# Time worked on a campaign is saved this often; a killed service forgets at most so much of it.
SAVE_ELAPSED_S = 10.0
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Session:
    """Made by `Sessions`. Used from the thread that ticks."""

    store: Store
    hold: Hold
    # Seconds since the epoch; seconds on a clock that nobody sets, for durations. opened_s: by the holder's presence.
    clock: Callable[[], float]
    timer: Callable[[], float]
    opened_s: float
    # The campaign's row and trials at the last look.
    campaign: Campaign
    trials: list[Trial] = field(default_factory=list)
    task: Task
    search: Search
    workload: Workload
    runner: WatchedRunner
    # Time worked on the campaign that the store does not know yet.
    unsaved_s: float = 0.0
    # Job names whose end was asked for already.
    cancelled: set[str] = field(default_factory=set)
    # How many trials had ended when the search had nothing to propose.
    stuck_at: int | None = None
    # None once it took a job.
    refusal: Refusal | None = None
    # The warning of a job that is queued.
    hindered: str = ""
    # Of the ended job whose files are being read; one at a time.
    reading: JobReading | None = None
    # It was paused or ended by a tick, so the session is to be given back.
    over: bool = False
    # The newest event that `campaign` and `trials` know, None before the first look.
    _event: int | None = None
    # By the timer: the last look, and the last time that durations were saved.
    _worked_at: float | None = None
    _saved_at: float | None = None
    # By job name, of jobs that were seen running and whose runner measures no duration itself: how long they had run
    # when this process saw them first, and when that was by the timer.
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    # By job name: when the job was sent, by the timer.
    _sent: dict[str, float] = field(default_factory=dict)
    # By job name: how often its worker had been heard at the last look, and since when.
    _heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    # By job name: how long the jobs had run at the last look.
    _running_s: dict[str, float] = field(default_factory=dict)
    # The lesson of the calibration that the task starts from.
    _start: Lesson | None = None
    # The campaign's own software when it learned from others, None before that.
    _software: Mapping[str, str] | None = None

    def look(self) -> None:
        """Bring the campaign and its trials up to date."""
        id = self.campaign.id
        events = [] if self._event is None else self.store.events(id, after=self._event, limit=MAX_EVENTS)
        changed = {event.data.get("number") for event in events if event.kind.startswith("trial.")}
        if self._event is None or len(events) == MAX_EVENTS or None in changed:
            # First: a change that comes meanwhile is read twice, not missed.
            newest = self.store.newest_event(id)
            self.campaign = self.store.campaign(id)
            self.trials = self.store.trials(id)
            self._event = newest
        elif events:
            if numbers := sorted(number for number in changed if isinstance(number, int)):
                fresh = self.store.pages.numbered(id, numbers)
                # New ones come last, and their numbers have no gaps.
                self.trials += [fresh[number] for number in numbers if number >= len(self.trials)]
                for number in numbers:
                    self.trials[number] = fresh[number]
            if any(not event.kind.startswith("trial.") for event in events):
                self.campaign = self.store.campaign(id)
            self._event = events[-1].id

    def count_time(self) -> Campaign:
        """The campaign with the time worked on it until now, which is saved now and then."""
        now = self.timer()
        if self._worked_at is not None and self.campaign.state is CampaignState.RUNNING:
            self.unsaved_s += now - self._worked_at
        self._worked_at = now
        if self._saved_at is None:
            self._saved_at = now
        elif now - self._saved_at >= SAVE_ELAPSED_S:
            self.save_time()
        return replace(self.campaign, elapsed_s=self.campaign.elapsed_s + self.unsaved_s)

    def save_time(self) -> None:
        """Save the time worked on the campaign, and how long its jobs have run; not worth an event."""
        if self.unsaved_s or self._running_s:
            self.store.add_elapsed(self.campaign.id, self.unsaved_s, self.clock(), self._running_s)
            self.campaign = replace(self.campaign, elapsed_s=self.campaign.elapsed_s + self.unsaved_s)
            self.unsaved_s = 0.0
        self._saved_at = self.timer()

    def observed(self, looks: Sequence[tuple[Attempt, JobStatus]]) -> Mapping[str, float]:
        """How many seconds the jobs of these attempts have run, by job name: in their runner's words, or else since
        they were first seen running, by anybody."""
        self._running_s = {one.job_name: self._ran_s(one, status) for one, status in looks}
        self._seen = {name: seen for name, seen in self._seen.items() if name in self._running_s}
        return self._running_s

    def silent_s(self, job_name: str, lease: WorkerLease | None) -> float:
        """How long ago the job's worker was heard, as far as we were there."""
        now, heard = self._now(), 0 if lease is None else lease.heard
        if self._heard.get(job_name, (-1, now))[0] != heard:
            self._heard[job_name] = (heard, now)
        return now - self._heard[job_name][1]

    def waited_s(self, attempt: Attempt) -> float:
        """How long ago the attempt was sent; of what passed before this process knew of it, the wall's clock tells."""
        now = self._now()
        sent_s = 0.0 if attempt.submitted_at is None else max(0.0, self.clock() - attempt.submitted_at)
        return now - self._sent.setdefault(attempt.job_name, now - sent_s)

    def _now(self) -> float:
        """By a clock that nobody sets. Whoever claims a job can do so, and tell of it, only while we are there."""
        claimed = self.campaign.spec.runner.kind == EXTERNAL
        return self.hold.holder.presence.look()[0] if claimed else self.timer()

    def _ran_s(self, attempt: Attempt, status: JobStatus) -> float:
        if status.elapsed_s is not None:
            return status.elapsed_s
        now, claimed = self._now(), self.campaign.spec.runner.kind == EXTERNAL
        if status.state.final and not claimed and status.started_at is not None and status.finished_at is not None:
            return max(0.0, status.finished_at - status.started_at)  # both by the runner's clock
        if status.state is JobState.RUNNING:
            self._seen.setdefault(attempt.job_name, (attempt.running_s, now))
        if attempt.job_name not in self._seen:
            return attempt.running_s
        before_s, since = self._seen[attempt.job_name]
        return before_s + now - since

    def learn_from_others(self, now: float) -> None:
        """Let the search, where it can, learn from other campaigns, and start from the stored calibration of its device
        and training code; the store keeps from which. The campaign behind the calibration teaches by that alone.

        They are read once, and again when the campaign's own trials tell that it runs on other software than was
        thought. So a campaign that is opened again later may learn more.
        """
        spec, software = self.campaign.spec, software_of(self.trials)
        if not spec.warm_start or not searches()[spec.search.kind].learns or software == self._software:
            return
        readers, version = readers_of(self.store, self.campaign), framework_version(software)
        anchor = known_calibration(self.store, spec, version, readers)
        # Two more, since the campaign itself is among them, and the calibration's.
        others = self.store.campaigns_on(
            spec.cluster.device.name, spec.workload.kind, limit=MAX_CAMPAIGNS + 2, reader=readers
        )
        others = [other for other in others if anchor is None or other.id != anchor.campaign]
        trials_of = partial(self.store.readable_trials, limit=MAX_TRIALS_EACH)
        sources = learn_from(self.campaign, self.trials, others, trials_of)
        start = None if anchor is None else anchor.lesson(version)
        lessons = [*([] if start is None else [start]), *(earlier.lesson for earlier in sources)]
        self.store.keep_lessons(self.campaign.id, lessons, now=now)
        past = tuple(earlier.past for earlier in sources)
        if past != self.task.past or start != self._start:  # searches keep what they worked out for a task
            calibration = UNCALIBRATED if anchor is None else anchor.holding_for(self.task.training, version)
            self.task = replace(self.task, past=past, calibration=calibration)
        self._start = start
        self._software = software

    def send(self, trial: Trial, job: JobSpec) -> None:
        """Send the planned attempt, unless the runner has it: a crash after sending is healed by finding its name.

        A job that is wrong itself ends here, as ILLEGAL; one that another process may still send, as LOST. Raises the
        other RunnerErrors: then it was not sent. Raises LeaseLost: then it is another process's to send.
        """
        try:
            job_id = self.runner.find(job.name)
            if job_id is None:
                if not self.store.leases.mark_sending(self.hold.lease, job.name):
                    self.withdraw(trial, Outcome(verdict=Verdict.LOST, reason="its service vanished while sending it"))
                    return
                self.hold.confirm()
                job_id = self.runner.submit(job)
        except InvalidJob as error:
            self._end(trial, Outcome(verdict=Verdict.ILLEGAL, reason=str(error)))
            return
        try:
            self.store.mark_submitted(self.campaign.id, trial.number, job_id, avoid=job.avoid, now=self.clock())
            self._sent[job.name] = self._now()
        except LeaseLost:
            # Another process may have ended the attempt as never sent. One that is still planned is left alone: the
            # other process finds its job.
            attempt = self.store.trial(self.campaign.id, trial.number).attempts[trial.last.number - 1]
            if attempt.state.final and attempt.job_id is None:
                self.runner.cancel(job_id)
            raise

    def call_back(self, trial: Trial, reason: str) -> bool:
        """Ask once for the end of the attempt's job; an attempt that was never sent ends here. False: asked already."""
        name = trial.last.job_name
        job_id = trial.last.job_id or self.runner.find(name)
        if job_id is None:
            self.withdraw(trial, Outcome(verdict=Verdict.CANCELLED, reason=reason))
            return True
        if trial.state is TrialState.PLANNED:
            self.store.mark_submitted(self.campaign.id, trial.number, job_id, now=self.clock())
        if name in self.cancelled:
            return False
        self.hold.confirm()
        self.runner.cancel(job_id)
        self.cancelled.add(name)
        return True

    def read(self, trial: Trial, directory: Path, status: JobStatus) -> Outcome | None:
        """What became of the trial's attempt, whose job has ended; None while that is still being read. Whatever cannot
        be made sense of is a crash: the next look would end alike. Raises RunnerUnavailable."""
        name, reading = trial.last.job_name, self.reading
        if reading is not None and reading.job_name != name:
            if any(reading.job_name == other.last.job_name and not other.state.final for other in self.trials):
                return None
            reading = None
        self.reading = reading or JobReading(name)
        cluster = self.campaign.spec.cluster
        try:
            outcome = self.reading.look(partial(read_outcome, self.workload, directory, status, cluster))
        except RunnerUnavailable:
            raise
        except Exception as error:
            _log.exception("what %s left", name)
            outcome = senseless(error)
        if outcome is not None:
            self.reading = None
        return outcome

    def withdraw(self, trial: Trial, outcome: Outcome) -> None:
        """End an attempt that was not sent. A process that sent it before it could see this end is found out here; one
        that sends it later sees the end (`send`)."""
        self._end(trial, outcome)
        late = self.runner.find(trial.last.job_name)
        if late is not None:
            self.runner.cancel(late)

    def _end(self, trial: Trial, outcome: Outcome) -> None:
        now = self.clock()
        self.store.finish(self.campaign.id, trial.number, outcome, started_at=None, finished_at=now, now=now)


class Sessions:
    """The sessions, by campaign. A campaign may be held and not opened yet. clock, timer: see `Session`. answers: of
    their runners.

    `get` and `queued` may be called from any thread; `open`, `release` and `drop` from the one that ticks the campaign;
    `close` when nobody ticks what it closes.
    """

    def __init__(
        self,
        store: Store,
        home: Home,
        holder: Holder,
        clock: Callable[[], float],
        timer: Callable[[], float],
        answers: SchedulerSilence,
    ) -> None:
        self.holder, self._answers = holder, answers
        self._store, self._home, self._clock, self._timer = store, home, clock, timer
        self._sessions: dict[str, Session] = {}
        # By cancelled campaign whose runner cannot be made here: since when, by the timer.
        self._ending: dict[str, float] = {}

    def get(self, campaign_id: str) -> Session | None:
        """The session of the campaign, None where none is open."""
        return self._sessions.get(campaign_id)

    def queued(self) -> dict[str, list[float]]:
        """By kind of runner: how long each job of the open sessions has waited in a queue, in seconds."""
        waits: defaultdict[str, list[float]] = defaultdict(list)
        for session in list(self._sessions.values()):
            waits[session.campaign.spec.runner.kind] += [
                session.waited_s(trial.last) for trial in list(session.trials) if trial.state is TrialState.SUBMITTED
            ]
        return dict(waits)

    def open(self, campaign_id: str) -> Session | None:
        """The session of the campaign, which this process holds; None for a campaign that is over. A cancelled one
        whose runner cannot be made here ends here, unless jobs of it may still run.

        Raises NotFound, CampaignBusy where another process has it, LeaseLost where one has taken it from us, and the
        backends' errors.
        """
        if campaign_id not in self._sessions:
            campaign = self._store.campaign(campaign_id)
            if not campaign.state.active:
                self.holder.release(campaign_id)
                return None
            hold = self.holder.hold(campaign_id)
            try:
                spec = campaign.spec
                space, training = space_of(spec), training_of(spec)
                kind, options = spec.runner.kind, spec.runner.options
                try:
                    runner = create_runner(kind, self._home.runner(kind), spec.cluster, options)
                except InvalidValue as why:
                    if campaign.state is not CampaignState.CANCELLING:
                        raise
                    self._end_without_runner(campaign, hold, why)
                    self.holder.release(campaign_id)
                    return None
                self._sessions[campaign_id] = Session(
                    store=self._store,
                    hold=hold,
                    clock=self._clock,
                    timer=self._timer,
                    opened_s=self.holder.presence.look()[0],
                    campaign=campaign,
                    search=create_search(spec.search.kind, seed=spec.seed, options=spec.search.options),
                    task=task_of(spec, space, training),
                    workload=workload_of(spec),
                    runner=WatchedRunner(runner, scheduler_name(kind, options), self._answers),
                )
            except BaseException:
                self.holder.release(campaign_id)
                raise
        session = self._sessions[campaign_id]
        session.hold.confirm()
        return session

    def _end_without_runner(self, campaign: Campaign, hold: Hold, why: InvalidValue) -> None:
        """Raises InvalidValue while a job that was sent may run: until its time limit has passed, or for ever where
        this process does not stay."""
        id, now = campaign.id, self._clock()
        left = [trial for trial in self._store.trials(id) if not trial.state.final]
        out = [trial.last.job_name for trial in left if trial.state is not TrialState.PLANNED]
        since = self._ending.setdefault(id, self._timer())
        wait_s = since + campaign.spec.trial.limit_s + OVERTIME_S - self._timer()
        if out and wait_s > 0:
            told = f"{', '.join(out)} may still run where it was sent, where `meshtune cancel {id}` ends it; a service"
            raise InvalidValue([Problem("", f"{told} gives it up after {wait_s:.0f} s more. {why}")])
        ended = Outcome(verdict=Verdict.CANCELLED, reason=campaign.reason)
        with self._store.leases.guarding(hold.lease):
            for trial in left:
                self._store.finish(id, trial.number, ended, started_at=None, finished_at=now, now=now)
            self._store.move_campaign(id, CampaignState.CANCELLED, reason=campaign.reason, now=now, seen=campaign)
        del self._ending[id]

    def release(self, campaign_id: str) -> None:
        """Let another process have the campaign; until the store has heard of it, all stays as it is."""
        self._save(campaign_id)
        self.holder.release(campaign_id)
        self._close(campaign_id)

    def drop(self, campaign_id: str) -> None:
        """Let go of a campaign that another process has now, and write nothing."""
        self.holder.forget(campaign_id)
        self._close(campaign_id)

    def close(self, but: Collection[str] = ()) -> None:
        """Let other processes have all of them; where the database is away, when our leases end by themselves.

        but: campaigns that are being ticked. They stay open and ours, and this holder alive."""
        try:
            for campaign_id in self._sessions.keys() - but:
                with _told_only(f"the time of campaign {campaign_id} was not saved"):
                    self._save(campaign_id)
                self._close(campaign_id)
        finally:
            with _told_only("the leases were not given back"):
                if not but:
                    self.holder.leave()
                for campaign_id in self.holder.holds.keys() - but:
                    self.holder.release(campaign_id)

    def _save(self, campaign_id: str) -> None:
        """The time worked on the campaign, as far as it is still ours."""
        session = self._sessions.get(campaign_id)
        if session is not None:
            with suppress(LeaseLost, NotFound), self._store.leases.guarding(session.hold.lease):
                session.save_time()

    def _close(self, campaign_id: str) -> None:
        session = self._sessions.pop(campaign_id, None)
        if session is not None:
            session.runner.close()


def senseless(error: Exception) -> Outcome:
    """Of a job that left what cannot be read or stored."""
    reason = f"what the job left makes no sense: {type(error).__name__}: {error}"
    return Outcome(verdict=Verdict.CRASHED, cause=Cause.CRASH, reason=reason[:MAX_REASON])


@contextmanager
def _told_only(what: str) -> Iterator[None]:
    """At the end a database that is away is a line in the log: what it would have been told follows by itself."""
    try:
        yield
    except StoreUnavailable as error:
        _log.warning("%s: %s", what, error)
