"""What a campaign found, in the words of `tuner.results.winners`, as lines of a terminal."""

from __future__ import annotations

from rich.text import Text

from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.campaign.units import number
from meshtune.tuner.results.ranking import Ranked
from meshtune.tuner.results.recommendation import Recommendation
from meshtune.tuner.results.winners import Winners

# Of a campaign of the simulated runner.
SIMULATED = "simulated: nothing below was measured on any device"


def winner_lines(winners: Winners) -> list[Text]:
    """The fastest once, the fastest confirmed, and the recommendation."""
    return [*fastest_lines(winners), recommendation_text(winners.recommendation)]


def fastest_lines(winners: Winners) -> list[Text]:
    """The first two alone; none before anything was measured."""
    lines = list[Text]()
    for name, entry in (("Fastest once", winners.fastest_once), ("Fastest confirmed", winners.fastest_confirmed)):
        if entry is None:
            continue
        baseline = entry.trial.origin is Origin.BASELINE
        gain = ", the baseline" if baseline else f", {entry.gain_text} against the baseline" if entry.gain else ""
        lines.append(Text(f"{name}: {_named(entry)} by {entry.runs_text}{gain}"))
    return lines


def recommendation_text(recommendation: Recommendation) -> Text:
    if recommendation.choice is None:
        return Text(f"No recommendation: {recommendation.reason}.", style="yellow")
    style = "bold green" if recommendation.better else ""
    return Text(f"Recommended: {_named(recommendation.choice)}: {recommendation.reason}.", style=style)


def _named(entry: Ranked) -> str:
    return f"{entry.trial.plan.key} (trial {entry.trial.number}): {number(entry.objective.value)} {entry.unit}"
