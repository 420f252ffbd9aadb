"""The command line.

Exit codes: 0 done, or paused with the reason told; 1 the campaign ended without a measured setting, or `doctor` found
an error; 2 a mistake in what was asked for, or something that meshtune needs and does not get, told in one message; 130
interrupted, and the campaign can be resumed.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from meshtune.runners.base import RunnerError
from meshtune.runners.dialects.base import CannotExpress
from meshtune.runners.registry import MissingExtra, UnknownBackend
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.cli.commands import campaign, cluster, confirm, dashboard, doctor, results, sbatch, service, spec
from meshtune.tuner.cli.common import Refused, console, errors
from meshtune.tuner.results.export import NothingToExport
from meshtune.tuner.results.known_best import NothingKnown
from meshtune.tuner.search.base import SearchError
from meshtune.tuner.service.leases import CampaignBusy
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.store import StoreError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(campaign.run)
app.command()(campaign.resume)
app.command()(campaign.pause)
app.command()(campaign.cancel)
app.command()(campaign.show)
app.command()(campaign.best)
app.command()(results.export)
app.command()(spec.spaces)
app.command()(doctor.doctor)
app.add_typer(cluster.cluster_app, name="cluster")
app.add_typer(service.token_app, name="token")
app.add_typer(service.db_app, name="db")
# In an app of their own, so that `--help` lists them after the groups.
more = typer.Typer()
more.command()(spec.estimate)
more.command()(spec.project)
more.command()(results.analyze)
more.command()(results.recommend)
more.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(sbatch.sbatch)
more.command()(confirm.confirm)
more.command()(results.rerun)
more.command()(results.revalidate)
more.command("import")(spec.import_)
more.command()(service.serve)
more.command("open")(dashboard.open_)
app.add_typer(more)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(version("meshtune"))
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the fastest way to lay one training job over one cluster."""


# Errors that a user can mend; any other is a defect of ours and keeps its traceback.
USER_ERRORS = (
    *(Refused, InvalidValue, InvalidSpec, StoreError, RunnerError, SearchError, UnknownBackend, MissingExtra),
    *(CampaignBusy, NothingToExport, NothingKnown, CannotExpress, OSError),
)


def main() -> None:
    """The entry point of the `meshtune` command."""
    try:
        app()
    except USER_ERRORS as error:
        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        errors.print(f"meshtune: {message}", style="red", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
