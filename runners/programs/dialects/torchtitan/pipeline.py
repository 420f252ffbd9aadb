"""What a torchtitan configuration says of a pipeline, and how torchtitan cuts a model's layers into stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.torchtitan.config import Values
from meshtune.runners.programs.dialects.torchtitan.options import SCHEDULES
from meshtune.search_spaces.plan import Schedule
from meshtune.search_spaces.stages import EVEN, split_of

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


def sizes_of_splits(splits: Sequence[str], layers: int) -> list[int]:
    """Layers of each stage that `pipeline_parallel_split_points` names, such as layers.4. Raises ValueError."""
    places = [0, *(int(split.removeprefix("layers.")) for split in splits), layers]
    return [after - before for before, after in pairwise(places)]


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
        return sizes_of_splits(words, layers) if layers else [0] * (len(words) + 1)
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
