"""What is shown of knobs, those of a space and those of the catalogs: by the REST API and by `meshtune knobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshtune.search_spaces.knob import Direction, Knob, KnobKind, Numerics
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.tuner.results.views import view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobView:
    """A knob. default: the value that holds where nobody sets it. when: the condition under which it is active, empty
    for always. way: how the job is told, one of argument, env, config, option, placeholder and size; told: the words,
    the variable, the key, the option or the name. omit: the value with which the job is told nothing. memory, compute,
    communication: the declared effect of values above the default (numeric, ordered), or of every value but it."""

    name: str
    values: tuple[KnobValue, ...]
    kind: KnobKind
    default: KnobValue
    when: str
    way: str
    told: str
    omit: KnobValue | None
    numerics: Numerics
    memory: Direction | None
    compute: Direction | None
    communication: Direction | None
    meaning: str
    source: str
    versions: str
    risk: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """A catalog of knobs, by which a spec may name all of them."""

    name: str
    knobs: list[KnobView]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogsView:
    catalogs: list[CatalogView]


def catalogs_view(catalogs: Mapping[str, Sequence[Knob]]) -> CatalogsView:
    return CatalogsView(
        catalogs=[CatalogView(name=name, knobs=list(map(knob_view, knobs))) for name, knobs in catalogs.items()]
    )


def knob_view(knob: Knob) -> KnobView:
    return view_of(KnobView, knob, told=getattr(knob, knob.way, None) or knob.name)
