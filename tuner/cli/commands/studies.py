"""The commands under `meshtune study`: published work repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli.options import DEFAULT_HOME, HomeOption, JsonOption

app = typer.Typer()
study = typer.Typer(no_args_is_help=True)
app.add_typer(
    study,
    name="study",
    rich_help_panel="Studies",
    help="Repeat published work: list the studies, or run one.",
    short_help="Repeat published work, and print its figures beside ours.",
)


@study.command("list")
def list_() -> None:
    """List the studies that come with meshtune."""
    from meshtune.tuner.cli.studying import show

    show()


@study.command()
def run(
    name: Annotated[str, typer.Argument(help="A study of the list, or a folder with a study.yaml.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Its home, and where report.html goes.",
            show_default="HOME/studies/NAME",
        ),
    ] = None,
    runner: Annotated[str, typer.Option(help="Run its jobs there, in place of the simulation.", metavar="KIND")] = "",
    with_: Annotated[
        Path | None,
        typer.Option(
            "--with", metavar="FILE", help="Sections that take the place of every spec's, such as `workload`."
        ),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Run a study's campaigns, and print what was published beside what they found.

    Leaves study.json and report.html in DIR. Called again, it goes on where it was.
    """
    from meshtune.tuner.cli.studying import repeat

    repeat(name, output, home, runner=runner, with_file=with_, as_json=as_json)
