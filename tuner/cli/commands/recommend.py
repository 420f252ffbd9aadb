"""The command `recommend`: the best known plan for a launch, from every campaign in the database."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshtune.runners.documents import plain
from meshtune.tuner.cli.common import Refused, open_service
from meshtune.tuner.cli.options import DEFAULT_HOME, DatabaseOption, HomeOption, JsonOption, print_json
from meshtune.tuner.cli.render.recommendation import recommendation_lines
from meshtune.tuner.cli.render.terminal import console
from meshtune.tuner.results.known_best import (
    MAX_CAMPAIGNS,
    CampaignRecords,
    NothingKnown,
    Question,
    best_measured,
    environment_text,
    software_versions,
)
from meshtune.tuner.results.known_best_projection import best_projected

recommend_app = typer.Typer()


@recommend_app.command()
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
) -> None:
    """Print the best known plan for a model on some nodes of a cluster: measured, or projected and said to be."""
    question = Question(
        model=model,
        cluster=cluster,
        nodes=nodes,
        global_batch_size=global_batch_size,
        workload=workload or None,
        software=software_versions(software),
        simulated=simulated,
    )
    with open_service(home, db) as service:
        records = CampaignRecords(service.store.readable_campaigns(limit=MAX_CAMPAIGNS), service.store.trials)
        try:
            found = best_measured(question, records) or best_projected(question, records)
        except NothingKnown as nothing:
            raise Refused(str(nothing)) from None
    if as_json:
        print_json(plain(found))
    elif as_env:
        sys.stdout.write(environment_text(found))
    else:
        for line in recommendation_lines(found):
            console.print(line, soft_wrap=True)
