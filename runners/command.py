"""Runs a scheduler's own command and gives back what it said, within its time limit; and functions that may hang."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import TypeVar

from meshtune.runners.base import RunnerUnavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said. code: its exit status."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Its error text in one line."""
        return " ".join((self.err or self.out).split()) or f"exit status {self.code}"

    def says(self, messages: Iterable[str]) -> bool:
        return any(message in self.complaint for message in messages)

    def output(self, subject: str, but: Iterable[str] = ()) -> str:
        """What it wrote; nothing where it failed with one of these messages. Raises RunnerUnavailable, which begins
        with the subject, where it failed otherwise."""
        if self.code != 0 and not self.says(but):
            raise RunnerUnavailable(f"{subject}: {self.complaint}")
        return self.out if self.code == 0 else ""


def call(
    arguments: Sequence[str], *, time_limit_s: float, stdin: str = "", environment: Mapping[str, str] | None = None
) -> Answer:
    """Run a command to its end. environment: all that it sees, by default ours with English messages. Raises
    RunnerUnavailable when it is not there or does not end in time."""
    process = None
    try:
        # A session of its own: wrappers of a site start programs that would hold the pipes open after their death.
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"} if environment is None else dict(environment),
            start_new_session=True,
        )
        out, err = process.communicate(stdin, timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        raise RunnerUnavailable(f"{arguments[0]} did not answer within {time_limit_s:g} s") from None
    except OSError as error:
        raise RunnerUnavailable(f"{arguments[0]} cannot be run: {error.strerror}") from error
    finally:
        if process is not None:
            _end(process)
    return Answer(process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a command that did not end by itself."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def answered(function: Callable[[], T], thread: str) -> Future[T]:
    """What the function returns or raises, by a daemon thread of its own: one that hangs holds up no exit."""
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name=thread, daemon=True).start()
    return answer
