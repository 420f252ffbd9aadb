"""What a spec says of a torchtitan run, and what a torchtitan configuration (TOML, or flags, one per line) says of a
plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from meshtune.runners.dialects.base import (
    Arguments,
    CannotRead,
    FlagOptions,
    Imported,
    overlaid,
    read_lines,
    render_lines,
)
from meshtune.runners.json_files import shown
from meshtune.runners.untrusted_text import UnreadableText, read_toml
from meshtune.search_spaces.checks import MAX_WHOLE, Checks
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule


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
class TorchtitanOptions(FlagOptions):
    """config: the user's own TOML, or its path (0.2). arguments: flags, which stand before the plan's."""

    release: Release = Release.FLAGS
    config: Mapping[str, Any] | str = field(default_factory=dict)
    dtype: Dtype = Dtype.BFLOAT16

    def __post_init__(self) -> None:
        checks = Checks()
        self._check(checks, least_warmup=1)
        toml = self.release is Release.TOML
        checks.require(toml or not self.config, "config", f"goes with release {Release.TOML} only, not {self.release}")
        self._check_arguments(checks, "--module")
        checks.done()


# Of more digits none is a degree or a size.
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_RECOMPUTE = "activation-checkpoint:"
# Flags of these sections may speak of the plan; all others are the user's own.
_SECTIONS = ("training", "parallelism")


def parse(text: str) -> Imported:
    """What a configuration says of a plan; the rest of it becomes the workload's. Raises CannotRead."""
    if text.lstrip().startswith(("--", _RECOMPUTE)):
        return _parse_flags(text)
    try:
        config = read_toml(text)
    except UnreadableText as error:
        raise CannotRead(f"neither TOML nor flags: the text {error}") from None
    reading = _Reading(config)
    imported = reading.imported("v0.2")
    return replace(imported, workload={**imported.workload, **({"config": reading.left} if reading.left else {})})


def is_file(name: str, text: str) -> bool:
    """A TOML file, or flags, one per line."""
    return name.endswith(".toml") or text.lstrip().startswith(("--training.", "--parallelism.", _RECOMPUTE))


def read_file_text(name: str, text: str) -> Imported:
    """Raises CannotRead."""
    return parse(text)


def _parse_flags(text: str) -> Imported:
    lines = text.splitlines()
    kinds = [word for line in lines for word in line.split() if word.startswith(_RECOMPUTE)]
    try:
        given, loose = read_lines(line for line in lines if not line.startswith(_RECOMPUTE))
    except UnreadableText as error:
        raise CannotRead(str(error)) from None
    if loose:
        raise CannotRead(f"{' '.join(loose)[:100]} stands before the first flag")
    config: dict[str, Any] = {}
    for name, values in given.items():
        section, _, key = name.removeprefix("--").partition(".")
        if section in _SECTIONS and len(values) <= 1:
            off = not values and key.startswith("no_")
            config.setdefault(section, {})[key.removeprefix("no_") if off else key] = _value(values, off)
    if kinds:
        config["activation_checkpoint"] = {"mode": kinds[-1].removeprefix(_RECOMPUTE)}
    reading = _Reading(config)
    imported = reading.imported("v0.3")
    rest = render_lines(_kept(given, reading.left))
    return replace(imported, workload={**imported.workload, **({"arguments": rest} if rest else {})})


def _value(values: tuple[str, ...], off: bool) -> Any:
    if not values:
        return not off
    return int(values[0]) if _WHOLE.fullmatch(values[0]) else values[0]


def _kept(given: Arguments, left: Mapping[str, Any]) -> Arguments:
    """The flags that spoke of no plan."""
    names = {f"--{section}.{key}" for section, keys in left.items() if isinstance(keys, Mapping) for key in keys}
    names |= {name.replace(".", ".no_", 1) for name in names}
    return {
        name: values
        for name, values in given.items()
        if name in names or name.removeprefix("--").partition(".")[0] not in _SECTIONS
    }


class _Reading:
    """Takes the words of a plan out of a configuration; `left` is the user's own."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.left = overlaid({}, config)
        self._notes: list[str] = []

    def imported(self, release: str) -> Imported:
        dtype = str(self._take("training", "mixed_precision_param") or "bfloat16")
        pp = self._whole("parallelism", "pipeline_parallel_degree") or 1
        cp = self._whole("parallelism", "context_parallel_degree") or 1
        plan: dict[str, Any] = {
            "tp": self._whole("parallelism", "tensor_parallel_degree") or 1,
            "pp": pp,
            "cp": cp,
            "ep": self._whole("parallelism", "expert_parallel_degree") or 1,
            **self._data(pp, cp),
            **self._pipeline(pp),
            **self._recompute(),
        }
        rotate = self._take("parallelism", "context_parallel_rotate_method")
        if cp > 1:
            plan["context"] = str(ContextParallel.RING if rotate == "alltoall" else ContextParallel.ALL_GATHER)
        self._take("parallelism", "expert_tensor_parallel_degree")
        sequence_parallel = self._take("parallelism", "enable_sequence_parallel") is not False
        if plan["tp"] > 1:
            plan["sequence_parallel"] = sequence_parallel
        if pp > 1 or plan["ep"] > 1:
            self._take("training", "disable_cuda_graphs")
        batch = self._batch(plan)
        seq_len = self._whole("training", "seq_len")
        model = {} if seq_len is None else {"seq_len": seq_len}
        workload = {"kind": "torchtitan", "release": release, "dtype": dtype}
        return Imported(workload=workload, model=model, plan=plan, global_batch_size=batch, notes=tuple(self._notes))

    def _data(self, pp: int, cp: int) -> dict[str, Any]:
        replicate = self._whole("parallelism", "data_parallel_replicate_degree") or 1
        shard = self._take("parallelism", "data_parallel_shard_degree")
        reshard = self._take("parallelism", "fsdp_reshard_after_forward") or "default"
        kept = reshard == "never" or (reshard == "default" and pp > 1)
        sharded = {"zero_stage": 2 if kept else 3}
        if replicate > 1 and shard != 1:
            self._notes.append(
                f"data_parallel_replicate_degree({replicate}) with data_parallel_shard_degree({shard}) shards within "
                f"groups of replicas, which a plan has no word for: dp and zero_stage are left out"
            )
            return {}
        if replicate > 1:
            return {"dp": replicate, "zero_stage": 0}
        if shard in (None, -1):
            self._notes.append("data_parallel_shard_degree takes the devices that are left: dp is left out")
            return sharded
        if not isinstance(shard, int) or isinstance(shard, bool) or not 1 <= shard <= MAX_WHOLE:
            told = f"must be -1 or from 1 to {MAX_WHOLE}, not {shown(shard)}"
            raise CannotRead(f"parallelism.data_parallel_shard_degree: {told}")
        return {"dp": shard, **(sharded if shard * cp > 1 else {"zero_stage": 0})}

    def _pipeline(self, pp: int) -> dict[str, Any]:
        schedule = self._take("parallelism", "pipeline_parallel_schedule") or "1F1B"
        per_stage = self._whole("parallelism", "pipeline_parallel_layers_per_stage")
        for end in ("first", "last"):
            less = self._take("parallelism", f"pipeline_parallel_{end}_stage_less_layers")
            if pp > 1 and less != 0:
                self._notes.append(f"the {end} stage has {1 if less is None else less} layers less; plans cut evenly")
        if pp == 1:
            return {}
        known = {name.lower(): kind for kind, name in SCHEDULES.items()}.get(str(schedule).lower())
        if known is None:
            self._notes.append(f"pipeline_parallel_schedule {schedule!r} is not known, and left out")
            return {}
        if not known.interleaves:
            return {"schedule": str(known)}
        if per_stage is not None and known is not Schedule.ZBV:
            self._notes.append(f"vpp is layers / (pp({pp}) * pipeline_parallel_layers_per_stage({per_stage}))")
            return {"schedule": str(known)}
        return {"schedule": str(known), "vpp": 2}

    def _recompute(self) -> dict[str, Any]:
        mode = self._take("activation_checkpoint", "mode")
        option = self._take("activation_checkpoint", "selective_ac_option")
        if mode in ("none", "full"):
            return {"recompute": mode}
        if mode not in (None, "selective"):
            self._notes.append(f"activation_checkpoint.mode {mode!r} has no word in a plan, and is left out")
            return {}
        if option is not None and _WHOLE.fullmatch(str(option)) and int(option) > 0:
            return {"recompute": str(Recompute.FULL), "recompute_interval": int(option)}
        return {} if mode is None else {"recompute": str(Recompute.SELECTIVE)}

    def _batch(self, plan: dict[str, Any]) -> int | None:
        """The global batch; micro-batches and accumulation are put into the plan."""
        local = self._whole("training", "local_batch_size")
        batch = self._whole("training", "global_batch_size")
        micro = self._whole("parallelism", "pipeline_parallel_microbatch_size") or 1
        dp = plan.get("dp")
        if local is None:
            return batch
        plan["micro_batch_size"] = micro if plan["pp"] > 1 else local
        if dp is None:
            return batch
        batch = batch or local * dp
        rounds, rest = divmod(batch, local * dp)
        if rest or (plan["pp"] > 1 and local % micro):
            raise CannotRead(f"global_batch_size({batch}) is no multiple of local_batch_size({local}) * dp({dp})")
        if plan["pp"] > 1 and rounds > 1:
            self._notes.append(
                f"the pipeline runs {rounds} times per step; a plan runs it once, with more micro-batches"
            )
        plan["grad_accum_steps"] = batch // (plan["micro_batch_size"] * dp)
        return batch

    def _take(self, section: str, key: str) -> Any:
        holder = self.left.get(section)
        if not isinstance(holder, dict):
            return None
        value = holder.pop(key, None)
        if not holder:
            del self.left[section]
        return value

    def _whole(self, section: str, key: str) -> int | None:
        """A positive number; None where it is not said. torchtitan's -1 stands for not said."""
        value = self._take(section, key)
        if value is None or value == -1:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_WHOLE:
            raise CannotRead(f"{section}.{key}: must be an integer from 1 to {MAX_WHOLE}, not {shown(value)}")
        return value
