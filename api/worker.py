"""One process beside the service, for what computes for seconds: in a thread of ours it would hold up every request.

It starts with the first work, which it does one after the other and only with what processor time others leave, and it
ends with the service, in the middle of its work if need be. It has no store: what it works on is sent to it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# Behind the service and the jobs of this machine.
NICENESS = 5


class WorkerEnded(Exception):
    """The process was ended in the middle of the work, or is not started any more. Trying again may help."""


class WorkFailed(Exception):
    """The work raised something; the message is its traceback."""


class Worker:
    """Thread-safe. It works until `stop`, and again after `start`."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._changing = threading.Lock()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._stopped = False

    def start(self) -> None:
        """Allow work; the process waits for the first."""
        self._stopped = False

    def stop(self) -> None:
        """End the process at once."""
        with self._changing:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work`, a function of a module, returns. Raises WorkFailed and WorkerEnded."""
        with self._turn:
            pipe = self._ready()
            try:
                pipe.send((work, args, kwargs))
                done, value = pipe.recv()
            except (EOFError, OSError):
                pipe.close()
                raise WorkerEnded("the process that does this has ended") from None
        if not done:
            raise WorkFailed(value)
        result: T = value
        return result

    def _ready(self) -> Connection:
        with self._changing:
            if self._stopped:
                raise WorkerEnded("the service is ending")
            if self._pipe is None or self._pipe.closed or self._process is None or not self._process.is_alive():
                self._process, self._pipe = _begin()
            return self._pipe


def _begin() -> tuple[BaseProcess, Connection]:
    # A process that is forked would share the locks of our threads, as they are just then.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="worker", daemon=True)
    process.start()
    # Or we would not hear of its end.
    theirs.close()
    return process, ours


def _serve(pipe: Connection) -> None:
    """Do what comes until the service is gone."""
    # Ctrl-C goes to both of us; the service ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    while True:
        try:
            work, args, kwargs = pipe.recv()
            pipe.send(_done(work, args, kwargs))
        except (EOFError, OSError):
            return


def _done(work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
    try:
        return True, work(*args, **kwargs)
    except Exception:
        return False, traceback.format_exc()
