"""What no row of torchtitan's table can say: shapes by name and flavor, degrees of -1, replicas that are sharded,
micro-batches of a local batch, stages of a pipeline, and recomputation of every so many-th layer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import ceil
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.named_models import preset_shapes
from meshtune.runners.programs.table import facts_of
from meshtune.runners.programs.torchtitan.configuration import REST, Configuration
from meshtune.runners.programs.torchtitan.options import TABLE, TorchtitanOptions
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.search_spaces.stages import EVEN, split_of

_MODELS: Mapping[str, Mapping[str, Any]] = TABLE.lists["models"]
_REPLICATE, _SHARD, _RESHARD, _TYPE = TABLE.fields["zero_stage"].names
_PER_STAGE, *_ENDS, _PARTS, _SPLITS, _CSV = TABLE.fields["vpp"].names
_LOCAL, _SIZE, _COUNT = TABLE.fields["micro_batch_size"].names
_MODE, _OPTION = TABLE.fields["recompute"].names


# Written.
def facts(model: ModelSpec, plan: Plan, options: TorchtitanOptions) -> dict[str, Any]:
    """What the table's rows write of a run. In a pipeline the local batch is cut into micro-batches; without one
    torchtitan accumulates over local batches."""
    sharded = plan.zero_stage > 0 or plan.dp == 1
    some = plan.recompute is Recompute.FULL and plan.recompute_interval > 1
    selective = some or plan.recompute is Recompute.SELECTIVE
    layers = model.layers + plan.first_stage_less_layers + plan.last_stage_less_layers
    return {
        **facts_of(model, plan),
        "dtype": str(options.dtype),
        "local_batch": plan.micro_batch_size * (plan.grad_accum_steps if plan.pp > 1 else 1),
        **({} if sharded else {"zero_groups": plan.dp, "zero_shards": 1}),
        "layers_per_stage": layers // (plan.pp * plan.vpp) if plan.pp > 1 and plan.vpp > 2 else None,
        "recompute_mode": "selective" if selective else str(plan.recompute),
        "recompute_option": str(plan.recompute_interval) if some else "op" if selective else None,
    }


# The model.
def shapes(config: Configuration) -> None:
    """Raises CannotRead for what is no language model."""
    # Llama 2 was called llama in April 2024; the names with torchft train the same models.
    keys = ("model.name", "model.flavor")
    name, flavor = map(config.text, keys)
    if any(config.has(key) and said is None for key, said in zip(keys, (name, flavor), strict=True)):
        return
    if config.release.has_file and not config.more:
        name, flavor = name or "llama3", flavor or "debugmodel"
    if name is None or flavor is None:
        config.ask("", "the model is not said: fill in its shapes")
        return
    name = "llama2" if name == "llama" else name.removesuffix("_ft")
    if kind := TABLE.lists["no_decoder"].get(name):
        raise CannotRead(f"torchtitan's {name} is {kind}; meshtune tunes language models alone")
    found = shapes_of(name, flavor, since_0_2=not config.old)
    if found is None:
        why = TABLE.lists["unlike"].get(name, "shapes that are not known here")
        nearest = "fill in the nearest shapes, predictions are as near as those"
        config.ask("", f"model {name} {flavor} has {why}: {nearest}")
        return
    config.fields |= {f"model.{field}": value for field, value in found.items()}
    if config.old:
        config.note(f"before 0.2 the tokenizer says the vocabulary; {found['vocab']} is that of {name} {flavor}")


def shapes_of(name: str, flavor: str, *, since_0_2: bool = True) -> dict[str, Any] | None:
    """Fields of ModelSpec but for seq_len; None where the flavor is not known or has no such shape."""
    found = _MODELS.get(name, {}).get(flavor)
    if found is None or (flavor == "debugmodel" and not since_0_2):
        return None
    said = {"preset": found} if isinstance(found, str) else dict(found)
    known = preset_shapes(said.pop("preset")) if "preset" in said else {}
    return {"name": f"{name}-{flavor}".lower(), **known, **said}


# The plan.
def sharding(config: Configuration) -> None:
    """dp, where it is known, and what of it is sharded."""
    path = "baseline.zero_stage"
    replicate, shard = config.degree(_REPLICATE, 1, path), config.degree(_SHARD, REST, path)
    reshard = config.text(_RESHARD, path)
    if reshard is None and (config.has(_RESHARD) or not config.complete(path, _RESHARD, "default")):
        return
    if config.get(_TYPE) == "ddp":
        replicate, shard = shard, 1
    others = [config.fields.get(axis) for axis in ("tp", "pp", "cp")]
    if replicate is None or shard is None or None in others:
        return
    tp, pp, cp = (other or 1 for other in others)
    if REST in (replicate, shard) and config.devices:
        rest = config.devices // (abs(replicate * shard) * tp * pp * cp)
        # Where nothing is left, or not evenly, what is said contradicts the devices.
        replicate, shard = (max(1, rest) if degree == REST else degree for degree in (replicate, shard))
    hybrid = replicate > 1 and (shard != 1 or cp > 1)
    if hybrid:
        config.put("zero_groups", replicate, _REPLICATE, _SHARD)
    if REST in (replicate, shard):
        degree = "data_parallel_degree" if replicate == REST else "data_parallel_shard_degree"
        config.note(f"{degree} takes the devices that are left: dp follows from the cluster")
    else:
        config.put("dp", replicate * shard, _REPLICATE, _SHARD)
    whole = replicate == REST or (replicate > 1 and not hybrid) or replicate * shard * cp == 1
    gathered = reshard == "never" or (reshard in (None, "default") and pp > 1)
    config.put("zero_stage", 0 if whole else 2 if gathered else 3, _REPLICATE, _SHARD, _RESHARD)


def micro_batch(config: Configuration) -> None:
    """Without a pipeline the local batch, else a part of it."""
    path, pp = "baseline.micro_batch_size", config.fields.get("pp")
    local = config.degree(_LOCAL, 8, path)
    if local is None or pp is None:
        return
    if pp == 1:
        config.put("micro_batch_size", local, _LOCAL)
        return
    # Until 2025-04-07 the local batch was cut into as many micro-batches as there are stages.
    of_stages = pp if any(key.startswith("experimental.pipeline") for key in config.old) else None
    count = config.whole(_COUNT, path) if config.has(_COUNT) else of_stages
    size = local // count if count else config.degree(_SIZE, 1, path)
    if size is None:
        return
    if size == 0 or local % size:
        config.ask(path, f"local_batch_size({local}) is no multiple of the pipeline's micro-batch({size})")
        return
    config.put("micro_batch_size", size, _SIZE, _COUNT, _LOCAL)
    config.micro_batches = local // size


def stages(config: Configuration) -> None:
    """vpp and fewer layers in the first and the last stage, of a pipeline."""
    pp, layers, schedule = (config.fields.get(field) for field in ("pp", "model.layers", "schedule"))
    if config.has(_CSV):
        config.ask("baseline.schedule", f"{config.written(_CSV)}: which of meshtune's schedules is the nearest?")
        return
    per_stage = config.whole(_PER_STAGE, "baseline.vpp")
    # The defaults are 1 and 1.
    less = [config.whole(end, least=0) if config.has(end) else 1 for end in _ENDS]
    if pp is None or schedule is None or None in less:
        return
    interleaves, (first, last) = Schedule(schedule).interleaves, (fewer or 0 for fewer in less)
    parts, splits = config.get(_PARTS), config.get(_SPLITS)
    # One per rank, and two where the schedule interleaves (distributed/pipeline_parallel.py at v0.2.2, pipeline_llm).
    number = ceil(((layers or 0) + first + last) / per_stage) if per_stage else pp * (2 if interleaves else 1)
    try:
        if parts:
            sizes = [sum(str(name).startswith("layers.") for name in part) for part in parts]
        elif splits:
            # Such as layers.4.
            words = splits.split(",") if isinstance(splits, str) else splits
            places = [0, *(int(name.removeprefix("layers.")) for name in words), layers or 0]
            sizes = [after - before for before, after in pairwise(places)] if layers else [0] * (len(words) + 1)
        elif layers is None and (per_stage or first + last):
            if interleaves:
                config.ask("baseline.vpp", "the chunks of a pipeline rank follow from layers that are not known here")
            config.ask("", "whether the pipeline's stages are equal depends on the model's layers; trials cut evenly")
            return
        else:
            sizes = stage_sizes(number, layers, first, last) if layers else [0] * number
    except (ValueError, TypeError, AttributeError):
        config.ask("", f"the pipeline's stages are not understood: {shown(parts or splits)}")
        return
    vpp, rest = divmod(len(sizes), pp)
    if rest or not vpp:
        config.ask("baseline.vpp", f"{len(sizes)} stages are no multiple of pp({pp})")
        return
    split = split_of(sizes) if any(sizes) else EVEN
    if split is None:
        held = f"the pipeline's stages have {', '.join(map(str, sizes[:12]))} layers"
        like = "a plan's are equal but for fewer ones, and at least one, in the first and the last"
        config.ask("", f"{held}; {like}: the baseline is not quite this setting")
    ends = dict(zip(("first_stage_less_layers", "last_stage_less_layers"), split or EVEN, strict=True))
    config.fields |= {name: value for name, value in ends.items() if value} | ({"vpp": vpp} if interleaves else {})


def stage_sizes(stages: int, layers: int, first: int, last: int) -> list[int]:
    """Layers of each stage (generate_llm_fqn_per_model_part there): even shares of layers + first + last, the rest to
    the first stages; the first and the last stage have so many less."""
    share, rest = divmod(layers + first + last, stages)
    sizes = [share + (stage < rest) for stage in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return sizes


def recomputation(config: Configuration) -> None:
    path = "baseline.recompute"
    mode, option = config.text(_MODE, path), config.text(_OPTION, path)
    unknown = any(config.has(name) and said is None for name, said in ((_MODE, mode), (_OPTION, option)))
    if unknown or not (mode or config.complete(path, _MODE, "selective")):
        return
    mode, option = mode or "selective", option or ("2" if config.release.has_file else "op")
    if mode in ("none", "full"):
        config.put("recompute", mode, _MODE)
    elif mode != "selective":
        config.ask(path, f"{config.written(_MODE)}: meshtune knows {', '.join(Recompute)}")
    elif option == "op":
        config.put("recompute", str(Recompute.SELECTIVE), _MODE, _OPTION)
    elif option.isdecimal() and int(option[:9]) >= 1:
        config.put("recompute", str(Recompute.FULL), _MODE, _OPTION)
        config.put("recompute_interval", int(option[:9]), _OPTION)
    else:
        config.ask(path, f"{config.written(_OPTION)} is neither op nor a number")
