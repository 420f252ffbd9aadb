"""The answer to a launch as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from meshtune.tuner.campaign.units import number, percent
from meshtune.tuner.results.known_best import BestKnown, Provenance

STANDING = {
    Provenance.MEASURED: "measured",
    Provenance.PROJECTED: "projected, not measured",
    Provenance.SIMULATED: "simulated: made-up numbers",
}


def recommendation_lines(found: BestKnown) -> Iterator[str]:
    """The plan, its speed, the reason, and the sources."""
    speed = found.tokens_per_s
    yield f"{found.model} on {found.nodes} x {found.cluster} ({found.devices} devices): {found.plan_key}"
    fits = "" if found.p_fits is None else f", P(fits) {percent(found.p_fits)}"
    yield (
        f"{STANDING[found.standing]}: {number(speed.value)} tokens/s ({number(speed.low)} to {number(speed.high)}), "
        f"global batch {found.global_batch_size}, {found.workload}{fits}"
    )
    yield found.reason
    for source in found.sources:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(source.software.items()))
        twice = ", measured twice" if source.confirmed else ""
        notes = "; ".join([versions or "software unknown", *([", ".join(source.differs)] if source.differs else [])])
        speed_text = f"{number(source.tokens_per_s.value)} tokens/s"
        yield f"from {source.campaign}, trial {source.trial}: {source.plan_key}, {speed_text}{twice}; {notes}"
