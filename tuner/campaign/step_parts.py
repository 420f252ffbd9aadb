"""Where the time of a step went over all ranks: a profile's parts as means and shares."""

from __future__ import annotations

from dataclasses import dataclass

from meshtune.runners.step_breakdown import Part, Profile


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part of a step. time_s: mean over the ranks. share: of all parts together, which are the step."""

    part: str
    time_s: float
    share: float


def time_by_part(profile: Profile | None) -> tuple[PartTime, ...]:
    """Every part that the profile names, in the order of `Part`; nothing without a profile."""
    if profile is None:
        return ()
    named = {name for parts in profile.parts_s for name in parts}
    known = [str(part) for part in Part if part in named]
    ranks = len(profile.parts_s)
    means = {
        name: sum(parts.get(name, 0.0) for parts in profile.parts_s) / ranks
        for name in [*known, *sorted(named - {*known})]
    }
    total = sum(means.values())
    return tuple(PartTime(name, mean, mean / total if total else 0.0) for name, mean in means.items())
