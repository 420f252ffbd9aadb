"""Asks the built-in trainer for the exact peak memory of a job's ranks, in a process of its own: it needs torch.

For jobs of that trainer alone: what other programs keep in memory is not known here. Starts no job and no cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from meshtune.runners.base import JobSpec
from meshtune.runners.documents import read_value
from meshtune.runners.extras import require_extra
from meshtune.runners.trainer.job import ExactPeak
from meshtune.search_spaces.checks import InvalidValue, Problem

TRAINER = (sys.executable, "-m", "meshtune.runners.trainer")
# A shape of 10^12 parameters takes about a minute per rank.
TIME_LIMIT_S = 900.0


def exact_peaks(spec: JobSpec, ranks: Sequence[int] = (), *, time_limit_s: float = TIME_LIMIT_S) -> list[ExactPeak]:
    """The peaks of `ranks`, by default of one rank per kind of pipeline stage. Takes seconds; may be repeated.

    Raises InvalidValue for jobs that cannot be estimated, with the reason; MissingExtra."""
    if spec.command[:3] != TRAINER or spec.command[3] not in spec.files:
        raise _refusal("exact memory is known for jobs of the workload torch alone")
    require_extra("torch", "the exact estimate")
    options = [f"--rank={rank}" for rank in ranks]
    try:
        done = subprocess.run(
            [*TRAINER[:2], "meshtune.runners.trainer.exact", "-", *options],
            input=spec.files[spec.command[3]],
            capture_output=True,
            text=True,
            timeout=time_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _refusal(f"the exact estimate took longer than {time_limit_s:g} s") from None
    if done.returncode:
        told = done.stderr.strip().splitlines()[-1:] or [f"it ended with exit status {done.returncode}"]
        raise _refusal(f"no exact estimate: {told[0]}")
    return [read_value(ExactPeak, entry) for entry in json.loads(done.stdout)]


def _refusal(message: str) -> InvalidValue:
    return InvalidValue([Problem("", message)])
