"""`spaces`, `calibrate`, `estimate` and `project`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import (
    DEFAULT_HOME,
    LEAST_EFFICIENCY,
    ClusterFileOption,
    DatabaseOption,
    HomeOption,
    JsonOption,
    Place,
    ServerOption,
    SpecFile,
)

app = typer.Typer()
CalibrateOption = Annotated[
    str, typer.Option("--calibrate", help="Learn from what this campaign measured: an id, or `last`.")
]


@app.command()
def spaces(
    spec: SpecFile,
    why: Annotated[str, typer.Option(help="Explain one plan, such as tp=4,zero_stage=1,KNOB=value.")] = "",
    plans: Annotated[bool, typer.Option("--list", help="List every legal plan.")] = False,
    knobs: Annotated[bool, typer.Option("--knobs", help="Say what each knob adds.")] = False,
    cluster: ClusterFileOption = None,
) -> None:
    """Show the space of a spec: how many plans are legal, what rejects the others, why a plan is not legal."""
    commands.predictions.spaces(spec, cluster=cluster, why=why, plans=plans, knobs=knobs)


@app.command()
def calibrate(
    spec: Annotated[Path | None, typer.Argument(help="Campaign spec, YAML.", show_default=False)] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Of the spec's cluster; default: 1.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Of one node, in place of all of it.")] = None,
    trials: Annotated[int, typer.Option(min=3, help="How many at the most.")] = 8,
    cluster: ClusterFileOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured; start nothing.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the stored calibrations.")] = False,
    delete: Annotated[str, typer.Option(metavar="CAMPAIGN", help="Delete a stored calibration.")] = "",
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Measure the physics' constants on one node, and keep them for predictions and searches on any number of nodes.

    Eight short trials of the spec's own training code. They hold for its device, training code and release.
    """
    commands.calibrate.calibrate(
        *(spec, home, db),
        nodes=nodes,
        devices=devices,
        trials=trials,
        cluster=cluster,
        dry_run=dry_run,
        listed=listed,
        delete=delete,
        as_json=as_json,
    )


@app.command()
def estimate(
    spec: SpecFile,
    exact: Annotated[bool, typer.Option("--exact", help="Run the trainer on tensors without memory.")] = False,
    plan: Annotated[str, typer.Option(help="Why not this plan, such as tp=8,zero_stage=1,KNOB=value.")] = "",
    rank: Annotated[
        list[int] | None, typer.Option(min=0, help="With --exact: a rank; default: one per kind of stage.")
    ] = None,
    calibrate: CalibrateOption = "",
    cluster: ClusterFileOption = None,
    model: Annotated[
        str, typer.Option(help="In place of the spec's model: a preset, or a config.json with the spec's seq_len.")
    ] = "",
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Predict what a campaign will meet: plans that fit, the best of them, its cost; or why not one plan.

    With --exact: the peak memory per pipeline stage of one plan (default: the baseline), in seconds to minutes.
    """
    commands.predictions.estimate(
        *(spec, Place(home, db, server)),
        cluster=cluster,
        model=model,
        exact=exact,
        plan=plan,
        ranks=rank or [],
        calibrate=calibrate,
        as_json=as_json,
    )


@app.command()
def project(
    source: Annotated[str, typer.Argument(metavar="CAMPAIGN|SPEC", help="A campaign to learn from, or a spec file.")],
    nodes: Annotated[str, typer.Option(help="Node counts, such as 1,2,4; default: the spec's, doubled 5 times.")] = "",
    plan: Annotated[
        str, typer.Option(help="The same layout on every node count, such as tp=8,pp=16; dp follows from the devices.")
    ] = "",
    wall: Annotated[
        float, typer.Option(min=0.01, max=1, help="The least efficiency that still pays.")
    ] = LEAST_EFFICIENCY,
    tokens: Annotated[float | None, typer.Option(help="Days and device-hours to train on so many.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Predict the best plan, or one layout's time, MFU and efficiency at other node counts, and where scaling ends."""
    commands.predictions.project(
        source, Place(home, db, server), nodes=nodes, plan=plan, wall=wall, tokens=tokens, as_json=as_json
    )
