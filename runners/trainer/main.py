"""One rank of a job; or, by hand, all ranks as processes of this machine with a summary for people. No time limit."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from meshtune.runners.base import JobSpec
from meshtune.runners.job_files import STORAGE_ERRORS
from meshtune.runners.log_lines import read_tail
from meshtune.runners.outcome import RESULT_FILE, ResultError, Verdict, read_result
from meshtune.runners.processes import gang as supervisor
from meshtune.runners.processes.gang import exit_text, log_path
from meshtune.runners.trainer.failure import (
    LAST_WORDS_BYTES,
    Phase,
    Progress,
    describe,
    first_cause,
    read_failures,
    start_watchdog,
    write_failure,
)
from meshtune.runners.trainer.job import JobMalformed, TrainerJob, parse_job, require_supported
from meshtune.runners.trainer.parallel.mesh import build_mesh, choose_device, gather, meet, slowest
from meshtune.runners.trainer.report import report, summary
from meshtune.runners.trainer.settings import choose_attention, seen_settings
from meshtune.runners.trainer.timing.measure import PeakMemory, capped, measure
from meshtune.runners.trainer.train import Trainer
from meshtune.search_spaces.checks import InvalidValue


def run_gang(job: TrainerJob, directory: Path, run_rank: Callable[[int], int]) -> int:
    """Fork the ranks, wait for all, print a summary; return 0 when the job measured something or was pruned, else 1."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in (RESULT_FILE, "rendezvous", "failure-*.json", "rank-*.log"):
        for path in directory.glob(stale):
            path.unlink()
    spec = JobSpec(
        name=job.name, command=(), directory=directory.resolve(), devices_per_node=job.plan.world_size, time_limit_s=inf
    )
    gang = supervisor.run_gang(spec, lambda _: run_rank(int(os.environ["RANK"])))
    words, exit_status = summarize(directory, gang.death)
    sys.stdout.write(f"{job.name}: {job.plan.key}\n{words}\n")
    return exit_status


def summarize(directory: Path, death: tuple[int, int] | None) -> tuple[str, int]:
    """The summary, and the exit status. death: the rank to blame and its exit code."""
    failures = read_failures(directory)
    cause = first_cause(failures)
    if death is not None and (cause is None or cause.echo):
        # Of a rank that a signal ended the end of its log.
        tail = read_tail(log_path(directory, death[0]), LAST_WORDS_BYTES).strip() if death[1] < 0 else ""
        return f"failed: {exit_text(*death)}" + (f"; the end of its log:\n{tail}" if tail else ""), 1
    if cause is not None:
        return f"failed ({cause.verdict}): rank {cause.rank} in {cause.phase}: {cause.reason}", 1
    try:
        outcome = read_result(directory)
    except ResultError as error:
        return f"failed: {error}", 1
    if outcome.verdict is Verdict.PRUNED:
        return f"pruned: {outcome.reason}", 0
    if (measured := outcome.measurement) is None:
        return "failed: no measurement", 1
    memory = {name: max(getattr(measured, name), default=0) for name in ("peak_memory_bytes", "peak_held_bytes")}
    numbers = {**summary(measured), **memory, "first_losses": list(measured.first_losses)}
    told = {**numbers, "compile_s": measured.compile_s, "note": outcome.reason or None}
    return "\n".join(f"{name}: {value}" for name, value in told.items() if value is not None), 0


RENDEZVOUS_FILE = "rendezvous"
LOOPBACK = "127.0.0.1"
# How much longer than its watchdog a rank waits for another before it gives up, so that the watchdog's word is the
# first; a dead peer is noticed much sooner.
PEER_MARGIN_S = 60.0


def main(argv: list[str]) -> int:
    """Run the job file named in `argv`; return the exit status. A rank that fails exits here, without teardown."""
    parser = argparse.ArgumentParser(prog="python -m meshtune.runners.trainer", description="Time one training job.")
    parser.add_argument("job", type=Path, help="the job file")
    parser.add_argument("--directory", type=Path, default=Path(), help="where the output goes (default: here)")
    arguments = parser.parse_args(argv)
    directory: Path = arguments.directory.resolve()
    rank = int(os.environ["RANK"]) if "RANK" in os.environ else None
    try:
        job = read_job(arguments.job)
    except (OSError, JobMalformed, InvalidValue) as error:
        if rank is not None:
            write_failure(directory, describe(error, rank=rank, phase=Phase.INIT, at=time.time()))
        sys.stderr.write(f"{arguments.job}: {error}\n")
        return 2
    if rank is None:
        return run_gang(job, directory, lambda rank: run_rank(job, rank, directory))
    return run_rank(job, rank, directory)


def read_job(path: Path) -> TrainerJob:
    """Raises OSError, JobMalformed, or InvalidValue for what the trainer does not support."""
    job = parse_job(path.read_text(encoding="utf-8"))
    require_supported(job)
    world_size = int(os.environ.get("WORLD_SIZE", job.plan.world_size))
    if world_size != job.plan.world_size:
        raise JobMalformed(f"plan: {job.plan.key} needs {job.plan.world_size} ranks, but WORLD_SIZE is {world_size}")
    return job


def run_rank(job: TrainerJob, rank: int, directory: Path) -> int:
    """Failing, it writes its failure file and ends the process."""
    faulthandler.enable(2)  # what a signal ends (a corrupt heap, a bad pointer) says where it was, in the rank's log
    progress = Progress()
    start_limit_s, stall_s = job.measuring.start_limit_s, job.measuring.stall_s
    start_watchdog(progress, start_limit_s, stall_s, rank, directory)
    try:
        start = time.perf_counter()
        environment = dict(os.environ)  # before what is set here
        device = choose_device(job.device, int(os.environ.get("LOCAL_RANK", "0")), job.threads)
        choose_attention(job.attention)
        peak = PeakMemory(device)
        progress.phase = Phase.RENDEZVOUS
        timeout = timedelta(seconds=max(start_limit_s, stall_s) + PEER_MARGIN_S)
        elsewhere = os.environ.get("MASTER_ADDR", LOOPBACK) != LOOPBACK
        meet(device, rank, job.plan.world_size, timeout, None if elsewhere else directory / RENDEZVOUS_FILE)
        progress.phase = Phase.INIT
        mesh = build_mesh(job.plan, device.type)
        with capped(job.memory_limit_bytes if device.type == "cpu" else None):
            with peak.live or nullcontext():
                trainer = Trainer(job, mesh, device, progress)
            build_s = slowest(time.perf_counter() - start, device)
            timings = measure(job, trainer, mesh, device, peak.live, progress)
        peaks = gather((peak.tensor_bytes(), peak.held_bytes()))
        if rank == 0:
            knobs = seen_settings(job, trainer, timings.attention_kernels, environment)
            report(job, timings, peaks, build_s, device, directory, knobs)
        dist.barrier()
    except BaseException as error:  # whatever it is, the peers and the user must hear of it
        fail(error, rank, progress, directory)
    dist.destroy_process_group()
    return 0


def fail(error: BaseException, rank: int, progress: Progress, directory: Path) -> NoReturn:
    """Say why and end at once: destructors of a broken process group may wait for peers that are gone."""
    failure = describe(error, rank=rank, phase=progress.phase, at=time.time())
    tell: tuple[Callable[[], object], ...] = (
        lambda: write_failure(directory, failure),
        lambda: sys.stderr.write(f"rank {rank} failed in {failure.phase}: {failure.reason}\n{failure.traceback}\n"),
        sys.stderr.flush,
        sys.stdout.flush,
    )
    exit_code = 1
    for say in tell:
        try:
            say()
        except OSError as error:
            # Where no word can be left, the exit code is one.
            exit_code = os.EX_IOERR if error.errno in STORAGE_ERRORS else exit_code
    os._exit(exit_code)
