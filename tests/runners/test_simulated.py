"""The simulated runner keeps the promises of a runner, on a clock that the tests turn; its jobs are files, and its
cluster plays what knobs do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import simulated_jobs
from places import SPEEDS, cluster

from meshtune.runners.base import InvalidJob, JobSpec, JobState, RunnerUnavailable
from meshtune.runners.outcome import RESULT_FILE, Verdict, read_result
from meshtune.runners.programs.workloads.simulated import JOB_FILE, SimulatedWorkload, parse_job
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.registry import create_runner
from meshtune.runners.schedulers.ground_truth import HiddenClusterOptions
from meshtune.runners.schedulers.simulated import SimulatedRunner
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import LinkSpec
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.recipe import PLAIN, Adapter, Recipe

MODEL = ModelSpec(name="m", layers=4, hidden=512, heads=8, ffn=2048, vocab=1024, seq_len=256)
LINK = LinkSpec(latency_s=1e-5, bandwidth_bytes_per_s=1e10)
CLUSTER = cluster(2, 2, "cuda", link=LINK, **SPEEDS)
PLAN = Plan(dp=4, grad_accum_steps=2)


class Laboratory:
    """A place for jobs that take 10 s, on two slots unless told otherwise, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.workload = SimulatedWorkload({})
        self.runner = self.open()

    def open(self, **options) -> SimulatedRunner:
        """Another runner object for the same jobs, as after a restart of the service."""
        chosen = HiddenClusterOptions(**{"seconds_per_trial": 10.0, "slots": 2, **options})
        return SimulatedRunner(self.folder / "root", chosen, clock=lambda: self.now)

    def spec(self, name, plan=PLAN, cluster=CLUSTER, model=MODEL, time_limit_s=1e6) -> JobSpec:
        directory = self.folder / "work" / name
        return self.workload.materialize(name, model, plan, cluster, directory, seed=0, time_limit_s=time_limit_s)

    def submit(self, name, **changes) -> str:
        return self.runner.submit(self.spec(name, **changes))

    def status(self, id, now=None):
        self.now = self.now if now is None else now
        return self.runner.poll([id])[id]

    def result(self, name):
        return read_result(self.folder / "work" / name)


@pytest.fixture
def lab(tmp_path) -> Laboratory:
    return Laboratory(tmp_path)


def test_a_job_runs_for_its_time_and_leaves_a_result_when_it_has_ended_not_before(lab):
    id = lab.submit("job")
    running = lab.status(id, 1009.9)
    assert (running.state, running.started_at, running.finished_at) == (JobState.RUNNING, 1000.0, None)
    assert not (lab.folder / "work" / "job" / RESULT_FILE).exists()
    done = lab.status(id, 1010.0)
    assert (done.state, done.exit_code, done.reason) == (JobState.SUCCEEDED, 0, "")
    assert (done.started_at, done.finished_at) == (1000.0, 1010.0)
    outcome = lab.workload.read(lab.folder / "work" / "job", done)
    assert (outcome.verdict, outcome) == (Verdict.OK, lab.result("job"))
    assert json.loads((lab.folder / "work" / "job" / RESULT_FILE).read_text())["simulated"] is True


def test_never_more_jobs_run_than_there_are_slots_and_first_come_is_first_served(lab):
    names = [f"job{number}" for number in (9, 3, 7, 1, 8)]
    for number, name in enumerate(names):
        lab.now = 1000.0 + number
        lab.submit(name)
    for now in range(1000, 1040):
        lab.now = float(now)
        states = [status.state for status in lab.runner.poll(names).values()]
        assert states.count(JobState.RUNNING) <= 2
    done = lab.runner.poll(names)
    assert [done[name].started_at for name in names] == [1000.0, 1001.0, 1010.0, 1011.0, 1020.0]


def test_a_restarted_service_finds_its_jobs_and_all_have_gone_on(lab):
    for name in ("first", "second", "third"):
        lab.submit(name)
    lab.runner.close()
    lab.runner.close()
    lab.runner, lab.now = lab.open(seconds_per_trial=99.0, slots=1, seed=5), 1015.0
    assert lab.runner.find("third") == "third"
    statuses = lab.runner.poll(["first", "second", "third"])
    assert [status.state for status in statuses.values()] == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.RUNNING]
    assert (statuses["first"].finished_at, statuses["third"].started_at) == (1010.0, 1010.0)


def test_files_that_cannot_be_read_are_trouble_of_the_runner_not_of_the_job(lab):
    lab.submit("job")
    (lab.folder / "root" / "jobs" / "other").write_text("{")
    with pytest.raises(RunnerUnavailable, match="cannot be read"):
        lab.open().poll(["job"])


def test_a_job_that_is_over_keeps_its_state_and_no_file_of_its_own_is_left(lab):
    names = [lab.submit(f"job{number}") for number in range(3)]
    lab.runner.cancel("job2")
    lab.now = 1015.0
    seen = lab.runner.poll(names)
    assert [status.state for status in seen.values()] == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.CANCELLED]
    assert list((lab.folder / "root" / "jobs").iterdir()) == []
    result = (lab.folder / "work" / "job0" / RESULT_FILE).stat()
    lab.submit("job0")
    lab.runner.cancel("job0")
    assert lab.runner.poll(names) == seen
    assert (lab.folder / "work" / "job0" / RESULT_FILE).stat() == result
    assert {name: lab.runner.find(name) for name in names} == {name: name for name in names}


def refused(lab, spec, message):
    with pytest.raises(InvalidJob, match=message):
        lab.runner.submit(spec)
    assert not (lab.folder / "root").exists()
    assert not (lab.folder / "work").exists()


def test_what_cannot_be_simulated_is_refused(lab):
    job = TorchWorkload({}).materialize("job", MODEL, PLAN, CLUSTER, lab.folder / "work", seed=0, time_limit_s=9)
    refused(lab, job, r"^job has no simulated\.json: the simulated runner runs jobs of the simulated workload only$")
    unknown = replace(CLUSTER, network_link=None)
    refused(lab, lab.spec("job", cluster=unknown), r"^job cannot be simulated: cluster\.network_link: is not known")
    refused(lab, lab.spec("job", plan=Plan(dp=2)), "^job is for 2 devices, but gets 4$")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("}", "", "not JSON"),
        ('"version": 1', '"version": 2', "version 1"),
        ('"tp"', '"tq"', "plan.tq"),
        ("megatron-deepspeed", "megatron", "code"),
    ],
)
def test_a_job_file_that_breaks_its_contract_is_refused(old, new, message, lab):
    spec = lab.spec("job")
    text = spec.files[JOB_FILE].replace(old, new)
    assert text != spec.files[JOB_FILE]
    with pytest.raises(ValueError, match=message):
        parse_job(text)
    refused(lab, replace(spec, files={JOB_FILE: text}), message)


def test_a_lost_job_names_its_node_and_has_no_result(lab):
    lab.runner = lab.open(fault_rate=1.0)
    id = lab.submit("job")
    status = lab.status(id, 1010.0)
    assert status.state is JobState.LOST
    assert status.reason.startswith("simulated: node c-0000")
    assert status.finished_at < 1010.0
    outcome = lab.workload.read(lab.folder / "work" / "job", status)
    assert (outcome.verdict, outcome.reason) == (Verdict.LOST, status.reason)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -0.1}, "noise"),
        ({"fault_rate": 1.5}, "fault_rate"),
        ({"slots": 0}, "slots"),
        ({"seconds_per_trial": float("inf")}, "seconds_per_trial"),
        ({"seed": -1}, "seed"),
        ({"sede": 1}, "did you mean 'seed'"),
    ],
)
def test_wrong_options_are_told(options, message, tmp_path):
    with pytest.raises(InvalidValue, match=message):
        create_runner("simulated", tmp_path, CLUSTER, options)


def test_a_code_can_be_taken_to_have_context_parallelism():
    alone, long = (SimulatedWorkload(options) for options in ({}, {"contexts": ["ring", "ulysses"]}))
    assert alone.capabilities.contexts == frozenset()
    assert long.capabilities == replace(alone.capabilities, contexts=frozenset({"ring", "ulysses"}))
    with pytest.raises(InvalidValue, match="contexts"):
        SimulatedWorkload({"contexts": ["rings"]})


KNOBS = (
    Knob(name="fast", values=(False, True), argument="--fast", omit=False),
    Knob(name="size", values=(0.5, 2), env="SIZE"),
    Knob(name="idle", values=("a", "b")),
)
EFFECTS = {"fast": {True: {"time": 0.5}}, "size": {2: {"time": 3, "memory": 2}}}


def outcome(folder, **values):
    workload = SimulatedWorkload({"effects": EFFECTS})
    assert (workload.problems_with_knobs(KnobSet(KNOBS)), workload.problems_with_names(KnobSet(KNOBS))) == ([], [])
    runner = SimulatedRunner(folder / "root", HiddenClusterOptions(noise=0.0))
    plan = Plan(knobs={"fast": False, "size": 0.5, "idle": "a"} | values)
    # Residuals are of the layout, which is one.
    spec = workload.materialize(
        "t", simulated_jobs.MODEL, plan, simulated_jobs.CLUSTER, folder / "t", seed=0, time_limit_s=1e9, knobs=KNOBS
    )
    runner.poll([runner.submit(spec)])
    return read_result(folder / "t")


def test_effects_multiply_and_the_result_says_the_knobs(tmp_path):
    plain, both = outcome(tmp_path / "a"), outcome(tmp_path / "b", fast=True, size=2, idle="b")
    assert (plain.verdict, both.verdict) == (Verdict.OK, Verdict.OK)
    assert both.measurement.step_time_s == pytest.approx(1.5 * plain.measurement.step_time_s)
    ratio = both.measurement.peak_memory_bytes[0] / plain.measurement.peak_memory_bytes[0]
    assert ratio == pytest.approx(2.0, rel=1e-6)
    assert both.measurement.knobs == {"fast": True, "idle": "b", "size": 2}
    assert plain.measurement.knobs["fast"] is False


def test_effects_of_what_is_no_knob_or_no_value_are_refused():
    workload = SimulatedWorkload({"effects": {"fats": {"true": {}}, "size": {3: {}}}})
    assert [str(problem) for problem in workload.problems_with_names(KnobSet(KNOBS))] == [
        "effects.fats: is no knob of the spec; did you mean 'fast'?",
        "effects.size.3: is no value of the knob; known: 0.5, 2",
    ]


@pytest.mark.parametrize("effect", [{"time": 0}, {"memory": -1}, {"time": float("inf")}, {"speed": 2}])
def test_an_effect_is_a_positive_factor(effect):
    with pytest.raises(InvalidValue, match=r"effects\.fast\.true"):
        SimulatedWorkload({"effects": {"fast": {True: effect}}})


def test_a_job_obeys_the_recipe_and_another_recipe_is_another_training_code(lab):
    def job(recipe):
        spec = lab.workload.materialize(
            "t", MODEL, PLAN, CLUSTER, lab.folder / "t", seed=0, time_limit_s=1e6, recipe=recipe
        )
        return parse_job(spec.files[JOB_FILE])

    frozen = Recipe(adapter=Adapter(rank=4), base_bits=4, optimizer="adamw_8bit")
    plain, adapted = job(PLAIN), job(frozen)
    assert (plain.training.recipe, adapted.training.recipe) == (PLAIN, frozen)
    assert adapted.training.framework.name != plain.training.framework.name
    assert adapted.training.framework.optimizer_bytes != plain.training.framework.optimizer_bytes
