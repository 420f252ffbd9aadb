"""A lab without devices: a runner, a workload and a search that do as they are told, on a clock that tests turn.

They are real implementations of the seams, registered under the name "fake": a `Machine` holds the jobs and outlives
services, as a cluster does; a job writes a true result file, and the service reads it as it reads any.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from new_stores import migrations_run_once

from meshtune.runners import registry
from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, NoTimeLeft, Refused
from meshtune.runners.hardware import HardwareKind
from meshtune.runners.outcome import Measurement, Outcome, Verdict, write_result
from meshtune.runners.programs.workloads.base import (
    JobRequest,
    Workload,
    outcome_from_result,
    outcome_without_result,
)
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.columns import Capabilities
from meshtune.search_spaces.physics.framework_profiles import TRAINER_FLOAT32
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign import campaign as campaigns
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Attempt, Origin, Proposal, Trial, TrialState, job_name, proposal_of
from meshtune.tuner.search.registry import SEARCHES, GridSearch, NoOptions, SearchKind
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

STEPS = 6
ENDS = {"ok": JobState.SUCCEEDED, "oom": JobState.FAILED, "crashed": JobState.FAILED, "lost": JobState.LOST}
ENDS |= {"timed_out": JobState.TIMED_OUT, "fault": JobState.LOST, "bug": JobState.FAILED}
BUG = "ModuleNotFoundError: No module named 'megatron'"


@dataclass(frozen=True)
class Behaviour:
    """What a job will do: wait, run, end. why: what it waits for. kind: a key of ENDS; "fault": its nodes are to blame.
    cancellable False: it ends when it likes."""

    kind: str = "ok"
    queue_s: float = 0.0
    why: str = ""
    hindered: str = ""
    run_s: float = 1.0
    cancellable: bool = True


@dataclass
class FakeJob:
    spec: JobSpec
    behaviour: Behaviour
    submitted_at: float
    nodes: tuple[str, ...] = ()
    cancelled_at: float | None = None

    @property
    def plan(self) -> Plan:
        return Plan(**json.loads(self.spec.files["plan.json"]))

    def status(self, now: float) -> JobStatus:
        starts = self.submitted_at + self.behaviour.queue_s
        ends = starts + self.behaviour.run_s
        stop = self.cancelled_at if self.behaviour.cancellable else None
        if stop is not None and stop < ends:
            began = starts if starts < stop else None
            return JobStatus(state=JobState.CANCELLED, reason="cancelled", started_at=began, finished_at=stop)
        if now < starts:
            return JobStatus(state=JobState.QUEUED, reason=self.behaviour.why, warning=self.behaviour.hindered)
        if now < ends:
            return JobStatus(state=JobState.RUNNING, started_at=starts, nodes=self.nodes)
        state, failed = ENDS[self.behaviour.kind], self.nodes if self.behaviour.kind == "fault" else ()
        times = {"started_at": starts, "finished_at": ends}
        return JobStatus(state=state, reason=f"it was told: {state}", nodes=self.nodes, failed_nodes=failed, **times)


@dataclass
class Machine:
    """The jobs and what they do. script: by job name. step_s: seconds of one step, by plan. troubles: what the next
    calls of the runner raise, one each. largest: jobs of more processes are refused. nodes: a job gets the first one
    that it need not avoid. kinds: their hardware, which a job tells in its result. closes: no job is taken any more.
    sent: how often each job started.
    """

    clock: Callable[[], float]
    script: Callable[[str], Behaviour] = lambda name: Behaviour()
    step_s: Callable[[Plan], float] = lambda plan: 1.0 / plan.dp + 0.1 * plan.zero_stage + 0.01 * plan.micro_batch_size
    troubles: deque[Exception] = field(default_factory=deque)
    largest: int = 10**6
    nodes: tuple[str, ...] = ()
    kinds: Mapping[str, HardwareKind] = field(default_factory=dict)
    closes: bool = False
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    cancels: list[str] = field(default_factory=list)
    most_at_once: int = 0

    def answer(self) -> None:
        if self.troubles:
            raise self.troubles.popleft()

    def end(self, job: FakeJob) -> None:
        """What the job leaves in its folder."""
        directory = job.spec.directory
        if (directory / "result.json").exists():
            return
        if job.behaviour.kind == "ok":
            step_s = self.step_s(job.plan)
            measurement = Measurement(
                step_times_s=tuple(step_s * (1 + 0.001 * index) for index in range(STEPS)),
                tokens_per_step=128 * job.plan.global_batch_size,
                devices=job.spec.processes,
                peak_memory_bytes=(2**30,) * job.spec.processes,
                hardware=tuple(replace(self.kinds[node], nodes=(node,)) for node in job.nodes if node in self.kinds),
            )
            write_result(directory, Outcome(verdict=Verdict.OK, measurement=measurement))
        elif job.behaviour.kind == "oom":
            write_result(directory, Outcome(verdict=Verdict.OOM, reason="CUDA out of memory", failed_rank=1))
        elif job.behaviour.kind == "bug":
            log = f"starting\n{BUG}\n"
            write_result(directory, Outcome(verdict=Verdict.CRASHED, cause=Cause.USER_BUG, reason=BUG, log_tail=log))

    def place(self, spec: JobSpec) -> tuple[str, ...]:
        return tuple([node for node in self.nodes if node not in spec.avoid][:1]) or self.nodes[:1]


class FakeRunner:
    """A Runner over a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def submit(self, spec: JobSpec) -> str:
        machine = self._machine
        machine.answer()
        if spec.processes > machine.largest:
            raise Refused(f"{spec.name} needs {spec.processes} processes, but there are {machine.largest}")
        if spec.name not in machine.jobs:
            if machine.closes:
                raise NoTimeLeft("12 s are left, and a trial may take 300 s")
            spec.directory.mkdir(parents=True)
            nodes = machine.place(spec)
            machine.jobs[spec.name] = FakeJob(spec, machine.script(spec.name), machine.clock(), nodes)
            machine.sent[spec.name] += 1
            alive = sum(not job.status(machine.clock()).state.final for job in machine.jobs.values())
            machine.most_at_once = max(machine.most_at_once, alive)
        return f"id-{spec.name}"

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        machine = self._machine
        machine.answer()
        found: dict[str, JobStatus] = {}
        for id in ids:
            job = machine.jobs.get(id.removeprefix("id-"))
            found[id] = JobStatus(state=JobState.LOST) if job is None else job.status(machine.clock())
            if job is not None and found[id].state.final and found[id].state is ENDS[job.behaviour.kind]:
                machine.end(job)
        return found

    def cancel(self, id: str) -> None:
        self._machine.answer()
        self._machine.cancels.append(id)
        job = self._machine.jobs[id.removeprefix("id-")]
        job.cancelled_at = job.cancelled_at or self._machine.clock()

    def find(self, name: str) -> str | None:
        self._machine.answer()
        return f"id-{name}" if name in self._machine.jobs else None

    def close(self) -> None:
        pass


class FakeWorkload:
    """A Workload whose jobs are for the fake runner. Takes no options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if options:
            raise InvalidValue([Problem(next(iter(options)), "is not a known key; it takes none")])

    capabilities = Capabilities(kv_replication=True)
    framework = TRAINER_FLOAT32
    dtype = framework.dtype
    knows_dtype = True
    program = ""
    steps = None
    option_values: ClassVar[Mapping[str, Any]] = {}
    completed = staticmethod(Workload.completed)
    problems_with = Workload.problems_with
    problems_with_recipe = Workload.problems_with_recipe
    problems_with_knobs = Workload.problems_with_knobs
    problems_with_names = Workload.problems_with_names

    def materialize(self, request: JobRequest) -> JobSpec:
        return request.job(
            ("true",),
            {"plan.json": json.dumps(request.plan.as_dict())},
            {"INCUMBENT_STEP_TIME_S": json.dumps(request.incumbent_step_time_s)},
        )

    def read(self, directory: Path, status: JobStatus) -> Outcome:
        return outcome_from_result(directory) or outcome_without_result(status, "the log")


@dataclass
class FakeSearch:
    """The grid, unless `say` is set: what the search answers (a Proposal, or plans), or raises. asked: every n."""

    say: Callable[..., Any] | None = None
    asked: list[int] = field(default_factory=list)

    def ask(self, task, seen, n):
        self.asked.append(n)
        if self.say is None:
            return GridSearch().ask(task, seen, n)
        said = self.say(task.space, seen, n)
        return said if isinstance(said, Proposal) else proposal_of(said)


class Killed(BaseException):
    """The process died here."""


MOVES = "create_campaign move_campaign add_elapsed end_search keep_lessons"
WRITES = f"{MOVES} plan_trials plan_attempt note_wait mark_sending mark_submitted mark_running finish claim take"
ACTS = frozenset(f"{WRITES} submit poll cancel find".split())


@dataclass
class Mortal:
    """The same object, until a common counter of acts comes to `dies_at`: then the process dies, before or after it."""

    target: Any
    counter: list[int]
    dies_at: int
    after: bool

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.target, name)
        if name == "leases":
            return replace(self, target=method)
        if name not in ACTS:
            return method

        def act(*args: Any, **kwargs: Any) -> Any:
            self.counter[0] += 1
            if self.counter[0] == self.dies_at and not self.after:
                raise Killed
            answer = method(*args, **kwargs)
            if self.counter[0] == self.dies_at:
                raise Killed
            return answer

        return act


LAB: list[Lab] = []


def create_runner(root: Path, cluster: object, options: Mapping[str, Any]) -> Any:
    return LAB[-1].wrap(FakeRunner(LAB[-1].machine))


def create_search(seed: int, options: NoOptions) -> FakeSearch:
    return LAB[-1].search


@dataclass
class Lab:
    """One home, store, machine and search; services come and go."""

    home: Home
    store: Store
    now: float = 1000.0
    search: FakeSearch = field(default_factory=FakeSearch)
    wrap: Callable[[Any], Any] = lambda thing: thing
    services: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Machine(clock=lambda: self.now)
        self.service = self.open()

    def open(self) -> Service:
        """A fresh service, as after a restart."""
        self.service = Service(self.wrap(self.store), self.home, clock=lambda: self.now, timer=lambda: self.now)
        self.services.append(self.service)
        return self.service

    def kill(self) -> None:
        """What the kernel does when the service's process dies: its locks go, nothing is written."""
        sessions = self.service.sessions
        proof, sessions.holder._proof = sessions.holder._proof, None
        if proof is not None:
            os.close(proof)
        sessions._sessions.clear()

    def document(self, **over: Any) -> dict[str, Any]:
        """A spec on the fakes: 4 devices, a space of 10 plans."""
        return {
            "name": "lab",
            "model": "gpt-micro",
            "cluster": "local-cpu",
            "global_batch_size": 8,
            "space": {"zero_stage": [0, 1], "micro_batch_size": [1, 2], "pp": [1], "tp": [1, 2, 4]},
            "workload": "fake",
            "runner": "fake",
            "search": "fake",
            "budget": {"trials": 4},
            "confirm": 0,
            **over,
        }

    def create(self, **over: Any) -> str:
        return self.service.create(self.document(**over)).id

    def spec(self, **over: Any) -> CampaignSpec:
        return read_spec(self.document(**over), self.home)[0]

    def tick(self, id: str, seconds: float = 0.0) -> bool:
        self.now += seconds
        return self.service.tick(id)

    def run(self, id: str, *, until: Callable[[], bool] | None = None, step_s: float = 0.5, ticks: int = 400) -> None:
        """Tick until the campaign is over, or `until` holds; time goes on whenever nothing is to do."""
        for _ in range(ticks):
            if until() if until else self.campaign(id).state.final:
                return
            if not self.service.tick(id):
                self.now += step_s
        raise AssertionError(f"not over after {ticks} ticks: {self.campaign(id)}, {self.trials(id)}")

    def campaign(self, id: str) -> Campaign:
        return self.store.campaign(id)

    def trials(self, id: str) -> list[Trial]:
        return self.store.trials(id)

    def verdicts(self, id: str) -> list[str | None]:
        return [None if trial.verdict is None else str(trial.verdict) for trial in self.trials(id)]


@pytest.fixture
def service(tmp_path) -> Iterator[Service]:
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path / "home"))
        yield service
        service.close()


@pytest.fixture(autouse=True, scope="module")
def stores_are_made_fast() -> Iterator[None]:
    with migrations_run_once():
        yield


@pytest.fixture(autouse=True, scope="module")
def letters_of_ids(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """The random letters of campaigns' ids, by the test's name: simulated runs differ by the names of their jobs."""
    letters = random.Random(request.node.nodeid)
    made = SimpleNamespace(uuid4=lambda: uuid.UUID(int=letters.getrandbits(128), version=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaigns, "uuid", made)
        yield letters


@pytest.fixture(autouse=True)
def letters_of_this_test(letters_of_ids: random.Random, request: pytest.FixtureRequest) -> None:
    letters_of_ids.seed(request.node.nodeid)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name "fake" at every seam."""
    monkeypatch.setitem(registry.RUNNERS, "fake", f"{__name__}:create_runner")
    monkeypatch.setitem(registry.WORKLOADS, "fake", registry.TrainingProgram(f"{__name__}:FakeWorkload", "fake"))
    monkeypatch.setitem(SEARCHES, "fake", SearchKind(made_by=f"{__name__}:create_search", learns="learns"))


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The lab's database: in memory, unless a test asks for a file by the parameter "file"."""
    return f"sqlite:///{tmp_path}/lab.db" if getattr(request, "param", "") == "file" else "sqlite://"


@pytest.fixture
def lab(url: str, fakes: None, tmp_path: Path) -> Iterator[Lab]:
    with Store.open(url) as store:
        lab = Lab(Home(tmp_path / "home"), store)
        LAB.append(lab)
        yield lab
        LAB.remove(lab)
        lab.wrap = lambda thing: thing
        for service in lab.services:
            with suppress(Killed):
                service.close()


class Make:
    """Values, and the classes of this file that tests need."""

    Behaviour, Killed, Mortal, FakeRunner, FakeWorkload = Behaviour, Killed, Mortal, FakeRunner, FakeWorkload

    def measurement(self, step_s: float, *, spread: float = 0.001, devices: int = 4, **more: Any) -> Measurement:
        """STEPS steps around step_s, evenly from -spread to +spread."""
        shares = [-1 + 2 * index / (STEPS - 1) for index in range(STEPS)]
        steps = tuple(step_s * (1 + spread * share) for share in shares)
        return Measurement(step_times_s=steps, tokens_per_step=1024, devices=devices, **more)

    def campaign(self, spec: CampaignSpec, state: CampaignState = CampaignState.RUNNING, **more: Any) -> Campaign:
        given = {"created_at": 0.0, "updated_at": 0.0, "running_since": 0.0, "combinations": 100, "legal": 10, **more}
        return Campaign(id="c", spec=spec, state=state, **given)

    def trial(
        self,
        number: int,
        outcome: Outcome | Measurement | Verdict | None = None,
        *,
        state: TrialState | None = None,
        origin: Origin = Origin.SEARCH,
        plan: Plan | None = None,
        attempt: int = 1,
        started_at: float | None = None,
        finished_at: float | None = None,
        round: int | None = None,
    ) -> Trial:
        """A trial in `state`, or DONE with an outcome, after `attempt` - 1 lost attempts."""
        if isinstance(outcome, Measurement):
            outcome = Outcome(verdict=Verdict.OK, measurement=outcome)
        if isinstance(outcome, Verdict):
            outcome = Outcome(verdict=outcome, reason=f"it was {outcome}")
        lost = Outcome(verdict=Verdict.LOST, reason="node down")
        states = [(TrialState.DONE, lost)] * (attempt - 1)
        states.append((state or (TrialState.PLANNED if outcome is None else TrialState.DONE), outcome))
        attempts = tuple(
            Attempt(
                number=n,
                job_name=job_name("c", number, n),
                state=at,
                planned_at=0.0,
                job_id=None if at is TrialState.PLANNED else f"id-{number}-{n}",
                started_at=started_at,
                finished_at=finished_at,
                running_s=0.0 if started_at is None or finished_at is None else finished_at - started_at,
                outcome=ended,
            )
            for n, (at, ended) in enumerate(states, start=1)
        )
        chosen = plan or Plan(dp=4, micro_batch_size=1 + number % 2, grad_accum_steps=1 + number)
        turn = int(origin is Origin.CONFIRMATION) if round is None else round
        return Trial(campaign_id="c", number=number, plan=chosen, origin=origin, attempts=attempts, round=turn)

    def thrice(self, trials: Sequence[Trial]) -> list[Trial]:
        """With two second runs of each that was measured, in rounds, as fast as the first."""
        measured = [trial for trial in trials if trial.measurement is not None]
        again = enumerate(((turn, trial) for turn in (1, 2) for trial in measured), start=len(trials))
        return [
            *trials,
            *(replace(each, number=number, origin=Origin.CONFIRMATION, round=turn) for number, (turn, each) in again),
        ]


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home that does not exist, and that reading specs must not create."""
    return Home(tmp_path / "nowhere" / "home")


@pytest.fixture
def runs(make: Make) -> Callable[..., list[Trial]]:
    """Trials by their steps' seconds, the first the baseline; a pair gives the spread too, or more of
    the measurement; None a crash. again: second
    runs, by the number of the first: seconds, a verdict, or a state; a list for several rounds."""

    def build(
        *steps: Any, baseline: bool = True, again: Mapping[int, Any] = MappingProxyType({}), **more: Any
    ) -> list[Trial]:
        def ended(given: Any) -> Measurement:
            step_s, own = given if isinstance(given, tuple) else (given, {})
            return make.measurement(step_s, **more | (own if isinstance(own, dict) else {"spread": own}))

        built = []
        for number, given in enumerate(steps):
            origin = Origin.BASELINE if baseline and number == 0 else Origin.SEARCH
            built.append(make.trial(number, Verdict.CRASHED if given is None else ended(given), origin=origin))
        for first, rounds in again.items():
            for turn, given in enumerate(rounds if isinstance(rounds, list) else [rounds], start=1):
                known: dict[str, Any] = {"origin": Origin.CONFIRMATION, "plan": built[first].plan, "round": turn}
                if isinstance(given, TrialState):
                    built.append(make.trial(len(built), state=given, **known))
                else:
                    outcome = given if isinstance(given, Verdict) else ended(given)
                    built.append(make.trial(len(built), outcome, **known))
        return built

    return build
