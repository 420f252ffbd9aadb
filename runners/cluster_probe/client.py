"""Measures the machine, or the allocation that a launcher made, in processes of their own: that needs torch.

Alone it starts one process, which starts the ranks; under a launcher one, which is a rank."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from meshtune.runners.base import JobSpec, JobState, RunnerError
from meshtune.runners.cluster_probe.results import REQUEST_FILE, Probed, ProbeRequest, read_probed
from meshtune.runners.documents import plain
from meshtune.runners.extras import require_extra
from meshtune.runners.logs.lines import read_tail
from meshtune.runners.processes.gang import log_path, run_gang

# Starting the ranks of a busy machine, or those of other nodes; and how much longer measuring may take than planned.
START_LIMIT_S = 240.0
OVERRUN = 5.0
# One compute thread per rank, as jobs have them, whatever the shell says.
_OURS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


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
            env={key: value for key, value in os.environ.items() if key not in _OURS},
        )
        end = run_gang(spec, None).result()
        if end.state is JobState.TIMED_OUT:
            raise ProbeFailed(f"the probe took longer than {limit_s:g} s and was killed")
        if end.exit_code:
            told = ["", *read_tail(log_path(directory, 0)).strip().splitlines()][-1] if end.exit_code > 0 else ""
            raise ProbeFailed(f"the probe failed: {told or end.reason}")
        if request.launch is not None and request.launch.rank != 0:
            return None
        try:
            return read_probed(directory)
        except (OSError, ValueError) as error:
            raise ProbeFailed(f"the probe left no figures: {error}") from None
