"""What a spec says of a DeepSpeed run besides model and plan: the script, its arguments, the user's own ds_config."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from meshtune.runners.trainer.job import Dtype as Dtype
from meshtune.runners.workloads.template import Template, parse_template
from meshtune.search_spaces.checks import CLOSED, Checks, InvalidValue
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan

CONFIG_FILE = "ds_config.json"
# ThroughputTimer times from the third step on (its start_step in deepspeed/utils/timer.py).
UNTIMED_STEPS = 2
# The shapes of the model that a script may be told.
_SHAPES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
PLACEHOLDERS = (*PLAN_FIELDS, *_SHAPES, "global_batch_size", "config", "steps", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedOptions:
    """script or module: the program. directory: where it is started, for relative paths; empty: the trial's own.
    arguments: texts such as `--max-steps {steps}`, with PLACEHOLDERS. config: the user's ds_config, or the path of its
    file. pipeline_module: the script builds a PipelineModule of {pp} stages. steps: how many it is to take,
    warmup_steps of them not timed."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    script: str = ""
    module: str = ""
    directory: str = ""
    arguments: tuple[str, ...] = ("--deepspeed_config {config}",)
    config: Mapping[str, Any] | str = field(default_factory=dict)
    pipeline_module: bool = False
    dtype: Dtype = Dtype.BFLOAT16
    python: str = "python3"
    env: Mapping[str, str] = field(default_factory=dict)
    steps: int = 25
    warmup_steps: int = 5

    def __post_init__(self) -> None:
        checks = Checks()
        if checks.whole(UNTIMED_STEPS, warmup_steps=self.warmup_steps):
            needed = f"steps({self.steps}) must be more than warmup_steps({self.warmup_steps})"
            checks.require(self.steps > self.warmup_steps, "steps", needed)
        checks.require(not (self.script and self.module), "module", f"does not go with script({self.script})")
        found = bool(self.directory) or Path(self.script or "/").is_absolute()
        checks.require(found, "script", f"{self.script} is relative: say to which directory, such as `directory: .`")
        checks.require(bool(self.python), "python", "must not be empty")
        for name in self.env:
            checks.require(name.isidentifier() and name.isascii(), f"env.{name}", "is no name of a variable")
        try:
            stages = self.tells("pp") or not self.pipeline_module
            checks.require(stages, "arguments", "a pipeline_module must be told its stages: {pp} is missing")
        except InvalidValue as error:
            for problem in error.problems:
                checks.require(False, problem.path, problem.message)
        except ValueError as error:
            checks.require(False, "arguments", f"a quote is never closed: {error}")
        checks.done()

    @property
    def templates(self) -> tuple[Template, ...]:
        """The words of the arguments. Raises InvalidValue for an unknown placeholder, ValueError for an open quote."""
        words = [word for text in self.arguments for word in shlex.split(text)]
        return tuple(parse_template(word, PLACEHOLDERS, "arguments") for word in words)

    def tells(self, name: str) -> bool:
        """Whether the script is told this part of the plan."""
        return any(name in template.names for template in self.templates)

    def words(self, model: ModelSpec, plan: Plan, seed: int, config: Path) -> list[str]:
        """The script's arguments for one plan. config: where its ds_config lies."""
        values: dict[str, Any] = {
            **{name: getattr(model, name) for name in _SHAPES},
            **plan.as_dict(),
            "global_batch_size": plan.global_batch_size,
            "config": config,
            "steps": self.steps,
            "seed": seed,
        }
        return [template.fill(values) for template in self.templates]
