"""The command line.

Exit codes: 0 done; 1 the campaign ended without a measured plan, or `doctor` found an error; 2 a mistake in what was
asked for, or something that meshtune needs and does not get, told in one message; 3 the campaign is paused; 75 as 2,
where it may pass by itself, such as a full disk; 130 interrupted. The campaign can be resumed after the last three.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from meshtune.runners.job_files import FULL
from meshtune.search_spaces.checks import UserError
from meshtune.tuner.cli.commands import before, campaigns, cluster, fit, predictions, results, service, studies, tune

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
# In the order of `meshtune --help`.
for group in (tune, fit, before, cluster, predictions, campaigns, results, studies, service):
    app.add_typer(group.app)  # without a name: its commands are ours


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # dear, and for this alone

        sys.stdout.write(f"{version('meshtune')}\n")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the fastest way to lay one training job over one cluster."""


def main() -> None:
    try:
        app()
    except (UserError, OSError) as error:  # any other is a defect of ours and keeps its traceback
        from meshtune.tuner.cli.common import errors  # a command that failed has loaded it

        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        errors.print(f"meshtune: {message}", style="red", soft_wrap=True)
        passing = getattr(error, "transient", False) or getattr(error, "errno", None) in FULL
        sys.exit(os.EX_TEMPFAIL if passing else 2)
    except KeyboardInterrupt:
        sys.exit(130)
