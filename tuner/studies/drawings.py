"""What a study's report draws: each a function of campaigns that ran, to a section of the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean, median

from meshtune.runners.outcome import FAILED
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.units import Estimate, measured_word
from meshtune.tuner.results.analysis.knob_effects import by_size, measured_effects
from meshtune.tuner.results.analysis.shapley import METHOD, explain_knobs
from meshtune.tuner.results.figures import settings
from meshtune.tuner.results.figures.searches import Curve, curves_by_search, knob_shares
from meshtune.tuner.results.report.page import PageTable, Section, drawn
from meshtune.tuner.studies.evidence import (
    Evidence,
    Run,
    StepQuantity,
    Unanswered,
    measured_speeds,
    measured_step,
    predicted_step,
    with_failures,
)
from meshtune.tuner.studies.measures import MEASURED, PREDICTED
from meshtune.tuner.studies.study import DrawingKind

# Trials of one share of failures.
WINDOW = 10
MEASURED_RUNS, WITH_FAILURES = "measured runs alone", "a failure counts as the worst run"


def best_so_far(evidence: Evidence) -> Section:
    """Of several searches, by the objective of the first."""
    yardstick = yardstick_of(next(iter(evidence.values()))[0].spec)
    curves = {
        name: [yardstick_of(run.spec).best_so_far(trial.measurement for trial in run.in_order) for run in runs]
        for name, runs in evidence.items()
    }
    figure = curves_by_search("Best so far", yardstick.unit, curves)
    return Section(
        heading="Best so far",
        prose=[
            f"Of {yardstick.objective.words}: the best after each trial, from the first on in which all runs have one."
        ],
        pictures=[drawn(figure, "Best so far, by search")],
    )


def failures(evidence: Evidence) -> Section:
    curves = {name: [_failure_rates(run) for run in runs] for name, runs in evidence.items()}
    figure = curves_by_search(f"Failures: share of the last {WINDOW} trials", "failed, %", curves, whole=True)
    rows = [[name, *_failure_words(runs)] for name, runs in evidence.items()]
    columns = ["search", "trials", "failed", *map(str, FAILED)]
    return Section(
        heading="Failures as the searches go on",
        pictures=[drawn(figure, "Failures over trials, by search")],
        tables=[PageTable(columns=columns, rows=rows, numbers=frozenset(range(1, len(columns))))],
    )


def shapley(evidence: Evidence) -> Section:
    """By measured runs, and as a search is told that knows a failure as the worst run."""
    ways: dict[str, dict[str, list[float]]] = {MEASURED_RUNS: defaultdict(list), WITH_FAILURES: defaultdict(list)}
    for run in (run for runs in evidence.values() for run in runs):
        for way, speeds in ((MEASURED_RUNS, measured_speeds(run)), (WITH_FAILURES, with_failures(run))):
            for knob, share in explain_knobs(run.space, speeds).knobs.items():
                ways[way][knob].append(share)
    figure = knob_shares("What each knob accounts for, by SHAP", ways)
    knobs = list(dict.fromkeys(knob for shares in ways.values() for knob in shares))
    columns = ["knob", *(f"{way}, % of the speed" for way in ways)]
    means = {way: {knob: f"{100 * fmean(one):.1f}" for knob, one in shares.items()} for way, shares in ways.items()}
    rows = [[knob, *(means[way].get(knob, "-") for way in ways)] for knob in knobs]
    return Section(
        heading="Which knobs matter, by SHAP",
        prose=[
            f"{METHOD}, over all coalitions of knobs, of each run of {', '.join(evidence)}. A knob that took one value "
            "in all plans that were measured has no share among them."
        ],
        pictures=[drawn(figure, "Mean absolute SHAP value of each knob")],
        tables=[PageTable(columns=columns, rows=rows, numbers=frozenset({1, 2}))],
    )


def worth(evidence: Evidence) -> Section:
    """Of the run with most pairs of plans that differ in one knob alone."""
    every = (run for runs in evidence.values() for run in runs)
    by_run = [(run, by_size(measured_effects(run.space, measured_speeds(run)))) for run in every]
    run, effects = max(by_run, key=lambda pair: sum(effect.pairs for effect in pair[1]))
    return Section(
        heading="What a change of a knob is worth",
        prose=[f"From pairs of measured plans of {run.campaign.id} that differ in one knob alone."],
        pictures=[drawn(settings.knob_effects(effects), "What a change of a knob is worth")],
    )


def scaling(evidence: Evidence) -> Section:
    """Of the baselines. Weak scaling where the global batches grow with the devices, strong where they are equal."""
    sizes = sorted(evidence.values(), key=lambda runs: runs[0].spec.cluster.devices)
    measured = measured_word(sizes[0][0].campaign.simulated)
    ways = {PREDICTED: _efficiencies(PREDICTED, sizes), measured: _efficiencies(MEASURED, sizes)}
    strong = len({runs[0].spec.global_batch_size for runs in sizes}) == 1
    kind = "Strong scaling" if strong else "Weak scaling"
    batches = "of one global batch" if strong else "of global batches that grow with the devices"
    figure = settings.scaling(ways, f"{kind} of one layout")
    return Section(
        heading=kind,
        prose=[f"The same layout at every size, {batches}: the speed of a device over that at the smallest."],
        pictures=[drawn(figure, kind)],
    )


def _efficiencies(way: str, sizes: Sequence[Sequence[Run]]) -> list[tuple[int, Estimate]]:
    """By number of devices, over the smallest size with the same seed; sizes where no baseline has a speed are left
    out."""
    base: dict[int | None, float] = {}
    efficiencies = []
    for runs in sizes:
        speeds: dict[int | None, float] = {}
        for run in runs[:1] if way == PREDICTED else runs:
            with suppress(Unanswered):
                step = predicted_step(run, "baseline") if way == PREDICTED else measured_step(run, "baseline")
                speeds[run.seed] = StepQuantity.TFLOPS_PER_DEVICE.of(step)
        if not speeds:
            continue
        base = base or speeds
        shares = [speed / base.get(seed, next(iter(base.values()))) for seed, speed in speeds.items()]
        efficiencies.append((runs[0].spec.cluster.devices, Estimate(median(shares), min(shares), max(shares))))
    return efficiencies


DRAWINGS: Mapping[DrawingKind, Callable[[Evidence], Section]] = {
    DrawingKind(of.__name__): of for of in (best_so_far, failures, shapley, worth, scaling)
}


def _failure_rates(run: Run) -> Curve:
    """Of the last trials, once there are so many."""
    failed = [trial.verdict in FAILED for trial in run.ended]
    windows = (failed[max(0, end - WINDOW) : end] for end in range(1, len(failed) + 1))
    return [100 * sum(window) / WINDOW if len(window) == WINDOW else None for window in windows]


def _failure_words(runs: Sequence[Run]) -> list[str]:
    verdicts = [trial.verdict for run in runs for trial in run.ended]
    failed = sum(verdict in FAILED for verdict in verdicts)
    share = f"{failed} ({100 * failed / len(verdicts):.0f} %)" if verdicts else "0"
    return [str(len(verdicts)), share, *(str(verdicts.count(verdict)) for verdict in FAILED)]
