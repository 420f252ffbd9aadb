"""What comes with meshtune: `examples`, `sites`, `knobs` and `study`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import DEFAULT_HOME, HomeOption, JsonOption

app = typer.Typer()
study = typer.Typer(no_args_is_help=True)
app.add_typer(study, name="study", help="Repeat published work: list the studies, or run one.")


@app.command()
def examples(
    name: Annotated[str, typer.Argument(help="The one to write; none: list all.", show_default=False)] = "",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Write `examples/` into this folder.")
    ] = Path(),
) -> None:
    """List the campaigns that come with meshtune, or write one: its spec, and the script that it trains with.

    It is written where the documentation has it, such as examples/demo.yaml, so that its commands work as they stand.
    """
    if name:
        commands.examples.write(name, output)
    else:
        commands.examples.show()


@app.command()
def sites(
    name: Annotated[
        str, typer.Argument(help="The one to show, or a profile's file; none: list all.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the profiles that `runner: {site: NAME}` takes, or show one: each value, its source and how sure it is.

    A site's own lie in ~/.config/meshtune/sites, or the folder that MESHTUNE_SITES names.
    """
    if name:
        commands.sites.show(name, as_json=as_json)
    else:
        commands.sites.list_all(as_json=as_json)


@app.command()
def knobs(
    catalog: Annotated[str, typer.Argument(help="The one to show; none: list all.", show_default=False)] = "",
    as_json: JsonOption = False,
) -> None:
    """List the catalogs that `catalogs: [NAME]` in a spec takes, or show one: each knob, its values, how a job is told,
    its source, and its risk. `catalogs: [CATALOG.KNOB]` takes one knob."""
    commands.knobs.knobs(catalog, as_json=as_json)


@study.command("list")
def list_() -> None:
    """List the studies that come with meshtune."""
    commands.study.show()


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
    commands.study.run(name, output, home, runner=runner, with_file=with_, as_json=as_json)
