"""The command that looks back: `analyze`, what a campaign's trials teach. Nothing is started and nothing is stored."""

from __future__ import annotations

import typer

from meshtune.runners.documents import plain
from meshtune.tuner.campaign.space import space_of
from meshtune.tuner.cli.common import find_campaign, open_service
from meshtune.tuner.cli.options import DEFAULT_HOME, CampaignId, DatabaseOption, HomeOption, JsonOption, print_json
from meshtune.tuner.cli.render.analysis import analysis_parts
from meshtune.tuner.cli.render.terminal import print_parts
from meshtune.tuner.results.analysis.analysis import analyse

analysis_app = typer.Typer()


@analysis_app.command()
def analyze(
    campaign: CampaignId, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = ""
) -> None:
    """Say what the trials teach: the knobs that matter, failures, what was expected, why the best plans win."""
    with open_service(home, db) as service:
        chosen = find_campaign(service, campaign)
        trials = service.store.trials(chosen.id)
    found = analyse(chosen, space_of(chosen.spec), trials)
    if as_json:
        print_json(plain(found))
    else:
        print_parts(analysis_parts(found))
