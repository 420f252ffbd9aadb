"""What one plan of a spec takes of the devices' memory, stage by stage, without any of the devices.

Exact to the tensor for the built-in trainer (see `runners.trainer.exact`, which also says what is not counted). Nothing
is stored, and nothing here feeds the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from meshtune.runners.workloads.exact_memory import RankPeak, exact_peaks
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.space import workload_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.units import gibibytes


@dataclass(frozen=True, slots=True)
class Estimate:
    """The peaks of some ranks under a plan, against what one device has."""

    plan: Plan
    memory_bytes: int
    peaks: tuple[RankPeak, ...]

    @property
    def fullest(self) -> RankPeak:
        return max(self.peaks, key=lambda peak: peak.peak_bytes)

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "plan": self.plan.as_dict(),
            "memory_bytes": self.memory_bytes,
            "peaks": [asdict(peak) for peak in self.peaks],
        }

    def table(self) -> Table:
        table = Table(title=self.plan.key)
        for name in ("stage", "rank", "peak", "of the device", "lasting", "parameters", "how"):
            table.add_column(name, justify="left" if name == "how" else "right")
        for peak in self.peaks:
            share = f"{peak.peak_bytes / self.memory_bytes:.0%}"
            cells = (peak.stage, peak.rank, gibibytes(peak.peak_bytes), share, gibibytes(peak.lasting_bytes))
            table.add_row(*map(str, cells), f"{peak.parameters / 1e6:.1f} M", self._how(peak))
        return table

    def verdict(self) -> str:
        """One sentence for people."""
        fits = "fits" if self.fullest.peak_bytes <= self.memory_bytes else "does not fit"
        return (
            f"{gibibytes(self.fullest.peak_bytes)} of {gibibytes(self.memory_bytes)} at the fullest of these ranks: "
            f"{fits}, libraries' buffers and the allocator's slack not counted"
        )

    def _how(self, peak: RankPeak) -> str:
        shortened = peak.micro_batches < self.plan.grad_accum_steps
        parts = [f"{peak.micro_batches} of {self.plan.grad_accum_steps} micro-batches run"] if shortened else []
        parts += ["extrapolated over layers"] if peak.extrapolated else []
        return ", ".join([*parts, f"{peak.seconds:.1f} s"])


def estimate_exactly(spec: CampaignSpec, plan: Plan | None, ranks: Sequence[int]) -> Estimate:
    """The exact peaks of `ranks`, by default of one rank per kind of stage. plan None: the spec's baseline.

    Raises InvalidValue for what cannot be estimated.
    """
    chosen = plan or spec.baseline
    if chosen is None:
        raise InvalidValue([Problem("baseline", "the spec names none, so a plan must be given")])
    workload = workload_of(spec)
    # Nothing is written or run there: the job's text goes to the estimate.
    job = workload.materialize(
        "estimate", spec.model, chosen, spec.cluster, Path(), seed=spec.seed, time_limit_s=spec.trial.time_limit_s
    )
    return Estimate(chosen, spec.cluster.device.memory_bytes, tuple(exact_peaks(job, ranks)))
