"""Programs whose command line says all that trials set, over any file that it names: `a.b=value`, or `--a.b value`.

A table as `config_program` has it, with `words` in [command]. What trials set takes the place of the user's words; the
file stays the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshtune.runners.documents import merged
from meshtune.runners.programs.config_program import ConfigProgram
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch, read_arguments
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import arguments_alone, literal, nested
from meshtune.runners.programs.dialects.omegaconf import OVERRIDE

_FILES = (".yaml", ".yml", ".json")


class WordProgram(ConfigProgram):
    """A program, by the package that has its table."""

    def read_launch(self, launch: Launch) -> Imported:
        """Raises CannotRead."""
        given = arguments_alone(launch.words)
        if self._command["words"] == "flags":
            flags, loose = read_arguments(given)
            said, rest = nested({name[2:]: values for name, values in flags.items()}), list(loose)
        else:
            found = [(word, OVERRIDE.fullmatch(word)) for word in given]
            said, rest = {}, [word for word, match in found if match is None]
            for match in (match for _, match in found if match is not None):
                said = merged(said, nested({match[1]: (match[2],)}))
        own: Mapping[str, Any] = {}
        asked = ""
        if name := next((word for word in rest if word.endswith(_FILES)), ""):
            try:
                own, asked = self.file_of(launch, name)
            except CannotRead:
                asked = (
                    f"{as_written(name)} is not there, and stays: does it say more of batch, devices or parallelism?"
                )
        words = [*self.started(launch), *map(literal, given)]
        dump = {"words": [launch.script, *rest]}
        return self.imported(merged(own, said), launch, place=launch.place, words=words, asked=asked, dump=dump)

    def delivered(
        self, own: Mapping[str, Any], settings: Mapping[str, Any], words: Sequence[str]
    ) -> tuple[Sequence[str], Mapping[str, Any] | None]:
        """The words with the settings in place of the user's own; None takes a word away."""
        if not words:
            return words, None
        set_here = {name: value for name, value in settings.items() if value is not None}
        if self._command["words"] == "keys":
            kept = [word for word in words if (key := OVERRIDE.fullmatch(word)) is None or key[1] not in settings]
            return [*kept, *(f"{name}={value}" for name, value in set_here.items())], None
        kept, dropped = list[str](), False
        for word in words:
            if is_known(word) and word.startswith("--"):
                dropped = word[2:].partition("=")[0] in settings
            kept += [] if dropped else [word]
        more = [
            text for name, value in set_here.items() for text in (f"--{name}", *([] if value is True else [str(value)]))
        ]
        return [*kept, *more], None
