"""Draws the README's picture from a real campaign: `python docs/site/picture.py HOME CAMPAIGN docs/images/demo.svg`."""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.cli.render import display, winners
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import recommend
from meshtune.tuner.store import Store


def main(home: str, campaign_id: str, target: str) -> None:
    """Write the SVG of what `meshtune run` prints for the campaign."""
    console = Console(record=True, width=132, file=StringIO(), force_terminal=True)
    with Store.open(Home(Path(home).absolute()).database_url) as store:
        campaign, trials = store.campaign(campaign_id), store.trials(campaign_id)
    console.print(f"[bold]$ meshtune run examples/{campaign.spec.name}.yaml[/bold]")
    for trial in trials:
        console.print(display.trial_line(trial), highlight=False)
    console.print(f"{campaign.id} is {campaign.state}: {campaign.reason}", highlight=False)
    console.print(display.best_table(campaign, rank(campaign, trials), 8))
    console.print(winners.recommendation_text(recommend(campaign, trials)))
    svg = console.export_svg(title="meshtune")
    # The fonts' web addresses: a picture in a repository should ask nobody for anything.
    Path(target).write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:4])
