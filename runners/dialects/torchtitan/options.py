"""What a spec says of a torchtitan run besides model and plan: which release, and the user's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from meshtune.runners.dialects.arguments import Arguments, read_lines
from meshtune.search_spaces.checks import CLOSED, Checks
from meshtune.search_spaces.plan import Schedule


class Release(StrEnum):
    """Which torchtitan: until 0.2.2 a TOML file says everything; from 0.3.0 a function of Python, and flags over it."""

    TOML = "v0.2"
    FLAGS = "v0.3"


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
class TorchtitanOptions:
    """release: see Release. config: the user's own TOML, or its path (0.2). arguments: the user's own flags, as texts
    such as `--module llama3`, which stand before the plan's. directory: where torchtitan is started, for its relative
    paths; empty: in the trial's own. steps: how many it is to take, warmup_steps of them not timed."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    release: Release = Release.FLAGS
    config: Mapping[str, Any] | str = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    directory: str = ""
    dtype: Dtype = Dtype.BFLOAT16
    python: str = "python3"
    env: Mapping[str, str] = field(default_factory=dict)
    steps: int = 25
    warmup_steps: int = 5

    def __post_init__(self) -> None:
        checks = Checks()
        if checks.whole(1, warmup_steps=self.warmup_steps):
            needed = f"steps({self.steps}) must be more than warmup_steps({self.warmup_steps})"
            checks.require(self.steps > self.warmup_steps, "steps", needed)
        checks.require(bool(self.python), "python", "must not be empty")
        toml = self.release is Release.TOML
        checks.require(toml or not self.config, "config", f"goes with release {Release.TOML} only, not {self.release}")
        for name in self.env:
            checks.require(name.isidentifier() and name.isascii(), f"env.{name}", "is no name of a variable")
        try:
            _, loose = read_lines(self.arguments)
        except ValueError as error:
            checks.require(False, "arguments", f"a quote is never closed: {error}")
        else:
            checks.require(not loose, "arguments", f"{' '.join(loose)} stands before the first name, such as --module")
        checks.done()

    @property
    def given(self) -> Arguments:
        """The user's own flags by name."""
        return read_lines(self.arguments)[0]
