"""The `meshtune` command: in this process, which saves the seconds of importing it again, or in one of its own."""

import io
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from jobs import processes_where
from rich.console import RenderableType

from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.main import main
from meshtune.tuner.cli.render.terminal import Terminal
from meshtune.tuner.store import Store


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


def said(folder: Path, *arguments: str | Path) -> str:
    """What the command prints when all is well."""
    done = run_meshtune(folder, *arguments)
    assert (done.code, done.err) == (0, "")
    return done.out


def refused(folder: Path, *arguments: str | Path) -> str:
    """The one message of a command that is refused."""
    done = run_meshtune(folder, *arguments)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("meshtune: ")
    assert "Traceback" not in done.err
    return done.err


def shown(*things: RenderableType, width: int = 160, soft_wrap: bool = False) -> str:
    """Output on a terminal of this width. soft_wrap: longer lines stay whole."""
    out = io.StringIO()
    for thing in things:
        Terminal(file=out, width=width).print(thing, soft_wrap=soft_wrap)
    return out.getvalue()


def run_campaign(
    folder: Path, document: object, root: Path, timeout_s: float = 200
) -> tuple[Result, Campaign, list[Trial]]:
    """Run a campaign by a process that stands in `root`, until nothing of it runs any more."""
    (folder / "campaign.yaml").write_text(yaml.safe_dump(document))
    home = Home(folder / "home")
    command = [sys.executable, "-m", "meshtune.tuner.cli", "run", folder / "campaign.yaml", "--home", home.root]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout_s, check=False)
    wanted, deadline = str(home.root).encode(), time.monotonic() + 60
    while processes_where(lambda process: wanted in (process / "cmdline").read_bytes()):
        assert time.monotonic() < deadline, "the local server goes on"
        time.sleep(0.05)
    with Store.open(home.database_url) as store:
        (campaign,) = store.campaigns(limit=9)
        return Result(done.returncode, done.stdout, done.stderr), campaign, store.trials(campaign.id)
