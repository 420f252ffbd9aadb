"""A rank that fails says so in `failure-<rank>.json` before it tears anything down, and the first cause can be found.

Its peers fail as well, a moment later and with errors about connections: those are echoes. A rank killed by a signal
writes nothing. Imports no torch, so that the files can be read anywhere."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meshtune.runners.base import Cause
from meshtune.runners.failure_texts import cause_of_line, first_in_precedence, is_echo
from meshtune.runners.job_files import STORAGE_ERRORS, list_entries
from meshtune.runners.json_files import read_json_file, write_whole
from meshtune.runners.outcome import FAILED, Verdict
from meshtune.search_spaces.checks import Checked, Checks, Natural, StrEnum

REASON_LINES = 3
TRACEBACK_LINES = 20
_MAX_FAILURE_BYTES = 1 << 20
LAST_WORDS_BYTES = 16_000  # of a log: the C library's word and faulthandler's stacks after it

_OUT_OF_MEMORY_TYPES = ("MemoryError", "OutOfMemoryError")
# Errors of our own: a plan that the trainer does not run, and a job file that no plan can mend.
_OWN_TYPES = {"InvalidValue": Cause.ILLEGAL_SETTING, "JobMalformed": Cause.USER_BUG}

# Where in its sources the CPU allocator failed; it stands before what people want to read, how much was asked for.
_ENFORCE_FAIL = re.compile(r"^\[enforce fail at [^\]]*\] err == 0\. ")


class Phase(StrEnum):
    RENDEZVOUS = "rendezvous"
    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Progress:
    """Where this rank is and when it last got on. on_phase: told of every change of phase while it is set."""

    def __init__(self) -> None:
        self.on_phase: Callable[[Phase], None] | None = None
        self.moved_at = time.monotonic()
        # Whether the rank has met its peers and is built, and compiled.
        self.stepping = False
        self._phase = Phase.INIT

    @property
    def phase(self) -> Phase:
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        if self.on_phase is not None:
            self.on_phase(phase)

    def beat(self) -> None:
        """The rank got on: it finished a step."""
        self.moved_at = time.monotonic()

    def begin_steps(self) -> None:
        """The rank has met its peers and is built, and compiled where it is to be."""
        self.beat()
        self.stepping = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure(Checked):
    """Why one rank ended. at: seconds since the epoch. echo: it only noticed that a peer was gone."""

    rank: Natural
    at: float
    verdict: Verdict
    phase: Phase
    reason: str
    traceback: str = ""
    echo: bool = False
    cause: Cause | None = None

    def _check(self, checks: Checks) -> None:
        checks.require(self.verdict in FAILED, "verdict", f"must be one of a failure, not {self.verdict}")


def describe(error: BaseException, *, rank: int, phase: Phase, at: float) -> RankFailure:
    """The failure that `error` is. The chain of explicit causes is searched, its innermost error is the reason."""
    # torch's pipeline stage wraps what a forward pass raised: "failed to run forward" from the cause.
    chain = [error]
    while (cause_of := chain[-1].__cause__) is not None and len(chain) < 10:
        chain.append(cause_of)
    known = [_cause(link) for link in chain]
    of_memory = [link for link, cause in zip(chain, known, strict=True) if cause is Cause.OOM]
    root = of_memory[0] if of_memory else chain[-1]
    echoes = [cause for cause in known if is_echo(cause)]
    cause = Cause.OOM if of_memory else first_in_precedence(echoes) or known[-1]
    lines = _ENFORCE_FAIL.sub("", str(root).strip()).splitlines()[:REASON_LINES]
    return RankFailure(
        rank=rank,
        at=at,
        verdict=Verdict.OOM if of_memory else Verdict.LOST if cause is Cause.STORAGE else Verdict.CRASHED,
        phase=phase,
        reason=f"{type(root).__name__}: {' '.join(line.strip() for line in lines)}",
        traceback="\n".join("".join(traceback.format_exception(error)).splitlines()[-TRACEBACK_LINES:]),
        echo=is_echo(cause),
        cause=cause,
    )


def _cause(error: BaseException) -> Cause:
    if isinstance(error, OSError) and error.errno in STORAGE_ERRORS:
        return Cause.STORAGE
    names = [base.__name__ for base in type(error).__mro__]
    if any(name in _OUT_OF_MEMORY_TYPES for name in names):
        return Cause.OOM
    if names[0] in _OWN_TYPES:
        return _OWN_TYPES[names[0]]
    causes = {cause_of_line(line) for line in f"{names[0]}: {error}".splitlines()} - {None, Cause.CRASH}
    return first_in_precedence(cause for cause in causes if cause is not None) or Cause.CRASH


def write_failure(directory: Path, failure: RankFailure) -> None:
    """Raises OSError (a full disk ...)."""
    write_whole(directory / f"failure-{failure.rank}.json", json.dumps(asdict(failure), indent=1) + "\n")


def read_failures(directory: Path) -> list[RankFailure]:
    """The failures of all ranks in `directory`, earliest first. A file that breaks the contract is left out. Raises
    OSError."""
    failures = []
    for name in list_entries(directory):
        if name.startswith("failure-") and name.endswith(".json"):
            with suppress(FileNotFoundError, ValueError):
                failures.append(read_json_file(RankFailure, directory / name, _MAX_FAILURE_BYTES))
    return sorted(failures, key=lambda failure: failure.at)


def silent_ranks(failures: Sequence[RankFailure], world_size: int) -> list[int]:
    """The ranks without a failure file: where all others stood still, whom they waited for."""
    heard = {failure.rank for failure in failures}
    return [rank for rank in range(world_size) if rank not in heard]


def first_cause(failures: Sequence[RankFailure]) -> RankFailure | None:
    """The failure that the others follow from: the earliest that is no echo, else the earliest; None for none."""
    ordered = sorted(failures, key=lambda failure: (failure.echo, failure.at))
    return ordered[0] if ordered else None


LOOKS = 20  # per limit; ranks that stall together thus give up within a twentieth of it
MAX_PERIOD_S = 0.2  # below the time that a runner leaves to the peers of a dead rank
MAX_LATE_PERIODS = 5  # periods: a look that comes later was kept from coming, and so were the steps


def start_watchdog(progress: Progress, start_limit_s: float, stall_s: float, rank: int, directory: Path) -> None:
    """End this process with a failure file once it has not begun to step for `start_limit_s`, or finished no step for
    `stall_s` since."""
    period_s = min(start_limit_s / LOOKS, stall_s / LOOKS, MAX_PERIOD_S)

    def watch() -> None:
        still_s, looked_at = 0.0, time.monotonic()
        while still_s < (stall_s if progress.stepping else start_limit_s):
            time.sleep(period_s)
            before, looked_at = looked_at, time.monotonic()
            still_s = stillness(still_s, looked_at - before, looked_at - progress.moved_at, period_s)
        reason = f"no step finished for {stall_s:g} s"
        if not progress.stepping:
            reason = f"did not meet its peers and build its model within {start_limit_s:g} s"
        failure = RankFailure(
            rank=rank,
            at=time.time(),
            verdict=Verdict.TIMED_OUT,
            phase=progress.phase,
            reason=reason,
            traceback=_all_tracebacks(),
            cause=Cause.HANG,
        )
        with suppress(OSError):
            write_failure(directory, failure)
            sys.stderr.write(f"rank {rank} gave up in {failure.phase}: {reason}\n{failure.traceback}\n")
            sys.stderr.flush()
        os._exit(1)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()


def stillness(before_s: float, since_look_s: float, since_beat_s: float, period_s: float) -> float:
    """For how long nothing moved while the process could run. before_s: found by the look before; since_look_s,
    since_beat_s: since that look and the last beat; period_s: planned between looks."""
    return min(since_beat_s, before_s + min(since_look_s, MAX_LATE_PERIODS * period_s))


def _all_tracebacks() -> str:
    """Every thread's stack. faulthandler writes to a file descriptor only."""
    with suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode("utf-8", errors="replace")
    return ""
