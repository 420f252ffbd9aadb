"""Any training loop can report: the helper writes what the contract of the result file asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from service_process import free_port

from meshtune.runners import report as helper
from meshtune.runners.base import Cause
from meshtune.runners.outcome import ResultMalformed, Verdict, read_result
from meshtune.runners.programs.workloads.base import CONTEXT_FILE, LogContext, render_context
from meshtune.runners.report import (
    REPORT_URL,
    TOKEN_FILE,
    Reporter,
    TrainerReport,
    report,
    report_failure,
    send,
)
from meshtune.search_spaces.plan import Plan

LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID", "TORCHELASTIC_RUN_ID")


@pytest.fixture
def job(tmp_path, monkeypatch) -> Path:
    """The folder of a job, in whose rank 0 this process is."""
    context = LogContext(plan=Plan(dp=2), tokens_per_step=64, devices=2, model_flops_per_token=10.0, warmup_steps=1)
    (tmp_path / CONTEXT_FILE).write_text(render_context(context))
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(helper.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(helper.STEPS, "3")
    return tmp_path


def test_a_report_is_a_measurement(job):
    report([0.5, 0.25, 0.125], first_losses=[3.0], peak_memory_bytes=[1, 2], software={"torch": "2"})
    outcome = read_result(job)
    measured = outcome.measurement
    assert outcome.verdict is Verdict.OK
    assert (measured.warmup_times_s, measured.step_times_s) == ((0.5,), (0.25, 0.125))
    assert (measured.tokens_per_step, measured.devices, measured.model_flops_per_token) == (64, 2, 10.0)
    assert (measured.first_losses, measured.peak_memory_bytes, measured.software) == ((3.0,), (1, 2), {"torch": "2"})
    assert sorted(path.name for path in job.iterdir()) == [CONTEXT_FILE, "result.json"]


def test_a_reporter_times_steps_until_there_are_enough(job):
    reporter = Reporter()
    norms = (1.5, -1.0, 2.5)
    assert [reporter.step(loss=float(step), gradient_norm=norms[step]) for step in range(3)] == [False, False, True]
    reporter.done(peak_memory_bytes=[7])
    measured = read_result(job).measurement
    assert (len(measured.step_times_s), len(measured.warmup_times_s)) == (2, 1)
    assert measured.first_losses == (0.0, 1.0, 2.0)
    assert measured.first_gradient_norms == (1.5,)  # DeepSpeed's word for an overflow is -1


def test_steps_of_unlike_tokens_are_reported_with_them(job):
    report([9.0, 3.0, 1.0, 2.0], step_tokens=[500, 200, 0, 100])
    measured = read_result(job).measurement
    # The third step goes on with the rows of the second; a token takes 20 ms in all.
    assert (measured.tokens_per_step, measured.step_times_s) == (150, pytest.approx((3.0, 3.0)))
    assert measured.tokens_per_s == pytest.approx(50)
    assert measured.model_flops_per_token is None
    with pytest.raises(ValueError, match="step_tokens: are of 1 steps, and 2 were taken"):
        report([1.0, 1.0], step_tokens=[5])


@pytest.mark.parametrize("tokens", [[1, 2, 3], [0, 0], [1, -1], ["a", 1], 5])
def test_tokens_that_are_not_those_of_the_steps_are_refused(job, tokens):
    measurement = {"step_times_s": [1.0, 1.0], "tokens_per_step": 64, "devices": 2, "step_tokens": tokens}
    document = {"version": 1, "verdict": "ok", "measurement": measurement}
    (job / "result.json").write_text(json.dumps(document))
    with pytest.raises(ResultMalformed, match="step_tokens"):
        read_result(job)


def test_outside_of_a_job_and_in_other_ranks_nothing_is_written(job, monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    report([0.5, 0.25])
    monkeypatch.setenv(helper.DIRECTORY, str(tmp_path / "nowhere"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv(helper.STEPS)
    reporter = Reporter()
    assert not reporter.step()
    reporter.done()
    report_failure("crash", "nobody hears")
    assert [path.name for path in job.iterdir()] == [CONTEXT_FILE]


@pytest.mark.parametrize(
    ("variables", "writes"),
    [
        ({"RANK": "0"}, True),
        ({"RANK": "1"}, False),
        # mpirun or srun inside of a job: its processes inherit the job's own RANK.
        ({"RANK": "0", "OMPI_COMM_WORLD_RANK": "1"}, False),
        ({"RANK": "0", "SLURM_PROCID": "1"}, False),
        # torchrun under srun: it says RANK itself.
        ({"RANK": "1", "SLURM_PROCID": "0", "TORCHELASTIC_RUN_ID": "x"}, False),
        ({"RANK": "0", "SLURM_PROCID": "1", "TORCHELASTIC_RUN_ID": "x"}, True),
    ],
)
def test_only_the_first_process_of_the_innermost_launcher_writes(variables, writes, job, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    report([0.5, 0.25])
    assert (job / "result.json").exists() == writes


def test_too_few_steps_are_refused_and_nothing_is_written(job):
    with pytest.raises(ValueError, match=r"^1 steps were taken, and the first 1 are warm-up$"):
        report([0.5])
    with pytest.raises(ValueError, match="Out of range"):
        report([0.5, float("inf")])
    with pytest.raises(ValueError, match=r"^a loss of the first steps is nan$"):
        report([0.5, 0.5], first_losses=[2.0, float("nan")])
    assert [path.name for path in job.iterdir()] == [CONTEXT_FILE]


def test_the_first_failure_that_is_told_is_heard_from_any_rank(job, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    report_failure("illegal_setting", "heads(3) does not divide by tp(2)")
    report_failure("oom", "later")
    outcome = read_result(job)
    assert (outcome.verdict, outcome.cause, outcome.failed_rank) == (Verdict.ILLEGAL, Cause.ILLEGAL_SETTING, 1)
    assert (outcome.reason, outcome.phase) == ("heads(3) does not divide by tp(2)", None)
    (job / "result.json").unlink()
    report_failure("oom", "no room", phase="backward")
    assert read_result(job).phase == "backward"
    with pytest.raises(KeyError):
        report_failure("bad_luck", "no such cause")


def test_the_helper_can_be_copied_and_needs_the_standard_library_only(job, tmp_path):
    copied = tmp_path / "elsewhere" / "my_report.py"
    copied.parent.mkdir()
    copied.write_text(Path(helper.__file__).read_text())
    code = "import sys; import my_report; my_report.report([1.0, 0.5]); print('runners' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(copied.parent)!r}); {code}"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False\n"
    assert json.loads((job / "result.json").read_text())["measurement"]["step_times_s"] == [0.5]


# A job's result goes to the service, too, where its folder has a token and its environment an address.


class Service:
    """Answers with these statuses, one after the other, then 204; keeps what it was sent."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.seen: list[tuple[str, str, bytes]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.seen.append((self.path, self.headers["Authorization"], body))
                self.send_response(owner.statuses.pop(0) if owner.statuses else 204)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/reports/job-1"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(helper, "_PAUSES_S", (0.0, 0.0, 0.0))
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv(REPORT_URL, made.url)
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def result(tmp_path):
    (tmp_path / TOKEN_FILE).write_text("123.abc\n")
    file = tmp_path / "result.json"
    file.write_text('{"version": 1}')
    return file


def test_a_result_is_sent_with_the_jobs_token(service, result):
    assert send(result)
    assert service.seen == [("/v1/reports/job-1", "Bearer 123.abc", b'{"version": 1}')]


@pytest.mark.parametrize("statuses", [[503], [500, 429]])
def test_a_service_that_cannot_now_is_asked_again(service, result, statuses):
    service.statuses = list(statuses)
    assert send(result)
    assert len(service.seen) == len(statuses) + 1


@pytest.mark.parametrize("status", [307, 401, 404, 422])
def test_a_refusal_is_the_last_word(service, result, status):
    service.statuses = [status]
    assert not send(result)
    assert len(service.seen) == 1


def test_after_some_tries_the_file_has_to_do(service, result):
    service.statuses = [503] * 9
    assert not send(result)
    assert len(service.seen) == 3


def test_without_an_address_or_a_token_nothing_is_sent(service, result, monkeypatch):
    result.with_name(TOKEN_FILE).unlink()
    assert not send(result)
    result.with_name(TOKEN_FILE).write_text("123.abc")
    monkeypatch.delenv(REPORT_URL)
    assert not send(result)
    assert service.seen == []


def test_whoever_reports_sends(service, result, job):
    report([1.0, 0.5])
    [(_, _, sent)] = service.seen
    assert sent == result.read_bytes()
    assert json.loads(sent)["measurement"]["step_times_s"] == [0.5]


class Trainer:
    """What transformers.Trainer 5.23.0 tells its callbacks (trainer_callback.py, CallbackHandler.call_event)."""

    def __init__(self, callback: TrainerReport) -> None:
        self.control = SimpleNamespace(should_training_stop=False)
        self.state = SimpleNamespace(global_step=0)
        self.callback = callback

    def tell(self, event: str, **more) -> None:
        getattr(self.callback, event)(None, self.state, self.control, model=None, train_dataloader=None, **more)

    def train(self, steps: int, log_every: int = 1) -> int:
        for event in ("on_init_end", "on_train_begin", "on_epoch_begin"):
            self.tell(event)
        while self.state.global_step < steps and not self.control.should_training_stop:
            for event in ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step"):
                self.tell(event)
            self.state.global_step += 1
            self.tell("on_step_end")
            if self.state.global_step % log_every == 0:
                self.tell("on_log", logs={"loss": 9.0 - self.state.global_step, "grad_norm": 0.5, "epoch": 0.1})
        self.tell("on_log", logs={"train_runtime": 1.0})
        self.tell("on_train_end")
        return self.state.global_step


def test_a_callback_of_the_trainer_times_its_steps_and_ends_the_training(job):
    pytest.importorskip("torch")
    assert Trainer(TrainerReport()).train(steps=100) == 3
    measured = read_result(job).measurement
    assert (len(measured.warmup_times_s), len(measured.step_times_s)) == (1, 2)
    assert (measured.first_losses, measured.peak_memory_bytes) == ((8.0, 7.0, 6.0), ())
    assert measured.first_gradient_norms == (0.5, 0.5, 0.5)
    assert "torch" in measured.software


def test_a_logged_mean_of_several_steps_is_no_loss_of_one(job):
    pytest.importorskip("torch")
    Trainer(TrainerReport()).train(steps=100, log_every=2)
    assert read_result(job).measurement.first_losses == ()


LOOP = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = torch.nn.Linear(2, 2)
first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
model, first, second = accelerator.prepare(model, first, second)
passes = 0
while True:
    passes += 1
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(2)).sum())
        print("passes", passes, flush=True)
        first.step()
        second.step()
        first.zero_grad()
"""


def test_a_loop_of_its_own_over_accelerate_is_timed_by_its_optimizer_steps(job):
    pytest.importorskip("accelerate")
    (job / "loop.py").write_text(LOOP)
    command = [sys.executable, "-m", "meshtune.runners.report", "loop.py"]
    done = subprocess.run(command, cwd=job, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Three steps of two passes, of the first optimizer.
    assert done.stdout.split()[-1] == "6"
    measured = read_result(job).measurement
    assert (len(measured.warmup_times_s), len(measured.step_times_s)) == (1, 2)
    assert measured.software.keys() >= {"torch", "accelerate"}


ANY_LOOP = """
import os
import torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return torch.ones(2)

def train(rank, ranks):
    if ranks > 1:
        torch.distributed.init_process_group("gloo", "file://" + __file__ + ".store", rank=rank, world_size=ranks)
    generator, critic = (torch.nn.Linear(2, 2) for _ in range(2))
    first, second = torch.optim.AdamW(generator.parameters()), torch.optim.SGD(critic.parameters(), lr=0.1)
    for number, batch in enumerate(DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork"), 1):
        generator(batch).sum().backward()
        if number % 2 == 0:
            os.write(1, f"passes {rank} {number}\\n".encode())  # whole, beside the other rank's
            first.step()
            critic(batch).sum().backward()
            second.step()

if __name__ == "__main__":
    SPAWNS = False
    if SPAWNS:
        torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
    else:
        train(0, 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("spawns", [pytest.param(False, marks=pytest.mark.long), True])
def test_any_loop_is_timed_by_the_first_optimizer_that_steps(spawns, job, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (job / "loop.py").write_text(ANY_LOOP.replace("SPAWNS = False", f"SPAWNS = {spawns}"))
    command = [sys.executable, "-m", "meshtune.runners.report", "loop.py"]
    done = subprocess.run(command, cwd=job, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lasts = {line.split()[1]: line.split()[2] for line in done.stdout.splitlines()}
    assert lasts == dict.fromkeys("01" if spawns else "0", "6")
    measured = read_result(job).measurement
    assert (len(measured.warmup_times_s), len(measured.step_times_s)) == (1, 2)


def test_a_script_without_torch_runs_as_it_stands(job):
    (job / "plain.py").write_text(
        "import sys; print(sys.argv[1:], sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-m", "meshtune.runners.report", "plain.py", "--lr", "1"]
    done = subprocess.run(command, cwd=job, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['--lr', '1'] []\n", done.stderr


ENGINE = """
import deepspeed, torch
deepspeed.ops.__compatible_ops__.clear()  # which it would compile
model = torch.nn.Linear(4, 4)
config = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
}
groups = [{"params": [model.weight]}, {"params": [model.bias]}]
engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
passes = 0
while True:
    passes += 1
    print("passes", passes, flush=True)
    engine.backward(engine(torch.ones(1, 4, dtype=torch.bfloat16)).sum())
    engine.step()
"""


@pytest.mark.long
def test_of_deepspeed_the_engine_steps_count(job, monkeypatch):
    pytest.importorskip("deepspeed")
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {"DS_ACCELERATOR": "cpu", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **meeting}.items():
        monkeypatch.setenv(name, value)
    (job / "engine.py").write_text(ENGINE)
    command = [sys.executable, "-m", "meshtune.runners.report", "engine.py"]
    done = subprocess.run(command, cwd=job, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Three steps of two passes.
    assert [line for line in done.stdout.splitlines() if line.startswith("passes")][-1] == "passes 6"
    assert len(read_result(job).measurement.step_times_s) == 2


def test_a_callback_has_events_and_nothing_else():
    assert TrainerReport().on_push_begin(None, None, None, model=None) is None
    with pytest.raises(AttributeError, match="save"):
        TrainerReport().save()


def test_the_helper_alone_needs_neither_torch_nor_transformers():
    program = "import sys, meshtune.runners.report; print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
