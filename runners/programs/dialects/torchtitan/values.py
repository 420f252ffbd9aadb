"""The values of a torchtitan configuration, taken out one by one, with what is asked for on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead, Question
from meshtune.runners.programs.dialects.torchtitan.config import NotKnown
from meshtune.runners.programs.dialects.torchtitan.keys import Key
from meshtune.search_spaces.checks import MAX_WHOLE

# torchtitan's word for what it chooses itself.
NOT_SAID = -1


@dataclass(slots=True)
class Values:
    """config: what is not taken yet, flat. defaults: whether torchtitan's own hold for what is not said. absent: what
    is not said, where they do not."""

    config: dict[Key, Any]
    defaults: bool = True
    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def ask(self, path: str, text: str) -> None:
        self.questions.append(Question(path, text))

    def value(self, section: str, key: str, default: Any, path: str) -> Any:
        """What is said, else torchtitan's default; None where it is open, which `path` is then asked for."""
        if (section, key) not in self.config:
            if self.defaults or default is None:
                return default
            self.absent.append(path or f"{section}.{key}")
            return None
        value = self.config.pop((section, key))
        if isinstance(value, NotKnown):
            self.ask(path, f"{section}.{key} is {value.written}, which is not known here")
            return None
        return default if value is None else value

    def optional(self, section: str, key: str, default: Any = None) -> Any:
        """What is said, else `default`, which holds in every release that has the key."""
        value = self.config.pop((section, key), default)
        if isinstance(value, NotKnown):
            self.ask("", f"{section}.{key} is {value.written}, which is not known here")
            return default
        return value

    def whole(self, section: str, key: str, default: int | None, path: str) -> int | None:
        """A positive number, or `default`. torchtitan's -1 stands for not said. Raises CannotRead."""
        value = self.value(section, key, default, path)
        if value is None or value == NOT_SAID:
            return default if value == NOT_SAID else None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_WHOLE:
            raise CannotRead(f"{section}.{key}: must be an integer from 1 to {MAX_WHOLE}, not {shown(value)}")
        return value

    def left_or_whole(self, key: str, path: str) -> int | None:
        """A degree, or -1 for the devices that are left. Raises CannotRead."""
        value = self.value("parallelism", key, NOT_SAID, path)
        if value is None or value == NOT_SAID:
            return None if value is None else NOT_SAID
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_WHOLE:
            raise CannotRead(f"parallelism.{key}: must be -1 or from 1 to {MAX_WHOLE}, not {shown(value)}")
        return value
