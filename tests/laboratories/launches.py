"""Starts of training programs, as what a user types: for the readers of dialects."""

from __future__ import annotations

import shlex
from typing import Any

from meshtune.runners.programs.dialects.base import Imported, Launch
from meshtune.runners.programs.dialects.bash.launch import find_launch
from meshtune.runners.programs.megatron.reader import read_launch


def launch_of(command: str, *, files: dict[str, str] | None = None, **changes: Any) -> Launch:
    """The start that a command line is. files: by the names that its words have for them."""
    words = shlex.split(command)
    at = next(index for index, word in enumerate(words) if word.endswith(".py"))
    return Launch(
        **{
            "script": words[at],
            "words": tuple(words[at + 1 :]),
            "place": "line 1",
            "files": files or {},
            "launcher": tuple(words[:at]),
            **changes,
        }
    )


def parse(text: str) -> Imported:
    """What a launch script of Megatron, or a file of its arguments, says."""
    return read_launch(find_launch(text))
