"""What one trial costs beside its steps: warm forks of the local and of the Ray runner against a cold torchrun.

`python benchmarks/trial_overhead.py [repetitions]`. 4 CPU ranks, dp4 with ZeRO 1. Overhead: from the order to the
first step (of any kind), and from the last step to the moment that whoever waits has the result. The kinds are run
alternately, so that a busy machine is busy for all; medians and their ratio are printed. The warm runners have run one
job before; Ray runs on this machine. Steps themselves (counted, compiling, warm-up, timed, profiled) are in neither
number: they are the trial.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from meshtune.runners.base import JobSpec, Runner
from meshtune.runners.outcome import RESULT_FILE
from meshtune.runners.schedulers.local.runner import LocalRunner
from meshtune.runners.schedulers.ray.runner import RayOptions, RayRunner
from meshtune.runners.trainer.job import JOB_FILE, Measuring, TrainerJob, render_job
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

RANKS = 4
POLL_S = 0.02
LIMIT_S = 120.0
# A Ray cluster on this machine, until the end of its input; Ray's own token of this user is not needed.
CLUSTER = """
import os, sys
os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
import ray
ray.init("local", num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
IDLE_S = 30.0  # longer than a cold trial takes: the server must not end meanwhile
JOB = TrainerJob(
    name="overhead",
    model=ModelSpec(name="tiny", layers=2, hidden=64, heads=4, ffn=128, vocab=256, seq_len=32),
    plan=Plan(dp=RANKS, micro_batch_size=1, grad_accum_steps=2, zero_stage=1),
    measuring=Measuring(max_warmup_steps=0, min_steps=6, max_steps=6, profile_steps=0),
)
# Seconds from the order to the first step, and from the last step to the result in hand.
Overhead = tuple[float, float]


def warm(runner: Runner, directory: Path) -> Overhead:
    name = directory.name
    spec = JobSpec(
        name=name,
        command=(sys.executable, "-m", "meshtune.runners.trainer", JOB_FILE),
        directory=directory,
        devices_per_node=RANKS,
        time_limit_s=LIMIT_S,
        files={JOB_FILE: render_job(replace(JOB, name=name))},
    )
    ordered_at = time.time()
    runner.submit(spec)
    while not runner.poll([name])[name].state.final:
        if time.time() - ordered_at > LIMIT_S:
            raise TimeoutError(f"{name} is not done after {LIMIT_S:g} s: see {directory}")
        time.sleep(POLL_S)
    return _overhead(directory, ordered_at)


def cold(directory: Path) -> Overhead:
    directory.mkdir()
    (directory / JOB_FILE).write_text(render_job(replace(JOB, name=directory.name)), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--standalone"]
    root = str(Path(__file__).parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ordered_at = time.time()
    with (directory / "log").open("wb") as log:
        subprocess.run(
            [*command, "-m", "meshtune.runners.trainer", JOB_FILE],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            timeout=LIMIT_S,
            check=True,
        )
    return _overhead(directory, ordered_at)


def _overhead(directory: Path, ordered_at: float) -> Overhead:
    known_at = time.time()
    steps = json.loads((directory / RESULT_FILE).read_text(encoding="utf-8"))["steps_at"]
    return steps["first_s"] - ordered_at, known_at - steps["last_s"]


def main(repetitions: int) -> None:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with tempfile.TemporaryDirectory() as base:
        local = LocalRunner(Path(base) / "spool", slots=RANKS, idle_s=IDLE_S)
        cluster = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, str(RANKS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert cluster.stdin is not None
        assert cluster.stdout is not None
        ray = RayRunner(
            Path(base) / "ray", RayOptions(address=cluster.stdout.readline().strip(), idle_s=IDLE_S), devices="CPU"
        )
        kinds: dict[str, Callable[[Path], Overhead]] = {
            "warm": lambda path: warm(local, path),
            "ray": lambda path: warm(ray, path),
            "cold": cold,
        }
        for name, runner in (("local-first", local), ("ray-first", ray)):
            warm(runner, Path(base) / name)
        found: dict[str, list[Overhead]] = {name: [] for name in kinds}
        for repetition in range(repetitions):
            for name, run in kinds.items():
                found[name].append(run(Path(base) / f"{name}-{repetition}"))
        local.close()
        ray.close()
        cluster.stdin.close()
        cluster.wait()
    sums = {name: median(sum(pair) for pair in pairs) for name, pairs in found.items()}
    print(f"{'overhead of a trial':<22}{'before':>9}{'after':>9}{'both':>9}   (s, medians of {repetitions})")  # noqa: T201
    for name, pairs in found.items():
        before, after = (median(pair[index] for pair in pairs) for index in (0, 1))
        print(f"{name:<22}{before:>9.2f}{after:>9.2f}{sums[name]:>9.2f}")  # noqa: T201
    print(f"cold / warm: {sums['cold'] / sums['warm']:.1f}")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
