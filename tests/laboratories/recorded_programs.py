"""Programs at the front of PATH that answer as recorded, and tell how they were called."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

# Tells of its call before it does anything that takes time: who waits for 0.2 s only may end it then.
_HEAD = """#!/bin/sh
here={here}
echo "$*" >> "$here.calls"
printf '%s\\n' "$@" > "$here.words"
env > "$here.env"
"""


class Recorded:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """folder: where the programs are made, and what they were told is kept."""
        folder.mkdir()
        self.folder = folder
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def script(self, program: str, text: str) -> None:
        """From now on the program is this text of sh."""
        path = self.folder / program
        path.write_text(f"{_HEAD.format(here=shlex.quote(str(path)))}{text}\n")
        path.chmod(0o755)

    def answer(self, program: str, out: str = "", err: str = "", code: int = 0) -> None:
        for end, text in {"out": out, "err": err}.items():
            (self.folder / f"{program}.{end}").write_text(text)
        self.script(program, f'cat "$here.out"; cat "$here.err" >&2; exit {code}')

    def hang(self, program: str) -> None:
        self.script(program, "exec sleep 60")

    def calls(self, program: str) -> list[str]:
        """The words of every call, in one line each."""
        path = self.folder / f"{program}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def words(self, program: str) -> list[str]:
        """Of the last call."""
        return (self.folder / f"{program}.words").read_text().splitlines()

    def environment(self, program: str) -> str:
        """What the last call saw, a variable a line."""
        return (self.folder / f"{program}.env").read_text()
