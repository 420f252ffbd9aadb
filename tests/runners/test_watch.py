"""A watched program ends when its output has told enough steps, whatever it is, and leaves a measurement and nothing
else: real processes, with real bars."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from jobs import processes_where
from places import TINY, cluster

from meshtune.runners import report
from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.json_files import write_files
from meshtune.runners.measuring import WATCH_FILE
from meshtune.runners.outcome import Measurement, Outcome, Verdict, read_result
from meshtune.runners.processes.gang import is_marked, run_gang
from meshtune.runners.programs.deepspeed.workload import DeepSpeedWorkload
from meshtune.runners.programs.workloads.base import CONTEXT_FILE, JobRequest, LogContext, render_context
from meshtune.runners.programs.workloads.command import CommandWorkload
from meshtune.runners.watch import Output
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(report.DIRECTORY, str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def prepare(job: Path, script: str, plan: Plan | None = None, limit_s: float = 60.0, **settings: Any) -> list[str]:
    """The command that watches the script in a job's folder."""
    context = LogContext(
        plan=plan or Plan(dp=1), tokens_per_step=64, devices=1, model_flops_per_token=10.0, device=DeviceKind.CPU
    )
    (job / CONTEXT_FILE).write_text(render_context(context))
    settings = {"time_limit_s": limit_s, "log": {}, "unset": ["OMP_NUM_THREADS"], **settings}
    (job / WATCH_FILE).write_text(json.dumps(settings))
    (job / "script.py").write_text(f"{PACED}{script}")
    return [sys.executable, "-m", "meshtune.runners.watch", "--", sys.executable, "-u", str(job / "script.py")]


def run(job: Path, script: str, **more: Any) -> tuple[subprocess.CompletedProcess[bytes], Outcome | None]:
    command = prepare(job, script, **more)
    done = subprocess.run(command, cwd=job, capture_output=True, timeout=60)
    return done, read_result(job) if (job / "result.json").exists() else None


def measured(outcome: Outcome | None) -> Measurement:
    assert outcome is not None
    assert outcome.verdict is Verdict.OK, outcome.reason
    assert outcome.measurement is not None
    return outcome.measurement


def steps_of(outcome: Outcome | None) -> float:
    return median(measured(outcome).step_times_s)


def ran(workload: CommandWorkload, job: Path, limit_s: float = 30.0) -> tuple[JobStatus, Outcome]:
    """A job of the workload on two devices, run to its end: its status, and what the workload makes of it."""
    spec = workload.materialize(
        JobRequest("c1-t1-a1", TINY, Plan(dp=2), cluster(1, 2), job, seed=0, time_limit_s=limit_s)
    )
    write_files(job, spec.files)
    status = run_gang(spec, None).result()
    return status, workload.read(job, status)


def test_a_rank_that_is_behind_begins_nothing_anew():
    output = Output({"grad_accum_steps": 1}, {})
    for at, number in enumerate((10, 11, 10, 12, 11, 13, 12, 14, 1, 2, 3)):
        output.take(f"step {number}", float(at))
    steps = output.steps()
    assert steps is not None
    assert [seconds for seconds, _ in steps.spans] == [1.0, 2.0, 2.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(("numbers", "losses"), [((1, 2, 3, 4, 5), [8.0, 7.0, 6.0, 5.0]), ((1, 3, 5, 7, 9), [])])
def test_losses_of_lines_that_arrive_at_once_are_of_their_steps(numbers, losses):
    """A busy machine reads them late: their times are one, their numbers are as they were."""
    output = Output({"grad_accum_steps": 1}, {"step": r"step (\d+)", "loss": r"loss ([\d.]+)"})
    for number, at in zip(numbers, (1.0, 2.0, 3.0, 3.0, 4.0), strict=True):
        output.take(f"step {number} loss {9.0 - number}", at)
    steps = output.steps()
    assert steps is not None
    assert len(steps.spans) == 3
    assert steps.first_losses() == losses


BAR_OF_TWO = "{}: 50%|#####     | {}/100 [00:01<00:01, {}"


@pytest.mark.parametrize(
    "line",
    [
        " iteration {:8d}/     100 | consumed samples: 64 | elapsed time per iteration (ms): 512.3 | loss scale: 1.0 |",
        "[rank0]:[titan] 2026-01-01 10:00:0{0} - root - INFO - step: {0:2d}  loss:  8.1  memory:  0.93GiB(1.96%)",
        "epoch=0/micro_step=1/global_step={}, RunningAvgSamplesPerSec=12.5, CurrSamplesPerSec=12.6",
        "Epoch [1/5], Step [{}/600], Loss: 0.5",
        "iter {}: loss 3.2, time 50.1ms, mfu 12.00%",
        "Epoch 0:  12%|#2        | {}/100 [00:05<00:40, 2.20it/s, v_num=0]",
        "train: {}it [00:10, 1.20it/s]",
        '{{"iteration": {}, "lm loss": 2.5}}',
        "[{}/100] lr 0.1",
        "INFO:test_train.py:45: step #{} of a run",
    ],
)
def test_lines_of_programs_count(line):
    output = Output({"grad_accum_steps": 1}, {})
    for number in range(1, 6):
        output.take(line.format(number), float(number))
    steps = output.steps()
    assert steps is not None
    assert (steps.number, len(steps.spans), steps.times_s()) == (5, 4, [1.0] * 4)


@pytest.mark.parametrize(
    "line",
    [
        BAR_OF_TWO.format("Loading checkpoint shards", "{}", "1.2s/it]"),
        BAR_OF_TWO.format("Map", "{}", "1234.5 examples/s]"),
        BAR_OF_TWO.format("weights.bin", "{}", "12.5MB/s]"),
        "Evaluating step {}/10",
        "Epoch [{}/5]",
        "the step took {}.5 of a step 0.{}2",
        "step 0.{}2 s",
        "saved checkpoint of step {}",
    ],
)
def test_what_else_programs_count_is_no_step(line):
    output = Output({"grad_accum_steps": 1}, {})
    for number in range(1, 6):
        output.take(line.format(number, number), float(number))
    assert output.steps() is None


# Takes so long from one call to the next, whatever else the machine does.
PACED = """
import time
at = []
def step_of(seconds):
    at or at.append(time.monotonic())
    at[0] += seconds
    time.sleep(max(0.0, at[0] - time.monotonic()))
"""
BAR = """
from tqdm import tqdm
for _ in tqdm(range(20), desc="Validation"):
    step_of(0.005)
for _ in tqdm(range(100000), desc="Epoch 1"):
    step_of(0.05)
"""


def test_a_bar_is_measured_by_its_arrivals_and_the_program_ended(job):
    started = time.monotonic()
    done, outcome = run(job, BAR)
    assert (done.returncode, time.monotonic() - started < 10) == (0, True)
    assert steps_of(outcome) == pytest.approx(0.05, rel=0.1)
    assert b"\rEpoch 1:   0%|" in done.stderr


EVERY_FIVE = """
for step in range(1, 100000):
    step_of(0.05)
    if step % 5 == 0:
        print(f"INFO:train.py:30: epoch 0 step {step} | loss {9 - step / 1000:.3f} | lr 3.0e-4")
"""
REPORTED = """
from meshtune.runners.report import Reporter
reporter = Reporter()
for step in range(1, 100000):
    step_of(0.05)
    print(f"loss: 7.0 {step * 3}/100")
    assert not reporter.step(loss=9.5 - step)
"""
LOSSES = """
import sys
step = 0
while True:
    step_of(0.05)
    step += 1
    print(f"iteration {step:8d}/ 500 | loss: {9 - step}.5 | peak memory 1.5GiB", file=sys.stderr)
    if step % 8 == 0:
        for part in range(3):
            step_of(0.01)
            print(f"evaluating [{part + 1}/3]", "eval_loss: 3.0")
"""
MARKED = """
for step in range(100000):
    step_of(0.05)
    print("done:", step * 10, "in 7 steps", flush=True)
"""


@pytest.mark.parametrize(
    ("script", "step_s", "losses", "more"),
    [
        (EVERY_FIVE, 0.05, (), {}),
        # That of one pass on one rank, as far as is known.
        (LOSSES, 0.05, (), {}),
        (LOSSES, 0.05, (8.5, 7.5, 6.5, 5.5), {"log": {"step": r"iteration +(\d+)", "loss": r"\| loss: ([\d.]+)"}}),
        (REPORTED, 0.05, (8.5, 7.5, 6.5, 5.5), {}),
        (MARKED, 0.05, (), {"log": {"step_time_ms": r"done: (\d+)"}}),
        (MARKED, 0.005, (), {"log": {"step": r"done: (\d+)"}}),
    ],
)
def test_lines_that_count_are_steps(script, step_s, losses, more, job):
    done, outcome = run(job, script, **more)
    assert done.returncode == 0
    assert steps_of(outcome) == pytest.approx(step_s, rel=0.1)
    assert measured(outcome).first_losses == losses
    assert measured(outcome).peak_memory_bytes == ((3 << 29,) if script is LOSSES else ())


PASSES = """
from tqdm import tqdm
for number, _ in enumerate(tqdm(range(100000)), 1):
    step_of(0.05)
    if number % 4 == 0:
        tqdm.write(f"step {number // 4} loss 2.0")
"""


def test_of_passes_and_steps_the_steps_count(job):
    _, outcome = run(job, PASSES, plan=Plan(dp=1, grad_accum_steps=4))
    assert steps_of(outcome) == pytest.approx(0.2, rel=0.1)


def test_a_program_that_tells_no_step_is_told_so_and_its_exit_code_passed_on(job):
    done, outcome = run(job, "print('training')")
    assert (done.returncode, outcome) == (0, None)
    assert b"\nmeshtune.runners.watch: its output tells no steps: looked for are progress bars" in done.stderr
    done, outcome = run(job, "raise MemoryError('no room')")
    assert (done.returncode, outcome) == (1, None)
    assert done.stderr.endswith(b"\nMemoryError: no room\n")
    assert run(job, "raise SystemExit(137)")[0].returncode == 137
    done, outcome = run(job, "import os; os.kill(os.getpid(), 9)")
    assert done.returncode == -signal.SIGKILL


def test_what_ends_early_is_a_measurement_of_what_it_told(job):
    script = "import time\nfor step in range(6):\n    print('step', step); time.sleep(0.3 if step == 0 else 0.05)"
    done, outcome = run(job, script)
    assert done.returncode == 0
    assert steps_of(outcome) == pytest.approx(0.05, rel=0.1)
    assert outcome is not None
    assert measured(outcome).warmup_times_s[0] == pytest.approx(0.3, rel=0.1)
    assert outcome.reason.endswith(" timed intervals between steps that its output told")


def test_a_loss_that_is_no_number_is_a_crash(job):
    script = "for step in range(1, 9):\n    print('step', step, 'loss', 'nan' if step > 2 else 2.5); step_of(0.02)"
    _, outcome = run(job, script, log={"step": r"step (\d+)", "loss": "loss ([a-z0-9.]+)"})
    assert outcome is not None
    assert (outcome.verdict, outcome.reason) == (Verdict.CRASHED, "a loss of the first steps is nan")


TORCH = """
import sys, torch
from tqdm import tqdm
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for number in tqdm(range(1, 100000)):
    weight.sum().backward()
    step_of(0.02)
    if number % 3 == 0:
        optimizer.step()
        with open("clock", "a") as file:
            print(time.monotonic(), file=file)
"""


def test_a_program_of_torch_is_measured_by_its_optimizer_whatever_its_bar_counts(job):
    done, outcome = run(job, TORCH, plan=Plan(dp=1, grad_accum_steps=8))
    assert done.returncode == 0
    clock = [float(line) for line in (job / "clock").read_text().split()]
    times = [*measured(outcome).warmup_times_s, *measured(outcome).step_times_s]
    own = [after - before for before, after in pairwise(clock)]
    assert sum(times) == pytest.approx(sum(own[: len(times)]), rel=0.1)
    assert b"[meshtune] optimizer step 9\n" in done.stderr


def test_the_sites_own_sitecustomize_is_imported(job, monkeypatch):
    (job / "site").mkdir()
    (job / "site" / "sitecustomize.py").write_text("print('of the site')")
    monkeypatch.setenv("PYTHONPATH", f"{job / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    done, _ = run(job, "import os; print(os.environ.get('OMP_NUM_THREADS'))")
    assert done.stdout == b"of the site\nof the site\nNone\n"


def test_at_the_time_limit_what_was_told_is_measured(job):
    started = time.monotonic()
    _, outcome = run(job, EVERY_FIVE, limit_s=2.5)
    assert time.monotonic() - started < 3
    assert steps_of(outcome) == pytest.approx(0.05, rel=0.1)
    assert outcome is not None
    assert "timed intervals" in outcome.reason


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
for away in (False, True):
    subprocess.Popen([sys.executable, "-c", wait], stdout=subprocess.PIPE, start_new_session=away).stdout.readline()
for step in range(100000):
    print("step", step)
    time.sleep(0.05)
"""


def watched_by(pid: int) -> list[int]:
    mark = f"{os.uname().nodename}-{pid}"
    return processes_where(lambda folder: is_marked(int(folder.name), mark, report.WATCHED))


@pytest.mark.parametrize("told", [False, True])
def test_what_ignores_the_signal_is_killed_with_all_that_it_started(told, job, monkeypatch):
    command = prepare(job, STUBBORN)
    code = f"from meshtune.runners import watch; watch.GRACE_S = 0.3; import sys; sys.exit(watch.main({command[3:]!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=job)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"step 0\n"
        assert len(watched_by(process.pid)) == 3
        if told:
            process.terminate()
        process.stdout.read()
    assert process.returncode == (128 + signal.SIGTERM if told else 0)
    assert (job / "result.json").exists() is not told
    assert not watched_by(process.pid)


def test_the_watch_of_a_rank_that_tells_nothing_ends_with_the_others(job):
    started = time.monotonic()
    silent = subprocess.Popen([*prepare(job, "print")[:4], "sleep", "60"], cwd=job)
    _, outcome = run(job, EVERY_FIVE)
    assert silent.wait(timeout=10) == 0
    assert outcome is not None
    assert time.monotonic() - started < 20


DDP = """
import os, sys, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(f"threads {os.environ.get('OMP_NUM_THREADS')}", flush=True)
while True:
    model(torch.ones(1, 2)).sum().backward()
    step_of(0.03)
    optimizer.step()
"""


def test_a_job_of_the_workload_command_ends_by_its_watch(job):
    (job / "train.py").write_text(f"{PACED}{DDP}")
    launch = ["{python}", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    workload = CommandWorkload({"command": [*launch, str(job / "train.py")], "watch": True, "start": "job"})
    assert workload.steps is None
    status, outcome = ran(workload, job, 60.0)
    assert status.state is JobState.SUCCEEDED
    assert steps_of(outcome) == pytest.approx(0.03, rel=0.5)  # two processes more may wait for the cores
    log = (job / "rank-0.log").read_text()
    # By torchrun, which gives each of several ranks one; what ranks print at once may share a line.
    assert "threads 1" in log
    assert len([line for line in log.splitlines() if line.startswith("[meshtune] optimizer step 5")]) <= 11


def test_a_job_that_tells_no_step_says_what_was_looked_for(job):
    workload = CommandWorkload(
        {"command": ["sleep", "60"], "watch": True, "start": "job", "env": {"OMP_NUM_THREADS": 2}}
    )
    _, outcome = ran(workload, job, 3.0)
    assert json.loads((job / WATCH_FILE).read_text())["unset"] == ["MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    assert outcome.verdict is Verdict.TIMED_OUT
    assert outcome.reason.startswith(
        "ran longer than its time limit of 3 s; its output tells no steps: looked for are "
    )
    (job / "rank-0.log").unlink()
    _, outcome = ran(CommandWorkload({"command": ["true"], "watch": True, "start": "job"}), job)
    assert (outcome.verdict, outcome.cause) == (Verdict.CRASHED, Cause.USER_BUG)
    assert "its output tells no steps: looked for are " in outcome.reason


def test_the_failure_of_a_watched_job_is_read_from_its_log(job):
    text = (
        "for step in range(3): print('step', step)\nraise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')"
    )
    (job / "train.py").write_text(text)
    workload = CommandWorkload({"command": ["{python}", str(job / "train.py")], "watch": True, "start": "job"})
    _, outcome = ran(workload, job)
    assert (outcome.verdict, outcome.failed_rank) == (Verdict.OOM, 0)
    assert outcome.reason == "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"


def test_a_program_of_its_own_log_is_watched_alike():
    options = {"script": "/train.py", "watch": True}
    workload = DeepSpeedWorkload(options)
    job = workload.materialize(
        JobRequest("c1-t1-a1", TINY, Plan(dp=2), cluster(1, 2), Path("/job"), seed=0, time_limit_s=30.0)
    )
    assert job.command[1:4] == ("-m", "meshtune.runners.watch", "--")
    assert (job.env["MESHTUNE_DIRECTORY"], workload.steps) == ("/job", None)
    with pytest.raises(InvalidValue, match="takes exactly one of"):
        CommandWorkload({"command": ["train"], "log": {"step": r"step (\d+)"}})
    CommandWorkload({"command": ["train"], "log": {"step": r"step (\d+)"}, "watch": True})


def test_a_bar_of_passes_is_no_count_of_steps_while_optimizer_steps_are_awaited():
    output = Output({"grad_accum_steps": 8}, {})
    output.take(report.TIMES, 0.0)
    for number in range(1, 16):
        output.take(f"{number}%|#| {number}/100 [00:01<00:01, 9.00it/s]", float(number))
    assert output.steps() is None
    for step, at in enumerate((8.0, 16.0, 24.0), 1):
        output.take(f"[meshtune] optimizer step {step}", at)
    assert output.steps().times_s() == [8.0, 8.0]


def test_a_bar_counts_where_no_optimizer_steps_though_two_would_have():
    output = Output({"grad_accum_steps": 8}, {})
    output.take(report.TIMES, 0.0)
    for number in range(1, 20):
        output.take(f"{number}%|#| {number}/100 [00:01<00:01, 9.00it/s]", float(number))
    assert output.steps().times_s() == [1.0] * 18
