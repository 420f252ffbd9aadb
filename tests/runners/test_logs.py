"""What a program's log holds is read as it was meant, and what became of its job follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.log_lines import split_lines, untagged
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.runners.processes.gang import exit_text, log_path
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.runners.programs.log_reader import LogReading, outcome_from_log, read_lines
from meshtune.runners.programs.workloads.base import CONTEXT_FILE, LogContext, render_context
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.trial import time_by_part

PATTERNS = Patterns(
    {
        "step_time_ms": r"step \d+: ([\d.]+) ms",
        "step": r"step (\d+):",
        "loss": r"loss ([\d.einfa-]+)",
        "memory_mib": r"(?:rank (?P<rank>\d+) )?peak ([\d.]+) MiB",
    }
)
UNNUMBERED = Patterns({"step_time_s": r"took ([\d.]+) s", "loss": r"loss ([\d.]+)"})
CONTEXT = LogContext(
    plan=Plan(dp=2, micro_batch_size=2),
    tokens_per_step=64,
    devices=2,
    model_flops_per_token=10.0,
    peak_flops_per_device=1e12,
    warmup_steps=2,
)


def read_log(text: str, patterns: Patterns) -> LogReading:
    return read_lines(split_lines([text.encode()]), patterns)


def steps(count: int, first: int = 1) -> str:
    return "".join(f"step {n}: {100 + n} ms, loss {n / 2}\n" for n in range(first, first + count))


def test_the_numbers_of_every_step_are_read_in_order():
    reading = read_log(f"hello\n{steps(3)}peak 12.5 MiB\n", PATTERNS)
    assert reading == LogReading(
        timings=(101.0, 102.0, 103.0),
        losses=(0.5, 1.0, 1.5),
        memory_bytes={None: 12 * 2**20 + 2**19},
    )


def test_a_step_that_is_told_several_times_counts_once_with_its_last_word():
    bar = "step 1: 90 ms\rstep 1: 101 ms\rstep 2: 80 ms\rstep 2: 102 ms\r\n"
    assert read_log(bar, PATTERNS).timings == (101.0, 102.0)
    # As after a restart from a checkpoint.
    assert read_log(steps(3) + "step 2: 7 ms\n", PATTERNS).timings == (101.0, 7.0, 103.0)


def test_ranks_that_write_into_one_log_are_kept_apart():
    text = (
        "[rank1]: step 1: 50 ms\n[rank0]: step 1: 101 ms\n[rank0]: step 2: 102 ms, loss 2\n[rank1]: peak 4 MiB\n"
        "[rank0]: peak 3 MiB\n[rank0]: peak 2 MiB\n[rank0]: rank 7 peak 1 MiB\n"
    )
    reading = read_log(text, PATTERNS)
    assert (reading.timings, reading.losses) == ((101.0, 102.0), (2.0,))
    assert reading.memory_bytes == {1: 4 * 2**20, 0: 3 * 2**20, 7: 2**20}


@pytest.mark.parametrize(
    ("norms", "read"),
    [
        (("1.5", "0.25", "2"), (1.5, 0.25, 2.0)),
        (("1.5", "inf", "2"), (1.5,)),
        (("nan", "0.25", "2"), ()),
        (("1.5", None, "2"), (1.5,)),
        ((None, "0.25", "2"), ()),
    ],
)
def test_gradient_norms_are_those_of_the_first_steps_as_far_as_each_has_one(norms, read):
    lines = [f"took 1.5 s{'' if norm is None else f' norm {norm}'}\n" for norm in norms]
    patterns = Patterns({"step_time_s": r"took ([\d.]+) s", "gradient_norm": r"norm ([\d.]+|nan|inf)"})
    assert read_log("".join(lines), patterns).gradient_norms == read


@pytest.mark.parametrize(
    ("line", "rank", "words"),
    [
        ("[rank12]: step", 12, "step"),
        ("[rank1]: [rank1]:   File", 1, "  File"),
        ("[default3]:step", 3, "step"),
        ("[1,2]<stdout>:step", 2, "step"),
        ("(WorkerDict pid=7, ip=10.0.0.1)   File", None, "  File"),
        ("(LLMRayActor pid=7) ERROR 06-10 10:55:03 [core.py:459]   File", None, "  File"),
        ("(a step of 7 ms) step", None, "(a step of 7 ms) step"),
        ("[2026-11-21] step", None, "[2026-11-21] step"),
        ("7: step", None, "7: step"),
        ("[7] step", None, "[7] step"),
    ],
)
def test_who_wrote_a_line_is_known_where_launchers_say_so(line, rank, words):
    assert untagged(line) == (rank, words)


def test_steps_without_numbers_count_in_their_order_and_losses_may_have_lines_of_their_own():
    reading = read_log("took 0.5 s\nloss 3\nnothing\ntook 0.25 s\nloss 2\n", UNNUMBERED)
    assert (reading.timings, reading.losses) == ((0.5, 0.25), (3.0, 2.0))


def test_a_time_in_a_line_of_its_own_belongs_to_the_step_that_was_told_last():
    patterns = Patterns({"step_time_s": r"took ([\d.]+) s", "step": r"step (\d+)", "loss": r"loss ([\d.]+)"})
    reading = read_log("step 7 loss 3\ntook 0.5 s\nstep 8 loss 2\ntook 0.4 s\ntook 0.3 s\n", patterns)
    assert (reading.timings, reading.losses) == ((0.5, 0.3), (3.0, 2.0))


def read(directory, state=JobState.SUCCEEDED, patterns=PATTERNS, *, asked=5, **status) -> Outcome:
    if directory.exists():
        (directory / CONTEXT_FILE).write_text(render_context(CONTEXT))
    return outcome_from_log(directory, JobStatus(state=state, **status), patterns, steps=asked)


def test_a_log_with_all_steps_is_a_measurement(tmp_path):
    log_path(tmp_path, 0).write_text("peak 5 MiB\n")
    log_path(tmp_path, 1).write_text(steps(5) + "peak 6 MiB\n")
    assert read(tmp_path) == Outcome(
        verdict=Verdict.OK,
        measurement=Measurement(
            step_times_s=(0.103, 0.104, 0.105),
            warmup_times_s=(0.101, 0.102),
            tokens_per_step=64,
            devices=2,
            model_flops_per_token=10.0,
            peak_flops_per_device=1e12,
            first_losses=(0.5, 1.0, 1.5, 2.0),
            peak_memory_bytes=(5 * 2**20, 6 * 2**20),
        ),
    )


@pytest.mark.parametrize(
    ("name", "printed", "step_time_s"),
    [
        ("step_time_us", "250000", 0.25),
        ("steps_per_s", "4", 0.25),
        ("samples_per_s", "16", 0.25),  # 4 sequences in a step
        ("tokens_per_s", "256", 0.25),  # 64 tokens in a step
        ("tokens_per_s_per_device", "128", 0.25),  # on 2 devices
    ],
)
def test_a_rate_tells_the_time_of_a_step_by_what_a_step_is(name, printed, step_time_s, tmp_path):
    log_path(tmp_path, 0).write_text(f"speed {printed}\n" * 3)
    outcome = read(tmp_path, patterns=Patterns({name: r"speed (\d+)"}), asked=3)
    assert outcome.measurement.step_times_s == (step_time_s,)


def test_a_mean_since_the_start_tells_what_each_step_adds(tmp_path):
    """As ms-swift 4.6 prints it over Megatron (megatron/callbacks/print.py)."""
    means = enumerate((4.0, 2.5, 2.0), 1)
    lines = (f"{{'loss': 0.9, 'iteration': '{step}/3', 'train_speed(s/it)': {mean}}}\n" for step, mean in means)
    log_path(tmp_path, 0).write_text("".join(lines))
    names = Patterns({"step": r"'iteration': '(\d+)/", "mean_step_time_s": r"'train_speed\(s/it\)': ([\d.]+)"})
    found = read(tmp_path, patterns=names, asked=3).measurement
    assert (*found.warmup_times_s, *found.step_times_s) == (4.0, 1.0, 1.0)


# As verl prints a step (trainer/ppo/metric_utils.py, utils/logger), by Ray.
ROLLOUTS = Patterns(
    {
        "step": r"\bstep:(\d+) - ",
        "step_time_s": r"perf/time_per_step:([\d.]+)",
        "tokens": r"perf/total_num_tokens:([\d.e+]+)",
        "generation_s": r"timing_s/gen:([\d.]+)",
        "log_probs_s": r"timing_s/(?:old_log_prob|ref):([\d.]+)",
        "update_s": r"timing_s/update_actor:([\d.]+)",
    }
)


def rollout(step: int, tokens: int, took_s: float, reference: str = " - timing_s/ref:0.5") -> str:
    return (
        f"(TaskRunner pid=11) step:{step} - actor/pg_loss:0.003 - timing_s/gen:4.0 - timing_s/old_log_prob:0.5"
        f"{reference} - timing_s/update_actor:2.0 - perf/total_num_tokens:{tokens} - perf/time_per_step:{took_s}\n"
    )


def test_steps_of_unlike_tokens_are_measured_at_their_mean_and_by_their_phases(tmp_path):
    lengths = (500, 500, 1000, 2000, 3000)
    log_path(tmp_path, 0).write_text("".join(rollout(n, size, size / 100) for n, size in enumerate(lengths, 1)))
    measured = read(tmp_path, patterns=ROLLOUTS).measurement
    assert (measured.tokens_per_step, measured.tokens_per_s) == (2000, pytest.approx(100))
    # All that differed were the tokens, so nothing is left of the times' scatter. Warm-up is as it was printed.
    assert measured.step_times_s == pytest.approx((20.0, 20.0, 20.0))
    assert measured.warmup_times_s == (5.0, 5.0)
    (parts,) = measured.profile.parts_s
    assert parts == pytest.approx({"generation": 4.0, "log_probs": 1.0, "update": 2.0, "other": 13.0})
    assert list(parts) == [share.part for share in time_by_part(measured.profile)]
    assert (measured.profile.straggler, measured.profile.exposed_s(measured.step_time_s)) == (None, (0.0,))


def test_a_phase_that_a_step_does_not_tell_took_no_time_in_it(tmp_path):
    steps = [rollout(n, 1000, 10.0, "" if n == 4 else " - timing_s/ref:0.5") for n in range(1, 5)]
    log_path(tmp_path, 0).write_text("".join(steps))
    assert read(tmp_path, patterns=ROLLOUTS, asked=4).measurement.profile.parts_s[0]["log_probs"] == 0.75


def test_a_count_of_all_tokens_so_far_tells_what_each_step_adds(tmp_path):
    """As TRL prints num_tokens (trainer/grpo_trainer.py: num_input_tokens_seen)."""
    told = enumerate((400, 1000, 2000, 4000, 7000), 1)
    lines = [f"{{'num_tokens': {total}.0, 'step_time': {step}.0}}\n" for step, total in told]
    log_path(tmp_path, 0).write_text("".join(lines))
    patterns = Patterns({"total_tokens": r"'num_tokens': ([\d.]+)", "step_time_s": r"'step_time': ([\d.]+)"})
    measured = read(tmp_path, patterns=patterns).measurement
    assert (measured.tokens_per_step, measured.step_time_s) == (2000, pytest.approx(4.0))
    assert measured.step_times_s == pytest.approx((5.0, 4.0, 3.0))  # 500 tokens a second in all: 2, 4 and 6 s of them


def test_tokens_of_a_row_are_those_of_all_rows_of_a_step(tmp_path):
    """As NeMo-RL prints them (algorithms/utils.py, print_performance_metrics); a step here has two updates."""
    context = replace(CONTEXT, plan=Plan(dp=2, micro_batch_size=2, grad_accum_steps=4), updates=2, warmup_steps=0)
    (tmp_path / CONTEXT_FILE).write_text(render_context(context))
    log = "".join(f"took {taken} s\n  • Mean Total Tokens per Sample: {mean}\n" for taken, mean in ((2, 100), (4, 200)))
    log_path(tmp_path, 0).write_text(log)
    patterns = Patterns({"step_time_s": r"took (\d+) s", "row_tokens": r"Tokens per Sample: ([\d.]+)"})
    measured = outcome_from_log(tmp_path, JobStatus(state=JobState.SUCCEEDED), patterns, steps=2).measurement
    assert (measured.tokens_per_step, measured.step_times_s) == (150 * 32, pytest.approx((3.0, 3.0)))


@pytest.mark.parametrize("count", ["nan", "1e300", "0", "none", "1e308 of 1e308", "-5"])
def test_tokens_that_no_step_can_have_are_not_counted(count, tmp_path):
    log_path(tmp_path, 0).write_text(f"took 2 s of {count}\n" * 3)
    patterns = Patterns({"step_time_s": r"took (\d+) s", "tokens": r"of (\S+)", "reward_s": r"of (\S+)"})
    measured = read(tmp_path, patterns=patterns, asked=3).measurement
    assert (measured.tokens_per_step, measured.step_times_s) == (CONTEXT.tokens_per_step, (2.0,))


def test_a_rate_of_a_step_that_tells_its_tokens_is_of_these(tmp_path):
    log_path(tmp_path, 0).write_text("300 tokens, 100 a second\n" * 3)
    patterns = Patterns({"tokens": r"(\d+) tokens", "tokens_per_s_per_device": r"(\d+) a second"})
    measured = read(tmp_path, patterns=patterns, asked=3).measurement
    assert (measured.tokens_per_step, measured.step_times_s) == (300, (1.5,))


@pytest.mark.parametrize(
    "line",
    [
        # vLLM 0.6, core/scheduler.py.
        "(WorkerDict pid=7) WARNING 05-09 00:49:33 scheduler.py:1057] Sequence group 0 is preempted by PreemptionMode."
        "RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance.",
        # SGLang, managers/scheduler.py, today and in 0.4.
        "[2026-09-13 16:06:07] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 646",
        "[2025-03-07 15:52:26] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.9 -> 1.0",
    ],
)
def test_an_engine_that_puts_rows_back_is_slow_and_alive(line, tmp_path):
    log_path(tmp_path, 0).write_text(f"{line}\n" * 3 + "".join(rollout(n, 1000, 10.0) for n in range(1, 6)))
    outcome = read(tmp_path, patterns=ROLLOUTS)
    assert outcome.verdict is Verdict.OK
    assert outcome.reason == "the engine's keys and values did not fit: it put rows back in 3 lines of the log"
    # Of one that fails afterwards it is no reason.
    assert read(tmp_path, JobState.FAILED, patterns=ROLLOUTS, asked=9, exit_code=1).cause is not Cause.OOM


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.TIMED_OUT])
def test_a_job_that_failed_after_its_last_step_measured_all_that_it_was_to_measure(state, tmp_path):
    log_path(tmp_path, 0).write_text(steps(5) + "RuntimeError: Connection closed by peer\n")
    assert read(tmp_path, state, exit_code=1).verdict is Verdict.OK
    log_path(tmp_path, 0).write_text(steps(4) + "ValueError: no\n")
    assert read(tmp_path, state, exit_code=1).verdict is not Verdict.OK


def test_a_job_that_ended_well_with_fewer_steps_says_so(tmp_path):
    log_path(tmp_path, 0).write_text(steps(4))
    outcome = read(tmp_path)
    assert (outcome.verdict, outcome.reason) == (Verdict.OK, "the log tells 4 of 5 steps")


@pytest.mark.parametrize("loss", ["nan", "-inf"])
def test_a_loss_that_is_no_number_is_a_failure_as_of_a_script_that_reports_itself(loss, tmp_path):
    log_path(tmp_path, 0).write_text(steps(5).replace("loss 1.0\n", f"loss {loss}\n"))
    outcome = read(tmp_path)
    assert (outcome.verdict, outcome.cause) == (Verdict.CRASHED, Cause.CRASH)
    assert outcome.reason == f"a loss of the first steps is {loss}"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "no such line\n",
            r"the job ended without an error, but no line of its logs matches step_time_ms: step \d+: ([\d.]+) ms",
        ),
        (steps(2), "the job ended without an error, but took 2 steps, and 2 of them are warm-up"),
    ],
)
def test_a_log_that_tells_no_step_is_a_bug_that_no_plan_can_change(log, reason, tmp_path):
    log_path(tmp_path, 0).write_text(log)
    outcome = read(tmp_path)
    assert (outcome.verdict, outcome.cause, outcome.reason) == (Verdict.CRASHED, Cause.USER_BUG, reason)
    assert outcome.log_tail == log


ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:1\n"
WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory.\n"


@pytest.mark.parametrize(
    ("logs", "exit_code", "verdict", "cause", "rank"),
    [
        ([ECHO, OOM], 1, Verdict.OOM, Cause.OOM, 1),
        ([ECHO, OOM], -6, Verdict.OOM, Cause.OOM, 1),
        ([ECHO, "ValueError: no\n"], 1, Verdict.CRASHED, Cause.CRASH, 1),
        ([ECHO, "error: argument --tp: invalid choice: 3\n"], 2, Verdict.ILLEGAL, Cause.ILLEGAL_SETTING, 1),
        ([ECHO, "ModuleNotFoundError: No module named 'x'\n"], 1, Verdict.CRASHED, Cause.USER_BUG, 1),
        ([ECHO, ECHO], 1, Verdict.LOST, Cause.COMMUNICATION, 0),
        # NCCL's watchdog ends its process by SIGABRT.
        ([ECHO, WATCHDOG], -6, Verdict.TIMED_OUT, Cause.HANG, 1),
        # The rank that ended first said nothing: its peers only noticed.
        ([ECHO, ""], 3, Verdict.CRASHED, Cause.CRASH, None),
        ([ECHO, ""], -9, Verdict.CRASHED, Cause.CRASH, None),
        (["", ""], 1, Verdict.CRASHED, Cause.CRASH, None),
        (["", "Fatal Python error: Segmentation fault\n"], -11, Verdict.CRASHED, Cause.CRASH, None),
        (["", ""], 127, Verdict.CRASHED, Cause.USER_BUG, None),
        (["", ""], 126, Verdict.CRASHED, Cause.USER_BUG, None),
    ],
)
def test_a_failed_job_is_judged_by_its_logs_and_its_exit_code(logs, exit_code, verdict, cause, rank, tmp_path):
    for number, text in enumerate(logs):
        log_path(tmp_path, number).write_text(text)
    outcome = read(tmp_path, JobState.FAILED, exit_code=exit_code, reason=exit_text(1, exit_code))
    assert (outcome.verdict, outcome.cause, outcome.failed_rank) == (verdict, cause, rank)
    if rank is None:
        assert outcome.reason.startswith(exit_text(1, exit_code))
    else:
        assert (outcome.reason, outcome.log_tail) == (logs[rank].strip(), logs[rank])


def test_a_rank_that_names_itself_in_the_log_of_its_launcher_is_blamed(tmp_path):
    log_path(tmp_path, 0).write_text(f"[rank5]: {ECHO}[rank3]: {OOM}")
    outcome = read(tmp_path, JobState.FAILED, exit_code=1, reason=exit_text(0, 1))
    assert (outcome.failed_rank, outcome.reason) == (3, OOM.strip())


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", Cause.TIME_LIMIT),
        ("ValueError: in a thread\n", Cause.TIME_LIMIT),
        (ECHO, Cause.TIME_LIMIT),
        (WATCHDOG, Cause.HANG),
        (OOM, Cause.OOM),
    ],
)
def test_at_its_time_limit_a_job_is_late_unless_it_says_what_held_it_up(log, cause, tmp_path):
    log_path(tmp_path, 0).write_text(log)
    assert read(tmp_path, JobState.TIMED_OUT, reason="ran longer").cause is cause


@pytest.mark.parametrize(
    ("status", "verdict", "cause"),
    [
        ({"state": JobState.LOST}, Verdict.LOST, Cause.NODE_FAULT),
        ({"state": JobState.LOST, "cause": Cause.PREEMPTION}, Verdict.LOST, Cause.PREEMPTION),
        ({"state": JobState.FAILED, "cause": Cause.NODE_FAULT}, Verdict.LOST, Cause.NODE_FAULT),
        ({"state": JobState.FAILED, "cause": Cause.OOM}, Verdict.OOM, Cause.OOM),
        ({"state": JobState.CANCELLED}, Verdict.CANCELLED, None),
    ],
)
def test_what_the_runner_knows_better_is_believed(status, verdict, cause, tmp_path):
    log_path(tmp_path, 0).write_text(steps(3) + "ValueError: no\n")
    outcome = read(tmp_path, **status, reason="its word")
    assert (outcome.verdict, outcome.cause, outcome.reason) == (verdict, cause, "its word")
    assert outcome.log_tail == steps(3) + "ValueError: no\n"
