"""One warm process for the whole session: it has imported the trainer once and forks every job from there."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from meshtune.runners.log_lines import read_tail
from meshtune.runners.outcome import Measurement, read_result
from meshtune.runners.trainer.failure import LAST_WORDS_BYTES
from meshtune.runners.trainer.job import Measuring, TrainerJob, render_job
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

ROOT = Path(__file__).parents[2]
JOB_LIMIT_S = 180  # for a machine that is busy with other things

# Each line is a directory with a job file; the answer is the exit status of the job run there by hand. A file
# sabotage.py beside it runs first, in the process of that job alone.
WARM_PROCESS = """
import os, sys
from meshtune.runners.trainer.main import main
for line in sys.stdin:
    directory = line.strip()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(directory + "/output", os.O_WRONLY | os.O_CREAT), 1)
        status = 99
        try:
            if os.path.exists(directory + "/sabotage.py"):
                exec(open(directory + "/sabotage.py").read())
            status = main([directory + "/job.json", "--directory", directory])
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that was run by hand: its exit status and where its files are."""

    status: int
    directory: Path

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text(encoding="utf-8")

    @property
    def measurement(self) -> Measurement:
        measurement = read_result(self.directory).measurement
        assert measurement is not None
        return measurement

    @property
    def logs(self) -> str:
        """What the ranks said last, for a failed assertion."""
        logs = sorted(self.directory.glob("rank-*.log"))
        return "\n".join(f"--- {log.name}\n{read_tail(log, LAST_WORDS_BYTES)}" for log in logs)

    @property
    def losses(self) -> tuple[float, ...]:
        assert self.status == 0, f"{self.output}\n{self.logs}"
        return self.measurement.first_losses


RunJob = Callable[..., Finished]


@pytest.fixture(scope="session")
def run_job(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[RunJob]:
    """Runs a job by hand, all ranks on this machine, from the warm process; `sabotage` is code that breaks the trainer
    before, to see whether anybody notices."""
    base = tmp_path_factory.mktemp("trainer")
    numbers = count()
    python = pytestconfig.getoption("--trainer-python", default=sys.executable)
    environment = dict(os.environ)
    if python != sys.executable:  # it has torch, and not meshtune
        environment["PYTHONPATH"] = str(ROOT / "src")
    process = subprocess.Popen(
        [python, "-W", "ignore", "-c", WARM_PROCESS],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(job: TrainerJob, sabotage: str = "") -> Finished:
        directory = base / str(next(numbers))
        directory.mkdir()
        if sabotage:
            (directory / "sabotage.py").write_text(sabotage, encoding="utf-8")
        (directory / "job.json").write_text(render_job(job), encoding="utf-8")
        process.stdin.write(f"{directory}\n")
        ready, _, _ = select.select([process.stdout], [], [], JOB_LIMIT_S)
        assert ready, f"no answer in {JOB_LIMIT_S} s: {directory}"
        return Finished(int(process.stdout.readline()), directory)

    try:
        yield run
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=JOB_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "a Python of another version, or with another torch, that the jobs run under"
    parser.addoption("--trainer-python", default=sys.executable, help=told)
    parser.addoption("--matrix-dtype", default="float32", help="the number format of the correctness matrix")
    parser.addoption("--matrix-table", type=Path, help="where the correctness matrix writes its table")


@pytest.fixture(scope="session")
def note_case(pytestconfig: pytest.Config) -> Iterator[Callable[[str, float, float, float], None]]:
    """Notes one case's name, largest differences of losses and of gradient norms, and seconds; the table is written
    when all have run."""
    rows: list[tuple[str, float, float, float]] = []
    yield lambda *row: rows.append(row)
    path: Path | None = pytestconfig.getoption("--matrix-table", default=None)
    if path is None or not rows:
        return
    columns = list(zip(*rows, strict=True))
    rows.append((f"{len(rows)} cases", max(columns[1]), max(columns[2]), sum(columns[3])))
    lines = [f"| {name} | {loss:.1e} | {norm:.1e} | {seconds:.1f} |" for name, loss, norm, seconds in rows]
    head = ("| case | max diff of losses | of gradient norms, relative | seconds |", "|---|---|---|---|")
    path.write_text("\n".join((*head, *lines, "")), encoding="utf-8")


GLOBAL_BATCH = 8
MakeJob = Callable[..., TrainerJob]
Fields = dict[str, object]


@pytest.fixture(scope="session")
def make_job() -> MakeJob:
    """A tiny job of 4 steps, 2 of them timed, and a global batch of 8; `model` and `plan` change shapes and layout."""

    def make(*, plan: Fields | None = None, model: Fields | None = None, **job: object) -> TrainerJob:
        layout: Fields = {"micro_batch_size": 1} | (plan or {})
        replicas = int(str(layout.get("dp", 1))) * int(str(layout["micro_batch_size"]))
        layout.setdefault("grad_accum_steps", GLOBAL_BATCH // replicas)
        shapes: Fields = {
            "name": "tiny",
            "layers": 2,
            "hidden": 32,
            "heads": 4,
            "kv_heads": 2,
            "ffn": 64,
            "vocab": 128,
            "seq_len": 16,
        }
        settings: Fields = {
            "name": "test",
            "learning_rate": 1e-2,
            "measuring": Measuring(max_warmup_steps=0, min_steps=2, max_steps=2, profile_steps=0),
        }
        return TrainerJob(**settings | {"model": ModelSpec(**shapes | (model or {})), "plan": Plan(**layout)} | job)

    return make
