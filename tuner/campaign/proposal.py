"""What a search proposes: plans to try, with what it expects of each. Kept with the trial, and compared with what was
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from meshtune.search_spaces.checks import Checks
from meshtune.search_spaces.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """step_time_s: the median, with the ends of its 95 % interval. p_fits: the probability that the plan fits into
    memory and runs. gain: the expected improvement over the best plan measured before, as a share of its speed, with
    the chance of none counted as 0 (0.03: 3 %). peak_bytes: at the fullest rank."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    p_fits: float
    gain: float
    peak_bytes: float

    def __post_init__(self) -> None:
        checks = Checks()
        for name in ("step_time_s", "step_time_low_s", "step_time_high_s", "peak_bytes"):
            if not 0 < (value := getattr(self, name)) < inf:
                checks.require(False, name, f"must be positive and finite, not {value}")
        if not 0 <= self.p_fits <= 1:
            checks.require(False, "p_fits", f"must be a probability, not {self.p_fits}")
        if not 0 <= self.gain < inf:
            checks.require(False, "gain", f"must be at least 0, not {self.gain}")
        checks.done()


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan to try. expectation: why, in numbers; None for a search that expects nothing."""

    plan: Plan
    expectation: Expectation | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to try next, best first. chance_left: the probability that some plan that is neither tried nor under way
    is better than the best measured one by more than the task's tolerance (of a Pareto task: that one would extend the
    front by more than it); None where the search does not know."""

    choices: tuple[Choice, ...]
    chance_left: float | None = None

    @property
    def plans(self) -> list[Plan]:
        return [choice.plan for choice in self.choices]


def proposal_of(plans: Sequence[Plan]) -> Proposal:
    """Plans of a search that expects nothing of them."""
    return Proposal(tuple(Choice(plan) for plan in plans))
