"""What a spec says of a Megatron run besides model and plan: the program, its other arguments, what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from meshtune.runners.dialects.arguments import Arguments, read_lines
from meshtune.runners.trainer.job import Dtype as Dtype
from meshtune.search_spaces.checks import CLOSED, Checks


class Flavour(StrEnum):
    """Whose Megatron: NVIDIA/Megatron-LM, or deepspeedai/Megatron-DeepSpeed, which trains through DeepSpeed."""

    MEGATRON_LM = "megatron-lm"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"


# What follows from the plan, the number format and the model's shapes; nobody else sets it.
FROM_PLAN = frozenset(
    {
        *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"),
        *("--cp-comm-type", "--ds-sequence-parallel-size", "--expert-model-parallel-size"),
        *("--moe-expert-parallel-size", "--num-layers-per-virtual-pipeline-stage"),
        *("--num-virtual-stages-per-pipeline-rank", "--micro-batch-size", "--global-batch-size"),
        *("--sequence-parallel", "--recompute-activations", "--recompute-granularity", "--recompute-method"),
        *("--recompute-num-layers", "--checkpoint-activations", "--checkpoint-num-layers"),
        *("--deepspeed-activation-checkpointing", "--use-distributed-optimizer", "--use-megatron-fsdp"),
        *("--use-custom-fsdp", "--use-torch-fsdp2", "--data-parallel-sharding-strategy"),
        *("--init-model-with-meta-device", "--zero-stage", "--deepspeed", "--deepspeed_config"),
        *("--no-pipeline-parallel", "--bf16", "--fp16"),
    }
)
FROM_MODEL = frozenset(
    {
        *("--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--seq-length"),
        *("--group-query-attention", "--num-query-groups", "--num-key-value-heads", "--normalization", "--swiglu"),
        *("--position-embedding-type", "--use-rotary-position-embeddings"),
        *("--untie-embeddings-and-output-weights", "--num-experts", "--moe-router-topk", "--moe-ffn-hidden-size"),
        *("--topk", "--expert-interval"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronOptions:
    """script: the program, pretrain_gpt.py. directory: where it is started; relative paths count from there. arguments:
    the user's other ones, as texts such as `--lr 1e-4`. setup: lines of bash that come first. env: exported before it.
    ds_config: DeepSpeed's settings but for batch sizes, stage and number format. steps: how many it is
    to take, warmup_steps of them not timed."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    script: str = "pretrain_gpt.py"
    directory: str = ""
    flavour: Flavour = Flavour.MEGATRON_LM
    dtype: Dtype = Dtype.BFLOAT16
    arguments: tuple[str, ...] = ()
    python: str = "python3"
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ds_config: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 25
    warmup_steps: int = 5

    def __post_init__(self) -> None:
        checks = Checks()
        if checks.whole(0, warmup_steps=self.warmup_steps) & checks.whole(1, steps=self.steps):
            needed = f"steps({self.steps}) must be more than warmup_steps({self.warmup_steps})"
            checks.require(self.steps > self.warmup_steps, "steps", needed)
        for name in ("script", "directory", "python"):
            text = getattr(self, name)
            checks.require("\n" not in text, name, f"must be one line, not {text!r}")
        for name in ("script", "python"):
            checks.require(bool(getattr(self, name)), name, "must not be empty")
        for name in self.env:
            checks.require(name.isidentifier() and name.isascii(), f"env.{name}", "is no name of a variable")
        self._check_arguments(checks)
        to_deepspeed = self.flavour is Flavour.MEGATRON_DEEPSPEED or not self.ds_config
        checks.require(to_deepspeed, "ds_config", f"goes with flavour {Flavour.MEGATRON_DEEPSPEED}")
        checks.done()

    def _check_arguments(self, checks: Checks) -> None:
        try:
            given, loose = read_lines(self.arguments)
        except ValueError as error:
            checks.require(False, "arguments", f"a quote is never closed: {error}")
            return
        checks.require(not loose, "arguments", f"{' '.join(loose)} stands before the first name, such as --lr")
        for name in given:
            checks.require(name not in FROM_PLAN, "arguments", f"{name} follows from the plan; leave it out")
            checks.require(name not in FROM_MODEL, "arguments", f"{name} follows from the model; leave it out")

    @property
    def given(self) -> Arguments:
        """The user's other arguments by name."""
        return read_lines(self.arguments)[0]

    @property
    def through_deepspeed(self) -> bool:
        return self.flavour is Flavour.MEGATRON_DEEPSPEED
