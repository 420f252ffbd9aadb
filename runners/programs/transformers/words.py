"""A start of Hugging Face's Trainer being read: the script's arguments by name, over those of its file, and how certain
it is that the script is one of the Trainer's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshtune.runners.programs.accelerate.special import Sharding, is_accelerate
from meshtune.runners.programs.dialects.base import Arguments, Launch, read_arguments
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import read_mapping
from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.table import PROGRAMS, Table, programs, table_of

TABLE = table_of(f"{PROGRAMS}.transformers")
# Programs whose tables have its rows and more, by the pattern of their scripts.
_OF_TRAINER: Mapping[str, Table] = {
    table.lists["program"]["script"]: table
    for table in (table_of(f"{PROGRAMS}.{name}") for name in programs())
    if table.lists.get("program", {}).get("rows_of") == TABLE.name
}
_PROGRAM: Mapping[str, str] = TABLE.lists["program"]


@dataclass(slots=True)
class TrainerReading(Reading):
    """given: the script's arguments, and the launcher's without dashes in front. own: those of the command line, which
    trials keep; loose: its words before the first. variant: of the table. launcher: Accelerate's words that stand among
    the script's."""

    launch: Launch = dataclasses.field(kw_only=True)
    own: Arguments = dataclasses.field(kw_only=True)
    loose: tuple[str, ...] = ()
    variant: str = "trainer"
    launcher: Arguments = dataclasses.field(default_factory=dict)
    alone: set[str] = dataclasses.field(default_factory=set)
    sharding: Sharding = dataclasses.field(default_factory=Sharding)

    @property
    def tells_recompute(self) -> bool:
        """Whether the Trainer's --gradient_checkpointing decides what recomputes, and trials tell it."""
        return self.variant != "own" and not self.sharding.recomputes

    @property
    def table(self) -> Table:
        return program_of(self.launch).variant(self.variant)


def program_of(launch: Launch) -> Table:
    """The table of the program that a start is of."""
    return next((table for script, table in _OF_TRAINER.items() if re.fullmatch(script, launch.script)), TABLE)


def arguments_of(words: Sequence[str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments by name, and the words before the first; argparse takes `-` for `_` in HfArgumentParser's names."""
    given, loose = read_arguments(words)
    return {name.replace("-", "_").replace("__", "--", 1): values for name, values in given.items()}, loose


def _in_file(own: Arguments, files: Mapping[str, str], first: str = "") -> Arguments:
    """The arguments in the YAML file of --config, or the one that comes first, which the command line's own count more
    than (TRL's TrlParser). Raises CannotRead."""
    name = first or (own.get("--config") or ("",))[-1]
    if name not in files or not name.endswith((".yaml", ".yml", ".json")):
        return {}
    found = {key: value for key, value in read_mapping(name, files[name]).items() if value is not None}
    listed = {key: value if isinstance(value, list) else [value] for key, value in found.items()}
    return {f"--{key}": tuple(map(str, values)) for key, values in listed.items()}


def variant_of(launch: Launch, names: set[str]) -> str:
    """ "" for a start that does not look like one of the Trainer. names: of its arguments."""
    if re.fullmatch(_PROGRAM["trl"], launch.script):
        return "trl"
    if (table := program_of(launch)) is not TABLE:
        older = "old" if names & set(table.lists["program"].get("old", "").split()) else "new"
        return older if "variants" in table.lists else table.name
    if names & TABLE.words("program.certain") or re.fullmatch(_PROGRAM["script"], launch.script):
        return "trainer"
    looks = len(names & TABLE.words("program.usual")) >= 2 and not names & TABLE.words("program.not_usual")
    return "own" if looks else ""


def is_program(launch: Launch) -> bool:
    """Whether a start is Accelerate's, of whatever script, or of a script of the Trainer, or in its manner."""
    own = arguments_of(launch.words)[0]
    return is_accelerate(launch.launcher) or bool(variant_of(launch, {*own, *_in_file(own, launch.files)}))


def reading_of(launch: Launch) -> TrainerReading:
    """The start's words, with a question for those that may hold more. Raises CannotRead."""
    own, loose = arguments_of(launch.words)
    if program_of(launch) is not TABLE and (first := _in_file(own, launch.files, "".join(loose[:1]))):
        # Its console script makes words of the file's keys, its module does not.
        own, loose = {**{name: values for name, values in first.items() if name != "--ENV"}, **own}, loose[1:]
    given: dict[str, Any] = {**_in_file(own, launch.files), **own}
    variant = variant_of(launch, set(given)) or "own"
    launcher: dict[str, tuple[str, ...]] = {}
    if variant == "trl" and is_accelerate(launch.launcher):
        names = TABLE.words("trl.launcher") | {"accelerate_config"}
        launcher = {name: given[f"--{name}"] for name in sorted(names) if f"--{name}" in given}
        own, given = ({key: each[key] for key in each if key[2:] not in launcher} for each in (own, given))
    reading = TrainerReading(
        given=given, launch=launch, own=own, loose=loose, variant=variant, launcher=launcher, place=launch.place
    )
    stray = [word for values in own.values() for word in values[1:] if not is_known(word)]
    unread = [as_written(word) for word in (*loose, *stray) if not is_known(word)]
    for word in unread:
        told = "it is not known here, and it may hold further arguments; add them to workload.command, or none"
        reading.ask("", f"{word}: {told}")
    config = as_written((own.get("--config") or ("",))[-1])
    if config.endswith((".yaml", ".yml")) and config not in launch.files:
        unread.append(config)
        reading.ask("", f"--config {config} is not there: what it says counts, and is asked for; or import where it is")
    if variant == "own":
        unread.append(f"{launch.script}, which is not known to be a script of the Trainer,")
    reading.more = " ".join(unread)
    return reading
