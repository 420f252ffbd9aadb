"""How an answer to a launch looks on a terminal: lines of text from a value."""

from __future__ import annotations

from collections.abc import Iterator

from meshtune.tuner.campaign.units import number, percent
from meshtune.tuner.results.known_best import BestKnown, Source, Standing

WORDS = {
    Standing.MEASURED: "measured",
    Standing.PROJECTED: "projected, not measured",
    Standing.SIMULATED: "simulated: made-up numbers",
}


def recommendation_page(found: BestKnown) -> Iterator[str]:
    """The plan, how fast it is, why it, and what that rests on."""
    asked, speed = found.question, found.tokens_per_s
    yield f"{asked.model} on {asked.nodes} x {asked.cluster} ({found.plan.world_size} devices): {found.plan.key}"
    fits = "" if found.p_fits is None else f", P(fits) {percent(found.p_fits)}"
    yield (
        f"{WORDS[found.standing]}: {number(speed.value)} tokens/s ({number(speed.low)} to {number(speed.high)}), "
        f"global batch {found.plan.global_batch_size}, {found.workload}{fits}"
    )
    yield found.reason
    yield from map(_line, found.sources)


def _line(source: Source) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(source.software.items()))
    differs = f"; {', '.join(source.differs)}" if source.differs else ""
    return (
        f"from {source.campaign}, trial {source.trial}: {source.plan_key}, {number(source.tokens_per_s.value)} tokens/s"
        f"{', measured twice' if source.confirmed else ''}; {versions or 'software unknown'}{differs}"
    )
