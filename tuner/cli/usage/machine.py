"""`doctor` and `cluster probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import DEFAULT_HOME, HomeOption, JsonOption

app = typer.Typer()
cluster_app = typer.Typer(no_args_is_help=True, help="Describe the cluster that jobs run on.")
app.add_typer(cluster_app, name="cluster")


@app.command()
def doctor(
    skip_self_test: Annotated[
        bool, typer.Option("--skip-self-test", help="Only look: run no campaign, which takes up to a minute.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Show what this machine or allocation is, test the tuner on it, and list what would go wrong."""
    commands.doctor.doctor(home, skip_self_test=skip_self_test, as_json=as_json)


@cluster_app.command()
def probe(
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Time training at its shapes: a preset, or a spec's `model` in a file."),
    ] = None,
    devices_per_node: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Ranks per node; default: the CUDA devices, else 2 to 8 CPU cores."),
    ] = None,
    name: Annotated[str, typer.Option(help="The cluster's name; default: this host's.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here; default: standard output.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if there is one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything measured as JSON.")] = False,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to measure; starting comes on top.")] = 20,
    memory_bytes_per_device: Annotated[
        int | None, typer.Option(min=1, help="Instead of the device's memory, or on CPU of an equal share.")
    ] = None,
) -> None:
    """Measure this machine, or under torchrun or srun this allocation, and write a spec's `cluster` section."""
    commands.cluster.probe(
        model=model,
        devices_per_node=devices_per_node,
        name=name,
        output=output,
        force=force,
        as_json=as_json,
        seconds=seconds,
        memory_bytes_per_device=memory_bytes_per_device,
    )
