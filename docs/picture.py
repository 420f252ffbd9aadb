"""Draws the README's picture from a real campaign: `python docs/picture.py HOME CAMPAIGN docs/demo.svg`."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from tuner import display
from tuner.paths import Home
from tuner.recommend import rank, recommend
from tuner.store import Store


def main(home: str, campaign_id: str, target: str) -> None:
    """Write the SVG of what `meshtune run` prints for the campaign."""
    console = Console(record=True, width=132, quiet=True, force_terminal=True)
    with Store.open(Home(Path(home).absolute()).database_url) as store:
        campaign, trials = store.campaign(campaign_id), store.trials(campaign_id)
    console.print(f"[bold]$ meshtune run examples/{campaign.spec.name}.yaml[/bold]")
    for trial in trials:
        console.print(display.trial_line(trial), highlight=False)
    console.print(f"{campaign.id} is {campaign.state}: {campaign.reason}")
    console.print(display.best_table(campaign, rank(campaign, trials), 8))
    console.print(display.recommendation_text(recommend(campaign, trials)))
    console.save_svg(target, title="meshtune")


if __name__ == "__main__":
    main(*sys.argv[1:4])
