"""The parts of a report on what the trials teach: what matters, failures, and predictions against measurements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from meshtune.runners.outcome import FAILED
from meshtune.search_spaces.changes import knob_words, value_word, words_of
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import measured_word, percent
from meshtune.tuner.results.analysis.analysis import Analysis, Failures
from meshtune.tuner.results.analysis.knob_effects import Evidence
from meshtune.tuner.results.analysis.memory_failures import memory_failures
from meshtune.tuner.results.figures import canvas, progress, settings
from meshtune.tuner.results.report.page import PageTable, Section, drawn

MAX_CULPRITS, MAX_KNOBS = 3, 5


def matter_section(campaign: Campaign, trials: Sequence[Trial], analysis: Analysis) -> Section:
    """Why the best plans win, what changes are worth, which knobs matter, and the best of the two that matter most."""
    prose = [f"Rank {winner.rank}, trial {winner.trial}: {winner.words}." for winner in analysis.winners]
    sure = sorted(
        analysis.effects,
        key=lambda one: (one.evidence is Evidence.PREDICTED, one.gain.low <= 0, one.pairs < 2, -one.gain.low),
    )
    known = analysis.sensitivity
    pictures = [drawn(settings.knob_effects(sure), "What a change of a knob is worth")]
    tables = []
    if known.nothing:
        prose.append(f"Which knobs matter is not known: {known.nothing}.")
    else:
        rows = [(knob_words(one.knob), percent(one.share)) for one in known.importances]
        caption = f"Share of the variance in speed that each knob explains ({known.method} on {known.plans} plans)"
        tables.append(PageTable(columns=("knob", "share"), rows=rows, numbers=frozenset({1}), caption=caption))
        if len(known.importances) > 1:
            across, up = (one.knob for one in known.importances[:2])
            figure = settings.heat_map(campaign, trials, across, up)
            pictures.append(drawn(figure, f"Best of each {knob_words(across)} and {knob_words(up)}"))
    return Section(heading="Why", prose=prose, pictures=pictures, tables=tables)


def failure_section(space: Space, trials: Sequence[Trial], failures: Failures) -> Section:
    """Failures over time, and which knobs cause out-of-memory."""
    if failures.all is None:
        return Section(heading="Failures", prose=["No trial has ended."])
    failed = failures.all
    kinds = ", ".join(f"{n} {canvas.MARKS[end].word}" for end in FAILED if (n := failed.verdicts.get(end)))
    prose = [f"{failed.failed} of {failed.trials} trials failed ({percent(failed.rate)}){kinds and f': {kinds}'}."]
    pictures = [drawn(progress.failures_over_time(failures), "Failures over time")]
    knobs = memory_failures(space, trials)
    if not knobs:
        return Section(heading="Failures", prose=prose, pictures=pictures)
    worst = max(knobs[0].values, key=lambda one: (one.share, one.plans))
    counts = f"{worst.oom} of the {worst.plans} plans that had it"
    prose.append(f"Out of memory goes with {knob_words(knobs[0].knob)} = {value_word(worst.value)} the most: {counts}.")
    culprits = ((knob.knob, one) for knob in knobs for one in knob.culprits)
    for _, one in islice(culprits, MAX_CULPRITS):
        against = f", and the other way round in {one.against}" if one.against else ""
        pairs = "1 pair" if one.pairs == 1 else f"{one.pairs} pairs"
        prose.append(f"All else equal, {words_of((one.change,))} made a plan run out of memory in {pairs}{against}.")
    caption = "Every plan counts once, with all else that it had; only the pairs above differ in one knob alone."
    pictures.append(drawn(progress.out_of_memory_by_knob(knobs), "Out of memory by value of a knob", caption))
    rows = [(knob_words(knob.knob), percent(knob.explained)) for knob in knobs[:MAX_KNOBS]]
    caption = "How much of what ran out of memory and what fitted the value of one knob tells (eta squared)"
    tables = [PageTable(columns=("knob", "explained"), rows=rows, numbers=frozenset({1}), caption=caption)]
    return Section(heading="Failures", prose=prose, pictures=pictures, tables=tables)


def forecast_section(campaign: Campaign, analysis: Analysis) -> Section:
    """What the search expected against what came."""
    heading = f"Predicted against {measured_word(campaign.simulated)}"
    steps, fits = analysis.hindsight.steps, analysis.hindsight.fits
    prose = [] if steps is None else [f"{steps.words(measured_word(campaign.simulated))}."]
    prose += [] if fits is None else [f"{fits}."]
    caption = "As the search expected it when it chose the plan, before it had run."
    picture = drawn(settings.predicted_against_measured(campaign, analysis.hindsight), heading, caption)
    return Section(heading=heading, prose=prose, pictures=[picture])
