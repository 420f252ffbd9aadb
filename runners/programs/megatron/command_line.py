"""A command line of Megatron being read: what its words say, and what of it is not known and becomes a question."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from meshtune.runners.programs.dialects.base import Launch, read_arguments
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.megatron.flags import DEEPSPEED_FORKS, Program, closest, flags, forms_of, programs_with
from meshtune.runners.programs.megatron.options import TABLE, Flavour, left_out_of_trials
from meshtune.runners.programs.reading import Reading, path_of
from meshtune.runners.programs.table import Table
from meshtune.search_spaces.plan import PLAN_FIELDS

_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{0,18})?")
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--zero-stage")
# Where `eval` runs a text, these are bash's and no arguments: what is written is cut there.
_REDIRECTION = re.compile(r"\d?(?:>{1,2}|&>{1,2})\S*|<|\|&?|;|&{1,2}")


@dataclass(slots=True)
class CommandLine(Reading):
    """given: the arguments by name, without stray words. programs: those whose parsers have all of the flags. chunks:
    of the model on a pipeline rank, None unknown."""

    launch: Launch = dataclasses.field(kw_only=True)
    programs: frozenset[Program] = dataclasses.field(kw_only=True)
    chunks: int | None = 1

    @property
    def flavour(self) -> Flavour:
        return Flavour.MEGATRON_DEEPSPEED if self.has(*_DEEPSPEED) else Flavour.MEGATRON_LM

    @property
    def through_deepspeed(self) -> bool:
        return self.flavour is Flavour.MEGATRON_DEEPSPEED

    @property
    def table(self) -> Table:
        return TABLE.variant(self.flavour)


def read_command_line(launch: Launch, devices: int | None = None) -> CommandLine:
    """The words of a start by name, with a question for each that no parser of Megatron would take."""
    end = next((at for at, word in enumerate(launch.words) if _REDIRECTION.fullmatch(word)), len(launch.words))
    arguments, loose = read_arguments(launch.words[:end])
    programs = programs_with(arguments)
    kept: dict[str, tuple[str, ...]] = {}
    complaints = [f"{word} stands before the first argument" for word in loose if is_known(word)]
    unread = [as_written(word) for word in loose if not is_known(word)]
    for name, values in arguments.items():
        own, stray = _shared_out(name, values, programs)
        kept[name] = own
        unread += stray
        if not own and all(form.least for form in forms_of(name, programs)) and name in flags():
            # To bash `--vocab-file <FILE> --fp16` is a redirection from FILE and one to --fp16.
            unread.append(f"what follows {name}")
        # What a program printed itself is right by its own parser, and numbers are asked for by their rows.
        forms = forms_of(name, programs) if launch.script else ()
        asked_by_row = name in TABLE.names_of("plan", "model") and any(form.kind == "int" for form in forms)
        wrong = [] if asked_by_row else [form.complaint(own) for form in forms]
        complaints += [f"{as_written(' '.join((name, *own)))}: {name} {wrong[0]}"] if wrong and all(wrong) else []
    line = CommandLine(
        given=kept,
        launch=launch,
        programs=programs,
        more=" ".join(unread),
        devices=devices,
        place=launch.place,
        notes=list(launch.notes),
    )
    for complaint in complaints:
        line.ask("", complaint)
    _ask_for_unknown(line)
    asked = " ".join(question.text for question in launch.questions)
    for word in (word for word in unread if f"`{word}`" not in asked):
        told = "it is not known here, and it may hold further arguments; add them to workload.arguments, or none"
        line.ask("", f"{word}: {told}")
    _ask_for_the_program(line)
    return line


def _shared_out(
    name: str, values: Sequence[str], programs: frozenset[Program]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The values of a flag, and the unknown words after them, which may hold arguments. In a list an unknown word is
    the list's own where it comes first, or after a number: the weight of a data set."""
    most = max((form.most for form in forms_of(name, programs)), default=1)
    own: list[str] = []
    stray: list[str] = []
    for value in values:
        expected = len(own) < most and (most <= 3 or not own or _NUMBER.fullmatch(own[-1]))
        if not is_known(value) and not expected:
            stray.append(as_written(value))
        else:
            own.append(value)
    return tuple(own), tuple(stray)


def unknown_names(names: Iterable[str]) -> list[str]:
    """Those that no parser and no row has, and that trials do not leave out."""
    known = flags().keys() | TABLE.every_name
    return [name for name in names if name not in known and not left_out_of_trials({name: ()})]


def may_be_another(script: str, names: Collection[str]) -> bool:
    """Whether a program that has these arguments may be no Megatron, whose defaults are its own."""
    share, named = TABLE.lists["program"]["unknown_share"], TABLE.lists["program"]["named"]
    return len(unknown_names(names)) > share * len(names) and not re.fullmatch(named, PurePath(script).stem)


def _ask_for_unknown(line: CommandLine) -> None:
    """One question for each field that unknown arguments seem to say, one for others that may matter, and a note."""
    kinds: dict[tuple[str | None, str], list[str]] = {}
    for name in unknown_names(line.given):
        kinds.setdefault(seems(name), []).append(name)
    for (field, more), names in kinds.items():
        written = ", ".join(map(line.written, names))
        told = f"{written} {'is no argument' if len(names) == 1 else 'are no arguments'} of any known Megatron"
        if field is None:
            line.note(f"{told}, kept as written in each trial; predictions know nothing of it")
            continue
        meant = ", ".join(dict.fromkeys(filter(None, map(closest, names))))
        what = f"say what {field} this is" if field else "say what your fork makes of it, or delete it"
        hints = (f"did you mean {meant}?" if meant and not more else "", more)
        line.ask(path_of(field) if field else "", "; ".join(filter(None, (f"{told}: {what}", *hints))))
    if may_be_another(line.launch.script, line.given):
        line.more = f"{line.more} {line.launch.script}, which may be no Megatron,".strip()


def seems(name: str) -> tuple[str | None, str]:
    """The field that an unknown argument seems to say, "" where it may matter otherwise, None where it does not; and
    what a question adds."""
    unknown, written = TABLE.lists["unknown"], name.removeprefix("--").replace("_", "-").lower()
    if kind := next((kind for kind in unknown["means"] if re.search(kind["like"], written)), None):
        return kind.get("field"), kind.get("ask", "")
    if (meant := closest(name)) in TABLE.every_name:
        fields = [row.field for row in TABLE.rows if meant in row.every_name]
        return next((field for field in fields if field.startswith("model.") or field in PLAN_FIELDS), ""), ""
    return "" if re.search(rf"(?:^|-)(?:{'|'.join(unknown['words'].split())})(?=-|$)", written) else None, ""


def _ask_for_the_program(line: CommandLine) -> None:
    """Where no one parser has all of the flags, or only one that trials do not write for."""
    for_trials = {Program.DEEPSPEED, Program.ARGONNE} if line.through_deepspeed else {Program.LM}
    if line.programs & for_trials:
        return
    mapping: Mapping[str, frozenset[Program]] = {
        name: frozenset().union(*(form.programs for form in flags()[name])) for name in line.given if name in flags()
    }
    foreign = [name for name, programs in mapping.items() if not programs & for_trials]
    # Forks share names of flags: one that says nothing of the plan is no sign of the program.
    owners = sorted(frozenset[Program]().union(*(mapping[name] for name in foreign)))
    own = [name for name, programs in mapping.items() if not programs.intersection(owners)]
    if foreign and len(own) > len(foreign) and all(seems(name)[0] is None for name in foreign):
        line.note(f"{', '.join(map(line.written, foreign))}: of {' and '.join(owners)}, kept as written")
        return
    wanted = ", ".join(sorted(for_trials))
    if not foreign:
        foreign = ["these arguments together"]
    theirs = " and ".join(owners) or "no one parser"
    said = f"{', '.join(foreign)}: of {theirs}, not of {wanted}, whose arguments trials write"
    forks = "; for bigscience's use `kind: command`" if Program.BIGSCIENCE in owners else ""
    path = "workload.flavour" if not line.through_deepspeed and set(owners) <= DEEPSPEED_FORKS else ""
    line.ask(path, f"{said}. Say which program it is (flavour megatron-lm or megatron-deepspeed){forks}")
