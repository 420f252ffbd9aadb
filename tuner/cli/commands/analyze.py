"""The command that looks back: `analyze`, what a campaign's trials teach. Nothing is started and nothing is stored."""

from __future__ import annotations

import typer
from rich.text import Text

from meshtune.tuner.campaign.space import space_of
from meshtune.tuner.cli.common import find_campaign, open_service
from meshtune.tuner.cli.options import DEFAULT_HOME, CampaignId, DatabaseOption, HomeOption, JsonOption, print_json
from meshtune.tuner.cli.render.analysis import analysis_page
from meshtune.tuner.cli.render.terminal import console
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
        print_json(found.document())
        return
    for part in analysis_page(found):
        # Only tables are cut to the width.
        console.print(part, soft_wrap=isinstance(part, Text))
