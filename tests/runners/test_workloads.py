"""The torch workload renders a job as text, tells from what a job left what became of it, and starts warm the second
time."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import pytest
from places import TINY, cluster

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.log_lines import LOG_TAIL_BYTES, read_tail
from meshtune.runners.outcome import RESULT_FILE, Measurement, Outcome, Verdict, write_result
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.failure import Phase, RankFailure, write_failure
from meshtune.runners.trainer.job import Measuring, TrainerJob, parse_job
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.recipe import Adapter, Recipe
from meshtune.search_spaces.space import Bounds, Space

PLAN = Plan(tp=2, dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=1)
MEASURED = Measurement(step_times_s=(0.5,), tokens_per_step=16, devices=2)


def test_a_job_has_the_recipe_that_was_asked_for(tmp_path):
    recipe = Recipe(adapter=Adapter(rank=4, targets=("q",)), base_bits=32)
    spec = TorchWorkload({}).materialize(
        JobRequest("t", TINY, PLAN, cluster(2, 2), tmp_path, seed=0, time_limit_s=9.0, recipe=recipe)
    )
    assert parse_job(spec.files["job.json"]).recipe == recipe


def materialize(directory, kind=DeviceKind.CPU, **options):
    workload = TorchWorkload(options)
    return workload.materialize(
        JobRequest("c1-t1-a1", TINY, PLAN, cluster(2, 2, kind), directory, seed=7, time_limit_s=90.5)
    )


def test_a_job_is_rendered_as_text_and_nothing_is_written(tmp_path):
    options = {"dtype": "bfloat16", "learning_rate": 0.01, "measuring": {"max_warmup_steps": 1, "min_steps": 3}}
    spec = materialize(tmp_path / "job", **options)
    assert spec.name == "c1-t1-a1"
    assert spec.command == (sys.executable, "-m", "meshtune.runners.trainer", "job.json")
    assert (spec.nodes, spec.devices_per_node, spec.processes, spec.time_limit_s) == (2, 2, 4, 90.5)
    assert (spec.directory, dict(spec.env)) == (tmp_path / "job", {})
    assert list(spec.files) == ["job.json"]
    document = json.loads(spec.files["job.json"])
    assert (document["version"], document["plan"]["zero_stage"], document["model"]["kv_heads"]) == (1, 1, 2)
    assert (document["dtype"], document["learning_rate"], document["measuring"]["min_steps"]) == ("bfloat16", 0.01, 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "limit"), [(DeviceKind.CPU, 2**30), (DeviceKind.CUDA, None)])
def test_the_job_file_is_read_back_and_a_gpu_limits_memory_itself(kind, limit, tmp_path):
    assert parse_job(materialize(tmp_path, kind).files["job.json"]) == TrainerJob(
        name="c1-t1-a1",
        model=TINY,
        plan=PLAN,
        seed=7,
        device=kind,
        memory_limit_bytes=limit,
        measuring=Measuring(),
    )


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        (
            {"dtyp": "float32", "learning_rate": "fast", "measuring": {"min_step": 3, "max_steps": 2.5}},
            {
                "dtyp: is not a known key; did you mean 'dtype'?",
                "learning_rate: must be a valid number, unable to parse string as a number, not 'fast'",
                "measuring.min_step: is not a known key; did you mean 'min_steps'?",
                "measuring.max_steps: must be a valid integer, got a number with a fractional part, not 2.5",
            },
        ),
        (
            {"dtype": "float8", "measuring": {"min_steps": 0, "precision": 2, "max_warmup_steps": -1}},
            {
                "dtype: must be 'float32', 'bfloat16' or 'float16', not 'float8'",
                "measuring.min_steps: must be at least 1, not 0",
                "measuring.precision: must be below 1, not 2.0",
                "measuring.max_warmup_steps: must be at least 0, not -1",
            },
        ),
        ({"learning_rate": 0}, {"learning_rate: must be positive, not 0.0"}),
        ({"learning_rate": float("inf")}, {"learning_rate: must be finite, not inf"}),
    ],
)
def test_every_wrong_option_is_told_at_once(options, problems):
    with pytest.raises(InvalidValue) as caught:
        TorchWorkload(options)
    assert {str(problem) for problem in caught.value.problems} == problems


def read(directory, state: JobState, reason: str = "") -> Outcome:
    return TorchWorkload({}).read(directory, JobStatus(state=state, reason=reason))


def failure(rank: int, at: float, verdict: Verdict = Verdict.CRASHED, *, echo: bool = False) -> RankFailure:
    return RankFailure(
        rank=rank,
        at=at,
        verdict=verdict,
        phase=Phase.BACKWARD,
        reason=f"ValueError: {rank}",
        traceback="trace",
        echo=echo,
    )


FINAL = [state for state in JobState if state.final]


@pytest.mark.parametrize("state", FINAL)
def test_the_result_file_beats_whatever_the_runner_says(state, tmp_path):
    write_result(tmp_path, Outcome(verdict=Verdict.OK, measurement=MEASURED))
    write_failure(tmp_path, failure(0, 1.0))
    assert read(tmp_path, state, "the runner's word") == Outcome(verdict=Verdict.OK, measurement=MEASURED)


@pytest.mark.parametrize(
    ("state", "verdict", "cause", "reason"),
    [
        (JobState.SUCCEEDED, Verdict.CRASHED, Cause.CRASH, "the job ended without an error, but wrote no result file"),
        (JobState.FAILED, Verdict.CRASHED, Cause.CRASH, "the runner's word"),
        (JobState.TIMED_OUT, Verdict.TIMED_OUT, Cause.TIME_LIMIT, "the runner's word"),
        (JobState.CANCELLED, Verdict.CANCELLED, None, "the runner's word"),
        (JobState.LOST, Verdict.LOST, Cause.NODE_FAULT, "the runner's word"),
    ],
)
def test_without_a_result_the_runner_is_believed(state, verdict, cause, reason, tmp_path):
    log_path(tmp_path, 0).write_text("the log\n")
    expected = Outcome(verdict=verdict, cause=cause, reason=reason, log_tail="the log\n")
    assert read(tmp_path, state, "the runner's word") == expected
    # Without its folder a job's failure says nothing of its plan.
    lost = Outcome(
        verdict=Verdict.LOST, cause=Cause.STORAGE, reason=f"the job's folder {tmp_path}/gone is gone; {reason}"
    )
    gone = lost if verdict is Verdict.CRASHED else replace(expected, log_tail="")
    assert read(tmp_path / "gone", state, "the runner's word") == gone


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        (Cause.OOM, Verdict.OOM),
        (Cause.NODE_FAULT, Verdict.LOST),
        (Cause.PREEMPTION, Verdict.LOST),
        (Cause.TIME_LIMIT, Verdict.TIMED_OUT),
    ],
)
@pytest.mark.parametrize("state", [JobState.FAILED, JobState.LOST])
def test_a_cause_that_the_runner_knows_is_carried_over_and_beats_what_ranks_say(state, cause, verdict, tmp_path):
    write_failure(tmp_path, failure(0, 1.0))
    outcome = TorchWorkload({}).read(tmp_path, JobStatus(state=state, reason="its word", cause=cause))
    assert (outcome.verdict, outcome.cause, outcome.reason) == (verdict, cause, "its word")


def test_the_rank_that_failed_first_tells_why_with_its_own_log(tmp_path):
    for found in (failure(2, 3.0), failure(1, 2.0, Verdict.OOM), failure(0, 1.0, echo=True)):
        write_failure(tmp_path, found)
    for rank in (0, 1, 2):
        log_path(tmp_path, rank).write_text(f"log of {rank}\n")
    expected = Outcome(
        verdict=Verdict.OOM,
        cause=Cause.OOM,
        reason="ValueError: 1",
        failed_rank=1,
        phase="backward",
        log_tail="log of 1\n",
    )
    assert read(tmp_path, JobState.FAILED, "rank 1 exited with code 1") == expected
    log_path(tmp_path, 1).unlink()
    assert read(tmp_path, JobState.FAILED, "rank 1 exited with code 1").log_tail == "trace"


def test_a_rank_killed_by_a_signal_is_blamed_and_not_its_echoes(tmp_path):
    write_failure(tmp_path, failure(0, 1.0, echo=True))
    log_path(tmp_path, 0).write_text("connection lost\n")
    outcome = read(tmp_path, JobState.FAILED, "rank 1 was killed by SIGKILL")
    assert (outcome.verdict, outcome.reason) == (Verdict.CRASHED, "rank 1 was killed by SIGKILL")
    assert outcome.log_tail == "connection lost\n"
    # A runner that cannot say more leaves the echo as the best there is.
    assert read(tmp_path, JobState.FAILED).reason == "ValueError: 0"


def test_ranks_that_all_only_lost_each_other_are_lost_by_the_network(tmp_path):
    for rank in (0, 1):
        write_failure(tmp_path, replace(failure(rank, 1.0 + rank, echo=True), cause=Cause.COMMUNICATION))
    outcome = read(tmp_path, JobState.FAILED, "rank 1 exited with code 1")
    assert (outcome.verdict, outcome.cause, outcome.failed_rank) == (Verdict.LOST, Cause.COMMUNICATION, 0)
    # The rank that ended first, without a word, is no victim.
    assert read(tmp_path, JobState.FAILED, "rank 2 exited with code 3").cause is Cause.CRASH
    assert read(tmp_path, JobState.TIMED_OUT, "ran longer").cause is Cause.TIME_LIMIT


def test_a_rank_killed_by_a_signal_is_heard_from_its_own_log(tmp_path):
    (tmp_path / "job.json").write_text(materialize(tmp_path).files["job.json"])
    died = JobStatus(state=JobState.FAILED, reason="rank 2 was killed by SIGABRT", exit_code=-6)
    dump = "malloc(): what the C library says\n" + "  File in a thread\n" * 400
    for rank in range(4):
        log_path(tmp_path, rank).write_text(dump if rank == 2 else "connection lost\n")
    for rank in (0, 1):
        write_failure(tmp_path, failure(rank, 1.0, echo=True))
    # Which of two that left no word was it?
    assert TorchWorkload({}).read(tmp_path, died).log_tail == "connection lost\n"
    write_failure(tmp_path, failure(3, 2.0, echo=True))
    outcome = TorchWorkload({}).read(tmp_path, died)
    assert (outcome.reason, outcome.log_tail) == (died.reason, dump)
    # One that could say nothing at all leaves the word to its peers.
    log_path(tmp_path, 2).write_text("")
    assert TorchWorkload({}).read(tmp_path, died).log_tail == "connection lost\n"


@pytest.mark.parametrize("state", FINAL)
def test_a_malformed_result_is_a_crash_that_says_where(state, tmp_path):
    (tmp_path / RESULT_FILE).write_text('{"version": 1, "verdict": "ok", "measurement": {"devices": 1}}')
    log_path(tmp_path, 0).write_text("the log\n")
    outcome = read(tmp_path, state, "the runner's word")
    assert outcome.verdict is Verdict.CRASHED
    assert outcome.reason.startswith("the result file is malformed: measurement.step_times_s: is missing; ")
    assert outcome.log_tail == "the log\n"


def test_a_log_is_told_from_the_start_of_a_line(tmp_path):
    log = tmp_path / "log"
    assert read_tail(log) == ""
    log.write_text("all of it\nand more")
    assert read_tail(log) == "all of it\nand more"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    tail = read_tail(log)
    assert LOG_TAIL_BYTES - 20 < len(tail) <= LOG_TAIL_BYTES
    assert tail.startswith("line ")
    assert tail.endswith("line 9999\n")
    log.write_bytes(b"\xff\xfe" * 5000 + b"\nlast \xc3")
    assert read_tail(log) == "last \ufffd"


@pytest.mark.parametrize("context", ["all_gather", "ring"])
def test_the_trainer_cuts_two_slices_of_the_sequence_for_each_context_rank(context):
    model = replace(TINY, seq_len=18)
    able = TorchWorkload({}).capabilities
    setting = SpaceContext(model=model, cluster=cluster(), global_batch_size=8, capabilities=able)
    space = Space(Bounds(), setting)
    broken = space.explain(space.complete(cp=2, context=context), ignore_bounds=True)
    assert "2 * cp(2) does not divide seq_len(18) (trainer-slices: " in " ".join(map(str, broken))
    assert not space.explain(space.complete(cp=1), ignore_bounds=True)


def test_a_space_holds_what_the_balanced_router_can_run():
    """A split over the ranks of tp counts with etp alone, one over cp always."""
    model = replace(TINY, seq_len=16, experts=8, top_k=2)
    able = TorchWorkload({"router": "balanced"}).capabilities
    setting = SpaceContext(model=model, cluster=cluster(1, 8), global_batch_size=8, capabilities=able)
    space = Space(Bounds(), setting)
    plans = [
        space.complete(tp=2),
        space.complete(tp=4, etp=1, ep=2),
        space.complete(tp=2, cp=2, etp=2),
        space.complete(cp=8, context="ulysses"),
    ]
    told = [{one.constraint: one.message for one in space.explain(plan, ignore_bounds=True)} for plan in plans]
    assert ["balanced-router" in each for each in told] == [False, False, False, True]
    assert told[3]["balanced-router"] == "experts(8) do not share seq_len(16) / cp(8) * top_k(2) tokens evenly"
    fewer = Space(Bounds(), replace(setting, model=replace(model, top_k=1)))
    told = [{one.constraint for one in fewer.explain(plan, ignore_bounds=True)} for plan in plans]
    assert ["balanced-router" in each for each in told] == [False, True, True, True]
    learned = Space(Bounds(), replace(setting, capabilities=TorchWorkload({}).capabilities))
    assert "balanced-router" not in {one.constraint for one in learned.explain(plans[3], ignore_bounds=True)}


TRAINED = Plan(dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=1)
PLACE = cluster(1, 2, memory_bytes=2 * 2**30)


def submit(lab, name: str, **measuring) -> TorchWorkload:
    workload = TorchWorkload({"measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 4} | measuring})
    directory = lab.folder / "work" / name
    lab.runner.submit(workload.materialize(JobRequest(name, TINY, TRAINED, PLACE, directory, seed=0, time_limit_s=120)))
    return workload


@pytest.mark.slow
def test_later_jobs_start_warm_and_all_measure(local):
    took = []
    for name in ("cold", "warm", "again"):
        submitted_at = time.time()
        workload = submit(local, name)
        status = local.wait(name, limit_s=90)
        outcome = workload.read(local.folder / "work" / name, status)
        assert (status.state, outcome.verdict) == (JobState.SUCCEEDED, Verdict.OK), outcome
        assert outcome.measurement.tokens_per_step == TRAINED.global_batch_size * TINY.seq_len
        assert len(outcome.measurement.peak_memory_bytes) == 2
        took.append(status.finished_at - submitted_at)
    cold, *warm = took
    # Importing torch is most of the cold one, and the warm ones have nothing of it; one may be held up by the machine.
    assert min(warm) < cold / 2
