"""Whether a job ran with the knobs of its plan, by what it says that it saw of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import KnobValue, word
from meshtune.search_spaces.plan import Plan

# Of numbers as programs print them.
_TOLERANCE = 1e-6


def checked(knobs: Sequence[Knob], plan: Plan, outcome: Outcome) -> Outcome:
    """The outcome; where its job saw another value of a knob than the plan has, or none, a crash: it measured another
    plan. No plan changes this, but the spec or the program."""
    measured = outcome.measurement or outcome.partial
    if measured is None or not plan.knobs:
        return outcome
    wrong = "; ".join(contradictions(knobs, plan, measured.knobs))
    if not wrong:
        return outcome
    return Outcome(
        verdict=Verdict.CRASHED,
        cause=Cause.USER_BUG,
        reason="; ".join(reason for reason in (wrong, outcome.reason) if reason),
        log_tail=outcome.log_tail,
    )


def contradictions(knobs: Sequence[Knob], plan: Plan, seen: Mapping[str, KnobValue | None]) -> Iterator[str]:
    """A sentence for each knob of the plan that did not arrive. seen: None for one that the job saw nothing of."""
    known = {knob.name: knob for knob in knobs}
    for name, value in plan.knobs.items():
        if name not in seen or _agree(known.get(name), value, seen[name]):
            continue
        other = seen[name]
        saw = "nothing of it" if other is None else word(other)
        yield f"knob {name} did not arrive: the plan has {word(value)}, the job saw {saw}"


def unconfirmed_knobs(knobs: Sequence[Knob], plan: Plan, measurement: Measurement) -> tuple[str, ...]:
    """The knobs that the job was told of and said nothing about, by name: that they arrived is not known."""
    return tuple(
        knob.name
        for knob in knobs
        if knob.way != "size"
        and (value := plan.knobs.get(knob.name)) is not None
        and knob.told(value) is not None
        and knob.name not in measurement.knobs
    )


def _agree(knob: Knob | None, value: KnobValue, seen: KnobValue | None) -> bool:
    """True where a job may say this of the value: as the plan has it, or as it was told."""
    if seen is None:
        return False
    delivered = value if knob is None else knob.told(value)
    return any(_alike(one, word(seen)) for one in {word(value), word(value if delivered is None else delivered)})


def _alike(one: str, other: str) -> bool:
    if one == other or (one in ("true", "false") and other.lower() == one):
        return True
    try:
        return isclose(float(one), float(other), rel_tol=_TOLERANCE)
    except ValueError:
        return False
