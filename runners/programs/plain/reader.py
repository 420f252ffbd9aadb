"""Reads a start of any script as a campaign whose trials start with the same words: its flags are told by what they are
called, by their help and by the source (`script`), and each guess is a question with its value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.capture.stand_in import AROUND, PYTHONS, TABLE
from meshtune.runners.programs.dialects.base import Imported, Launch
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.call import launcher_of
from meshtune.runners.programs.dialects.config_import import command_options, flat, literal, program_words
from meshtune.runners.programs.dialects.launcher_options import whole
from meshtune.runners.programs.named_models import model_named
from meshtune.runners.programs.plain.script import Flag, Script, script_of
from meshtune.runners.programs.reading import Reading, path_of, truth
from meshtune.runners.programs.table import PROGRAMS, table_of
from meshtune.runners.untrusted_text import is_there
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan

_LISTS: Mapping[str, Any] = table_of(f"{PROGRAMS}.plain").lists
_SIGNS, _NAMES, _NOTES = _LISTS["signs"], _LISTS["names"], _LISTS["notes"]
_WORDS = {axis: {each: text.split() for each, text in kinds.items()} for axis, kinds in _LISTS["words"].items()}
_BATCH = ("global_batch_size", "micro_batch_size", "grad_accum_steps")
_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*|[A-Za-z_][\w.]*(?==))(=.*)?", re.DOTALL)
# Of the values that are written out, the largest where the batch or the devices are not known.
_LARGEST, _DEVICES = 64, 8
# Of a divisor.
_MOST = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A flag. at: the word of the command that has its value, or the switch; None where the script alone has it. value:
    None of a switch; joined: `--name=value`."""

    flag: Flag
    name: str
    at: int | None = None
    joined: bool = False
    value: str | None = None

    def fits(self, pattern: str) -> bool:
        return re.fullmatch(pattern, self.flag.plain) is not None

    def says(self, sign: str) -> bool:
        return re.search(_SIGNS[sign], self.flag.help) is not None

    @property
    def text(self) -> str:
        """As it stands, with its line of help."""
        text = self.name if self.value is None else f"{self.name}{'=' if self.joined else ' '}{as_written(self.value)}"
        text = text if self.at is not None else f"the default of {self.name}"
        return f'{text} ("{self.flag.help}")' if self.flag.help else text

    def element(self, value: str) -> Any:
        """Of the command, which gives the flag a value."""
        if self.joined:
            return f"{self.name}={value}"
        return value if self.at is not None else [self.name, value]


def is_program(launch: Launch) -> bool:
    return launch.script != ""


def through_launcher(launch: Launch) -> Launch:
    """The start, without what is said of the options of a launcher that trials keep."""
    said = f"{launch.place}: {launcher_of(launch.launcher)} has "
    if not _keeps_launcher(launch):
        return launch
    notes = tuple(note for note in launch.notes if not note.startswith(said))
    return replace(launch, notes=notes, questions=tuple(each for each in launch.questions if said not in each.text))


def read_launch(launch: Launch) -> Imported:
    """What a start of any script says, of which nothing is refused."""
    script, reading = script_of(launch), Reading({})
    said, fields = _flags(launch.words, script), reading.fields
    fields |= {name: count for name in ("nodes", "devices_per_node") if (count := getattr(launch, name))}
    if spawns := launcher_of(launch.launcher) in PYTHONS and re.search(_SIGNS["spawns"], script.text) is not None:
        fields.pop("devices_per_node", None)
        reading.note(f"{launch.script} starts its processes itself, as many as it sees devices")
    claims = _claims(said, script, reading)
    words = {name: _words(name, claims[name]) for name in claims.keys() & _WORDS.keys()}
    shares = _read_values(claims, words, launch, script, reading)
    told = {name: each for name, each in claims.items() if name in fields and path_of(name) not in reading.open}
    if len(told.keys() & {*_BATCH}) < 2:
        told = {name: each for name, each in told.items() if name not in _BATCH}
        if told:
            reading.note(_NOTES["kept"].format(script=launch.script, size=fields.get("micro_batch_size", "as it is")))
        else:
            reading.ask("", _NOTES["nothing"].format(script=launch.script))
    elements: dict[int | str, Any] = {}
    space: dict[str, Any] = {}
    for name, each in told.items():
        place = name if each.at is None else each.at
        numbers = [int(number) for number in each.flag.choices if number.isdecimal()]
        numbers = numbers or ([0, 1, 2, 3] if name == "zero_stage" else _shared(name, fields))
        elements[place] = _element(name, each, words.get(name) or numbers, fields[name], shares.get(name, 1))
        if name in ("recompute", "cp") or (name not in words and each.flag.choices):
            space[name] = [*words.get(name, numbers)]
    if present := fields.get("micro_batch_size"):
        doubles = {each for each in _shared("micro_batch_size", fields) if each & (each - 1) == 0}
        space["micro_batch_size"] = sorted({present, *(doubles if "micro_batch_size" in told else ())})
    _read_model(said, launch, reading)
    own = [elements.pop(at, literal(text)) for at, text in enumerate(launch.words)]
    added = [part for each in elements.values() for part in (each if isinstance(each, list) else [each])]
    if not (places := _places(said)) and re.search(_SIGNS["saves"], script.text):
        reading.ask("", _NOTES["saves"].format(script=launch.script))
    options = command_options(reading, launch, [*_head(launch), *own, *added], "")
    open_ = {*told, *(_BATCH if told.keys() & {*_BATCH} else ()), "dp"}
    fixed = {name: value for name in PLAN_FIELDS if name not in open_ and (value := fields.get(name)) is not None}
    workload = {
        **options,
        "watch": True,
        "start": "node" if spawns or _keeps_launcher(launch) else None,
        "trial_arguments": places or None,
        "fixed": {name: value for name, value in fixed.items() if value != getattr(Plan(), name)} or None,
        "dtype": fields.get("dtype"),
    }
    return reading.imported(workload, space=space)


def _keeps_launcher(launch: Launch) -> bool:
    """Whether trials start through the user's own launcher: one that starts the ranks of a node, on one node."""
    tool, known = launcher_of(launch.launcher), is_known(" ".join(launch.launcher))
    # Accelerate's own file may say how many processes there are.
    one = launch.nodes == 1 or (tool == "accelerate" and launch.nodes is None)
    return known and one and tool in TABLE["counts"] and tool not in AROUND


def _head(launch: Launch) -> list[str]:
    """The words before the script's own, as templates, in which the launcher's counts have their places."""
    tool, given = launcher_of(launch.launcher), launch.launcher
    if not _keeps_launcher(launch) and tool not in PYTHONS:
        return program_words(launch)
    kinds, found = TABLE["counts"].get(tool, {}), list(map(literal, given))
    for kind, place in (("each", "{devices_per_node}"), ("ranks", "{world_size}")):
        for at, each in enumerate(given):
            name, joined, value = each.partition("=")
            if name in " ".join(kinds.get(kind, ())).split() and whole(value or "".join(given[at + 1 : at + 2])):
                found[at if joined else at + 1] = f"{name}={place}" if joined else place
    return [*found, literal(launch.script.removeprefix("-m "))]


def _flags(words: Sequence[str], script: Script) -> list[_Said]:
    """The flags of the command, of one that stands twice the last; then those that the script has beside them."""
    found, taken = dict[str, _Said](), -1
    for at, (text, after) in enumerate(zip(words, [*words[1:], "-"], strict=False)):
        if at == taken or not (match := _FLAG.fullmatch(text)):
            continue
        known = script.find(match[1])
        said = _Said(flag=known or Flag(names=(match[1],)), name=match[1], at=at, joined=match[2] is not None)
        kinds = [] if known else [each for listed in _WORDS.get(_field(said), {}).values() for each in listed]
        if said.joined:
            said = replace(said, value=match[2][1:])
        elif not (said.flag.switch or after.startswith("-") or (kinds and after.lower() not in kinds)):
            taken = at + 1
            said = replace(said, value=after, at=taken)
        found[said.flag.name] = said
    for flag in script.flags:
        default = None if flag.switch or flag.default is None else str(flag.default)
        found.setdefault(flag.name, _Said(flag=flag, name=flag.name, value=default))
    return list(found.values())


def _field(said: _Said) -> str:
    return next((name for name, pattern in _LISTS["fields"].items() if said.fits(pattern)), "")


def _claims(said: Sequence[_Said], script: Script, reading: Reading) -> dict[str, _Said]:
    """The flag of each field; two of one are asked, and neither is taken."""
    found: dict[str, list[_Said]] = {}
    for each in said:
        name = _field(each)
        if name == "micro_batch_size" and not each.fits(_NAMES["per_rank"]):
            divisor = script.divided.get(each.flag.plain, "")
            by_ranks, by_passes = (re.search(_SIGNS[sign], divisor) for sign in ("ranks", "micro"))
            name = "global_batch_size" if by_passes or (each.says("whole") and not by_ranks) else name
        if name and (each.at is not None or each.value is not None or each.flag.switch):
            found.setdefault(name, []).append(each)
    for name, named in found.items():
        if len(named) > 1:
            told = "may both say it: write the value, and the placeholder in place of one of them"
            reading.ask(path_of(name), f"{name}: {' and '.join(each.text for each in named)} {told}")
    return {name: named[0] for name, named in found.items() if len(named) == 1}


def _read_values(
    claims: Mapping[str, _Said],
    words: Mapping[str, Mapping[str, Any]],
    launch: Launch,
    script: Script,
    reading: Reading,
) -> dict[str, int]:
    """Put the values of the claims, and what follows from them, into the reading. By field, the number of data-parallel
    ranks, where the source divides the flag's value by it."""
    fields, shares = reading.fields, dict[str, int]()
    for name, said in claims.items():
        value: Any = 0 if said.value == "0" and name == "zero_stage" else whole(said.value or "")
        if name in words:
            present = said.name if said.value is None else said.element(said.value)
            present = None if said.at is None and said.value is None else present
            value = next((kind for kind, each in words[name].items() if each == present), None)
            value = value if truth(value) is None else truth(value)
        if value is not None:
            fields[name], reading.said[name] = value, said.text
        elif said.value is not None:
            reading.ask(path_of(name), f"{said.text}: what {name} is by it is not known here; fill it in")
    degrees = {axis: fields.get(axis, 1) for axis in ("tp", "pp", "cp")}
    fields |= degrees
    ranks = fields.get("nodes", 0) * fields.get("devices_per_node", 0) or launch.ranks or 0
    reading.devices = ranks or None
    dp = ranks // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    for name in sorted(fields.keys() & {"micro_batch_size", "grad_accum_steps"}):
        said, divisor = claims[name], script.divided.get(claims[name].flag.plain, "")
        if not re.search(_SIGNS["ranks"], divisor):
            continue
        value = fields.pop(name)
        doubt = "its help says of one rank, and " if said.says("per_rank") and not said.says("whole") else ""
        if doubt or not dp or value % dp:
            told = f"{doubt}the source divides it by {divisor}: how much is one rank's?"
            reading.ask(path_of(name), f"{said.text}: {told}")
        else:
            fields[name], shares[name] = value // dp, dp
    if not claims.keys() & {*_BATCH[:2]} and not reading.open & set(map(path_of, _BATCH)):
        reading.guess("micro_batch_size", 1, _NOTES["uncounted"])
    solve(reading, {"grad_accum_steps": 1})
    for axis in degrees.keys() - claims.keys():
        del fields[axis]
    for name, said in claims.items():
        over = f" over {shares[name]} ranks" if shares.get(name, 1) > 1 else ""
        text = f"{name} {word(fields.get(name, ''))} by {said.text}{over}"
        if name in fields and said.fits(_NAMES["certain"]):
            reading.note(text)
        elif name in fields:
            reading.guess(name, fields[name], text)
    return shares


def _words(name: str, said: _Said) -> dict[str, Any]:
    """By value of an axis of words the element of the command: a switch or none, or the flag's word for it."""
    flag, kinds = said.flag, _WORDS[name]
    off, *_, on = kinds
    if said.value is None:
        given = {} if said.at is None else {off if said.name == flag.off else on: said.name}
        on_by_itself = flag.default is True
        words = {off: flag.off or None if on_by_itself else None, on: None if on_by_itself else flag.name} | given
        return words if words[off] != words[on] else {}
    column = next((each.index(said.value.lower()) for each in kinds.values() if said.value.lower() in each), 0)
    style = str.title if said.value.istitle() else str.lower
    own = {value: each for value, listed in kinds.items() for each in flag.choices if each.lower() in listed}
    own = own or {each: style(kinds[each][column]) for each in (off, on)}
    return {value: said.element(each) for value, each in own.items()}


def _shared(name: str, fields: Mapping[str, Any]) -> list[int]:
    """The divisors of what an axis of numbers shares: of a rank's part of the batch, or of the devices."""
    if name not in _BATCH:
        most = fields.get("nodes", 1) * fields.get("devices_per_node", _DEVICES)
    else:
        known = {"global_batch_size", "dp"} <= fields.keys()
        most = fields["global_batch_size"] // fields["dp"] if known else _LARGEST
    return [each for each in range(1, min(most, _MOST) + 1) if most % each == 0][:_LARGEST]


def _element(name: str, said: _Said, values: Any, present: Any, share: int) -> Any:
    """The element of the command that tells an axis: a placeholder, or a choice where the command does not have the
    flag, or has another number. values: elements by value, or numbers."""
    if name == "global_batch_size" or (said.at is not None and share == 1 and isinstance(values, list)):
        return said.element(f"{{{name}}}")
    if isinstance(values, list):
        values = {str(each): said.element(str(each * share)) for each in sorted({*values, present})}
    return {f"{{{name}}}": values if said.at is not None else {**values, word(present): None}}


def _places(said: Sequence[_Said]) -> dict[str, str]:
    """Where trials write: by each flag that leads to files the place in the trial's folder."""
    return {
        each.name: f"{{directory}}/{each.flag.plain}{PurePath(each.value).suffix}"
        for each in said
        if each.value
        and each.fits(_NAMES["files"])
        and (each.fits(_NAMES["places"]) or "/" in each.value)
        and truth(each.value) is None
        and not is_there(each.value)
    }


def _read_model(said: Sequence[_Said], launch: Launch, reading: Reading) -> None:
    """Put the model's shapes and the number format into the reading, where flags name what is here."""
    length = next((size for each in said if each.fits(_NAMES["seq_len"]) and (size := whole(each.value or ""))), None)
    named = (each for each in said if each.value and is_known(each.value) and each.fits(_NAMES["model"]))
    known = ((each, shapes) for each in named if (shapes := _shapes(str(each.value), launch.files)))
    for each, shapes in known if length else ():
        reading.fields |= flat({"model": {**shapes, "seq_len": length}})
        reading.note(f"the model is the one of {each.text}, with sequences of {length} tokens")
        break
    for each in said:
        given = each.value or (each.flag.plain if each.at is not None and each.name != each.flag.off else "")
        format_ = next((to for to, words in _LISTS["dtype"].items() if given.lower() in words.split()), None)
        if format_ and each.fits(_NAMES["dtype"]):
            reading.fields.setdefault("dtype", format_)


def _shapes(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Fields of ModelSpec by the config.json of a folder or of the cache, or by a preset; none for another model."""
    with suppress(InvalidValue):
        return {key: value for key, value in model_named(name, files).items() if key != "name"}
    return {}
