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
from rich.console import Console, RenderableType

from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.main import main
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


def shown(thing: RenderableType, width: int = 160) -> str:
    """What a terminal of this width shows."""
    out = io.StringIO()
    Console(file=out, width=width, markup=False, emoji=False, highlight=False).print(thing)
    return out.getvalue()


def run_campaign(folder: Path, document: object, root: Path) -> tuple[Result, Campaign, list[Trial]]:
    """Run a campaign by a process that stands in `root`, until nothing of it runs any more."""
    (folder / "campaign.yaml").write_text(yaml.safe_dump(document))
    home = Home(folder / "home")
    command = [sys.executable, "-m", "meshtune.tuner.cli", "run", folder / "campaign.yaml", "--home", home.root]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200, check=False)
    wanted, deadline = str(home.root).encode(), time.monotonic() + 60
    while any(wanted in _command_line(process) for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "the local server goes on"
        time.sleep(0.05)
    with Store.open(home.database_url) as store:
        (campaign,) = store.campaigns(limit=9)
        return Result(done.returncode, done.stdout, done.stderr), campaign, store.trials(campaign.id)


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
