"""Files of a program's configuration, and how a start of it becomes the command of `workload: {kind: command}`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from meshtune.runners.programs.dialects.base import CannotRead, Launch, Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file, read_json, read_yaml

# Runs the lines that set the environment up, then the command.
SETUP_FILE = "setup.sh"


def read_mapping(name: str, text: str) -> dict[str, Any]:
    """A YAML or JSON file of keys. Raises CannotRead."""
    try:
        document = read_json(text) if name.endswith(".json") else read_yaml(text)
    except UnreadableText as error:
        raise CannotRead(f"{name} {error}") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise CannotRead(f"{name} is no mapping of keys")
    return document


def mapping_in(name: str, text: str, endings: tuple[str, ...] = (".yaml", ".yml")) -> dict[str, Any]:
    """As `read_mapping`; empty for another file."""
    with suppress(CannotRead):
        return read_mapping(name, text) if name.endswith(endings) else {}
    return {}


def text_of(launch: Launch, name: str, reads: str, instead: str = "") -> str:
    """The text of a file that a start names, from the launch or from its folder. Raises CannotRead, whose words are:
    `reads` before the name, `instead` behind what else to import."""
    if not is_known(name):
        told = f"{launch.place}: {reads} {as_written(name)}, which is not known here"
        raise CannotRead(
            f"{told}. Next: meshtune import --capture -- bash SCRIPT ARGUMENTS, with those of a real start"
        )
    for known in (name, f"./{name}", PurePosixPath(name).name):
        if known in launch.files:
            return launch.files[known]
    path = Path(launch.directory or ".") / name
    try:
        return read_file(path, SLOW_LIMITS.max_bytes)
    except (OSError, UnreadableText) as error:
        told = f"{launch.place}: {reads} {name}, which cannot be read here ({path}: {error})"
        raise CannotRead(f"{told}; import where the file is{instead}") from None


def text_of_any(launch: Launch, name: str, reads: str, instead: str = "") -> tuple[str, str]:
    """As `text_of`, and where the file is not at its place, of the one of its name below the present folder, with a
    question. Raises CannotRead."""
    try:
        return text_of(launch, name, reads, instead), ""
    except CannotRead:
        if (found := elsewhere(name)) is None:
            raise
        return found


# Files that are looked at for one of a name.
_MAX_LOOKED_AT = 20_000
# Folders of packages, whose files are nobody's own.
_OF_PACKAGES = ("node_modules", "site-packages", "dist-packages")


def elsewhere(name: str) -> tuple[str, str] | None:
    """The text of the one file below the present folder whose path ends as the name does, else of the one of its last
    part; and the question whether it is that file."""
    inner, found, looked = PurePosixPath(name), list[Path](), 0
    for folder, folders, files in os.walk("."):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _OF_PACKAGES)
        looked += len(files)
        if inner.name in files:
            found.append(Path(folder, inner.name))
        if looked > _MAX_LOOKED_AT:
            return None
    ends = [path for path in found if path.parts[-len(inner.parts) :] == inner.parts]
    if len(several := ends or found) != 1:
        return None
    told = f"{name} is not there, and {several[0]} is read in its place; is it that file?"
    return read_file(several[0], SLOW_LIMITS.max_bytes), told


def at(config: Mapping[str, Any] | str, path: str) -> Any:
    """The value at a dotted key; None where it is not there. A config that is the path of a file is not looked into."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(document: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Each value by its dotted key."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def placed(document: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The document with values at dotted keys, None being a value like others there."""
    result = dict(document)
    for key, value in settings.items():
        first, dot, rest = key.partition(".")
        below = result.get(first)
        result[first] = placed(below if isinstance(below, Mapping) else {}, {rest: value}) if dot else value
    return result


def nested(values: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The words of flags by their dotted names, as a file would have them; true for a flag without words. A word that
    is not known here stays as it is."""
    found: dict[str, Any] = {}
    for name, words in values.items():
        read = [read_value(word) for word in words]
        found = placed(found, {name: True if not read else read[0] if len(read) == 1 else read})
    return found


def read_value(word: str) -> Any:
    """A word as YAML reads it; a text where it is none."""
    with suppress(UnreadableText):
        return read_yaml(word) if word and is_known(word) else word
    return word


# A script's own arguments, of which a trial has none; they are asked about where the script is read.
OF_SCRIPT = ("$@", "$*", "${@}", "${*}", '"$@"', '"$*"')


def arguments_alone(words: Sequence[str]) -> list[str]:
    """The words but for those that stand for arguments of the script itself."""
    return [word for word in words if is_known(word) or as_written(word) not in OF_SCRIPT]


def holds(config: Mapping[str, Any], path: str) -> bool:
    """Whether the key is there, be it null."""
    section, _, key = path.rpartition(".")
    holder = at(config, section) if section else config
    return isinstance(holder, Mapping) and key in holder


# Placeholders of what a trial is.
_OF_TRIAL = re.compile(r"\{(?:steps|directory|name)\}")


def of_plan(value: Any) -> bool:
    """Whether what a table sets says a plan; else it holds in trials alone."""
    texts = value if isinstance(value, list | tuple) else [value]
    return any("{" in str(text) and not _OF_TRIAL.search(str(text)) for text in texts)


def literal(text: str) -> str:
    """A text that has no placeholders, as a template."""
    return text.replace("{", "{{").replace("}", "}}")


def command_options(reading: Remarks, launch: Launch | None, words: Sequence[Any], example: str) -> dict[str, Any]:
    """The kind and the options of the workload that say how the program starts.

    words: the program and its arguments, templates and choices; their files are in the job's folder. launch: where the
    start was read; None: from a file alone, and the command is asked. example: a command to answer with."""
    if launch is None:
        reading.ask("workload.command", f"the file does not say how it is started; such as: {example}")
        return {"kind": "command"}
    unknown = [word for word in words if isinstance(word, str) and not is_known(word)]
    if unknown:
        names = ", ".join(map(as_written, unknown))
        reading.ask(
            "workload.command", f"what {names} stands for is not known here; write the words that training starts with"
        )
    found: dict[str, Any] = {"kind": "command", **({} if unknown else {"command": list(words)})}
    if launch.setup:
        lines = ["# The environment of the command that follows as arguments.", *launch.setup, 'exec "$@"']
        found["files"] = {SETUP_FILE: literal("".join(f"{line}\n" for line in lines))}
        if not unknown:
            found["command"] = ["bash", "-l", f"{{directory}}/{SETUP_FILE}", *words]
    found["working_directory"] = launch.directory or "."
    if not launch.directory:
        reading.note("workload.working_directory is the folder where meshtune runs: the start does not say its own")
    if launch.env:
        found["env"] = {name: literal(value) for name, value in launch.env.items()}
    return found


def program_words(launch: Launch) -> list[str]:
    """The program as Python starts it, as templates."""
    script = launch.script
    return ["python", *(["-m", literal(script[3:])] if script.startswith("-m ") else [literal(script)])]
