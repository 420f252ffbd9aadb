"""What a spec says of a script under DeepSpeed, which plans such a script runs, and a plan as its
ds_config.json, laid over the user's own.

Tensor parallelism is AutoTP's, context parallelism Ulysses'. Stages of a pipeline and recomputation are the
script's."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import Files, ProgramOptions, overlaid, read_base, require_words
from meshtune.runners.programs.dialects.config_import import at, placed
from meshtune.runners.programs.table import Table, capabilities, facts_of, table_of
from meshtune.runners.programs.workloads.base import SHAPES
from meshtune.runners.programs.workloads.config_file import Template, parse_template
from meshtune.runners.trainer.job import Dtype as Dtype
from meshtune.runners.untrusted_text import UnreadableText, read_json, read_words
from meshtune.search_spaces.checks import MAX_WHOLE, Checks, InvalidValue, Limit
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import EVEN_ALONE, Capabilities
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan, Recompute

TABLE = table_of("meshtune.runners.programs.deepspeed")
CONFIG_FILE = "ds_config.json"
BUCKET = "zero_optimization.reduce_bucket_size"
# ThroughputTimer times from the third step on (its start_step in deepspeed/utils/timer.py).
UNTIMED_STEPS = 2
PLACEHOLDERS = (*PLAN_FIELDS, *SHAPES, "global_batch_size", "config", "steps", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedOptions(ProgramOptions):
    """script or module: the program. arguments: texts such as `--max-steps {steps}`, with PLACEHOLDERS. config: the
    user's ds_config, or the path of its file. pipeline_module: the script builds a PipelineModule of {pp} stages."""

    script: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ("--deepspeed_config {config}",)
    config: Mapping[str, Any] | str = field(default_factory=dict)
    pipeline_module: bool = False
    dtype: Dtype = Dtype.BFLOAT16
    warmup_steps: Annotated[int, Limit(UNTIMED_STEPS, MAX_WHOLE, whole=True)] = 5

    def _check(self, checks: Checks) -> None:
        ProgramOptions._check(self, checks)
        checks.require(not (self.script and self.module), "module", f"does not go with script({self.script})")
        found = bool(self.directory) or Path(self.script or "/").is_absolute()
        checks.require(found, "script", f"{self.script} is relative: say to which directory, such as `directory: .`")
        read = not isinstance(self.reduce_bucket, str) or self.reduce_bucket == "auto"
        told = f"{self.reduce_bucket} is a word; in YAML a number has a point and a sign, such as 5.0e+8"
        checks.require(read, f"config.{BUCKET}", told)
        try:
            stages = self.tells("pp") or not self.pipeline_module
            checks.require(stages, "arguments", "a pipeline_module must be told its stages: {pp} is missing")
        except InvalidValue as error:
            for problem in error.problems:
                checks.require(False, problem.path, problem.message)
        except ValueError as error:
            checks.require(False, "arguments", str(error))

    @property
    def templates(self) -> tuple[Template, ...]:
        """The words of the arguments. Raises InvalidValue for an unknown placeholder, ValueError for an open quote."""
        words = [word for text in self.arguments for word in read_words(text)]
        return tuple(parse_template(word, PLACEHOLDERS, "arguments") for word in words)

    @property
    def table(self) -> Table:
        # What the script is told by its arguments is not said twice.
        pipeline = self.pipeline_module and not self.tells("recompute")
        return TABLE.variant("pipeline" if pipeline else "script")

    @property
    def reduce_bucket(self) -> Any:
        """Elements of a buffer of gradients, as the config states them."""
        return at(self.config, BUCKET)

    def tells(self, name: str) -> bool:
        """Whether the script is told this part of the plan."""
        return any(name in template.names for template in self.templates)

    def words(self, model: ModelSpec, plan: Plan, seed: int, config: Path) -> list[str]:
        """The script's arguments for one plan. config: where its ds_config lies."""
        values: dict[str, Any] = {
            **{name: getattr(model, name) for name in SHAPES},
            **plan.as_dict(),
            "global_batch_size": plan.global_batch_size,
            "config": config,
            "steps": self.steps,
            "seed": seed,
        }
        return [template.fill(values) for template in self.templates]


def capabilities_of(options: DeepSpeedOptions) -> Capabilities:
    ends = options.tells("first_stage_less_layers") and options.tells("last_stage_less_layers")
    recompute: dict[str, Any] = {"recompute": frozenset(Recompute)} if options.tells("recompute") else {}
    return capabilities(
        TABLE,
        "pipeline-module" if options.pipeline_module else "script",
        **recompute,
        recompute_of_script=options.tells("recompute"),
        recompute_intervals=options.tells("recompute_interval"),
        expert_parallel=options.tells("ep"),
        stage_splits=None if ends else EVEN_ALONE,
    )


def render(model: ModelSpec, plan: Plan, cluster: ClusterSpec, extra: Mapping[str, Any] | None = None) -> Files:
    """The ds_config.json of a plan. extra: options of the workload. Raises CannotExpress, InvalidValue."""
    config = config_of(model, plan, cluster, read_value(DeepSpeedOptions, dict(extra or {})))
    return {CONFIG_FILE: json.dumps(config, indent=2) + "\n"}


def script_words(model: ModelSpec, plan: Plan, seed: int, extra: Mapping[str, Any]) -> str:
    """The script's arguments beside a CONFIG_FILE, quoted for a shell. extra: options of the workload. Raises
    InvalidValue."""
    return shlex.join(read_value(DeepSpeedOptions, dict(extra)).words(model, plan, seed, Path(CONFIG_FILE)))


def config_of(model: ModelSpec, plan: Plan, cluster: ClusterSpec, options: DeepSpeedOptions) -> dict[str, Any]:
    """The ds_config of a plan. Raises CannotExpress, and InvalidValue where the user's own cannot be read."""
    require_words("DeepSpeed", model, plan, cluster, capabilities_of(options))
    table = options.table
    written = table.write({**facts_of(model, plan), "dtype": str(options.dtype)})
    # What the plan does not say here must not stand there either.
    return laid_over(read_base(options.config, read_config), {**dict.fromkeys(table.written), **written})


def laid_over(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config with settings by dotted key; None takes a key away."""
    return overlaid(config, placed({}, settings))


def read_config(text: str) -> dict[str, Any]:
    """A ds_config as it stands. Raises ValueError, whose message names the line."""
    try:
        # DeepSpeed refuses a key that stands twice, and so do we (dict_raise_error_on_duplicate_keys).
        config = read_json(text)
    except UnreadableText as error:
        if not error.line:
            raise
        lines = text.splitlines() or [""]
        line = lines[min(error.line, len(lines)) - 1].strip()
        # DeepSpeed reads Hjson, which has them.
        comments = re.search(r"(?:^|\s)(?:#|//|/\*)", line)
        hint = "comments are not JSON: take them out" if comments else error.message.removeprefix("is not JSON: ")
        raise ValueError(f"line {error.line} ({line[:60]!r}): {hint}") from None
    if not isinstance(config, dict):
        raise ValueError(f"a ds_config is an object, not {type(config).__name__}")
    return config
