"""Reads a start of any script as a campaign whose trials start with the same words: its flags are told by what they are
called, by their help and by the source (`script`), and each guess is a question with its value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.capture.stand_in import AROUND, PYTHONS, TABLE
from meshtune.runners.programs.dialects.base import Imported, Launch
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import command_options, flat, literal, program_words
from meshtune.runners.programs.dialects.launcher_options import whole
from meshtune.runners.programs.named_models import cached_config, preset_shapes
from meshtune.runners.programs.plain.script import Flag, Script, script_of
from meshtune.runners.programs.reading import Reading, path_of, truth
from meshtune.runners.programs.table import PROGRAMS, table_of
from meshtune.runners.programs.transformers.config_json import read_config
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.presets import preset_on_hub

_LISTS: Mapping[str, Any] = table_of(f"{PROGRAMS}.plain").lists
_SIGNS: Mapping[str, str] = _LISTS["signs"]
_BATCH = ("global_batch_size", "micro_batch_size", "grad_accum_steps")
_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?|([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
# The largest of the values that are written out for a flag that the command does not have.
_LARGEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A flag. at: the word of the command that holds its value, or the switch; None where the script alone has it.
    value: None of a switch; joined: `--name=value`."""

    flag: Flag
    name: str
    at: int | None = None
    joined: bool = False
    value: str | None = None

    def fits(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, name) for name in self.flag.plain)

    @property
    def sure(self) -> bool:
        return self.fits(_LISTS["certain"]["names"])

    @property
    def text(self) -> str:
        """As it stands, with its line of help."""
        text = self.name if self.value is None else f"{self.name}{'=' if self.joined else ' '}{as_written(self.value)}"
        text = text if self.at is not None else f"the default of {self.name}"
        return f'{text} ("{self.flag.help}")' if self.flag.help else text

    def word(self, value: Any) -> Any:
        """The element of a command that gives it a value."""
        if self.joined or self.flag.joined:
            return f"{self.name}={value}"
        return value if self.at is not None else [self.name, value]


def through_launcher(launch: Launch) -> Launch:
    """The start, without what is said of options of a launcher that trials keep."""
    if not _keeps_launcher(launch):
        return launch
    said = f"{launch.place}: {_launcher(launch)} has "
    return replace(
        launch,
        notes=tuple(note for note in launch.notes if not note.startswith(said)),
        questions=tuple(each for each in launch.questions if not each.text.startswith(said)),
    )


def read_launch(launch: Launch) -> Imported:
    """What a start of any script says, of which nothing is refused."""
    script, reading = script_of(launch), Reading({})
    said = _flags(launch.words, script)
    fields = reading.fields
    fields |= {name: count for name in ("nodes", "devices_per_node") if (count := getattr(launch, name))}
    spawns = _launcher(launch) in PYTHONS and re.search(_SIGNS["spawns"], script.text) is not None
    if spawns:
        fields.pop("devices_per_node", None)
        reading.note(f"{launch.script} starts its processes itself, as many as it sees devices")
    claims = _claims(said, script, reading)
    shares = _read_values(claims, script, reading)
    elements: dict[int | str, Any] = {}
    told = {name: each for name, each in claims.items() if name in fields and not _is_open(reading, name)}
    if len(told.keys() & {*_BATCH}) < 2:
        told = {name: each for name, each in told.items() if name not in _BATCH}
        reading.note(_KEPT.format(script=launch.script, size=fields.get("micro_batch_size", "as it is")))
    space: dict[str, Any] = {}
    for name, each in told.items():
        element, values = _element(name, each, shares.get(name, 1), fields)
        elements[name if each.at is None else each.at] = element
        space |= {name: values} if values else {}
    if not told:
        reading.ask("", _NOTHING.format(script=launch.script))
    _read_model(said, launch, reading)
    words = [elements.get(at, literal(word)) for at, word in enumerate(launch.words)]
    added = [element for at, element in elements.items() if isinstance(at, str)]
    options = command_options(reading, launch, [*_head(launch), *words, *added], "")
    known = {*told, *(_BATCH if told.keys() & {*_BATCH} else ()), "dp"}
    fixed = {name: fields[name] for name in PLAN_FIELDS if name not in known and fields.get(name) is not None}
    workload = {
        **options,
        "watch": True,
        "start": "node" if spawns or _keeps_launcher(launch) else None,
        "trial_arguments": _places(said) or None,
        "fixed": {name: value for name, value in fixed.items() if value != getattr(Plan(), name)} or None,
        "dtype": fields.get("dtype"),
    }
    return reading.imported(workload, space=space, notes=tuple(reading.notes))


_NOTHING = (
    "no flag that is known changes how {script} runs, so there is one plan. What would help: flags of the micro-batch "
    "and of the accumulation (--micro-batch-size, --grad-accum-steps), --gradient-checkpointing, --zero-stage"
)
_KEPT = (
    "micro_batch_size stays {size}: at one global batch and as many devices it changes with the accumulation alone, and "
    "{script} has no flag of both that is known; --micro-batch-size and --grad-accum-steps would be tried"
)


def _is_open(reading: Reading, name: str) -> bool:
    return any(question.path == path_of(name) and not question.guessed for question in reading.questions)


def _keeps_launcher(launch: Launch) -> bool:
    """Whether trials start through the user's own launcher: one that starts the ranks of a node, on one node."""
    tool = _launcher(launch)
    return launch.nodes == 1 and tool in TABLE["counts"] and tool not in AROUND


def _launcher(launch: Launch) -> str:
    tool, *words = map(str, launch.launcher or ("",))
    modules = {"torch.distributed": "torchrun", "accelerate": "accelerate", "deepspeed": "deepspeed"}
    named = (tool for word in words for start, tool in modules.items() if word.startswith(start))
    return next(named, PurePath(tool).name)


def _head(launch: Launch) -> list[str]:
    """The words before the script's own, as templates."""
    tool = _launcher(launch)
    if not _keeps_launcher(launch) and tool not in PYTHONS:
        return program_words(launch)
    counts = TABLE["counts"].get(tool, {})
    places = {
        name: f"{{{place}}}"
        for kind, place in (("each", "devices_per_node"), ("ranks", "world_size"))
        for names in counts.get(kind, ())
        for name in names.split()
    }
    found = [literal(word) for word in launch.launcher]
    for at, each in enumerate(launch.launcher):
        name, joined, value = each.partition("=")
        if name in places and joined and whole(value):
            found[at] = f"{name}={places[name]}"
        elif name in places and whole("".join(launch.launcher[at + 1 : at + 2])):
            found[at + 1] = places[name]
    return [*found, literal(launch.script.removeprefix("-m "))]


def _flags(words: Sequence[str], script: Script) -> list[_Said]:
    """The flags of the command, of one that stands twice the last; then those that the script has beside them."""
    found, value_at = dict[str, _Said](), -1
    for at, each in enumerate(words):
        match = _FLAG.fullmatch(each)
        if match is None or at == value_at:
            continue
        name, value = match[1] or match[3], match[2] if match[1] else match[4]
        flag = script.find(name) or Flag(names=(name,))
        joined, place, after = value is not None, at, "".join(words[at + 1 : at + 2])
        alone = flag.switch or not after or after.startswith("-")
        if not joined and not alone and (len(flag.names) > 1 or flag in script.flags or not _is_switch(flag, after)):
            value, place = after, at + 1
            value_at = place
        found[flag.name] = _Said(flag=flag, name=name, at=place, joined=joined, value=value)
    alone = (flag for flag in script.flags if flag.name not in found)
    return [*found.values(), *(_Said(flag=flag, name=flag.name, value=_default(flag)) for flag in alone)]


def _default(flag: Flag) -> str | None:
    return None if flag.switch or flag.default is None else str(flag.default)


def _is_switch(flag: Flag, after: str) -> bool:
    """Whether a flag that the script does not show takes no value: it is one of an axis of words, and none follows."""
    words = _LISTS["words"].get(_field(_Said(flag=flag, name=flag.name)), {})
    return bool(words) and not any(after.lower() in listed.split() for listed in words.values())


def _field(said: _Said) -> str:
    return next((name for name, pattern in _LISTS["fields"].items() if said.fits(pattern)), "")


def _claims(said: Sequence[_Said], script: Script, reading: Reading) -> dict[str, _Said]:
    """The flag of each field; two of one are asked, and neither is taken."""
    found: dict[str, list[_Said]] = {}
    for each in said:
        name = _field(each)
        if name and (each.at is not None or each.value is not None or each.flag.switch):
            found.setdefault(_whose(each, script) if name == "micro_batch_size" else name, []).append(each)
    claims = {}
    for name, named in found.items():
        if len(named) == 1:
            claims[name] = named[0]
        else:
            texts = " and ".join(each.text for each in named)
            reading.ask(path_of(name), f"{texts} may both be {name}: write the value, and the placeholder in one of them")
    return claims


def _whose(said: _Said, script: Script) -> str:
    """The field of a flag of a batch, by name, help and source."""
    if said.fits(_LISTS["certain"]["per_rank"]):
        return "micro_batch_size"
    divisor = _divisor(said, script)
    whole_batch = re.search(_SIGNS["whole"], said.flag.help) and not re.search(_SIGNS["ranks"], divisor)
    return "global_batch_size" if whole_batch or re.search(_SIGNS["micro"], divisor) else "micro_batch_size"


def _divisor(said: _Said, script: Script) -> str:
    return " ".join(script.divided.get(name, "") for name in said.flag.plain)


def _read_values(claims: dict[str, _Said], script: Script, reading: Reading) -> dict[str, int]:
    """Put the values of the claims, and what follows from them, into the reading. The number of data-parallel ranks by
    each field that the source divides by it."""
    fields, shares = reading.fields, dict[str, int]()
    for name, said in claims.items():
        value = _value(name, said)
        if value is not None:
            fields[name], reading.said[name] = value, said.text
        elif said.value is not None:
            reading.ask(path_of(name), f"{said.text}: what {name} is by it is not known here; fill it in")
    degrees = {axis: fields.get(axis, 1) for axis in ("tp", "pp", "cp")}
    fields |= degrees
    ranks = fields.get("nodes", 0) * fields.get("devices_per_node", 0)
    dp = ranks // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    for name in ("micro_batch_size", "grad_accum_steps"):
        said_of = claims.get(name)
        if said_of is None or name not in fields or not re.search(_SIGNS["ranks"], _divisor(said_of, script)):
            continue
        own = re.search(_SIGNS["per_rank"], said_of.flag.help) and not re.search(_SIGNS["whole"], said_of.flag.help)
        if own or not dp or fields[name] % dp:
            told = "its help says of one rank, and " if own else ""
            told = f"{told}the source divides it by {_divisor(said_of, script).strip()}: how much is one rank's?"
            reading.ask(path_of(name), f"{said_of.text}: {told}")
        else:
            fields[name], shares[name] = fields[name] // dp, dp
    if not fields.keys() & {*_BATCH[:2]} and not any(_is_open(reading, name) for name in _BATCH):
        fields["micro_batch_size"] = 1
        reading.ask("baseline.micro_batch_size", "no flag of the batch is known: a step counts as 1 sample of each rank", True)
    solve(reading, {"grad_accum_steps": 1})
    for name, said in claims.items():
        if name in fields:
            over = f" over {shares[name]} ranks" if shares.get(name, 1) > 1 else ""
            text = f"{name} {word(fields[name])} by {said.text}{over}"
            if said.sure:
                reading.note(text)
            else:
                reading.ask(path_of(name), text, True)
    return shares


def _value(name: str, said: _Said) -> Any:
    """The value of a field by its flag; None where it is none."""
    if name in _LISTS["words"]:
        on, off = ("full", "none") if name == "recompute" else (True, False)
        if said.flag.switch or said.value is None:
            given = bool(said.flag.default) if said.at is None else said.name != said.flag.off
            return on if given else off
        words = {each: value for value, listed in _LISTS["words"][name].items() for each in listed.split()}
        found = words.get(said.value.lower())
        return found if name == "recompute" else truth(found)
    text = said.value or ""
    return 0 if text == "0" and name == "zero_stage" else whole(text)


def _element(name: str, said: _Said, share: int, fields: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The element of the command that tells an axis, and the values that are tried where they are not the default."""
    present, key = fields[name], f"{{{name}}}"
    if name in _LISTS["words"]:
        words = _words(name, said)
        return {key: words}, list(words) if name == "recompute" else []
    numbers = [int(each) for each in said.flag.choices if each.isdecimal()]
    tried = numbers
    if name == "zero_stage":
        numbers = numbers or [0, 1, 2, 3]
    elif name in _BATCH:
        of_a_rank = fields["global_batch_size"] // fields["dp"] if {"global_batch_size", "dp"} <= fields.keys() else 0
        doubles = [2**power for power in range(_LARGEST.bit_length())]
        numbers = numbers or [each for each in range(1, of_a_rank + 1) if of_a_rank % each == 0][:_LARGEST] or doubles
    else:
        ranks = fields.get("nodes", 1) * fields.get("devices_per_node", 8)
        numbers = numbers or [2**power for power in range(ranks.bit_length())]
        tried = tried or (numbers if name == "cp" else [])
    if name == "global_batch_size" or (said.at is not None and share == 1):
        return said.word(key), tried
    words = {str(each): said.word(str(each * share)) for each in sorted({*numbers, present})}
    return {key: {**words, **({} if said.at is not None else {str(present): None})}}, tried


def _words(name: str, said: _Said) -> dict[str, Any]:
    """The elements of the command for the values of an axis of words: switches, or words of the flag's kind."""
    flag, listed = said.flag, {value: text.split() for value, text in _LISTS["words"][name].items()}
    (off, off_words), *_, (on, on_words) = listed.items()
    if said.value is None:
        given = None if said.at is None else said.name
        return {
            off: given if given == flag.off else flag.off or None if flag.default is True else None,
            on: given if given and given != flag.off else None if flag.default is True else flag.name,
        }
    style = str.title if said.value.istitle() else str
    kinds = {value: each for each in flag.choices for value, words in listed.items() if each.lower() in words}
    column = next(words.index(said.value.lower()) for words in listed.values() if said.value.lower() in words)
    words = {value: said.word(each) for value, each in (kinds or {off: style(off_words[column]), on: style(on_words[column])}).items()}
    return words if said.at is not None else {value: None if each[-1] == said.value else each for value, each in words.items()}


def _places(said: Sequence[_Said]) -> dict[str, str]:
    """Where trials write: by each flag that leads to files the place in the trial's folder."""
    files = _LISTS["files"]
    return {
        each.name: f"{{directory}}/{each.flag.plain[0]}{PurePath(each.value).suffix}"
        for each in said
        if each.value
        and each.fits(files["names"])
        and (each.fits(files["places"]) or "/" in each.value)
        and truth(each.value) is None
        and not Path(each.value).is_file()
    }


def _read_model(said: Sequence[_Said], launch: Launch, reading: Reading) -> None:
    """Put the model's shapes and the number format into the reading, where flags name what is here."""
    lengths = [each.value for each in said if each.fits(_LISTS["shapes"]["seq_len"]) and whole(each.value or "")]
    named = [each for each in said if each.value and is_known(each.value) and each.fits(_LISTS["shapes"]["names"])]
    for each in named:
        if lengths and (found := _shapes(str(each.value), launch.files)):
            reading.fields |= flat({"model": {**found, "seq_len": int(lengths[0] or 0)}})
            reading.note(f"the model is the one of {each.text}, with sequences of {lengths[0]} tokens")
            break
    for each in said:
        given = each.value or (each.flag.plain[0] if each.at is not None and each.name != each.flag.off else "")
        format_ = next((to for to, words in _LISTS["dtype"]["words"].items() if given.lower() in words.split()), None)
        if format_ and each.fits(_LISTS["dtype"]["names"]):
            reading.fields.setdefault("dtype", format_)


def _shapes(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Fields of ModelSpec by the config.json of a folder or of the cache, or by a preset; none for another model."""
    text = files.get(f"{name.rstrip('/')}/config.json") or files.get(name) or cached_config(name)
    with suppress(UnreadableText, InvalidValue):
        if text:
            return read_config(read_json(text))
    preset = preset_on_hub(name)
    return preset_shapes(preset) if preset else {}
