"""A start of Hugging Face's Trainer being read: the script's arguments by name, over those of its file, and how certain
it is that the script is one of the Trainer's."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from meshtune.runners.programs.accelerate.special import Sharding, words_of
from meshtune.runners.programs.capture.stand_in import named_files
from meshtune.runners.programs.dialects.base import NOT_KEPT, Arguments, CannotRead, Launch, read_arguments
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.call import launcher_of
from meshtune.runners.programs.dialects.config_import import OF_SCRIPT, mapping_in, read_mapping, text_of_any
from meshtune.runners.programs.dialects.launcher_options import whole
from meshtune.runners.programs.plain.script import script_of
from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.table import PROGRAMS, Table, programs, table_of
from meshtune.runners.untrusted_text import is_there

TABLE = table_of(f"{PROGRAMS}.transformers")
# Programs whose tables have its rows and more, by the pattern of their scripts.
_OF_TRAINER: Mapping[str, Table] = {
    table.lists["program"]["script"]: table
    for table in (table_of(f"{PROGRAMS}.{name}") for name in programs())
    if table.lists.get("program", {}).get("rows_of") == TABLE.name
}
_PROGRAM: Mapping[str, str] = TABLE.lists["program"]
# Of a file's folder and those around it, where the files that it names may be.
_MAX_FOLDERS = 4


@dataclass(slots=True)
class TrainerReading(Reading):
    """given: the script's arguments, and the launcher's without dashes in front. own: those of the command line, which
    trials keep; loose: its words before the first. variant, table: of the program. launcher: Accelerate's words that
    stand among the script's."""

    launch: Launch = dataclasses.field(kw_only=True)
    own: Arguments = dataclasses.field(kw_only=True)
    loose: tuple[str, ...] = ()
    variant: str = "trainer"
    launcher: Arguments = dataclasses.field(default_factory=dict)
    alone: set[str] = dataclasses.field(default_factory=set)
    sharding: Sharding = dataclasses.field(default_factory=Sharding)
    table: Table = dataclasses.field(kw_only=True)

    @property
    def tells_recompute(self) -> bool:
        """Whether the Trainer's --gradient_checkpointing decides what recomputes, and trials tell it."""
        return self.variant not in ("own", "loop", "open_instruct") and not self.sharding.recomputes


def program_of(launch: Launch) -> Table:
    """The table of the program that a start is of."""
    return next((table for script, table in _OF_TRAINER.items() if re.fullmatch(script, launch.script)), TABLE)


def start_of(name: str, text: str) -> Launch | None:
    """The start of the program that a file has the arguments of; None where it is of none."""
    keys = mapping_in(name, text, (".yaml", ".yml", ".json")).keys()
    for program in (table.lists["program"] for table in _OF_TRAINER.values()):
        if "marks" in program and len(keys & set(program["marks"].split())) >= program["least"]:
            folders = [str(folder) for folder in PurePath(name).parents][:_MAX_FOLDERS]
            files = {**named_files([name, *folders], is_file=is_there), name: text}
            return Launch(script=program["started"], words=(name,), place=name, files=files)
    return None


def arguments_of(words: Sequence[str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments by name, and the words before the first; argparse takes `-` for `_` in HfArgumentParser's names."""
    given, loose = read_arguments(words)
    return {name.replace("-", "_").replace("__", "--", 1): values for name, values in given.items()}, loose


def _in_file(own: Arguments, files: Mapping[str, str], first: str = "", empty: str = "") -> Arguments:
    """The arguments in the YAML file of --config, or the one that comes first, which the command line's own count more
    than (TRL's TrlParser). empty: keys that say `None` where they have no value. Raises CannotRead."""
    name = first or (own.get("--config") or ("",))[-1]
    if name not in files or not name.endswith((".yaml", ".yml", ".json")):
        return {}
    found = {
        key: value
        for key, value in read_mapping(name, files[name]).items()
        if value is not None or key in empty.split()
    }
    return {f"--{key}": _words(value) for key, value in found.items()}


def _words(value: Any) -> tuple[str, ...]:
    """A value of a file as the words of an argument."""
    values = value if isinstance(value, list) else [value]
    return tuple(json.dumps(each) if isinstance(each, Mapping | list) else str(each) for each in values)


def variant_of(launch: Launch, names: set[str]) -> str:
    """ "" for a start that does not look like one of the Trainer. names: of its arguments."""
    if (table := program_of(launch)) is not TABLE:
        older = table.lists["program"].get("old")
        return table.name if older is None else "old" if names & set(older.split()) else "new"
    if whose := next((name for name in ("trl", "open_instruct") if re.fullmatch(_PROGRAM[name], launch.script)), ""):
        return whose
    certain = names & TABLE.words("program.certain")
    if re.fullmatch(_PROGRAM["loop_script"], launch.script) or (certain and names & TABLE.words("program.loop")):
        return "loop"
    if certain or re.fullmatch(_PROGRAM["script"], launch.script):
        return "trainer"
    looks = len(names & TABLE.words("program.usual")) >= 2 and not names & TABLE.words("program.not_usual")
    return "own" if looks else ""


def is_program(launch: Launch) -> bool:
    """Whether a start is of a script of the Trainer, or in its manner, or Accelerate's words or file may shard it."""
    own = arguments_of(launch.words)[0]
    by_accelerate = launcher_of(launch.launcher) == "accelerate"
    shards = by_accelerate and words_of(launch.launcher).keys() & TABLE.words("trial.shards")
    variant = variant_of(launch, {*own, *_in_file(own, launch.files)})
    # What only looks like one is a plain command where its source is here and names nothing of the Trainer.
    text = script_of(launch).text if variant == "own" else ""
    return bool(shards or (variant and (not text or re.search(_PROGRAM["source"], text))))


def reading_of(launch: Launch) -> TrainerReading:
    """The start's words, with a question for those that may hold more. Raises CannotRead."""
    own, loose = arguments_of(launch.words)
    table = program_of(launch)
    program = table.lists["program"]
    files, elsewhere = launch.files, ""
    if table is not TABLE and loose:
        if loose[0] not in files and (changed := [asked for asked in launch.questions if loose[0] in asked.text]):
            raise CannotRead(changed[0].text)
        text, elsewhere = text_of_any(launch, loose[0], f"{program['title']} is started with")
        files = {**files, loose[0]: text}
        launch = replace(launch, files=files)
    first = {} if table is TABLE else _in_file(own, files, "".join(loose[:1]), program.get("empty", ""))
    if first and "config" not in program:
        # `key=value` behind the file, as OmegaConf has it.
        pairs = [pair for word in loose[1:] if is_known(word) and (pair := word.partition("="))[1]]
        loose = tuple(word for word in loose[1:] if not is_known(word) or "=" not in word)
        said = {**first, **{f"--{key}": (value,) for key, _, value in pairs}}
        if joined := program.get("joined"):
            said = {name: (joined.join(values),) if values else values for name, values in said.items()}
        # Its console script makes words of the file's keys, and variables of ms-swift's ENV; its module does not.
        found = {
            name: str(value) for text in said.pop("--ENV", ()) for name, value in read_mapping("ENV.json", text).items()
        }
        counts = [whole(found.get(name, "")) for name in ("NNODES", "NPROC_PER_NODE")]
        if any(counts) and PurePath(launch.launcher[0]).name.startswith("python"):
            launch = replace(launch, nodes=counts[0] or 1, devices_per_node=counts[1] or 1)
        launch = replace(launch, env={**{name: found[name] for name in found.keys() - NOT_KEPT}, **launch.env})
        own = {**said, **own}
    given: dict[str, Any] = {**program.get("absent", {}), **first, **_in_file(own, launch.files), **own}
    variant = variant_of(launch, set(given)) or "own"
    launcher: dict[str, tuple[str, ...]] = {}
    if variant == "trl" and launcher_of(launch.launcher) == "accelerate":
        names = TABLE.words("trl.launcher") | {"accelerate_config"}
        launcher = {name: given[f"--{name}"] for name in sorted(names) if f"--{name}" in given}
        own, given = ({key: each[key] for key in each if key[2:] not in launcher} for each in (own, given))
    reading = TrainerReading(
        given=given,
        launch=launch,
        own=own,
        loose=loose,
        variant=variant,
        launcher=launcher,
        table=table.variant(variant),
        place=launch.place,
        script=launch.script,
    )
    if elsewhere:
        reading.ask("", elsewhere)
    stray = [word for values in own.values() for word in values[1:] if not is_known(word)]
    unread = [as_written(word) for word in (*loose, *stray) if not is_known(word)]
    for word in unread:
        told = "it is not known here, and it may hold further arguments; add them to workload.command, or none"
        if word not in OF_SCRIPT:
            reading.ask("", f"{word}: {told}")
    config = as_written((own.get("--config") or ("",))[-1])
    if config.endswith((".yaml", ".yml")) and config not in launch.files:
        unread.append(config)
        reading.ask("", f"--config {config} is not there: what it says counts, and is asked for; or import where it is")
    if variant == "own":
        unread.append(f"{launch.script}, which is not known to be a script of the Trainer,")
    reading.more = " ".join(word for word in unread if word not in OF_SCRIPT)
    return reading
