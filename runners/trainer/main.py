"""One rank of one profiling run, from its environment to its result file; or, by hand, all of them on this machine.

Importing this module starts nothing (no threads, no CUDA, no process group), so that ranks may be forked from a process
that has; it must have set OPENBLAS_NUM_THREADS=1. Exit status: 0 measured, 1 failed, 2 asked for wrongly."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from meshtune.runners.trainer.failure import Phase, Progress, describe, start_watchdog, write_failure
from meshtune.runners.trainer.gang import run_gang
from meshtune.runners.trainer.job import Job, JobMalformed, parse_job, require_supported
from meshtune.runners.trainer.parallel.mesh import build_mesh, choose_device, gather, meet, slowest
from meshtune.runners.trainer.report import report
from meshtune.runners.trainer.timing.measure import measure
from meshtune.runners.trainer.timing.memory import PeakMemory, capped
from meshtune.runners.trainer.train import Trainer
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import DeviceKind

RENDEZVOUS_FILE = "rendezvous"
LOOPBACK = "127.0.0.1"
# How long one rank waits for another before it gives up; a dead peer is noticed much sooner.
PEER_TIMEOUT = timedelta(minutes=5)


def main(argv: list[str]) -> int:
    """Run the job file named in `argv`; return the exit status. A rank that fails exits here, without teardown."""
    parser = argparse.ArgumentParser(prog="python -m meshtune.runners.trainer", description="Time one training job.")
    parser.add_argument("job", type=Path, help="the job file")
    parser.add_argument("--directory", type=Path, default=Path(), help="where the output goes (default: here)")
    arguments = parser.parse_args(argv)
    directory: Path = arguments.directory
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


def read_job(path: Path) -> Job:
    """Raises OSError, JobMalformed, or InvalidValue for what the trainer does not support."""
    job = parse_job(path.read_text(encoding="utf-8"))
    require_supported(job)
    world_size = int(os.environ.get("WORLD_SIZE", job.plan.world_size))
    if world_size != job.plan.world_size:
        raise JobMalformed(f"plan: {job.plan.key} needs {job.plan.world_size} ranks, but WORLD_SIZE is {world_size}")
    return job


def run_rank(job: Job, rank: int, directory: Path) -> int:
    """Failing, it writes its failure file and ends the process."""
    faulthandler.enable(2)  # what a signal ends (a corrupt heap, a bad pointer) says where it was, in the rank's log
    progress = Progress()
    start_watchdog(progress, job.measuring.stall_s, rank, directory)
    try:
        start = time.perf_counter()
        device = choose_device(cuda=job.device is not DeviceKind.CPU, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
        peak = PeakMemory(device)
        progress.phase = Phase.RENDEZVOUS
        elsewhere = os.environ.get("MASTER_ADDR", LOOPBACK) != LOOPBACK
        meet(device, rank, job.plan.world_size, PEER_TIMEOUT, None if elsewhere else directory / RENDEZVOUS_FILE)
        progress.phase = Phase.INIT
        progress.beat()
        mesh = build_mesh(job.plan, device.type)
        with capped(job.memory_limit_bytes if device.type == "cpu" else None):
            with peak.live or nullcontext():
                trainer = Trainer(job, mesh, device, progress)
            build_s = slowest(time.perf_counter() - start, device)
            progress.beat()
            timings = measure(job, trainer, mesh, device, peak.live, progress)
        peaks = gather((peak.tensor_bytes(), peak.held_bytes()))
        if rank == 0:
            report(job, timings, peaks, build_s, device, directory)
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
    for say in tell:
        try:
            say()
        except OSError:
            continue
    os._exit(1)
