"""Programs whose command line says all that trials set, over any file that it names: `a.b=value`, or `--a.b value`.

A table as `config_program` has it, with `words` in [command]. What trials set takes the place of the user's words; the
file stays the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.documents import merged
from meshtune.runners.programs.config_program import ENDINGS, ConfigProgram
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch, read_arguments
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import arguments_alone, literal, nested
from meshtune.runners.programs.dialects.omegaconf import OVERRIDE
from meshtune.runners.programs.launch_words import groups, laid_over
from meshtune.runners.programs.table import lines
from meshtune.search_spaces.knob_values import word


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

    def delivered(
        self, own: Mapping[str, Any], settings: Mapping[str, Any], trial: Mapping[str, Any], words: Sequence[str]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The words with the settings in place of the user's own; None takes a word away."""
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
