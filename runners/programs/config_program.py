"""Programs that train by a YAML file, each read by its table as `workload: {kind: command}`: the keys that a plan sets
become placeholders, and the rest of the file stays as the user wrote it.

Beside rows and remarks (see `table`) the table of such a program has:

    [program]   title; script: the pattern of what is started; sure: one of folder, script and file, needed where the
                file is not there; instead: what to do without a file's name; file: beside the script, where a start
                names none; needs: keys that its file has, with least of the marks; inside: the key that has them in a
                submitter's file; variant: a function of special.py; catalogs: of knobs
    [command]   config_file: the name in a trial's folder; example: a command to answer with; framework, in which
                `{dtype}` stands for the number format; start; env; inherits: the key of files beneath a file;
                omegaconf: `${a.b}` in the file, and `a.b=value` behind it; flags: `--a.b value` beside the file, whose
                option this is; words: "keys", `a.b=value`, or "flags", `--a.b value`, where trials set words and
                no file;
                program: the words that start it, with groups of `script`; steps, warmup_steps: of a trial
    [trial]     removed: keys that are taken out; set: what is set for all plans; set_there: where the user has the key;
                special: a function of special.py that gives what trials alone have
    [shapes]    of the model, see `named_models`
    [log]       patterns; ask: a question in place of them
    [keys]      known: those that the program has beside the ones that the table names elsewhere, derived: those that it
                sets itself; of each section below others, behind its name (`model`) in [keys.VARIANT]. Others are asked

A folder with such a table alone is a program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.documents import merged
from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch, read_arguments
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.bash.launch import find_launch
from meshtune.runners.programs.dialects.config_import import (
    arguments_alone,
    at,
    command_options,
    holds,
    literal,
    mapping_in,
    nested,
    of_plan,
    program_words,
    read_mapping,
    text_of_any,
)
from meshtune.runners.programs.dialects.omegaconf import OVERRIDE, overridden, resolved
from meshtune.runners.programs.launch_words import groups, laid_over
from meshtune.runners.programs.named_models import read_shapes
from meshtune.runners.programs.reading import Reading, path_of
from meshtune.runners.programs.table import Table, lines, table_of
from meshtune.search_spaces.knob_values import word

ENDINGS = (".yaml", ".yml", ".json")
# Keys that are asked about one by one; of more of them the names alone are told.
_MAX_ASKED = 8
# Files that inherit each other.
_MAX_INHERITED = 20


class ConfigProgram:
    """A program, by the package that has its table."""

    # What an import says of a file that cannot be read.
    instead = ""

    def __init__(self, package: str, variant: str = "") -> None:
        """variant: whose sections of the table hold; "" where the file decides, or there is one."""
        self._variant = variant
        self.table = table_of(package).variant(variant) if variant else table_of(package)
        self._program: Mapping[str, Any] = self.table.lists["program"]
        self._command: Mapping[str, Any] = self.table.lists["command"]
        self._trial: Mapping[str, Any] = self.table.lists.get("trial", {})
        self.title: str = self._program["title"]
        self.config_file: str = self._command["config_file"]

    def plain(self, key: str) -> str:
        """A key as the table has it."""
        return key

    def is_program(self, launch: Launch) -> bool:
        if not re.fullmatch(self._program["script"], launch.script):
            return False
        if "sure" not in self._program:
            return True
        name = next(iter(launch.words), "")
        if name in launch.files:
            return self.is_file(name, launch.files[name])
        started = " ".join((launch.directory, launch.script, name))
        return name.endswith(ENDINGS) and bool(re.search(self._program["sure"], started))

    def is_file(self, name: str, text: str) -> bool:
        found = self._settings(mapping_in(name, text, ENDINGS))
        config = {self.plain(key): value for key, value in found.items()}
        marks = self.table.words("program.marks") & config.keys()
        needs = self._program.get("needs", "").split()
        return len(marks) >= self._program["least"] and all(at(config, key) is not None for key in needs)

    def read_file_text(self, name: str, text: str) -> Imported:
        """Raises CannotRead."""
        document = read_mapping(name, text)
        own, launch = self._settings(document), None
        if own is not document and isinstance(start := document.get("command"), str):
            with suppress(CannotRead):
                launch = find_launch(start)
        if launch is None or launch.questions or not self.is_program(launch):
            return self.imported(own, None, place=name)
        words = [*self.started(launch), f"{{directory}}/{self.config_file}"]
        return self.imported(own, launch, place=name, words=words)

    def _settings(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The program's settings in a file, which may be one of a submitter."""
        inner = document.get(self._program.get("inside", ""))
        return inner if isinstance(inner, Mapping) else document

    def read_launch(self, launch: Launch) -> Imported:
        """The file that a start names, with the words behind it. Raises CannotRead."""
        name = next((word for word in launch.words if word.endswith(ENDINGS)), "")
        if "words" in self._command:
            return self._with_words(launch)
        if "flags" in self._command:
            return self._with_flags(launch, name)
        if not name:
            told = f"{launch.place}: {self.title} is started without the name of a file here ({', '.join(ENDINGS)})"
            instead = "run the script with `meshtune import --capture -- bash SCRIPT`"
            raise CannotRead(f"{told}; {self._program.get('instead', instead)}")
        own, asked = self.file_of(launch, name)
        index = launch.words.index(name)
        more: Sequence[str] = arguments_alone(launch.words[index + 1 :])
        if self._command.get("omegaconf"):
            own, more = overridden(own, more, launch.place)
        elif more:
            asked += f" {as_written(' '.join(more))}: words behind {name}, which may change what it says; do they?"
        before = map(literal, launch.words[:index])
        words = [*self.started(launch), *before, f"{{directory}}/{self.config_file}", *more]
        return self.imported(own, launch, place=launch.place, words=words, asked=asked)

    def _with_flags(self, launch: Launch, name: str) -> Imported:
        """The file's keys with the flags laid over them; without a file, the flags are the file."""
        option = self._command["flags"]
        given, loose = read_arguments(arguments_alone(launch.words))
        before = [word for word in loose if word != name]
        flags = nested({key[2:]: values for key, values in given.items() if key != option})
        file, asked = self.file_of(launch, name) if name else ({}, "")
        own = merged(file, flags)
        words = [*self.started(launch), *map(literal, before), *option.split(), f"{{directory}}/{self.config_file}"]
        return self.imported(own, launch, place=launch.place, words=words, asked=asked, dump={"words": before})

    def _with_words(self, launch: Launch) -> Imported:
        """The words over a file's keys, which stay the user's own. Raises CannotRead."""
        given = arguments_alone(launch.words)
        if self._command["words"] == "flags":
            flags, loose = read_arguments(given)
            said, rest = nested({name[2:]: values for name, values in flags.items()}), list(loose)
        else:
            found = [(word, OVERRIDE.fullmatch(word)) for word in given]
            said, rest = {}, [word for word, match in found if match is None]
            if {"-m", "--multirun"} & set(rest):
                raise CannotRead(f"{launch.place}: --multirun starts several trainings; choose the values of one")
            for match in (match for _, match in found if match is not None):
                said = merged(said, nested({match[1]: (match[2],)}))
        own: Mapping[str, Any] = {}
        asked = ""
        named = next((word.rpartition("=")[2] for word in rest if word.endswith(ENDINGS)), "")
        beside = self._program.get("file", "")
        if name := named or (beside and str(PurePosixPath(launch.script).parent / beside)):
            try:
                own, asked = self.file_of(launch, name)
            except CannotRead:
                asked = (
                    f"{as_written(name)} is not there, and stays: does it say more of batch, devices or parallelism?"
                )
        words = [*self.started(launch), *map(literal, given)]
        dump = {"words": [launch.script, *rest]}
        return self.imported(merged(own, said), launch, place=launch.place, words=words, asked=asked, dump=dump)

    def started(self, launch: Launch) -> list[str]:
        """The words that start the program, as templates."""
        script = re.fullmatch(self._program["script"], launch.script)
        own = script.expand(self._command.get("program", "")) if script else ""
        return own.split() or program_words(launch)

    def delivered(
        self, own: Mapping[str, Any], settings: Mapping[str, Any], trial: Mapping[str, Any], words: Sequence[str]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The words of the start, and options of the workload: what plans set, and trials alone, is in the file, as the
        user has it; or takes the place of the user's words."""
        if "words" not in self._command:
            trial_ = {"trial": dict(trial)} if trial else {}
            file = {"format": "yaml", "base": dict(own), "set": dict(settings), **trial_}
            return words, {"configs": {self.config_file: file}}
        if not words:
            return words, {}
        dashes = "--" if self._command["words"] == "flags" else ""
        told = {f"{dashes}{name}": value for name, value in settings.items()}
        alone = {f"{dashes}{name}": value for name, value in trial.items()}
        # A choice of words is one element of the command.
        chosen = [
            {axis: {value: f"{name}={word(text)}" for value, text in texts.items()}}
            for name, choice in told.items()
            for axis, texts in (choice.items() if isinstance(choice, Mapping) else ())
        ]
        plain = {name: None if isinstance(value, Mapping) else value for name, value in told.items()}
        # What a trial says itself need not be known here.
        unknown = [name for name, group in groups(words) if name in alone and not all(map(is_known, group))]
        words = laid_over(words, dict.fromkeys([*told, *unknown]) | dict(lines(plain)))
        return [*words, *chosen], {"trial_arguments": alone} if alone else {}

    def file_of(self, launch: Launch, name: str, depth: int = 0) -> tuple[dict[str, Any], str]:
        """The keys of a file that a start names, and a question where it is not at its place. depth: of files above
        that inherit it. Raises CannotRead."""
        text, told = text_of_any(launch, name, f"{self.title} is started with", self.instead)
        own = read_mapping(name, text)
        inherited = own.pop(self._command.get("inherits", ""), [])
        base: dict[str, Any] = {}
        for each in [inherited] if isinstance(inherited, str) else inherited:
            if depth == _MAX_INHERITED:
                raise CannotRead(f"{name} inherits without an end")
            found, more = self.file_of(launch, f"{PurePosixPath(name).parent}/{each}", depth + 1)
            base, told = merged(base, found), " ".join(filter(None, (told, more)))
        # A section may take the place of the inherited one.
        alone = [key for key, value in own.items() if isinstance(value, Mapping) and value.get("_override_")]
        return merged({key: value for key, value in base.items() if key not in alone}, own), told

    def imported(
        self,
        own: Mapping[str, Any],
        launch: Launch | None,
        *,
        place: str,
        words: Sequence[str] = (),
        asked: str = "",
        dump: Mapping[str, Any] | None = None,
    ) -> Imported:
        """own: the user's settings. words: of the start, as templates. asked: a question of it. dump: what the program
        made of the settings; None: it is not known."""
        spelled = {self.plain(key): key for key in own}
        said = {self.plain(key): value for key, value in own.items()}
        there = resolved(said) if self._command.get("omegaconf") else said
        places = self.table.lists.get("places", {})
        reading = Reading({**there, **(dump or {})}, place=place, places=places, script=launch.script if launch else "")
        if asked:
            reading.ask("", asked.strip())
        choose = self._program.get("variant")
        variant = self.table.special(choose)(reading) if choose else self._variant
        table = self.table.variant(variant)
        if launch is not None:
            counts = {"nodes": launch.nodes, "devices_per_node": launch.devices_per_node}
            # A program that starts its ranks itself has numbers of its own.
            rows = {name: row for name, row in table.fields.items() if name in counts}
            own_counts = {name for name, row in rows.items() if isinstance(reading.get(row.names[0]), int)}
            reading.fields |= {name: count for name, count in counts.items() if count and name not in own_counts}
            if not own_counts and launch.nodes and launch.devices_per_node:
                reading.devices = launch.nodes * launch.devices_per_node
        self._ask_unknown(reading, said, variant)
        if shapes := table.lists.get("shapes"):
            read_shapes(reading, shapes)
        table.read(reading)
        # A degree that the program has no word for.
        none = {axis: 1 for axis in ("tp", "pp", "cp") if axis not in table.fields}
        reading.fields |= none
        solve(reading, {})
        space: dict[str, Any] = {}
        if "micro_batch_size" in reading.kept:
            # Then accumulation has one value too.
            reading.kept["grad_accum_steps"] = reading.fields.get("grad_accum_steps")
            space["micro_batch_size"] = [reading.kept["micro_batch_size"]]
        reading.fields = {name: value for name, value in reading.fields.items() if name not in none}
        _ask_batch(table, reading)
        table.remark(reading)
        log = dict(table.lists.get("log", {}))
        if question := log.pop("ask", ""):
            reading.ask("workload.log", " ".join(question.split()))
        settings, fixed = table.told(reading, Reading(there))
        trial: Mapping[str, Any] = table.lists.get("trial", {})
        alone = {key: value for key, value in trial.get("set_there", {}).items() if holds(said, key)}
        alone |= {key: value for key, value in trial.get("set", {}).items() if not of_plan(value)}
        settings |= {key: value for key, value in trial.get("set", {}).items() if of_plan(value)}
        if removed := [key for key in trial.get("removed", "").split() if holds(said, key)]:
            reading.note(f"{', '.join(removed)}: taken out for trials, which evaluate, load and leave nothing")
        alone |= dict.fromkeys(removed)
        if special := trial.get("special"):
            alone |= table.special(special)(reading)

        def spell(settings: Mapping[str, Any]) -> dict[str, Any]:
            parts = [(key.partition("."), value) for key, value in settings.items()]
            return {spelled.get(first, first) + dot + rest: value for (first, dot, rest), value in parts}

        words, more = self.delivered(own, spell(settings), spell(alone), words)
        command: Mapping[str, Any] = table.lists["command"]
        options = command_options(reading, launch, words, command["example"])
        workload = {
            **options,
            "env": {**options.get("env", {}), **command.get("env", {})} or None,
            "start": command.get("start"),
            **more,
            "fixed": fixed or None,
            "log": log or None,
            "framework": command["framework"].format_map({"dtype": reading.fields.get("dtype") or "bfloat16"}),
            "dtype": reading.fields.get("dtype"),
            "steps": command.get("steps"),
            "warmup_steps": command.get("warmup_steps"),
        }
        notes = (*(launch.notes if launch else ()), *reading.notes)
        catalogs = tuple(table.lists["program"].get("catalogs", "").split())
        return reading.imported(workload, space=space, notes=notes, catalogs=catalogs, given=there)

    def _ask_unknown(self, reading: Reading, said: Mapping[str, Any], variant: str) -> None:
        """Keys that the program is not known to have."""
        lists: Mapping[str, Any] = self.table.lists.get("keys", {})
        below: Mapping[str, str] = lists.get(variant, {})
        named = {*self.table.every_name, *self._trial.get("removed", "").split()}
        named |= {*self._trial.get("set", {}), *self._trial.get("set_there", {})}
        named |= {*lists.get("known", "").split(), *lists.get("derived", "").split()}
        named |= {f"{section}.{key}" for section, keys in below.items() for key in keys.split()}
        unknown: list[str] = []
        for section in (*([""] if "known" in lists else []), *below):
            prefix, found = (f"{section}.", at(said, section)) if section else ("", said)
            known = {name.removeprefix(prefix).partition(".")[0] for name in named if name.startswith(prefix)}
            unknown += [f"{prefix}{key}" for key in (found if isinstance(found, Mapping) else ()) if key not in known]
        if unknown:
            more = f" and {len(unknown) - _MAX_ASKED} more" if len(unknown) > _MAX_ASKED else ""
            told = f"no key that {self.title} is known to have; do they change the model, the batch or speed?"
            reading.ask("", f"{', '.join(unknown[:_MAX_ASKED])}{more}: {told}")


def _ask_batch(table: Table, reading: Reading) -> None:
    """The numbers of the batch that are not said and follow from nothing."""
    missing = [field for field in ("micro_batch_size", "global_batch_size") if reading.fields.get(field) is None]
    for field in missing:
        if not reading.is_asked(path_of(field)):
            rows = [table.fields[each].names[0] if each in table.fields else each for each in missing]
            names = " or ".join(rows)
            open_ = len(missing) == 1 and "dp" not in reading.fields
            told = "it follows from the devices, which are not known" if open_ else "fill in what training uses"
            reading.ask(path_of(field), f"{names} is not said; {told}")
