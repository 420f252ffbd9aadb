"""The exact memory of one plan of a spec, stage by stage, without any of the devices.

Exact to the tensor for the built-in trainer (see `runners.trainer.exact`, which also says what is not counted). Nothing
is stored, and nothing here feeds the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshtune.runners.trainer_answers import ExactPeak
from meshtune.runners.trainer_client import exact_peaks
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of


@dataclass(frozen=True, slots=True)
class ExactMemory:
    """The peaks of some ranks under a plan. memory_bytes: of one device."""

    plan: Plan
    memory_bytes: int
    peaks: tuple[ExactPeak, ...]


def estimate_exactly(spec: CampaignSpec, plan: Plan | None, ranks: Sequence[int]) -> ExactMemory:
    """The exact peaks of `ranks`, by default of one rank per kind of stage. plan None: the spec's baseline.

    Raises InvalidValue for a plan or a workload without exact peaks.
    """
    chosen = plan or spec.baseline
    if chosen is None:
        raise InvalidValue([Problem("baseline", "the spec names none, so a plan must be given")])
    # Nothing is written or run there: the text of the job is the input of the estimate.
    job = workload_of(spec).materialize(
        "estimate", spec.model, chosen, spec.cluster, Path(), seed=spec.seed, time_limit_s=spec.trial.time_limit_s
    )
    return ExactMemory(chosen, spec.cluster.device.memory_bytes, tuple(exact_peaks(job, ranks)))
