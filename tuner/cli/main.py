"""The command line.

Exit codes: 0 done, or paused with the reason told; 1 the campaign ended without a measured setting, or `doctor` found
an error; 2 a mistake in what was asked for, or something that meshtune needs and does not get, told in one message; 130
interrupted, and the campaign can be resumed.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshtune.tuner.cli.commands import before, campaigns, cluster, predictions, results, service, studies

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
# In the order of `meshtune --help`.
for group in (before, cluster, predictions, campaigns, results, studies, service):
    app.add_typer(group.app)  # without a name: its commands are ours

# Errors that a user can mend, by the modules that define them: what was never loaded has raised nothing. Any other is a
# defect of ours and keeps its traceback.
USER_ERRORS = frozenset(
    {
        "meshtune.runners.base:RunnerError",
        "meshtune.runners.programs.dialects.base:CannotExpress",
        "meshtune.runners.extras:MissingExtra",
        "meshtune.runners.registry:UnknownBackend",
        "meshtune.search_spaces.checks:InvalidValue",
        "meshtune.tuner.campaign.changes:CannotChange",
        "meshtune.tuner.access.quotas:QuotaExceeded",
        "meshtune.tuner.cli.common:Refused",
        "meshtune.tuner.client.errors:ServiceError",
        "meshtune.tuner.results.export:NothingToExport",
        "meshtune.tuner.results.known_best:NothingKnown",
        "meshtune.tuner.search.base:SearchError",
        "meshtune.tuner.service.leases:CampaignBusy",
        "meshtune.tuner.specs.document:InvalidSpec",
        "meshtune.tuner.store.errors:StoreError",
        "builtins:OSError",
    }
)


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
    """The entry point of the `meshtune` command."""
    try:
        app()
    except Exception as error:
        if not is_users(error):
            raise
        from meshtune.tuner.cli.common import errors  # a command that failed has loaded it

        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        errors.print(f"meshtune: {message}", style="red", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def is_users(error: Exception) -> bool:
    return any(f"{each.__module__}:{each.__qualname__}" in USER_ERRORS for each in type(error).__mro__)
