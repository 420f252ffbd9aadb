"""Reads a gpt-neox training: `deepy.py train.py a.yml b.yml`, its YAML files, or the arguments that it prints.

A trial runs it by one merged YAML file, in which the plan's keys stand for the user's."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.programs.config_program import ConfigProgram
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch
from meshtune.runners.programs.dialects.config_import import literal, program_words, read_mapping, text_of
from meshtune.runners.untrusted_text import UnreadableText, read_json, read_literal
from meshtune.search_spaces.checks import raising

_CONFIG = "--megatron_config"
_CAPTURE = "run the script with `meshtune import --capture -- bash SCRIPT`"


class Neox(ConfigProgram):
    """Several files are one, whose keys may have dashes."""

    instead = ", or its log: `meshtune import RUN.log`"

    def plain(self, key: str) -> str:
        return key.replace("-", "_")

    def is_program(self, launch: Launch) -> bool:
        return super().is_program(launch) or any(word.partition("=")[0] == _CONFIG for word in launch.words)

    def read_launch(self, launch: Launch) -> Imported:
        """`deepy.py SCRIPT FILES`, or a process that DeepSpeed started of it. Raises CannotRead."""
        if not super().is_program(launch):
            return self._worker(launch)
        names, words = self._arguments(launch)
        told = f"{self.title} is started with"
        own = self._merged({name: read_mapping(name, text_of(launch, name, told, self.instead)) for name in names})
        hosts = "--hostfile names hosts for DeepSpeed's launcher; trials have nodes of their own: is it right for them?"
        asked = hosts if {"-H", "--hostfile"} & set(words) else ""
        return self.imported(own, launch, place=launch.place, words=[*program_words(launch), *words], asked=asked)

    def is_log(self, text: str) -> bool:
        # Megatron-LM has another head, of 24 dashes.
        return "NeoXArgs." in text and (self.table.lists["dump"]["begins"] in text or "NeoXArgs.from_ymls()" in text)

    def read_log(self, text: str) -> Imported:
        """What the program resolved, and the user's own files, both from its log. Raises CannotRead."""
        values, updated = _dump(text, self.table.lists["dump"])
        return self.imported(self._own(updated), None, place="the log", dump=values)

    def _arguments(self, launch: Launch) -> tuple[list[str], list[str]]:
        """The configuration files that deepy.py would read, and its words with one file in their place."""
        folder, kept, loose = "", list[str](), list[str]()
        words, directory = iter(launch.words), self.table.words("options.directory")
        for word in words:
            name, joined, value = word.partition("=")
            if name in directory | self.table.words("options.passed_on"):
                value = value if joined else next(words, "")
                if name in directory:
                    folder = value
                else:
                    kept += [name, literal(value)]
            elif word.startswith("-"):
                kept.append(literal(word))
            else:
                loose.append(word)
        if loose and PurePosixPath(loose[0]).name in self.table.words("options.not_training"):
            raise CannotRead(f"{launch.place}: deepy.py starts {loose[0]}, which trains nothing")
        if len(loose) < 2:
            told = (
                f"{launch.place}: deepy.py starts with {' '.join(loose) or 'nothing'}: no configuration file is named"
            )
            raise CannotRead(f"{told}; {_CAPTURE}")
        # "enables us to pass in `125M` instead of `125M.yml`"
        names = [word if word.endswith((".yml", ".json")) else f"{word}.yml" for word in loose[1:]]
        placed = [str(PurePosixPath(folder) / name) if folder else name for name in names]
        return placed, [literal(loose[0]), *kept, f"{{directory}}/{self.config_file}"]

    def _worker(self, launch: Launch) -> Imported:
        """A rank that DeepSpeed started: all that differs from the defaults stands in --megatron_config."""
        joined = " ".join(launch.words)
        coded = re.search(rf"{_CONFIG}[= ](\S+)", joined)
        with raising(CannotRead, f"{launch.place}: {_CONFIG} of gpt-neox cannot be read", ValueError):
            config = read_json(base64.b64decode(coded[1] if coded else "", altchars=b"-_", validate=True))
        if not isinstance(config, dict):
            raise CannotRead(f"{launch.place}: {_CONFIG} of gpt-neox is no object")
        return self.imported(self._own(config), None, place=launch.place, dump=config)

    def _own(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """The user's settings among what the program tells; without its files what it tells, but for what it
        derives."""
        files = told.get("config_files")
        if isinstance(files, dict) and files:
            return self._merged({str(name): read_mapping(str(name), str(text)) for name, text in files.items()})
        derived = self.table.words("keys.derived")
        return {key: value for key, value in told.items() if key not in derived}

    def _merged(self, files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """All files as one, in the user's spelling. Raises CannotRead for a key that stands twice, as gpt-neox does."""
        merged: dict[str, Any] = {}
        place: dict[str, str] = {}
        for name, config in files.items():
            for key, value in config.items():
                if before := place.get(self.plain(key)):
                    raise CannotRead(f"{key} stands in {before} and in {name}, which gpt-neox refuses")
                place[self.plain(key)] = name
                merged[key] = value
        return merged


def _dump(text: str, said: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last whole list of arguments, and those of it that differ from their defaults, the user's own among them.
    said: `[dump]` of the table. Raises CannotRead."""
    blocks = [part.partition(said["ends"]) for part in text.split(said["begins"])[1:]]
    line = re.compile(said["line"])
    whole = [list(filter(None, map(line.search, block.splitlines()))) for block, end, _ in blocks if end]
    matches = next(filter(None, reversed(whole)), None)
    if matches is None:
        told = "a log of gpt-neox without its list of arguments (`end of arguments`)"
        raise CannotRead(f"{told}; import the YAML files instead: `meshtune import FILE.yml`")
    values = {match["name"]: _value(match["value"]) for match in matches}
    updated = {match["name"]: values[match["name"]] for match in matches if match["how"] == "updated"}
    # Without the padding, which follows from each plan.
    if entries := re.findall(said["vocab"], text):
        values["padded_vocab_size"] = int(entries[-1])
    return values, updated


def _value(text: str) -> Any:
    """A value as `str` prints it. A text with commas (`split`) is a text, no tuple."""
    try:
        value = read_literal(text)
    except UnreadableText:
        return text
    return text if isinstance(value, tuple | set | bytes) else value


PROGRAM = Neox("meshtune.runners.programs.neox")
