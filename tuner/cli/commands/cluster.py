"""The commands under `meshtune cluster`: `probe` measures what it runs on and writes it as a spec's `cluster` section.

Exit codes as the other commands': 2 for what was asked wrongly and for a probe that failed.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli.common import console, errors, print_json

app = typer.Typer()
cluster_app = typer.Typer(no_args_is_help=True, help="Describe the cluster that jobs run on.")
app.add_typer(
    cluster_app,
    name="cluster",
    rich_help_panel="Before a campaign",
    short_help="Measure a machine as a spec's `cluster` section.",
)


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
    from meshtune.runners.json_files import write_whole
    from meshtune.runners.trainer_answers import ProbeRequest, read_launch
    from meshtune.runners.trainer_client import probe as measure
    from meshtune.tuner.cli import cluster_section as sections

    host = socket.gethostname()
    spec = None if model is None else sections.model_named(model)
    launch = read_launch(os.environ, host)
    if output is not None and (launch is None or launch.rank == 0):
        sections.require_writable(output, force=force)
    probed = measure(ProbeRequest(seconds=seconds, devices_per_node=devices_per_node, launch=launch, model=spec))
    if probed is None:
        return
    section = sections.cluster_section(probed, name or host, memory_bytes_per_device)
    text = sections.render_yaml(probed, section)
    if output is not None:
        write_whole(output, text)
    if as_json:
        print_json(sections.as_document(probed, section))
    elif output is None:
        errors.print(sections.tables(probed))
        sys.stdout.write(text)
    else:
        console.print(sections.tables(probed))
        console.print(f"wrote {output}", soft_wrap=True)
