"""How torchtitan cuts a model's layers into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil


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


def sizes_of_modules(parts: Sequence[Sequence[str]]) -> list[int]:
    """Layers of each stage that `module_fqns_per_model_part` names."""
    return [sum(str(name).startswith("layers.") for name in part) for part in parts]


def sizes_of_splits(splits: Sequence[str], layers: int) -> list[int]:
    """Layers of each stage that `pipeline_parallel_split_points` names, such as layers.4. Raises ValueError."""
    places = [0, *(int(split.removeprefix("layers.")) for split in splits), layers]
    return [after - before for before, after in pairwise(places)]
