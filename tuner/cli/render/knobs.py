"""Knobs on a terminal: catalogs, what each adds to a space, the settings in which plans differ, and sizes of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from meshtune.search_spaces.knob import Knob, Numerics
from meshtune.search_spaces.knob_values import KnobValue, word
from meshtune.search_spaces.knobs import KnobCount
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.units import number, percent
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.results.sizes import SizePoint

_WAYS = {
    "argument": "argument",
    "env": "variable",
    "config": "key of the configuration",
    "option": "option of the built-in trainer",
    "placeholder": "placeholder",
    "size": "size of the job",
}


def settings(plans: Sequence[Plan]) -> list[str]:
    """The plans' keys for one table: of the knobs those that are not alike in all of them."""
    alike = _alike(plans)
    kept = ([f"{name}={word(value)}" for name, value in plan.knobs.items() if name not in alike] for plan in plans)
    return [" ".join([plan.layout.key, *words]) for plan, words in zip(plans, kept, strict=True)]


def alike_note(plans: Sequence[Plan]) -> str:
    """The knobs that `settings` leaves out, with their value; empty where there are none."""
    same = ", ".join(f"{name}={word(value)}" for name, value in _alike(plans).items())
    return f"all with {same}" if same else ""


def _alike(plans: Sequence[Plan]) -> Mapping[str, KnobValue]:
    """The knobs that several plans all have, with one value."""
    if len(plans) < 2:
        return {}
    first, *others = (plan.knobs for plan in plans)
    return {name: value for name, value in first.items() if all(own.get(name) == value for own in others)}


def catalogs_lines(catalogs: Mapping[str, Sequence[Knob]]) -> Iterator[Text]:
    for name, knobs in catalogs.items():
        names = ", ".join(knob.name.removeprefix(f"{name}_") for knob in knobs)
        yield Text.assemble((name, "bold"), f", {len(knobs)} knobs: {names}")
    yield Text("show one: meshtune knobs NAME; in a spec: catalogs: [NAME] or [NAME.KNOB]")


def catalog_lines(name: str, knobs: Sequence[Knob]) -> Iterator[Text]:
    for knob in knobs:
        yield Text(f"{name}.{knob.name.removeprefix(f'{name}_')}", style="bold")
        yield from (Text(f"  {line}") for line in _lines(knob))


def _lines(knob: Knob) -> Iterator[str]:
    assert knob.default is not None  # every knob has one
    yield f"values: {', '.join(map(word, knob.values))} ({knob.kind}; default {word(knob.default)})"
    delivery = f"{_WAYS[knob.way]} {getattr(knob, knob.way, None) or knob.name}"
    yield f"told by: {delivery}" + ("" if knob.omit is None else f"; nothing for {word(knob.omit)}")
    if knob.words:
        yield f"words: {', '.join(f'{value} as {text!r}' for value, text in knob.words.items())}"
    if knob.when:
        yield f"when: {knob.when}"
    if knob.numerics is Numerics.CHANGES:
        yield "numerics: changes what is computed"
    effects = [f"{name} {way}" for name in ("memory", "compute", "communication") if (way := getattr(knob, name))]
    if effects:
        yield f"declared: {', '.join(effects)}"
    for name in ("meaning", "source", "versions", "risk"):
        if text := getattr(knob, name):
            yield f"{name}: {text}"


def knobs_table(space: Space, counts: Sequence[KnobCount]) -> Table:
    title = f"What knobs add: {space.plans} plans of {len(space)} layouts"
    columns = ("knob", "values", "when", "active in", "plans without it", "times")
    table = new_table(title, *columns, right=columns[3:], spare=("plans without it", "active in", "when"))
    for one in counts:
        gone = f" (nor {', '.join(one.gone)})" if one.gone else ""
        table.add_row(
            one.knob.name,
            ", ".join(map(word, one.knob.values)),
            one.knob.when or "always",
            f"{one.layouts} of {len(space)}",
            f"{one.without}{gone}",
            f"{space.plans / one.without:.4g}",
        )
    return table


def scaling_table(points: Sequence[SizePoint]) -> Table:
    """The best of each size, against the smallest one."""
    numbers = ("nodes", "devices", points[0].speed_unit, "per device", "speed-up", "efficiency", points[0].cost_unit)
    spare = ("trial", "devices", points[0].cost_unit, "per device", "speed-up")
    table = new_table("Best of each size", *numbers, "trial", "plan", right=numbers, spare=spare)
    for one in points:
        table.add_row(
            str(one.nodes),
            str(one.devices),
            number(one.tokens_per_s.value),
            number(one.tokens_per_s_per_device.value),
            f"{one.speedup.value:.2f}",
            percent(one.efficiency.value),
            number(one.cost),
            str(one.trial),
            one.plan_key,
        )
    return table
