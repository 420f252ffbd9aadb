"""What a job is told of its plan's knobs, as its files say it, so that it can say what arrived. Jobs import this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from meshtune.search_spaces.knob_values import KnobValue, word

if TYPE_CHECKING:
    from meshtune.search_spaces.knob import Knob
    from meshtune.search_spaces.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldKnob:
    """One knob of one job.

    value: the plan's. way: as `Knob.way`; place: what is told there, the variable, the argument with {value} in it, the
    key, the option or the placeholder. text: what stands there, None where the job is told nothing. texts: the knob's
    values by what is told for them; an argument without {value} tells the empty text."""

    value: KnobValue
    way: str
    place: str
    text: Optional[str] = None  # noqa: UP045  # evaluated on Python 3.10, too
    texts: Mapping[str, KnobValue] = field(default_factory=dict)


def told_knobs(knobs: Iterable[Knob], plan: Plan) -> dict[str, ToldKnob]:
    """Of the knobs that have a value in the plan, by name; those that size the job are told to nobody."""
    return {
        knob.name: _told(knob, plan.knobs[knob.name])
        for knob in knobs
        if knob.name in plan.knobs and knob.way != "size"
    }


def _told(knob: Knob, value: KnobValue) -> ToldKnob:
    texts: dict[str, KnobValue] = {}
    for each in knob.values:
        if (text := _text(knob, each)) is not None:
            texts.setdefault(text, each)
    place = getattr(knob, knob.way, None) or knob.name
    return ToldKnob(value=value, way=knob.way, place=str(place), text=_text(knob, value), texts=texts)


def _text(knob: Knob, value: KnobValue) -> str | None:
    delivered = knob.told(value)
    if delivered is None:
        return None
    return "" if knob.argument is not None and "{value}" not in knob.argument else word(delivered)
