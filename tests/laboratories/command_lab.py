"""The `meshtune` command in this process, which saves the second that another takes to import it."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshtune.tuner.cli.main import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def run_meshtune(folder: Path, *arguments: str | Path) -> Result:
    """What the command says when it is given in this folder."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["meshtune", *map(str, arguments)])
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
    return Result(code, out.getvalue(), err.getvalue())
