"""Asks the built-in trainer for a probe of this machine or allocation, for exact peaks of memory, or for the build of
torch, in a process of its own: that needs torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from meshtune.runners.base import JobSpec, JobState, RunnerError
from meshtune.runners.command import call
from meshtune.runners.devices.facts import TorchBuild
from meshtune.runners.documents import plain, read_value
from meshtune.runners.extras import require_extra
from meshtune.runners.log_lines import read_tail
from meshtune.runners.processes.gang import THREADS, exit_words, log_path, run_gang
from meshtune.runners.trainer_answers import REQUEST_FILE, ExactPeak, Probed, ProbeRequest, read_probed
from meshtune.runners.untrusted_text import read_json
from meshtune.search_spaces.checks import InvalidValue, Problem, raising

TRAINER = (sys.executable, "-m", "meshtune.runners.trainer")
# A shape of 10^12 parameters takes about a minute per rank.
TIME_LIMIT_S = 900.0


def exact_peaks(
    spec: JobSpec,
    ranks: Sequence[int] = (),
    *,
    progress: Callable[[float, float], None] = lambda done, total: None,
) -> list[ExactPeak]:
    """The peaks of `ranks`, by default of one rank per kind of pipeline stage. Takes seconds to minutes, may be
    repeated, and leaves no process behind where it is interrupted.

    progress: is told what is done and all that it takes, about, in seconds; first 0, before it starts.
    Raises InvalidValue for jobs that cannot be estimated, with the reason; MissingExtra."""
    if spec.command[:3] != TRAINER or spec.command[3] not in spec.files:
        raise _refusal("exact memory is known for jobs of the workload torch alone")
    require_extra("torch", "the exact estimate")
    options = [f"--rank={rank}" for rank in ranks]
    line = ""
    with tempfile.TemporaryFile("w+") as job, tempfile.TemporaryFile("w+") as complaints:
        job.write(spec.files[spec.command[3]])
        job.seek(0)
        process = subprocess.Popen(
            [*TRAINER[:2], "meshtune.runners.trainer.exact", "-", "--progress", *options],
            stdin=job,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            # Ctrl-C is for us, who end it.
            start_new_session=True,
        )
        assert process.stdout is not None
        begun = time.monotonic()
        limit = threading.Timer(TIME_LIMIT_S, process.kill)
        limit.start()
        try:
            for line in process.stdout:
                if not line.startswith("["):
                    done, total = map(float, line.split())
                    progress(done, total)
            process.wait()
        finally:
            late = time.monotonic() - begun >= TIME_LIMIT_S
            limit.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
        complaints.seek(0)
        complaint = complaints.read().strip().splitlines()[-1:]
    if late:
        raise _refusal(f"the exact estimate took longer than {TIME_LIMIT_S:g} s")
    if process.returncode:
        raise _refusal(f"no exact estimate: {complaint[0] if complaint else exit_words(process.returncode)}")
    return [read_value(ExactPeak, entry) for entry in read_json(line)]


def _refusal(message: str) -> InvalidValue:
    return InvalidValue([Problem("", message)])


# Starting the ranks of a busy machine, or those of other nodes; and how much longer measuring may take than planned.
START_LIMIT_S = 240.0
OVERRUN = 5.0


class ProbeFailed(RunnerError):
    """No measurement; the message says which rank failed and why. Trying again may help."""


def probe(request: ProbeRequest, *, start_limit_s: float = START_LIMIT_S) -> Probed | None:
    """Measure. None: this process is a rank other than 0, which has nothing to tell. Raises ProbeFailed, MissingExtra.

    The ranks see all of this process's environment: the network's settings are part of what is measured."""
    require_extra("torch", "the probe")
    limit_s = start_limit_s + OVERRUN * request.seconds
    with tempfile.TemporaryDirectory(prefix="meshtune-probe-") as name:
        directory = Path(name)
        (directory / REQUEST_FILE).write_text(json.dumps(plain(request)), encoding="utf-8")
        start = ["--start"] if request.launch is None else []
        spec = JobSpec(
            name="probe",
            command=(sys.executable, "-m", "meshtune.runners.trainer.probe", name, *start),
            directory=directory,
            time_limit_s=limit_s,
            # One compute thread per rank, as jobs have them, whatever the shell says. Temporary files of ranks that are
            # killed go with the folder.
            env={key: value for key, value in os.environ.items() if key not in THREADS} | {"TMPDIR": name},
        )
        end = run_gang(spec, None).result()
        if end.state is JobState.TIMED_OUT:
            raise ProbeFailed(f"the probe took longer than {limit_s:g} s and was killed")
        if end.exit_code:
            complaint = ["", *read_tail(log_path(directory, 0)).strip().splitlines()][-1] if end.exit_code > 0 else ""
            raise ProbeFailed(f"the probe failed: {complaint or end.reason}")
        if request.launch is not None and request.launch.rank != 0:
            return None
        with raising(ProbeFailed, "the probe left no figures", OSError, ValueError):
            return read_probed(directory)


# Importing torch from a network disk takes a minute.
BUILD_LIMIT_S = 120.0


class TorchUnusable(RunnerError):
    """torch is installed and does not import, or does not answer; the message says why."""


def torch_build(*, time_limit_s: float = BUILD_LIMIT_S) -> TorchBuild:
    """The torch that jobs on this machine import. Raises MissingExtra, TorchUnusable, RunnerUnavailable."""
    require_extra("torch", "the built-in trainer")
    answer = call([sys.executable, "-m", "meshtune.runners.trainer.environment"], time_limit_s=time_limit_s)
    if answer.code:
        complaint = answer.err.strip().splitlines()[-1:]
        raise TorchUnusable(f"torch cannot be used: {complaint[0] if complaint else exit_words(answer.code)}")
    # Libraries print to standard output as they load.
    return read_value(TorchBuild, read_json(answer.out.strip().splitlines()[-1]))
