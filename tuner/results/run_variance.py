"""How far two runs of one plan lie apart, learnt from the plans that were measured again.

The intervals of one run (`runners.measuring.median_interval`) hold what changes from step to step. Another node,
another hour or a neighbour's job changes all the steps of a run together, and only a second run shows it. The logarithm
of a plan's second speed over its first has twice the variance of one run, so m such pairs give one run's standard
deviation with m degrees of freedom, and Student's t an interval around it. The pairs are not centred: a first run was
chosen for being fast, so the second tends to be slower, and a whole cluster may have slowed down; both belong to how
far a single number may be off. Assumed: the noise is log-normal and the same for every plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log, sqrt

from meshtune.tuner.campaign.interval import Estimate

# Student's t, 97.5 %, for 1 to 3 degrees of freedom. The last one stays for more: the winner is then the best of more
# second runs, chosen by luck once again, and narrower intervals would cover it too seldom (docs/decisions/0014).
T_QUANTILES = (12.706, 4.303, 3.182)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """changes: of each plan that was measured twice, the second speed over the first minus 1; at least one."""

    changes: tuple[float, ...]

    @property
    def log_sd(self) -> float:
        """The standard deviation of the logarithm of one run's speed."""
        return _log_sd(self.changes)

    def around(self, estimate: Estimate, *, runs: int) -> Estimate:
        """A positive quantity with an interval that covers 95 % of what another run would have said, and its own.

        runs: how many single runs the quantity compares: 1 for a speed, 2 for the ratio of two.
        """
        quantile = T_QUANTILES[min(len(self.changes), len(T_QUANTILES)) - 1]
        factor = exp(quantile * self.log_sd * sqrt(runs))
        return Estimate(
            estimate.value,
            min(estimate.low, estimate.value / factor),
            max(estimate.high, estimate.value * factor),
        )

    def __str__(self) -> str:
        settings = "1 setting" if len(self.changes) == 1 else f"{len(self.changes)} settings"
        least, most = min(self.changes), max(self.changes)
        span = f"{100 * least:+.1f} %" if least == most else f"{100 * least:+.1f} to {100 * most:+.1f} %"
        return f"{settings} measured again: {span} against the first run; the intervals cover such differences"


@lru_cache(maxsize=256)
def _log_sd(changes: tuple[float, ...]) -> float:
    """Asked for again with every plan of a ranking."""
    return sqrt(sum(log(1 + change) ** 2 for change in changes) / (2 * len(changes)))


def reproduction_of(changes: Sequence[float]) -> Reproduction | None:
    """None where nothing was measured twice: then intervals are those of single runs."""
    return Reproduction(tuple(changes)) if changes else None
