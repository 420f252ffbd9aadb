"""The name of the program that a command line starts: its script or module, whatever starts it and with what.

Of the name alone: two scripts of one name in different folders count as one, since people copy a script for each run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from meshtune.runners.programs.capture.stand_in import AROUND, LAUNCH_MODULES, LAUNCHERS, PYTHONS
from meshtune.runners.untrusted_text import UnreadableText, read_words

_SCRIPT = re.compile(r".*\.(?:py|sh|bash)")
# They start or wrap the program that is meant: meshtune's own reporter, gpt-neox's launcher.
_WRAPPERS = frozenset({*LAUNCH_MODULES, "meshtune.runners.report", "deepy.py"} - {"torchtitan.train"})
_STARTERS = frozenset({*LAUNCHERS, *PYTHONS, *AROUND, "sh", "bash", "exec", "env", "{python}"})


def program_of(command: Sequence[str] | str) -> str:
    """The program of a command, or of a text for a shell: the first script, else the module after the first `-m`, else
    the first word that is neither an option, a setting of a variable nor a program that starts others."""
    words = words_of(command)
    for index, word in enumerate(words):
        name = PurePath(word).name
        if word in ("-m", "--module") and words[index + 1 : index + 2] and words[index + 1] not in _WRAPPERS:
            return words[index + 1]
        if _SCRIPT.fullmatch(name) and name not in _WRAPPERS:
            return name
    names = (PurePath(word).name for word in words if not word.startswith("-") and "=" not in word)
    return next((name for name in names if name not in _STARTERS), "")


def words_of(command: Sequence[str] | str) -> Sequence[str]:
    """The words of a command, or of a text for a shell, as far as they can be told apart."""
    if not isinstance(command, str):
        return command
    try:
        return read_words(command, comments=True)
    except UnreadableText:  # an open quote is the shell's to refuse
        return command.split()
