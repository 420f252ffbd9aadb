"""What a campaign found, in the words of `tuner.results.winners`, as lines of a terminal."""

from __future__ import annotations

from rich.text import Text

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.campaign.units import number
from meshtune.tuner.results.recommendation import Recommendation
from meshtune.tuner.results.winners import Winners

# Of a campaign of the simulated runner.
SIMULATED = "simulated: nothing below was measured on any device"


def winner_lines(campaign: Campaign, found: Winners) -> list[Text]:
    """The fastest once, the fastest confirmed, and the recommendation."""
    return [*fastest_lines(campaign, found), recommendation_text(found.recommendation)]


def fastest_lines(campaign: Campaign, found: Winners) -> list[Text]:
    """The first two alone; none before anything was measured."""
    unit, lines = yardstick_of(campaign.spec).unit, list[Text]()
    for name, entry in (("Fastest once", found.fastest_once), ("Fastest confirmed", found.fastest_confirmed)):
        if entry is None:
            continue
        runs = 0 if entry.confirmation is None else entry.confirmation.runs
        by = "by its first run alone" if not runs else f"by {runs} second run{'' if runs == 1 else 's'}"
        baseline = entry.trial.origin is Origin.BASELINE
        gain = ", the baseline" if baseline else f", {entry.gain_text} against the baseline" if entry.gain else ""
        value = f"{number(entry.objective.value)} {unit}"
        lines.append(Text(f"{name}: trial {entry.trial.number}, {entry.trial.plan.key}: {value} {by}{gain}"))
    return lines


def recommendation_text(recommendation: Recommendation) -> Text:
    if recommendation.choice is None:
        return Text(f"No recommendation: {recommendation.reason}.", style="yellow")
    style = "bold green" if recommendation.better else ""
    return Text(f"Recommended: {recommendation.choice.trial.plan.key}: {recommendation.reason}.", style=style)
