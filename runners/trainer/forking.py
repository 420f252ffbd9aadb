"""What a process does before it forks the ranks of a job: it imports what they need, and keeps off accelerators, whose
drivers no fork can use once they were started. Has run on no accelerator."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from meshtune.runners.job_files import read_document
from meshtune.runners.trainer.compiling import compiles
from meshtune.runners.trainer.job import parse_job
from meshtune.runners.trainer.main import main
from meshtune.search_spaces.cluster import DeviceKind


def entry(arguments: Sequence[str], directory: Path | None) -> Callable[[list[str]], int]:
    """`main`, for forks of this process. directory: of the job; None while there is none. Raises RuntimeError where
    forks could use no accelerator."""
    if directory is not None:
        with suppress(OSError, ValueError):  # the rank says what is wrong with its job
            if compiles(job := parse_job(read_document(directory / arguments[0]))):
                preload_compiler(job.device)
    require_forkable()
    return main


def preload_compiler(device: DeviceKind) -> None:
    """Import inductor, and triton with it, which takes a rank about a second. That starts no pool of workers: a rank
    has its own (torch/_inductor/async_compile.py, 2.9 to 2.13)."""
    if device is DeviceKind.CPU and any(getattr(torch.version, kind, None) for kind in ("cuda", "hip", "xpu")):
        return  # what is answered below would hold for the next job too, which may be an accelerator's
    with _unasked(device):
        importlib.import_module("torch._inductor.compile_fx")


@contextmanager
def _unasked(device: DeviceKind) -> Iterator[None]:
    """Answer for the drivers whether there is a device. Modules of inductor ask when they are imported (in torch 2.11
    runtime/benchmarking.py and lowering.py), by which a driver starts."""
    asked = torch.cuda.is_available, torch.xpu.is_available
    try:
        torch.cuda.is_available = lambda: device is DeviceKind.CUDA
        torch.xpu.is_available = lambda: device is DeviceKind.XPU
        yield
    finally:
        torch.cuda.is_available, torch.xpu.is_available = asked


def require_forkable() -> None:
    """Raises RuntimeError once a driver was started in this process. Only in a fork torch tells, so one looks."""
    pid = os.fork()
    if pid == 0:
        os._exit(any(module._is_in_bad_fork() for module in (torch.cuda, torch.xpu)))
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("an accelerator was used in the process that forks the ranks, which could not use it then")
