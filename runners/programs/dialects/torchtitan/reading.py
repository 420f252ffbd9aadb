"""Takes the words of a plan out of a torchtitan configuration; what is left is the user's own.

A value is written where it was read, or where torchtitan's default is known: of 0.2 and before those of JobConfig, the
same since April 2024 (degrees 1, local batch 8, sequence 2048, selective recomputation of every second layer, bfloat16
products, 1F1B); of 0.3 those of the configuration function, where it is torchtitan's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.torchtitan.config import (
    NOT_SAID,
    NotKnown,
    Values,
    file_release,
    modern,
    unknown_keys,
    written,
)
from meshtune.runners.programs.dialects.torchtitan.keys import GONE_FEATURES, OLD, SETTINGS
from meshtune.runners.programs.dialects.torchtitan.models import NO_DECODER, UNLIKE, shapes_of
from meshtune.runners.programs.dialects.torchtitan.options import SCHEDULES, Dtype, Release
from meshtune.search_spaces.checks import MAX_WHOLE
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule
from meshtune.search_spaces.stages import EVEN, split_of

_WARMUP_STEPS = 8


@dataclass(slots=True)
class Reading(Values):
    """devices: ranks in all, None unknown. shapes: fields of ModelSpec where they were read otherwise than by model
    name and flavor."""

    release: Release = Release.TOML
    devices: int | None = None
    shapes: dict[str, Any] | None = None
    _old: list[str] = field(default_factory=list)

    def imported(self) -> Imported:
        """What was read; of the workload what the configuration says of release and format. Raises CannotRead."""
        for name, near in unknown_keys(self.config, self.release):
            hint = f" (did you mean {near}?)" if near else ""
            self.ask("", f"{name} is no key of torchtitan{hint}; it stays as it is")
        # Keys that are no more in 0.2, as people write them.
        self._old = [written(key) for key in self.config if key in OLD]
        for key in GONE_FEATURES & self.config.keys():
            if self.config[key] and key not in SETTINGS:
                self.ask(
                    "", f"{written(key)} = {shown(self.config[key])} is gone in 0.2 and left out; look at what it did"
                )
        self._settings()
        release = file_release(self.config) if self.release.has_file else self.release
        self.config = modern(self.config)
        workload = {"kind": "torchtitan", **self._release(release)}
        model = self._model()
        plan = self._plan(model.get("layers"))
        workload |= self._dtype(plan)
        batch = self._batch(plan)
        for key, value in self.config.items():
            if isinstance(value, NotKnown) and key not in SETTINGS:
                self.ask("", f"{written(key)} is {value.written}, which is not known here; see workload.arguments")
        if self.absent:
            self.ask("", f"what the configuration function sets is not known, and left open: {', '.join(self.absent)}")
        return Imported(
            workload=workload | {"warmup_steps": _WARMUP_STEPS},
            model=model,
            plan=plan,
            global_batch_size=batch,
            questions=tuple(self.questions),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _release(self, release: Release) -> dict[str, Any]:
        if not self._old:
            return {"release": str(release)}
        told = ", ".join(self._old[:5]) + (" ..." if len(self._old) > 5 else "")
        self.ask(
            "workload.release",
            f"this is for a torchtitan before 0.2 ({told}). Trials are written in the words of 0.2 and need it: "
            f"answer {Release.TOML} for 0.2.1 and 0.2.2, {Release.TOML_0_2_0} for 0.2.0; the baseline runs there, too",
        )
        return {}

    def _settings(self) -> None:
        for key, setting in SETTINGS.items():
            value = self.config.get(key)
            if isinstance(value, NotKnown):
                self.ask("", f"{written(key)} is {value.written}, which is not known here")
            elif value is not None and setting.says(value):
                text = f"{written(key)} = {shown(value)}: {setting.text}"
                self.ask("", text) if setting.open else self.note(text)

    def _model(self) -> dict[str, Any]:
        """Raises CannotRead for what is no language model."""
        seq_len = self.whole("training", "seq_len", 2048, "model.seq_len")
        found = {} if seq_len is None else {"seq_len": seq_len}
        if self.shapes is not None:
            return {**self.shapes, **found}
        default = ("llama3", "debugmodel") if self.defaults and self.release.has_file else (None, None)
        name, flavor = (
            self.config.get(("model", key), value) for key, value in zip(("name", "flavor"), default, strict=True)
        )
        if name is None or flavor is None:
            self.ask("", "the model is not said: fill in its shapes")
            return found
        if isinstance(name, NotKnown) or isinstance(flavor, NotKnown):
            self.ask("", "the model's name or flavor is not known here: fill in its shapes")
            return found
        if kind := NO_DECODER.get(str(name)):
            raise CannotRead(f"torchtitan's {name} is {kind}; meshtune tunes language models alone")
        shapes = shapes_of(str(name), str(flavor), since_0_2=not self._old)
        if shapes is None:
            why = UNLIKE.get(str(name), "shapes that are not torchtitan's own")
            self.ask(
                "", f"model {name} {flavor} has {why}: fill in the nearest shapes, predictions are as near as those"
            )
            return found
        if self._old:
            self.notes.append(
                f"before 0.2 the tokenizer says the vocabulary; {shapes['vocab']} is that of {name} {flavor}"
            )
        return shapes | found

    def _plan(self, layers: int | None) -> dict[str, Any]:
        degrees = {axis: self.whole("parallelism", key, 1, f"baseline.{axis}") for axis, key in _DEGREES.items()}
        plan: dict[str, Any] = {axis: degree for axis, degree in degrees.items() if degree is not None}
        rotate = self.optional("parallelism", "context_parallel_rotate_method", "allgather")
        if plan.get("cp", 1) > 1:
            plan["context"] = str(ContextParallel.RING if rotate == "alltoall" else ContextParallel.ALL_GATHER)
        self._expert_tensor(plan)
        sequence_parallel = self.value("parallelism", "enable_sequence_parallel", True, "baseline.sequence_parallel")
        if plan.get("tp", 1) > 1 and sequence_parallel is not None:
            plan["sequence_parallel"] = sequence_parallel
        if plan.get("pp", 1) > 1 or plan.get("ep", 1) > 1:
            self.config.pop(("training", "disable_cuda_graphs"), None)
        return {**plan, **self._data(plan), **pipeline_of(self, plan.get("pp"), layers), **self._recompute()}

    def _expert_tensor(self, plan: dict[str, Any]) -> None:
        degree = self.optional("parallelism", "expert_tensor_parallel_degree", 1)
        if self.release.has_file and plan.get("ep", 1) > 1 and degree != plan.get("tp", 1):
            text = (
                f"experts are cut over {degree} tensor ranks and the rest over {plan.get('tp')}; trials cut all alike"
            )
            self.ask("", f"expert_tensor_parallel_degree: {text}")

    def _data(self, plan: dict[str, Any]) -> dict[str, Any]:
        """dp, where it is known, and what of it is sharded. Raises CannotRead."""
        asked = "baseline.zero_stage"
        replicate = self.whole("parallelism", "data_parallel_replicate_degree", 1, asked)
        shard = self.whole("parallelism", "data_parallel_shard_degree", NOT_SAID, asked)
        reshard = self.value("parallelism", "fsdp_reshard_after_forward", "default", asked)
        if self.optional("training", "data_parallel_type", "fsdp") == "ddp":
            replicate, shard = shard, 1
        if replicate is None or shard is None or reshard is None or not {"tp", "pp", "cp"} <= plan.keys():
            return {}
        if NOT_SAID in (replicate, shard) and self.devices is not None:
            said = abs(replicate * shard) * plan["tp"] * plan["pp"] * plan["cp"]
            left, rest = divmod(self.devices, said)
            if rest or not left:
                self.ask("", f"the degrees that are said make {said}, which does not divide the {self.devices} devices")
                return {}
            replicate, shard = (left if degree == NOT_SAID else degree for degree in (replicate, shard))
        kept = reshard == "never" or (reshard == "default" and plan["pp"] > 1)
        return self._sharding(replicate, shard, plan["cp"], 2 if kept else 3)

    def _sharding(self, replicate: int, shard: int, cp: int, stage: int) -> dict[str, Any]:
        if replicate == NOT_SAID:
            self.notes.append("data_parallel_degree takes the devices that are left: dp follows from the cluster")
            return {"zero_stage": 0}
        if replicate > 1 and (shard != 1 or cp > 1):
            over = "the devices that are left" if shard == NOT_SAID else shard * cp
            self.ask(
                "baseline.zero_stage",
                f"{replicate} replicas, each sharded over {over} (HSDP), which no plan has a word for. Answer what the "
                f"baseline is to run instead: 3 or 2 (sharded over all), or 0 (over none)",
            )
            return {} if shard == NOT_SAID else {"dp": replicate * shard}
        if shard == NOT_SAID:
            self.notes.append("data_parallel_shard_degree takes the devices that are left: dp follows from the cluster")
            return {"zero_stage": stage}
        if replicate * shard * cp == 1 or replicate > 1:
            return {"dp": replicate * shard, "zero_stage": 0}
        return {"dp": shard, "zero_stage": stage}

    def _dtype(self, plan: dict[str, Any]) -> dict[str, Any]:
        dtype = self.value("training", "mixed_precision_param", str(Dtype.BFLOAT16), "workload.dtype")
        if dtype is None:
            return {}
        if dtype not in tuple(Dtype):
            self.ask("workload.dtype", f"training.mixed_precision_param {shown(dtype)}: one of {', '.join(Dtype)}")
            return {}
        alone = plan.get("dp") == 1 and plan.get("cp") == 1 and plan.get("tp", 1) * plan.get("pp", 1) > 1
        whole = self.config.get(("training", "dtype")) == Dtype.BFLOAT16
        if alone and self.release.has_file and dtype == Dtype.BFLOAT16 and not whole:
            self.ask(
                "workload.dtype",
                "tensor or pipeline ranks without FSDP have no mixed precision (torchtitan 0.2, distributed/utils.py, "
                "maybe_enable_amp): this run's products are float32. Answer float32, or bfloat16 for plans with FSDP",
            )
            return {}
        return {"dtype": str(dtype)}

    def _recompute(self) -> dict[str, Any]:
        asked = "baseline.recompute"
        mode = self.value("activation_checkpoint", "mode", "selective", asked)
        option = self.optional("activation_checkpoint", "selective_ac_option", "2" if self.release.has_file else "op")
        option = str(option)
        if mode is None:
            return {}
        if mode in ("none", "full"):
            return {"recompute": mode}
        if mode != "selective":
            self.ask(asked, f"activation_checkpoint.mode {mode!r} has no word in a plan; one of {', '.join(Recompute)}")
            return {}
        if option == "op":
            return {"recompute": str(Recompute.SELECTIVE)}
        if option.isdecimal() and 1 <= int(option[:9]) <= MAX_WHOLE:
            return {"recompute": str(Recompute.FULL), "recompute_interval": int(option)}
        self.ask(asked, f"activation_checkpoint.selective_ac_option {option!r} is neither op nor a number")
        return {}

    def _batch(self, plan: dict[str, Any]) -> int | None:
        """The global batch; micro-batches and accumulation are put into the plan. Raises CannotRead."""
        local = self.whole("training", "local_batch_size", 8, "baseline.micro_batch_size")
        batch = self.whole("training", "global_batch_size", None, "global_batch_size")
        pp, dp = plan.get("pp"), plan.get("dp")
        size = (
            self.optional("parallelism", "pipeline_parallel_microbatch_size", 1)
            if pp == 1
            else (self.whole("parallelism", "pipeline_parallel_microbatch_size", 1, "baseline.micro_batch_size"))
        )
        count = self.whole("parallelism", "pipeline_parallel_microbatches", None, "baseline.micro_batch_size")
        if count is None and any(name.startswith("experimental.pipeline") for name in self._old):
            # Until 2025-04-07 the local batch was cut into as many micro-batches as there are stages.
            count = pp
        if local is None or size is None or pp is None:
            return batch
        if pp > 1 and count:
            size = local // count
        if pp > 1 and (size == 0 or local % size):
            raise CannotRead(f"local_batch_size({local}) is no multiple of the pipeline's micro-batch({size})")
        plan["micro_batch_size"] = size if pp > 1 else local
        if dp is None and batch is None:
            self.notes.append(f"global_batch_size is training.local_batch_size({local}) times the data-parallel ranks")
        if dp is None:
            return batch
        batch = batch or local * dp
        rounds, rest = divmod(batch, local * dp)
        if rest:
            raise CannotRead(f"global_batch_size({batch}) is no multiple of local_batch_size({local}) * dp({dp})")
        if pp > 1 and rounds > 1:
            self.ask("", f"the pipeline runs {rounds} times per step; a plan's runs once, with more micro-batches")
        plan["grad_accum_steps"] = batch // (plan["micro_batch_size"] * dp)
        return batch


_DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
}
# The pipeline, and how torchtitan cuts a model's layers into stages.
_SCHEDULES = {name.lower(): kind for kind, name in SCHEDULES.items()}
_SCHEDULES["flexibleinterleaved1f1b"] = Schedule.INTERLEAVED
_ENDS = ("first", "last")
_OF_PIPELINES = {
    *(("parallelism", f"pipeline_parallel_{key}") for key in ("schedule", "schedule_csv", "layers_per_stage")),
    *(("parallelism", f"pipeline_parallel_{end}_stage_less_layers") for end in _ENDS),
    *(("parallelism", key) for key in ("module_fqns_per_model_part", "pipeline_parallel_split_points")),
}


def stage_count(pp: int, interleaves: bool, layers: int, ends: int, per_stage: int | None) -> int:
    """Stages of all ranks: as many as hold `per_stage` layers each, else one per rank, or two where the schedule
    interleaves (torchtitan/distributed/pipeline_parallel.py at v0.2.2, pipeline_llm). ends: what embedding and head
    count for, in layers."""
    return pp * (2 if interleaves else 1) if per_stage is None else ceil((layers + ends) / per_stage)


def stage_sizes(stages: int, layers: int, first: int, last: int) -> list[int]:
    """Layers of each stage (generate_llm_fqn_per_model_part there): even shares of layers + first + last, the rest to
    the first stages; the first and the last stage have so many less."""
    share, rest = divmod(layers + first + last, stages)
    sizes = [share + (stage < rest) for stage in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return sizes


def pipeline_of(values: Values, pp: int | None, layers: int | None) -> dict[str, Any]:
    """schedule and vpp, where there is a pipeline and they are known; takes all its words. Raises CannotRead."""
    if pp is None or pp == 1:
        values.config = {key: value for key, value in values.config.items() if key not in _OF_PIPELINES}
        return {}
    asked = "baseline.schedule"
    name = values.value("parallelism", "pipeline_parallel_schedule", "1F1B", asked)
    csv = values.optional("parallelism", "pipeline_parallel_schedule_csv", "")
    per_stage = values.whole("parallelism", "pipeline_parallel_layers_per_stage", None, "baseline.vpp")
    less = [values.optional("parallelism", f"pipeline_parallel_{end}_stage_less_layers", 1) for end in _ENDS]
    parts = values.optional("parallelism", "module_fqns_per_model_part")
    splits = values.optional("parallelism", "pipeline_parallel_split_points")
    if name is None:
        return {}
    kind = _SCHEDULES.get(str(name).lower().replace("_", ""))
    if kind is None or csv:
        told = f"pipeline_parallel_schedule_csv {csv!r}" if csv else f"pipeline_parallel_schedule {name!r}"
        values.ask(asked, f"{told} is not known; one of {', '.join(Schedule)}")
        return {}
    try:
        sizes = _sizes(pp, layers, kind, per_stage, less, parts, splits)
    except (ValueError, TypeError, IndexError):
        raise CannotRead(f"the pipeline's stages are not understood: {shown(parts or splits or less)}") from None
    return {"schedule": str(kind), **_chunks(values, pp, layers, kind, sizes)}


def _sizes(
    pp: int, layers: int | None, kind: Schedule, per_stage: int | None, less: list[Any], parts: Any, splits: Any
) -> list[int] | None:
    """Layers of each stage; None where they are not known, and only 0 where just their number is. Raises ValueError
    and its like."""
    if parts:
        return [sum(str(name).startswith("layers.") for name in part) for part in parts]
    if splits:
        words = splits.split(",") if isinstance(splits, str) else splits
        if not layers:
            return [0] * (len(words) + 1)
        # Such as layers.4.
        places = [0, *(int(name.removeprefix("layers.")) for name in words), layers]
        return [after - before for before, after in pairwise(places)]
    if layers is None:
        return None if per_stage else [0] * stage_count(pp, kind.interleaves, 0, 0, None) if less == [0, 0] else None
    return stage_sizes(
        stage_count(pp, kind.interleaves, layers, sum(less), per_stage), layers, int(less[0]), int(less[1])
    )


def _chunks(values: Values, pp: int, layers: int | None, kind: Schedule, sizes: list[int] | None) -> dict[str, int]:
    if sizes is None:
        if kind.interleaves:
            values.ask(
                "baseline.vpp", "the chunks per pipeline rank follow from the model's layers, which are not known"
            )
        values.ask("", "whether the pipeline's stages are equal depends on the model's layers; trials cut evenly")
        return {}
    vpp, rest = divmod(len(sizes), pp)
    if rest or not vpp:
        raise CannotRead(f"{len(sizes)} stages are no multiple of pipeline_parallel_degree({pp})")
    split = split_of(sizes) if any(sizes) else EVEN
    if split is None:
        fits = "" if layers and layers % len(sizes) == 0 else f", and {len(sizes)} do not divide {layers} layers"
        told = f"the pipeline's stages have {', '.join(map(str, sizes[:12]))} layers"
        like = "a plan's are equal but for fewer ones, and at least one, in the first and the last"
        values.ask("", f"{told}; {like}{fits}: the baseline is not quite this setting")
    fewer = {f"{end}_stage_less_layers": many for end, many in zip(_ENDS, split or EVEN, strict=True) if many}
    return {**({"vpp": vpp} if kind.interleaves else {}), **fewer}
