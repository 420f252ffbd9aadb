"""Reads the knobs of a spec: those of its catalogs, and its own, which change or add to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from meshtune.runners.documents import merged, read_value
from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import Imported
from meshtune.runners.programs.dialects.config_import import at
from meshtune.runners.programs.launch_words import laid_over, shell_words
from meshtune.runners.programs.workloads.knobs import names_of
from meshtune.search_spaces.checks import MAX_WHOLE, InvalidValue, Problem, did_you_mean, problems_as
from meshtune.search_spaces.conditions import Domain, parse_condition
from meshtune.search_spaces.knob import Knob, KnobKind
from meshtune.search_spaces.knob_values import KnobValue, is_number, readings, word
from meshtune.search_spaces.knobs import NO_KNOBS, KnobSet
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.plan_names import SHORT_NAMES, in_full
from meshtune.search_spaces.presets import knob_catalogs, opening
from meshtune.search_spaces.recipe import Recipe

CATALOGS, KNOBS = "catalogs", "knobs"
_ANY_ROLLOUT = {"rollout": {"prompt_tokens": 1, "answer_tokens": MAX_WHOLE, "devices": 1}}


def read_knobs(document: Mapping[str, Any]) -> tuple[Knob, ...]:
    """The knobs of a spec's `catalogs` and `knobs`, in the order given. Raises InvalidValue with every problem, from
    the document on."""
    problems: list[Problem] = []
    given = _own(document.get(KNOBS, {}), problems)
    described = _from_catalogs(document.get(CATALOGS, []), given, problems)
    for name, own in given.items():
        if not isinstance(own, Mapping):
            problems.append(Problem(f"{KNOBS}.{name}", f"must be a mapping of keys, not {shown(own)}"))
            described.pop(name, None)
        else:
            described[name] = {**described.get(name, {}), **own}
    knobs = []
    for name, entry in described.items():
        if SHORT_NAMES.get(name, name) != name:
            problems.append(Problem(f"{KNOBS}.{name}", f"is short for {SHORT_NAMES[name]}: call the knob otherwise"))
        try:
            knobs.append(read_knob(name, entry))
        except InvalidValue as error:
            problems += [problem.under(f"{KNOBS}.{name}") for problem in error.problems]
    try:
        KnobSet(knobs)
    except InvalidValue as error:
        # A condition may name a knob that is refused for another reason, which is told already.
        refused = described.keys() - {knob.name for knob in knobs}
        others = [one for one in error.problems if not any(f"{name!r} is no" in one.message for name in refused)]
        problems += [problem.under(KNOBS) for problem in others]
    if problems:
        raise InvalidValue(problems)
    return tuple(knobs)


def read_knob(name: str, entry: Mapping[str, Any]) -> Knob:
    """The knob of this name that the entry of a spec or a catalog describes. Raises InvalidValue."""
    words = entry.get("words", {})
    # The keys as a program is told values: a document may have true, false and numbers there.
    words = {word(key): text for key, text in words.items()} if isinstance(words, Mapping) else words
    knob = read_value(Knob, {**entry, "name": name, "words": words})
    for value in knob.values if knob.sets else ():
        recipe = merged(_ANY_ROLLOUT, knob.in_recipe(value))
        try:
            read_value(Recipe, recipe)
        except InvalidValue:
            with problems_as(InvalidValue, "sets"):
                read_value(Recipe, {"adapter": {}, **recipe})
    return knob


def with_open_knobs(
    document: Mapping[str, Any], imported: Imported, *, cuda: bool, counts: Mapping[str, int]
) -> dict[str, Any]:
    """The document with the knobs of the launch's program that may be opened unasked (`presets.opening`), where what
    they need is here. What the launch says of one is its default; its command says it no more. counts: by
    the words of catalogs (`presets.opening`); 0: not known."""
    workload, opened, asked = dict(document["workload"]), dict[str, Any](), list[str]()
    stays, counts = dict[str, Domain](), {"": 0, **counts}
    configs = [config["base"] for config in workload.get("configs", {}).values()]
    file = configs[0] if len(configs) == 1 else workload.get("config", {})
    every = {name: entry for entries in knob_catalogs().values() for name, entry in entries.items()}
    for catalog in imported.catalogs:
        ready, needs, divides, least = opening(catalog)
        for name in dict.fromkeys(one for key in ready for one in _with_conditions(f"{catalog}_{key}", every)):
            key, knob = name.removeprefix(f"{catalog}_"), read_knob(name, every[name])
            setting = names_of(knob.argument)[0] if knob.argument else f"--{knob.config}"
            given = (at(imported.given, each) for each in (setting, setting.lstrip("-")))
            said = next((each for each in (*given, at(file, knob.config or "")) if each is not None), None)
            present = knob.default if said is None else readings(str(said).lower())[0]
            if key not in ready:
                # What a condition names alone stays as the launch has it, the first of these.
                stays[name] = Domain((present, *knob.values))
                continue
            named = {other: values for other, values in stays.items() if other in re.findall(r"\w+", knob.when)}
            holds = not named or parse_condition(knob.when, named).holds(lambda name: [0], 1)[0]
            wholes, row = [counts[each] for each in divides.get(key, "").split()], counts[least.get(key, "")]
            values = [each for each in ready[key] if not (is_number(each) and each < row)]
            values = [each for each in values if each == present or not any(whole % each for whole in wholes)]
            if knob.kind is KnobKind.NUMERIC and is_number(present):
                # A launch may have any number.
                values = sorted({*values, present}, key=lambda each: (is_number(each), each))
            here = all(cuda if need == "cuda" else find_spec(need) for need in needs.get(key, "").split())
            if not here or present not in values or len(values) < 2 or not holds:
                continue
            asked.append(f"{catalog}.{key}")
            opened[name] = {"values": values, "default": present, "numerics": "same", **({"when": ""} if named else {})}
            # A switch that is off has no word.
            spoken = said is not None and "{value}" in (knob.argument or "{value}")
            if knob.omit is not None and (spoken or knob.omit not in values):
                opened[name]["omit"] = None
            command, unsaid = workload.get("command", ""), dict.fromkeys(names_of(knob.argument or setting))
            before, line, last = str(command).rpartition("\n")
            if isinstance(command, list):
                workload["command"] = laid_over(command, unsaid)
            elif said is not None and (words := shell_words(last)):
                workload["command"] = before + line + " ".join(laid_over(words, unsaid))
    return {**document, "workload": workload, **({CATALOGS: asked, KNOBS: opened} if opened else {})}


def with_workload_defaults(
    knobs: Iterable[Knob], document: Mapping[str, Any], options: Mapping[str, KnobValue]
) -> tuple[Knob, ...]:
    """The knobs; of those that set an option of the workload, the default is its value there, where the document gives
    none and it is one of theirs: else a baseline would change the setting (a catalog knows no device)."""
    given = _own(document.get(KNOBS, {}), [])
    undecided = [knob for knob in knobs if "default" not in given.get(knob.name, {})]
    places = {knob.name: knob.position(options.get(knob.option or "")) for knob in undecided}
    return tuple(
        knob if (at := places.get(knob.name)) is None else replace(knob, default=knob.values[at]) for knob in knobs
    )


def read_catalogs() -> dict[str, list[Knob]]:
    return {
        catalog: [read_knob(name, entry) for name, entry in knobs.items()] for catalog, knobs in knob_catalogs().items()
    }


def _from_catalogs(asked: object, given: Mapping[str, Any], problems: list[Problem]) -> dict[str, Mapping[str, Any]]:
    """The descriptions of the knobs that `catalogs` names, by their names in a plan, and of those that their conditions
    name. given: what the document says of knobs, where conditions may be others."""
    picked: dict[str, Mapping[str, Any]] = {}
    if not isinstance(asked, list | tuple):
        problems.append(Problem(CATALOGS, f"must be a list of names, not {shown(asked)}"))
        return picked
    known = knob_catalogs()
    for number, each in enumerate(asked):
        path = f"{CATALOGS}.{number}"
        catalog, dot, key = each.partition(".") if isinstance(each, str) else ("", "", "")
        if catalog not in known:
            problems.append(Problem(path, f"no catalog is called {shown(each)}; {did_you_mean(str(each), known)}"))
        elif dot and f"{catalog}_{key}" not in known[catalog]:
            keys = [name.removeprefix(f"{catalog}_") for name in known[catalog]]
            problems.append(Problem(path, f"{catalog} has no knob {key!r}; {did_you_mean(key, keys)}"))
        else:
            every = {name: entry for entries in known.values() for name, entry in entries.items()}
            changed = {name: own for name, own in given.items() if name in every and isinstance(own, Mapping)}
            every |= {name: {**every[name], **own} for name, own in changed.items()}
            chosen = [f"{catalog}_{key}"] if dot else [*known[catalog]]
            picked |= {name: every[name] for one in chosen for name in _with_conditions(one, every)}
    return picked


def _with_conditions(name: str, every: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A knob of a catalog, after those of any catalog that its condition names."""
    words = set(re.findall(r"\w+", every[name].get("when", "")))
    named = [other for other in every if other in words and other != name]
    return [*dict.fromkeys(one for other in named for one in _with_conditions(other, every)), name]


def _own(given: object, problems: list[Problem]) -> dict[str, Any]:
    """The descriptions under `knobs`, by name: a mapping, or, as a campaign has them, a list with their names."""
    if isinstance(given, Mapping):
        return {str(name): own for name, own in given.items()}
    if isinstance(given, list | tuple) and all(isinstance(one, Mapping) and "name" in one for one in given):
        return {str(one["name"]): {key: value for key, value in one.items() if key != "name"} for one in given}
    problems.append(Problem(KNOBS, f"must be a mapping of knobs by their names, not {shown(given)}"))
    return {}


def plan_fields(given: object, knobs: KnobSet = NO_KNOBS) -> dict[str, Any]:
    """The fields of a plan, and values of knobs, that a text or a mapping names (`in_full`), as `Space.complete` takes
    them. Raises InvalidValue."""
    document = in_full(given, knobs)
    plan = read_value(Plan, document)
    return {name: getattr(plan, name) for name in document}


def knobs_for_command(document: Mapping[str, Any]) -> list[Problem]:
    """The knobs that need the scope `command`, from the document on: those that set variables, arguments or keys of a
    configuration which no catalog has, or with values that it has not; all of them where one cannot be read."""
    if not document.get(KNOBS):
        return []
    try:
        own = read_knobs({KNOBS: document[KNOBS], CATALOGS: document.get(CATALOGS) or []})
    except InvalidValue:
        # Of knobs that are refused anyway, some could be told to a job all the same by a mistake here.
        return [Problem(KNOBS, "needs the scope `command`")]
    telling = ("argument", "env", "config", "words", "omit")
    listed = {name: entry for catalog in knob_catalogs().values() for name, entry in catalog.items()}
    known = {knob.name: read_knob(knob.name, listed[knob.name]) for knob in own if knob.name in listed}
    return [
        Problem(f"{KNOBS}.{knob.name}", f"is told by {knob.way} as no catalog has it; needs the scope `command`")
        for knob in own
        if knob.way not in ("size", "option")
        and not (
            (one := known.get(knob.name)) is not None
            and all(getattr(knob, name) == getattr(one, name) for name in telling)
            and all(one.position(value) is not None for value in knob.values)
        )
    ]
