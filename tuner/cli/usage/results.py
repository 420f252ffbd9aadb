"""`export`, `analyze`, `recommend`, `confirm`, `rerun`, `revalidate`, `export-data` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from meshtune.tuner.cli import commands
from meshtune.tuner.cli.usage.options import (
    DEFAULT_HOME,
    CampaignId,
    DatabaseOption,
    HomeOption,
    JsonOption,
    Place,
    ServerOption,
)

app = typer.Typer()
# As `tuner.results.export` has them, which is dear to load (tests/tuner/test_usage.py).
FORMATS = "json, job, megatron, deepspeed, torchtitan, accelerate, slurm, pbs, jobset, trainjob"


@app.command()
def export(
    campaign: CampaignId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")],
    trial: Annotated[
        str,
        typer.Option(help="`recommended`, `fastest-once`, `fastest-confirmed`, `best`, `worst` or a trial's number."),
    ] = "recommended",
    format: Annotated[str, typer.Option(help=f"{FORMATS}, or a package's scheduler; default: json and job.")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="name=value for the format's scheduler or program, such as queue=gpu.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Write a setting as setting.json and as the job file that measures it again, or in another program's words."""
    commands.results.export(campaign, output, Place(home, db, server), trial=trial, format=format, options=option or [])


@app.command()
def analyze(
    campaign: CampaignId,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Say what the trials teach: the knobs that matter, failures, what was expected, why the best plans win."""
    commands.results.analyze(campaign, Place(home, db, server), as_json=as_json)


@app.command()
def recommend(
    model: Annotated[str, typer.Option(help="The model's name, as campaigns or presets have it.")],
    cluster: Annotated[str, typer.Option(help="The cluster's name, as campaigns or presets have it.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes the job gets.")],
    global_batch_size: Annotated[int | None, typer.Option(min=1, help="Default: as it was measured.")] = None,
    workload: Annotated[str, typer.Option(help="The training code; default: the newest campaign's.")] = "",
    software: Annotated[str, typer.Option(help="What the job runs on, such as torch=2.13,cuda=13.0.")] = "",
    simulated: Annotated[bool, typer.Option("--simulated", help="Of simulated campaigns alone.")] = False,
    as_json: JsonOption = False,
    as_env: Annotated[bool, typer.Option("--env", help="Print MESHTUNE_... lines for a shell.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Print the best known plan for a model on some nodes of a cluster: measured, or projected and said to be."""
    commands.results.recommend(
        Place(home, db, server),
        model=model,
        cluster=cluster,
        nodes=nodes,
        global_batch_size=global_batch_size,
        workload=workload,
        software=software,
        simulated=simulated,
        as_json=as_json,
        as_env=as_env,
    )


@app.command()
def confirm(
    campaign: CampaignId,
    spec: Annotated[
        Path, typer.Option("--with", help="YAML with the other program as `workload`, and `runner` if it differs.")
    ],
    trial: Annotated[
        str, typer.Option(help="`recommended`, `fastest-once`, `fastest-confirmed`, `best` or a trial's number.")
    ] = "recommended",
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Measure a setting and the baseline with another program, in a campaign of two trials, and compare again.

    Without a measured baseline the best other plan takes its place. Exit code 0: the setting is faster there too; 1: it
    is not, or was not measured.
    """
    commands.confirm.confirm(campaign, spec, Place(home, db, server), trial=trial, as_json=as_json)


@app.command()
def rerun(
    campaign: CampaignId,
    trials: Annotated[
        list[str] | None, typer.Argument(help="Numbers, or words as of `export --trial`; default: best worst.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Measure settings once more, by fresh jobs, and say whether their order holds.

    Stores nothing; with --server these are second runs of the campaign."""
    commands.results.rerun(campaign, trials or ["best", "worst"], Place(home, db, server))


@app.command()
def revalidate(
    campaign: CampaignId,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Measure the optimum and the best other plan once more, and say whether the optimum still stands.

    Stores nothing; with --server these are second runs of the campaign.

    Exit code 0: it stands; 1: it is slower, fails, or another plan is better now.
    """
    commands.results.revalidate(campaign, Place(home, db, server), as_json=as_json)


@app.command("export-data")
def export_data(
    campaign: CampaignId,
    format: Annotated[Literal["csv", "parquet", "json"], typer.Option(help="json has every step and attempt.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; default: print, but for parquet.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Write the trials of a campaign as a table with a row for each, or the whole campaign as JSON."""
    commands.results.export_data(campaign, Place(home, db, server), format=format, output=output)


@app.command()
def report(
    campaigns: Annotated[list[str], typer.Argument(help="Campaign ids, or `last` for the newest.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")],
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
    server: ServerOption = "",
) -> None:
    """Write campaigns as one HTML file with figures and tables, which needs no network and prints well."""
    commands.results.report(campaigns, Place(home, db, server), output=output)
