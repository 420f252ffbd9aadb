"""The plan that a command line of Megatron trains by. Defaults are those of all releases in flags.txt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshtune.runners.programs.dialects.base import without
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.dialects.megatron.arguments import CONTEXTS, SHARDINGS
from meshtune.runners.programs.dialects.megatron.command_line import CommandLine
from meshtune.runners.programs.dialects.megatron.pipeline_split import (
    ACCOUNTS,
    ENDS,
    LAYOUT,
    METHOD,
    UNEVEN,
    sizes_of_layout,
    split_of_ends,
    split_of_method,
    written_out,
)
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule
from meshtune.search_spaces.stages import EVEN, Split, plain_split, split_of

_DEGREES: Mapping[str, tuple[str, ...]] = {
    "tp": ("--tensor-model-parallel-size", "--model-parallel-size"),
    "pp": ("--pipeline-model-parallel-size",),
    "cp": ("--context-parallel-size", "--ds-sequence-parallel-size"),
    "ep": ("--expert-model-parallel-size", "--moe-expert-parallel-size"),
}
_FSDP = ("--use-megatron-fsdp", "--use-custom-fsdp")
_SHARDING = "--data-parallel-sharding-strategy"
_CHUNKS = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")


def read_plan(line: CommandLine) -> dict[str, Any]:
    """Fields of Plan that do not depend on the number of devices; what is not known is left out, and asked."""
    degrees = {field: line.number_or(1, f"baseline.{field}", *names) for field, names in _DEGREES.items()}
    found: dict[str, Any] = {field: value for field, value in degrees.items() if value is not None}
    if (stage := _zero_stage(line)) is not None:
        found["zero_stage"] = stage
    if (size := line.number("baseline.micro_batch_size", "--micro-batch-size")) is not None:
        found["micro_batch_size"] = size
    elif not line.has("--micro-batch-size"):
        line.ask("baseline.micro_batch_size", "--micro-batch-size is not said; fill in what training uses")
    # Without tensor parallelism Megatron turns it off, and there it makes no difference.
    if degrees["tp"] == 1 or line.has("--sequence-parallel"):
        found["sequence_parallel"] = True
    elif line.complete("baseline.sequence_parallel", "--sequence-parallel", "off"):
        found["sequence_parallel"] = False
    if (degrees["cp"] or 1) > 1 and (context := _context(line)) is not None:
        found["context"] = str(context)
    chunks = _chunks(line, degrees["pp"])
    if chunks is not None and chunks > 1:
        found |= {"vpp": chunks, "schedule": str(Schedule.INTERLEAVED)}
    split = _split(line, degrees["pp"], chunks)
    ends = zip(("first_stage_less_layers", "last_stage_less_layers"), split, strict=True)
    found |= {field: fewer for field, fewer in ends if fewer}
    if line.has("--enable-zbh1-pipeline"):
        told = "--enable-zbh1-pipeline: meshtune has no such schedule, and predicts 1f1b; trials run it as it is"
        line.ask("baseline.schedule", told)
    stages = None if degrees["pp"] is None or chunks is None else degrees["pp"] * chunks
    return found | _recompute(line, stages)


def _context(line: CommandLine) -> ContextParallel | None:
    if line.through_deepspeed:
        return ContextParallel.ULYSSES
    said = line.arguments.get("--cp-comm-type", ("p2p",))
    kinds = {word: kind for kind, word in CONTEXTS.items()} | {"allgather": ContextParallel.ALL_GATHER}
    if len(said) == 1 and said[0] in kinds:
        return kinds[said[0]]
    line.ask(
        "baseline.context", f"--cp-comm-type {as_written(' '.join(said))}: meshtune knows one of {', '.join(kinds)}"
    )
    return None


def _chunks(line: CommandLine, pp: int | None) -> int | None:
    if line.has(_CHUNKS[0]):
        return line.number("baseline.vpp", _CHUNKS[0])
    if line.has(LAYOUT) and pp is not None:
        stages = _layout(line).count("|") + 1
        if stages % pp:
            line.ask("baseline.vpp", f"{LAYOUT} has {stages} stages, no multiple of pp({pp})")
            return None
        return stages // pp
    if not line.has(_CHUNKS[1]):
        return 1
    each, told = line.number("baseline.vpp", _CHUNKS[1]), line.arguments.get("--num-layers", ("",))
    layers = int(told[0]) if len(told) == 1 and told[0].isdecimal() and len(told[0]) < 10 else None
    if layers is not None:
        layers += sum(line.has(name) for name in ACCOUNTS)
    if layers is None or pp is None or not each:
        line.ask("baseline.vpp", f"{_CHUNKS[1]}: into how many chunks it cuts a stage is not known here")
        return None
    if layers % (pp * each):
        line.ask("baseline.vpp", f"pp({pp}) chunks of {each} layers do not divide the model's {layers}")
        return None
    return layers // (pp * each)


def _layout(line: CommandLine) -> str:
    """The layout, its repetitions written out; "" where it is not known."""
    said = line.text(LAYOUT)
    return "" if said is None else written_out(said)


def _split(line: CommandLine, pp: int | None, chunks: int | None) -> Split:
    """How many layers fewer the first and the last chunk hold; what a plan has no word for is asked, and stays."""
    said = [name for name in (*UNEVEN, METHOD) if line.has(name)]
    if not said:
        return EVEN
    split = EVEN if pp == 1 else None
    if split is None and pp is not None and chunks is not None:
        split = _split_said(line, pp, chunks)
    if split is None:
        told = "stages that no plan has a word for: all hold as many layers but the first and the last, at least one"
        fit = "they fit this pp alone: keep it by `space: {pp: [...]}`, or delete the argument"
        written = ", ".join(as_written(" ".join((name, *line.arguments[name]))) for name in said)
        line.ask("", f"{written}: {told}; {fit}. Predictions do not know them")
        return EVEN
    # What the plan says trials write; which argument they write is a matter of what the program knows.
    line.arguments = without(line.arguments, UNEVEN)
    return split


def _split_said(line: CommandLine, pp: int, chunks: int) -> Split | None:
    if line.has(METHOD):
        method = split_of_method(line.text(METHOD) or "")
        return None if method is None else plain_split(method, pp * chunks)
    if line.has(LAYOUT):
        sizes = sizes_of_layout(_layout(line))
        return split_of(sizes) if sizes and len(sizes) == pp * chunks else None
    if line.has(*ENDS):
        layers = line.number("model.layers", "--num-layers")
        first, last = (line.number("", name) for name in ENDS)
        unknown = layers is None or any(line.has(name) and line.number("", name) is None for name in ENDS)
        return None if unknown or layers is None else split_of_ends(layers, pp, chunks, first, last)
    first, last = (int(line.has(name)) for name in ACCOUNTS)
    return plain_split((first, last), pp * chunks)


def _recompute(line: CommandLine, stages: int | None) -> dict[str, Any]:
    kind: str | None = None
    if line.has("--recompute-granularity"):
        kind = line.text("--recompute-granularity", "baseline.recompute")
    elif line.has("--recompute-activations"):
        kind = "selective"
    elif line.has("--checkpoint-activations"):
        kind = "full"
    elif line.complete("baseline.recompute", "--recompute-granularity", "none"):
        return {}
    if kind not in (None, "selective", "full"):
        line.ask("baseline.recompute", f"--recompute-granularity {kind}: meshtune knows selective and full")
    if kind not in ("selective", "full"):
        return {}
    if line.has("--recompute-modules"):
        line.note("--recompute-modules stays as it is, but what it keeps is not in meshtune's memory model")
    return {"recompute": str(Recompute(kind)), **(_interval(line, stages) if kind == "full" else {})}


def _interval(line: CommandLine, stages: int | None) -> dict[str, int]:
    """Which layers recompute: one in so many, where they are a number of each chunk."""
    path = "baseline.recompute_interval"
    some = line.number_or(1, path, "--recompute-num-layers", "--checkpoint-num-layers")
    if some is None:
        return {}
    if line.text("--recompute-method", path) != "block":
        if some > 1:
            told = f"units of {some} layers recompute together; trials recompute layer by layer, which keeps more"
            line.ask("", told)
        return {}
    layers = line.number(path, "--num-layers")
    each = 0 if layers is None or stages is None else layers // stages
    if each and some and each % some == 0:
        return {"recompute_interval": each // some} if some < each else {}
    line.ask(path, f"{some} of a chunk's {each} layers recompute; meshtune recomputes one in a whole number")
    return {}


def _zero_stage(line: CommandLine) -> int | None:
    path = "baseline.zero_stage"
    if line.through_deepspeed:
        return _deepspeed_stage(line, path)
    if line.has(*_FSDP):
        if not line.has(_SHARDING):
            told = "no_shard until core_v0.17, optim_grads_params since core_v0.18"
            line.ask(path, f"{_SHARDING} is not said, and its default depends on the release: {told}")
            return None
        sharding = line.text(_SHARDING, path)
        stages = {name: stage for stage, name in SHARDINGS.items()} | {"no_shard": 0, "optim": 1}
        if sharding in ("no_shard", "optim"):
            line.ask("", f"Megatron-FSDP with {sharding}: trials run this stage without Megatron-FSDP")
        elif sharding is not None and sharding not in stages:
            line.ask(path, f"{_SHARDING} {sharding}: known are {', '.join(sorted(stages))}")
        return stages.get(sharding or "")
    if line.has("--use-torch-fsdp2"):
        line.ask("", "--use-torch-fsdp2: trials run ZeRO stage 3 by Megatron-FSDP instead, the baseline too")
        return 3
    if line.has("--use-distributed-optimizer"):
        return 1
    return 0 if line.complete(path, "--use-distributed-optimizer", "stage 0") else None


def _deepspeed_stage(line: CommandLine, path: str) -> int | None:
    """DeepSpeed shards by its own file; --zero-stage says the same, or is wrong."""
    stage = line.number(path, "--zero-stage")
    config = deepspeed_config(line)
    if config is None:
        if not line.has("--zero-stage"):
            line.ask(path, "the ZeRO stage is not said: it is zero_optimization.stage of DeepSpeed's file")
        return stage
    section = config.get("zero_optimization")
    # deepspeed/runtime/zero/config.py, 0.19.8: stage 0 unless said.
    configured = section.get("stage", 0) if isinstance(section, dict) else 0
    if type(configured) is not int or configured not in range(4):
        said = json.dumps(configured)
        told = f"DeepSpeed's settings have zero_optimization.stage {said}, which Megatron fills in nowhere"
        line.ask(path, told)
        return None
    if stage not in (None, configured):
        said = "say" if section else "have no zero_optimization, which is"
        line.ask(path, f"--zero-stage {stage}, but DeepSpeed's settings {said} stage {configured}; say which is right")
        return None
    return configured


def deepspeed_config(line: CommandLine) -> Mapping[str, Any] | None:
    """DeepSpeed's settings, where the file is there; None where it is not or cannot be read."""
    value = line.arguments.get("--deepspeed_config", ())
    text = line.launch.files.get(value[0]) if value else None
    try:
        found = read_json(as_written(text)) if text is not None else None
    except UnreadableText:
        return None
    return found if isinstance(found, dict) else None


def derived(line: CommandLine, plan: Mapping[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """The global batch; and dp and micro-batches per step, where it is known on how many devices it starts."""
    batch, size = line.number("global_batch_size", "--global-batch-size"), plan.get("micro_batch_size")
    asked = line.has("--global-batch-size") and batch is None
    nodes, per_node = line.launch.nodes, line.launch.devices_per_node
    devices = line.devices or (nodes * per_node if nodes is not None and per_node is not None else None)
    if nodes is None or per_node is None:
        told = f"{line.devices} devices in all" if line.devices else "it is not known on how many devices it starts"
        line.ask("cluster.nodes", f"{told}: say nodes and devices per node; dp follows from them")
    group = None if {"tp", "pp", "cp"} - plan.keys() else plan["tp"] * plan["pp"] * plan["cp"]
    dp = devices // group if devices is not None and group and devices % group == 0 else None
    if devices is not None and group and dp is None:
        line.ask("cluster.nodes", f"tp * pp * cp = {group} does not divide {devices} devices")
    if batch is None and not asked:
        if size is None or dp is None or not line.complete("global_batch_size", "--global-batch-size", "size * dp"):
            line.ask(
                "global_batch_size", "--global-batch-size is not said; it is micro-batch * data-parallel ranks then"
            )
        else:
            batch = size * dp
            line.note(f"no --global-batch-size: Megatron takes a micro-batch per data-parallel rank, {batch} in all")
    if dp is None:
        return batch, {}
    found: dict[str, Any] = {"dp": dp}
    if dp * plan["cp"] == 1 and "zero_stage" in plan:
        # Nothing is sharded over one rank: the same setting as stage 0.
        found["zero_stage"] = 0
    if batch is not None and size:
        if batch % (size * dp):
            line.ask("global_batch_size", f"micro_batch_size({size}) * dp({dp}) does not divide the batch of {batch}")
        else:
            found["grad_accum_steps"] = batch // (size * dp)
    return batch, found
