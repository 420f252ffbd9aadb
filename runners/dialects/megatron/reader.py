"""Reads a Megatron launch script: model, plan, number format, and the user's other arguments, which stay as they are.

Nothing is guessed: what the script does not say, or what meshtune has no word for, becomes a note."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.dialects.base import Arguments, Imported, read_arguments, render_lines, without
from meshtune.runners.dialects.bash.expansion import as_written, is_known
from meshtune.runners.dialects.bash.launch import find_launch
from meshtune.runners.dialects.launch import Launch
from meshtune.runners.dialects.megatron.arguments import (
    CONTEXTS,
    FROM_MODEL,
    FROM_PLAN,
    FSDP_CHECKPOINT,
    SHARDINGS,
    Dtype,
    Flavour,
)
from meshtune.runners.json_files import shown
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.checks import MAX_WHOLE
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule

# Arguments that change what is trained or where it lies, and that no part of a model or plan stands for.
_UNMAPPED: Mapping[str, str] = {
    "--kv-channels": "heads of this size",
    "--moe-layer-freq": "layers without experts",
    "--moe-shared-expert-intermediate-size": "experts that every token meets",
    "--expert-tensor-parallel-size": "experts cut otherwise than the rest",
    "--multi-latent-attention": "latent attention",
    "--mtp-num-layers": "layers that predict further tokens",
    "--hybrid-layer-pattern": "layers of several kinds",
    "--quick-geglu": "this activation",
    "--decoder-first-pipeline-num-layers": "uneven pipeline stages",
    "--decoder-last-pipeline-num-layers": "uneven pipeline stages",
    "--pipeline-model-parallel-layout": "uneven pipeline stages",
    "--account-for-embedding-in-pipeline-split": "uneven pipeline stages",
    "--account-for-loss-in-pipeline-split": "uneven pipeline stages",
    "--fp8-format": "8-bit products; peaks are looked up for the 16-bit format",
    "--optimizer-cpu-offload": "an optimizer on the host",
    "--cpu-optimizer": "an optimizer on the host",
    "--rampup-batch-size": "a batch that grows; trials run the full one",
    "--step-batch-size-schedule": "a batch that grows; trials run the full one",
}
_WHOLE = re.compile(r"[0-9]{1,18}")
_FSDP = ("--use-megatron-fsdp", "--use-custom-fsdp")


def parse(text: str) -> Imported:
    """What a launch script, or a file of arguments, says. Raises CannotRead."""
    return read_launch(find_launch(text))


def is_program(launch: Launch) -> bool:
    """By arguments that every program of Megatron has."""
    return {"--num-layers", "--hidden-size"} <= {word.partition("=")[0] for word in launch.words}


def read_launch(launch: Launch) -> Imported:
    """What one start of the program says. Raises CannotRead."""
    arguments, loose = read_arguments(launch.words)
    reading = _Reading(arguments, launch, notes=list(launch.notes))
    if loose:
        reading.note(f"{' '.join(map(as_written, loose))} stands before the first argument and is left out")
    model, plan = reading.model(), reading.plan()
    batch, derived = reading.derived(plan)
    return Imported(
        workload=reading.workload(),
        model=model,
        plan={**plan, **derived},
        global_batch_size=batch,
        nodes=launch.nodes,
        devices_per_node=launch.devices_per_node,
        notes=tuple(dict.fromkeys(reading.notes)),
    )


@dataclass(slots=True)
class _Reading:
    """A command line being read. notes: what people must look at, so far."""

    arguments: Arguments
    launch: Launch
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.launch.place}: {text}")

    def has(self, *names: str) -> bool:
        return any(name in self.arguments for name in names)

    def text(self, name: str) -> str | None:
        """The one value of an argument; None where it is not there or not known, which is noted."""
        values = self.arguments.get(name)
        if values is None:
            return None
        if len(values) == 1 and is_known(values[0]):
            return values[0]
        self.note(f"{name} {as_written(' '.join(values))} is not known here; fill it in")
        return None

    def number(self, *names: str) -> int | None:
        """The whole number that the first of these that is there has."""
        name = next((name for name in names if name in self.arguments), "")
        value = self.text(name)
        if value is None:
            return None
        if _WHOLE.fullmatch(value) and int(value) <= MAX_WHOLE:
            return int(value)
        self.note(f"{name} {shown(value)} is no whole number up to {MAX_WHOLE}; fill it in")
        return None

    @property
    def flavour(self) -> Flavour:
        through_deepspeed = self.has("--deepspeed", "--deepspeed_config", "--zero-stage")
        return Flavour.MEGATRON_DEEPSPEED if through_deepspeed else Flavour.MEGATRON_LM

    def model(self) -> dict[str, Any]:
        """Fields of ModelSpec; those that are not said are left out, or Megatron's default."""
        sizes = {
            "layers": self.number("--num-layers"),
            "hidden": self.number("--hidden-size"),
            "heads": self.number("--num-attention-heads"),
            "seq_len": self.number("--seq-length"),
            "vocab": self.number("--padded-vocab-size", "--vocab-size"),
            "kv_heads": self._kv_heads(),
            "ffn": self._ffn(),
        }
        rotary = self.has("--use-rotary-position-embeddings") or self.text("--position-embedding-type") == "rope"
        position = self.text("--position-embedding-type")
        if position not in (None, "rope", "learned_absolute"):
            self.note(f"--position-embedding-type {position}: meshtune knows rope and learned positions")
        norm = (self.text("--normalization") or "layernorm").lower()
        if norm not in ("rmsnorm", "layernorm"):
            self.note(f"--normalization {norm}: meshtune knows RMSNorm and LayerNorm")
        missing = [name for name in ("layers", "hidden", "heads", "seq_len", "vocab", "ffn") if sizes[name] is None]
        if missing:
            self.note(f"the script does not say the model's {', '.join(missing)}; fill in what training uses")
        found: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
        found |= {
            "norm": "rmsnorm" if norm == "rmsnorm" else "layernorm",
            "activation": "swiglu" if self.has("--swiglu") else "gelu",
            "position": "rope" if rotary else "learned",
            "tied_head": not self.has("--untie-embeddings-and-output-weights"),
        }
        return found | self._experts()

    def _kv_heads(self) -> int | None:
        if self.has("--num-key-value-heads"):
            return self.number("--num-key-value-heads")
        # arguments.py: --num-query-groups is 1 unless given, and counts with --group-query-attention alone.
        return (self.number("--num-query-groups") or 1) if self.has("--group-query-attention") else None

    def _ffn(self) -> int | None:
        if self.has("--moe-ffn-hidden-size", "--ffn-hidden-size"):
            return self.number("--moe-ffn-hidden-size", "--ffn-hidden-size")
        hidden = self.number("--hidden-size")
        if hidden is None:
            return None
        # arguments.py, validate_args: gated ones get two thirds, in multiples of 64.
        return hidden // 24 * 64 if self.has("--swiglu") else 4 * hidden

    def _experts(self) -> dict[str, Any]:
        experts = self.number("--num-experts") or 0
        if experts <= 1 and (experts == 0 or self.flavour is Flavour.MEGATRON_DEEPSPEED):
            return {}
        if self.flavour is Flavour.MEGATRON_DEEPSPEED:
            if (self.number("--expert-interval") or 2) != 1:
                self.note("--expert-interval is not 1: meshtune knows experts in every layer alone")
            return {"experts": experts, "top_k": self.number("--topk") or 1}
        if not self.has("--disable-bias-linear"):
            self.note("experts with biases: trials leave the biases out, without which Megatron refuses tp > 1")
        return {"experts": experts, "top_k": self.number("--moe-router-topk") or 2}

    def plan(self) -> dict[str, Any]:
        """Fields of Plan that do not depend on the number of devices."""
        found: dict[str, Any] = {
            "tp": self.number("--tensor-model-parallel-size") or 1,
            "pp": self.number("--pipeline-model-parallel-size") or 1,
            "cp": self.number("--context-parallel-size", "--ds-sequence-parallel-size") or 1,
            "ep": self.number("--expert-model-parallel-size", "--moe-expert-parallel-size") or 1,
            "zero_stage": self._zero_stage(),
        }
        if (size := self.number("--micro-batch-size")) is not None:
            found["micro_batch_size"] = size
        else:
            self.note("the script does not say --micro-batch-size; fill in the baseline's micro_batch_size")
        # Without tensor parallelism Megatron turns it off, and there it makes no difference.
        found["sequence_parallel"] = found["tp"] == 1 or self.has("--sequence-parallel")
        if found["cp"] > 1:
            found["context"] = str(self._context())
        chunks = self._chunks(found["pp"])
        if chunks > 1:
            found |= {"vpp": chunks, "schedule": str(Schedule.INTERLEAVED)}
        if self.has("--enable-zbh1-pipeline"):
            self.note("--enable-zbh1-pipeline: meshtune has no such schedule; the baseline says 1f1b")
        return found | self._recompute(found["pp"] * chunks)

    def _context(self) -> ContextParallel:
        if self.flavour is Flavour.MEGATRON_DEEPSPEED:
            return ContextParallel.ULYSSES
        said = self.arguments.get("--cp-comm-type", ("p2p",))
        kinds = {word: kind for kind, word in CONTEXTS.items()} | {"allgather": ContextParallel.ALL_GATHER}
        if len(said) != 1 or said[0] not in kinds:
            self.note(f"--cp-comm-type {as_written(' '.join(said))}: meshtune knows one of {', '.join(kinds)}")
        return kinds.get(said[0], ContextParallel.RING) if said else ContextParallel.RING

    def _chunks(self, pp: int) -> int:
        if self.has("--num-virtual-stages-per-pipeline-rank"):
            return self.number("--num-virtual-stages-per-pipeline-rank") or 1
        layers, each = self.number("--num-layers"), self.number("--num-layers-per-virtual-pipeline-stage")
        if layers is None or not each:
            return 1
        if layers % (pp * each):
            self.note(f"pp({pp}) chunks of {each} layers do not divide the model's {layers}")
        return max(1, layers // (pp * each))

    def _recompute(self, chunks: int) -> dict[str, Any]:
        kind = self.text("--recompute-granularity")
        if kind is None and self.has("--recompute-activations"):
            kind = "selective"
        if kind is None and self.has("--checkpoint-activations"):
            kind = "full"
        if kind not in (None, "selective", "full"):
            self.note(f"--recompute-granularity {kind}: meshtune knows selective and full")
        if kind not in ("selective", "full"):
            return {}
        if self.has("--recompute-modules"):
            self.note("--recompute-modules stays as it is, but what it keeps is not in meshtune's memory model")
        return {"recompute": str(Recompute(kind)), **(self._interval(chunks) if kind == "full" else {})}

    def _interval(self, chunks: int) -> dict[str, int]:
        """Which layers recompute: one in so many, where they are a number of each chunk."""
        some, layers = (
            self.number("--recompute-num-layers", "--checkpoint-num-layers") or 1,
            self.number("--num-layers"),
        )
        if self.text("--recompute-method") != "block":
            if some > 1:
                self.note(f"units of {some} layers recompute together; meshtune recomputes layer by layer")
            return {}
        each = 0 if layers is None else layers // chunks
        if each and each % some == 0:
            return {"recompute_interval": each // some} if some < each else {}
        self.note(f"{some} of a chunk's {each} layers recompute; meshtune recomputes one in a whole number")
        return {}

    def _zero_stage(self) -> int:
        if self.flavour is Flavour.MEGATRON_DEEPSPEED:
            return self._deepspeed_stage()
        if self.has(*_FSDP):
            sharding = self.text("--data-parallel-sharding-strategy") or SHARDINGS[3]
            stages = {name: stage for stage, name in SHARDINGS.items()} | {"no_shard": 0, "optim": 1}
            if sharding in ("no_shard", "optim"):
                self.note(f"Megatron-FSDP with {sharding}: trials run this stage without Megatron-FSDP")
            return stages.get(sharding, 3)
        if self.has("--use-torch-fsdp2"):
            self.note("--use-torch-fsdp2: trials run ZeRO stage 3 by Megatron-FSDP instead")
            return 3
        return int(self.has("--use-distributed-optimizer"))

    def _deepspeed_stage(self) -> int:
        stage = self.number("--zero-stage")
        section = self._ds_config().get("zero_optimization")
        configured = section.get("stage") if isinstance(section, dict) else None
        if isinstance(configured, int):
            # DeepSpeed shards by its own file; the argument says the same, or is wrong.
            if stage not in (None, configured):
                self.note(f"--zero-stage {stage}, but DeepSpeed's settings say stage {configured}, which counts")
            return configured
        if stage is not None:
            return stage
        self.note("the script does not say the ZeRO stage (--zero-stage, or a DeepSpeed file that it writes itself)")
        return 0

    def _ds_config(self) -> Mapping[str, Any]:
        """DeepSpeed's settings, where the script itself writes them."""
        value = self.arguments.get("--deepspeed_config", ("",))
        text = self.launch.files.get(value[0]) if value else None
        try:
            found = read_json(as_written(text)) if text is not None else {}
        except UnreadableText:
            found = {}
        return found if isinstance(found, dict) else {}

    def derived(self, plan: Mapping[str, Any]) -> tuple[int | None, dict[str, Any]]:
        """The global batch; and dp and micro-batches per step, where the script says how many devices it starts on."""
        batch, size = self.number("--global-batch-size"), plan.get("micro_batch_size")
        nodes, per_node = self.launch.nodes, self.launch.devices_per_node
        group = plan["tp"] * plan["pp"] * plan["cp"]
        if nodes is None or per_node is None or (nodes * per_node) % group:
            devices = "it is not known on how many" if nodes is None or per_node is None else f"{nodes} * {per_node}"
            self.note(f"{devices} devices: tp * pp * cp = {group} must divide them; dp follows from the cluster")
            return batch, {}
        dp = nodes * per_node // group
        if batch is None and size is not None:
            batch = size * dp
            self.note(f"no --global-batch-size: Megatron takes a micro-batch per data-parallel rank, {batch} in all")
        found: dict[str, Any] = {"dp": dp}
        if dp * plan["cp"] == 1:
            # Nothing is sharded over one rank: the same setting as stage 0.
            found["zero_stage"] = 0
        if batch is not None and size and batch % (size * dp) == 0:
            found["grad_accum_steps"] = batch // (size * dp)
        return batch, found

    def workload(self) -> dict[str, Any]:
        """The spec's section: what is not model and plan, as the user has it."""
        flavour = self.flavour
        dtype = Dtype.BFLOAT16 if self.has("--bf16") else Dtype.FLOAT16 if self.has("--fp16") else Dtype.FLOAT32
        config = dict(self._ds_config())
        if flavour is Flavour.MEGATRON_DEEPSPEED:
            if not config:
                self.note("DeepSpeed's settings are in a file that was not read: copy them into workload.ds_config")
            elif not self.has("--bf16", "--fp16"):
                dtype = _dtype_of(config)
        kept = self._kept(flavour)
        found: dict[str, Any] = {"kind": "megatron"}
        if self.launch.script:
            found["script"] = self.launch.script
        if self.launch.directory or not self.launch.script.startswith("/"):
            found["directory"] = self.launch.directory or "."
        if flavour is not Flavour.MEGATRON_LM:
            found["flavour"] = str(flavour)
        found["dtype"] = str(dtype)
        rest = {name: value for name, value in config.items() if name not in _DERIVED}
        optional = {"arguments": kept, "setup": list(self.launch.setup), "env": dict(self.launch.env)}
        return found | {name: value for name, value in (optional | {"ds_config": rest}).items() if value}

    def _kept(self, flavour: Flavour) -> list[str]:
        kept = without(self.arguments, FROM_PLAN | FROM_MODEL)
        if kept.get("--ckpt-format") == (FSDP_CHECKPOINT,):
            kept = without(kept, ("--ckpt-format",))
        if flavour is Flavour.MEGATRON_DEEPSPEED and self.has("--num-experts"):
            kept = without(kept, ("--create-moe-param-group",))
        hidden, heads = self.number("--hidden-size"), self.number("--num-attention-heads")
        if hidden and heads and kept.get("--kv-channels") == (str(hidden // heads),):
            kept = without(kept, ("--kv-channels",))
        for name in kept:
            if name in _UNMAPPED:
                self.note(f"{name} stays as it is, but meshtune's model does not know {_UNMAPPED[name]}")
        unknown = [name for name, values in kept.items() if not all(map(is_known, values))]
        if unknown:
            self.note(f"what {', '.join(unknown)} hold is not known here; fill it in under workload.arguments")
        return [as_written(line) for line in render_lines(kept)]


# What DeepSpeed's settings say again of the plan.
_DERIVED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _dtype_of(config: Mapping[str, Any]) -> Dtype:
    formats = {"bf16": Dtype.BFLOAT16, "fp16": Dtype.FLOAT16}
    return next((dtype for key, dtype in formats.items() if config.get(key, {}).get("enabled")), Dtype.FLOAT32)
