"""A plan, a model and a number format in a program's words, by a table of rows (see `rows`): read and written.

`rows_of` in `[program]`: another program's rows, remarks and sections come behind the table's own; of a field that the
table has rows of, none. `[program] rows_of = "transformers"` has those of Hugging Face's TrainingArguments.

`[variants.NAME]` has sections of one variant, which are laid over the document's; `{section}` in a name stands for what
`[variants.NAME.places]` calls so.

`[able.VARIANT]` has fields of Capabilities, each `[[rule]]` a condition (`holds`) that plans must keep, with the
reason; `of` as rows have it. What no condition can say is a rule in Python."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from importlib.resources import files
from typing import Any

import numpy as np

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import overlaid
from meshtune.runners.programs.dialects.config_import import holds as has_key
from meshtune.runners.programs.reading import DERIVED, Reading, path_of, truth
from meshtune.runners.programs.rows import NUMBERS, SHARES, VALUES, Remark, Row, condition, derived, holds, placed, same
from meshtune.search_spaces.columns import Capabilities, Columns, Constraint, SpaceContext
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import PLAN_FIELDS, ContextParallel, Plan, Recompute, Schedule


@dataclass(frozen=True, kw_only=True)
class Table:
    """rows, remarks: in order. lists: the document's other sections, as the program's modules have them. module: of the
    functions that rows name."""

    name: str
    rows: tuple[Row, ...]
    remarks: tuple[Remark, ...]
    lists: Mapping[str, Any]
    module: str

    def variant(self, name: str) -> Table:
        """The table of one variant."""
        own = self.lists.get("variants", {}).get(name, {})
        lists = overlaid({key: value for key, value in self.lists.items() if key != "variants"}, own)
        places: Mapping[str, str] = own.get("places", {})
        rows = tuple(replace(row, names=placed(row.names, places)) for row in self.rows if not row.of or name in row.of)
        remarks = tuple(
            replace(remark, names=placed(remark.names, places))
            for remark in self.remarks
            if not remark.of or name in remark.of
        )
        return replace(self, rows=rows, remarks=remarks, lists=lists)

    @cached_property
    def fields(self) -> Mapping[str, Row]:
        """The row that is read for each field."""
        return {row.field: row for row in reversed(self.rows) if row.only != "write"}

    def names_of(self, *sections: str) -> frozenset[str]:
        """The names that say fields of plan (`plan`), model (`model`) or the rest (`other`)."""
        return frozenset(name for row in self.rows if _section(row.field) in sections for name in row.every_name)

    @cached_property
    def every_name(self) -> frozenset[str]:
        """Those of rows and remarks."""
        remarked = (name for remark in self.remarks for name in remark.names)
        return frozenset((*(name for row in self.rows for name in row.every_name), *remarked))

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The names that some plan or model writes, in order; what is not written of them must not stand elsewhere."""
        return tuple(name for row in self.rows for name in row.written)

    def words(self, name: str) -> frozenset[str]:
        """The words of a list of the document, a dotted name."""
        found: Any = self.lists
        for key in name.split("."):
            found = found[key]
        return frozenset(found.split() if isinstance(found, str) else found)

    def qualified(self, name: str) -> str:
        return name if ":" in name else f"{self.module}:{name}"

    def special(self, name: str) -> Callable[..., Any]:
        module, _, function = self.qualified(name).rpartition(":")
        found: Callable[..., Any] = getattr(import_module(module), function)
        return found

    def read(self, reading: Reading, *sections: str) -> None:
        """Put what the rows say into the reading, with questions. sections: see `names_of`; none: all."""
        for row in self.rows:
            if not sections or _section(row.field) in sections:
                self._read_row(row, reading)

    def _read_row(self, row: Row, reading: Reading) -> None:
        if row.field in reading.fields or row.only in ("write", "trials") or not row.field:
            return
        others = row.when and row.field not in condition(row.when).names
        applies = holds(row.when, reading.fields) if others else True
        if not applies and (applies is False or row.idle is None):
            if row.idle is not None:
                reading.fields[row.field] = row.idle
        elif row.special:
            self.special(row.special)(reading)
        elif row.cases:
            _read_cases(row, reading)
        else:
            _read_names(row, reading)

    def remark(self, reading: Reading) -> None:
        """The notes and questions of what no plan has."""
        for remark in self.remarks:
            begun = tuple(name[:-1] for name in remark.names if name.endswith("*"))
            named = (*remark.names, *(name for name in reading.given if name.startswith(begun)))
            names = [name for name in named if reading.has(name) and remark.speaks(reading.get(name))]
            if not names or (remark.when and holds(remark.when, reading.fields) is False):
                continue
            if remark.ask:
                reading.ask(remark.path, f"{', '.join(map(reading.written, names))}: {remark.ask}")
                continue
            told = f" stays as it is, but predictions do not know {remark.note}" if remark.note else f": {remark.say}"
            for name in names:
                reading.note(f"{name}{told}")

    def write(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a plan and a model, in the order of the rows. facts: see `facts_of`. True: a switch."""
        written: dict[str, Any] = {}
        for row in self.rows:
            value = facts.get(row.field)
            absent = row.field and value is None
            if row.only in ("read", "trials") or absent or (row.when and not holds(row.when, facts)):
                continue
            written |= {**row.writes, **dict.fromkeys(row.removes)}
            if row.special and row.only == "write":
                written |= self.special(row.special)(facts)
            elif row.cases:
                written |= next((case.all for case in row.cases if same(case.value, value)), {})
            elif row.names:
                written |= {row.needs: True} if row.needs else {}
                written[row.names[0]] = row.word(value)
        return written

    def told(self, reading: Reading, own: Reading) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a command's trials set by key: a placeholder, or a choice of words; and the fields of the plan that they
        keep, with their values. own: of the user's settings alone. A field that was read as None is neither."""
        settings: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        for row in self.rows:
            follows = row.field in ("grad_accum_steps", "global_batch_size", *DERIVED)
            open_ = row.field in reading.fields and reading.fields[row.field] is None
            if row.only == "trials":
                settings |= self.special(row.special)(reading)
            said = follows or row.field in PLAN_FIELDS
            if open_ or row.field in reading.kept or row.only in ("read", "trials") or not said:
                continue
            if row.names and _is_set(row, reading, own):
                words = {value: row.word(value) for value in row.words}
                told = f"{{{row.field}}}"
                settings[own.first(row.names) or row.names[0]] = {told: words} if words else told
            elif not follows and (value := reading.fields.get(row.field, row.absent)) is not None:
                kept[row.field] = value
        placed_axes = {DERIVED[name] for name in DERIVED if f"{{{name}}}" in settings.values()}
        kept |= {axis: reading.fields[axis] for axis in {*DERIVED.values()} - placed_axes if axis in reading.fields}
        kept |= reading.kept
        # Of one context rank there are no kinds.
        return settings, {name: value for name, value in kept.items() if name != "context" or kept.get("cp") != 1}


def _is_set(row: Row, reading: Reading, own: Reading) -> bool:
    """Whether a command's trials set the row's key."""
    if row.set == "there":
        return own.has(*row.names, *(name.rpartition(".")[0] for name in row.names if "." in name))
    if row.set == "key":
        return any(has_key(own.given, name) for name in row.names)
    return row.set == "always" or (row.set == "known" and reading.has(*row.names))


def _section(field: str) -> str:
    if field.startswith(("model.", "training.")):
        return field.partition(".")[0]
    return "plan" if path_of(field) and (field in NUMBERS or field in VALUES) else "other"


def _read_cases(row: Row, reading: Reading) -> None:
    for case in row.cases:
        marks = case.by or case.all
        if marks and all(_fits(reading, name, wanted) for name, wanted in marks.items()):
            if case.ask:
                reading.ask(path_of(row.field), f"{', '.join(map(reading.written, marks))}: {case.ask}")
            else:
                reading.put(row.field, case.value, *marks)
            return
        if not marks and reading.complete(path_of(row.field), " or ".join(sorted(row.every_name)), case.value):
            reading.fields[row.field] = case.value
            return


def _fits(reading: Reading, name: str, wanted: Any) -> bool:
    value = reading.get(name)
    if wanted is True and name.startswith("-"):
        # A switch is on, whatever word stands behind it.
        return value is not None and truth(value) is not False
    return value is not None and (wanted == "*" or same(value, wanted))


def _read_names(row: Row, reading: Reading) -> None:
    path, name = path_of(row.field), reading.first(row.names)
    if row.field in DERIVED and same(reading.get(name), -1):
        return  # the ranks that are left, in programs with FSDP's mesh
    if row.needs and truth(reading.get(row.needs) or False) is False:
        if row.without:
            reading.complete(path, row.needs, row.without)
    elif not name:
        _read_absent(row, reading, path)
    elif row.words:
        said = reading.get(name)
        word = said if isinstance(said, list) else reading.text(name, path)
        if word is not None and (value := row.value(word)) is not None:
            reading.put(row.field, value, name)
        elif word is not None:
            known = ", ".join(str(row.word(value)) for value in row.words)
            reading.ask(path, f"{reading.written(name)}: {row.ask or f'meshtune knows {known}'}")
    else:
        value = _number_of(row, name, path, reading)
        if value is not None:
            reading.put(row.field, value, name)


def _number_of(row: Row, name: str, path: str, reading: Reading) -> float | bool | None:
    """What a setting without words of its own says: a share, a switch or a whole number; None: it is asked."""
    if row.field in SHARES:
        return reading.share(name, path)
    return reading.flag(name, path) if row.field in VALUES else reading.whole(name, path, row.least)


def _read_absent(row: Row, reading: Reading, path: str) -> None:
    default = reading.fields.get(row.absent_of) if row.absent_of else row.absent
    if default is not None:
        if not row.names or reading.complete(path, row.names[0], default):
            reading.fields[row.field] = default
    elif marks := [mark for mark in row.guess if not mark or reading.written(mark.split()[0]) == mark]:
        why = f" by {marks[0]}" if marks[0] else f": {row.ask}"
        reading.guess(row.field, row.guess[marks[0]], f"{row.field} {row.guess[marks[0]]}{why}")
    elif not row.optional and not reading.is_asked(path):
        reading.ask(path, f"{row.names[0]} is not said{row.ask and f' ({row.ask})'}; fill in what training uses")


def facts_of(model: ModelSpec, plan: Plan) -> dict[str, Any]:
    """What rows write, by field. A size of the model that has its plain value is left out."""
    shapes = {"head_dim": Shape.HEAD_DIM, "window": Shape.WINDOW}
    absent = {name for name, shape in shapes.items() if shape not in model.shapes} | {"latent_attention"}
    facts = {**plan.axes_as_dict(), **derived(plan), "global_batch_size": plan.global_batch_size}
    for name in (name for name in model.__dataclass_fields__ if name not in absent):
        value = getattr(model, name)
        if value != 0 or value is False or name == "experts":
            facts[f"model.{name}"] = str(value) if isinstance(value, str) else value
    if latent := model.latent_attention:
        facts |= {f"model.latent_attention.{name}": getattr(latent, name) for name in latent.__dataclass_fields__}
    return facts


# Of a mesh of replicas and shards, in which the ranks of a sequence are among the shards (FSDP's in torchtitan and in
# Accelerate: distributed/parallel_dims.py at v0.2.2, parallelism_config.py at 1.15.0).
WHOLE_CONTEXTS = Constraint(
    "zero-group-contexts",
    "a group that is sharded over has all context ranks of its sequences",
    lambda c, s: c["zero_group"] % c["cp"] == 0,
    lambda p, s: f"cp({p.cp}) does not divide zero_group({p.zero_group})",
)
_KINDS: Mapping[str, Any] = {
    "schedules": Schedule,
    "recompute": Recompute,
    "contexts": ContextParallel,
    "zero_stages": int,
    "zero_stages_with_pp": int,
    "zero_groups": int,
    "shapes": Shape,
}


def capabilities(table: Table, variant: str, rules: Iterable[Constraint] = (), **more: Any) -> Capabilities:
    """Of one variant. rules: those in Python, which stand behind the table's. more: fields that options decide.
    stage_splits "any": however many layers the ends hold."""
    said: dict[str, Any] = {**table.lists["able"].get("all", {}), **table.lists["able"][variant]}
    found = {
        name: frozenset(_KINDS[name] if value == "all" else map(_KINDS[name], value)) if name in _KINDS else value
        for name, value in said.items()
    }
    if found.get("stage_splits") == "any":
        found["stage_splits"] = None
    own = (_rule(rule) for rule in table.lists.get("rule", ()) if variant in rule.get("of", (variant,)))
    return Capabilities(**{**found, "rules": (*own, *rules), **more})


def _rule(rule: Mapping[str, Any]) -> Constraint:
    needed = condition(rule["holds"])

    def holds(columns: Columns, setting: SpaceContext) -> Any:
        return needed.holds(lambda name: _column(name, columns, setting), len(columns["tp"]))

    def numbers(plan: Plan, setting: SpaceContext) -> str:
        return ", ".join(f"{name.removeprefix('model.')}({_value(name, plan, setting)})" for name in needed.names)

    return Constraint(rule["name"], rule["reason"], holds, numbers)


def _column(name: str, columns: Columns, setting: SpaceContext) -> Any:
    """The column of a plan's axis; a constant one of the model or the devices."""
    if name in columns:
        return columns[name]
    value, values = _value(name, Plan(), setting), VALUES.get(name)
    return np.full(len(columns["tp"]), value if values is None else values.index(str(value)))


def _value(name: str, plan: Plan, setting: SpaceContext) -> Any:
    if name == "device":
        return setting.cluster.device.kind
    return getattr(setting.model if name.startswith("model.") else plan, name.removeprefix("model."))


PROGRAMS = "meshtune.runners.programs"


@cache
def programs() -> tuple[str, ...]:
    """The folders of programs that have a table, in order of their names."""
    return tuple(sorted(each.name for each in files(PROGRAMS).iterdir() if each.joinpath("table.toml").is_file()))


def starts_ranks(script: str) -> bool:
    """Whether a program starts its ranks itself, so that one process of it says nothing of devices."""
    lists = (table_of(f"{PROGRAMS}.{name}").lists for name in programs())
    own = (each for each in lists if each.get("command", {}).get("start") or "starts_ranks" in each.get("program", {}))
    return any(re.fullmatch(each["program"]["script"], script) for each in own)


@cache
def table_of(package: str) -> Table:
    """The table of a program's package."""
    text = files(package).joinpath("table.toml").read_text("utf-8")
    document = tomllib.loads(text)  # noqa: TID251 - our own file
    rows = tuple(read_value(Row, row) for row in document.pop("row", ()))
    remarks = tuple(read_value(Remark, remark) for remark in document.pop("remark", ()))
    group, _, name = package.rpartition(".")
    if other := document.get("program", {}).get("rows_of"):
        shared, own = table_of(f"{group}.{other}"), {row.field for row in rows if row.field}
        others = (row for row in shared.rows if row.field not in own)
        rows += tuple(replace(row, special=row.special and shared.qualified(row.special)) for row in others)
        remarks += shared.remarks
        document = overlaid({**shared.lists, "program": {}}, document)
    return Table(name=name, rows=rows, remarks=remarks, lists=document, module=f"{package}.special")


def lines(settings: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Settings as flags and their words; none for one that is off."""
    for name, value in settings.items():
        if value is not False and value is not None:
            values = [] if value is True else value if isinstance(value, list | tuple) else [value]
            yield name, tuple(map(word, values))
