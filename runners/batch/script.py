"""The parts that job scripts of all batch schedulers share. Of two copies of a job (sent again while a request was
under way), the one that starts first claims the job's folder, and the other ends at once."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshtune.runners.processes.gang import minimal_environment
from meshtune.search_spaces.checks import CLOSED, Checks

LAUNCH_WRAPPER = "-m meshtune.runners.batch.launch_wrapper"
# What the scheduler's own limit leaves for the nodes' start, setup lines and imports: the ranks keep the job's limit.
BACKSTOP_S = 120.0
# In the job's folder: the scheduler's number of the copy that ran, written by that copy before anything else.
CLAIM_FILE = "batch-id"
# How a copy ends that came second.
CLAIMED_CODE = 75
# What belongs to the node, not to whoever submits: the scheduler's word there counts.
_OF_THE_NODE = (
    *("TMPDIR", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What a site or a user adds to every job, whatever the scheduler."""

    __pydantic_config__: ClassVar[Any] = CLOSED
    # How a script's line for the scheduler begins: "#SBATCH -".
    directive: ClassVar[str]

    # More of these lines.
    extra_lines: tuple[str, ...] = ()
    # Shell lines before the ranks start, such as "module load cuda"; what they set reaches the ranks.
    setup: tuple[str, ...] = ()
    # How long a command of the scheduler may take.
    call_limit_s: float = 30.0
    # Jobs are looked at no more often than that.
    poll_s: float = 5.0

    def _check(self, checks: Checks) -> None:
        for line in self.extra_lines:
            fit = line.startswith(self.directive) and "\n" not in line
            checks.require(fit, "extra_lines", f"must be lines that start with {self.directive!r}, not {line!r}")
        for line in self.setup:
            checks.require("\n" not in line, "setup", f"must be single lines, not {line!r}")
        checks.require(self.call_limit_s > 0, "call_limit_s", f"must be positive, not {self.call_limit_s}")
        checks.require(self.poll_s >= 0, "poll_s", f"must be at least 0, not {self.poll_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitHost:
    """What a job script takes from the machine it is written on."""

    # The interpreter that starts the ranks, on the shared file system.
    python: str
    environment: Mapping[str, str]


def submit_host() -> SubmitHost:
    environment = {name: value for name, value in minimal_environment().items() if name not in _OF_THE_NODE}
    return SubmitHost(python=sys.executable, environment=environment)


def render_body(number: str, host: SubmitHost, setup: Sequence[str]) -> str:
    """Lines that claim the folder, set the environment and run the setup. number: shell expression of the job's id."""
    complaint = f"another copy of this job has claimed $PWD ({CLAIM_FILE})"
    return (
        f'( set -C; echo "{number}" > {CLAIM_FILE} ) 2>/dev/null || '
        f'{{ echo "{complaint}" >&2; exit {CLAIMED_CODE}; }}\n'
        + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(host.environment.items()))
        + "".join(f"{line}\n" for line in setup)
    )
