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

import torch
import torch.distributed as dist

from meshtune.runners.trainer.compat import register_gloo
from meshtune.runners.trainer.failure import Phase, Progress, describe, start_watchdog, write_failure
from meshtune.runners.trainer.gang import run_gang
from meshtune.runners.trainer.job import Job, JobMalformed, parse_job, require_supported
from meshtune.runners.trainer.parallel.mesh import build_mesh, gather, slowest
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
        device = choose_device(job)
        peak = PeakMemory(device)
        progress.phase = Phase.RENDEZVOUS
        meet(job, rank, directory)
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


def choose_device(job: Job) -> torch.device:
    """This rank's device, made the current one. A scheduler may show each rank its own device alone."""
    if job.device is DeviceKind.CPU:
        torch.set_num_threads(1)
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if visible == 0:
        raise RuntimeError("the job asks for cuda, but torch sees no such device")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % visible)
    torch.cuda.set_device(device)
    return device


def meet(job: Job, rank: int, directory: Path) -> None:
    """Meet the other ranks: at MASTER_ADDR where it is another machine's, else over a file in the job's directory."""
    backend = register_gloo() if job.device is DeviceKind.CPU else "nccl"
    world_size = job.plan.world_size
    if os.environ.get("MASTER_ADDR", LOOPBACK) != LOOPBACK:
        dist.init_process_group(backend, "env://", rank=rank, world_size=world_size, timeout=PEER_TIMEOUT)
        return
    # All ranks are on this machine: a file cannot be in use, as a port can. gloo would ask the host's name, which may
    # not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(directory / RENDEZVOUS_FILE), world_size)  # type: ignore[attr-defined]  # no __all__
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=PEER_TIMEOUT)


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
