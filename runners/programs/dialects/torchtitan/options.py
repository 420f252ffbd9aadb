"""What a spec says of a torchtitan run, and torchtitan's names of releases, formats and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from meshtune.runners.programs.dialects.base import FlagOptions
from meshtune.search_spaces.checks import Checks, Whole
from meshtune.search_spaces.plan import Schedule


class Release(StrEnum):
    """Which torchtitan: until 0.2.2 a TOML file says everything; from 0.3.0 a function of Python, and flags over it.
    0.2.0 has the seed in another section than 0.2.1 and 0.2.2, and refuses theirs."""

    TOML_0_2_0 = "v0.2.0"
    TOML = "v0.2"
    FLAGS = "v0.3"

    @property
    def has_file(self) -> bool:
        return self is not Release.FLAGS


class Dtype(StrEnum):
    """The number format of matrix products; weights are float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


# torch's names (torch/distributed/pipelining/schedules.py, get_schedule_class).
SCHEDULES: Mapping[Schedule, str] = {
    Schedule.GPIPE: "GPipe",
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ZERO_BUBBLE: "InterleavedZeroBubble",
    Schedule.ZBV: "ZBVZeroBubble",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchtitanOptions(FlagOptions):
    """config: the user's own TOML, or its path (0.2). arguments: flags; those that a trial sets itself are left out."""

    release: Release = Release.FLAGS
    config: Mapping[str, Any] | str = field(default_factory=dict)
    dtype: Dtype = Dtype.BFLOAT16
    warmup_steps: Whole = 5

    def _check(self, checks: Checks) -> None:
        FlagOptions._check(self, checks)
        told = f"goes with release {Release.TOML} only, not {self.release}"
        checks.require(self.release.has_file or not self.config, "config", told)
        self._check_arguments(checks, "--module")
