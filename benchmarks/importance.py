"""Which importances to trust after few trials: fANOVA and PED-ANOVA against the truth, which the physics knows.

`python benchmarks/importance.py SPEC.yaml [...] [--draws 30]`. The landscape is the predicted speed of the spec's legal
plans that are likely to fit (P(fits) above 50 %). The truth is the variance that each knob explains alone over all of
them. `uniform` draws plans evenly, as a random search does; `searched` draws half of them from the best fifth. Printed:
how often the knob that matters most is named first, and half the sum of the shares' errors (0 is perfect, 1 the worst).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from optuna.importance import (
    BaseImportanceEvaluator,
    FanovaImportanceEvaluator,
    PedAnovaImportanceEvaluator,
    get_param_importances,
)
from rich.console import Console
from rich.table import Table

from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.prediction.predict import foresee, training_of
from meshtune.tuner.results.analysis.knob_importance import study_of
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

Floats = npt.NDArray[np.float64]
LIKELY = 0.5
SIZES = (8, 12, 15, 20)
EVALUATORS: Mapping[str, BaseImportanceEvaluator] = {
    "fANOVA": FanovaImportanceEvaluator(seed=0),
    "PED-ANOVA, best 10 %": PedAnovaImportanceEvaluator(),
    "PED-ANOVA, best 25 %": PedAnovaImportanceEvaluator(target_quantile=0.25),
}


def landscape(spec_file: Path) -> tuple[list[Plan], Floats, list[str]]:
    """The plans that are likely to fit, the logarithms of their speeds, and the knobs in which they differ."""
    spec, space = read_spec(parse_yaml(spec_file.read_text(encoding="utf-8")), None)
    outlook = foresee(training_of(spec), space.columns, UNCALIBRATED)
    likely = np.flatnonzero(outlook.fits > LIKELY)
    plans = [space[int(row)] for row in likely]
    speeds: Floats = np.log(outlook.score[likely] / outlook.fits[likely])
    return plans, speeds, [name for name in space.dimensions if len({getattr(plan, name) for plan in plans}) > 1]


def true_shares(plans: Sequence[Plan], speeds: Floats, knobs: Sequence[str]) -> dict[str, float]:
    """The variance of the mean speed over each knob's values, as shares that add up to 1."""
    explained = {}
    for knob in knobs:
        values = [getattr(plan, knob) for plan in plans]
        groups = [speeds[[one == value for one in values]] for value in set(values)]
        explained[knob] = sum(len(group) * float(np.mean(group) - np.mean(speeds)) ** 2 for group in groups)
    return {knob: part / sum(explained.values()) for knob, part in explained.items()}


def draw(kind: str, speeds: Floats, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Positions of `size` different plans."""
    if kind == "uniform":
        return rng.choice(len(speeds), size, replace=False)
    best = np.argsort(-speeds)[: max(size, len(speeds) // 5)]
    chosen = rng.choice(best, size // 2, replace=False)
    others = np.setdiff1d(np.arange(len(speeds)), chosen)
    return np.concatenate([chosen, rng.choice(others, size - size // 2, replace=False)])


def score(spec_file: Path, draws: int) -> Table:
    """One table: kinds and sizes of samples against evaluators."""
    plans, speeds, knobs = landscape(spec_file)
    truth = true_shares(plans, speeds, knobs)
    shares = ", ".join(f"{knob} {100 * share:.0f} %" for knob, share in sorted(truth.items(), key=lambda one: -one[1]))
    table = Table(title=f"{spec_file.stem}: {len(plans)} plans; in truth {shares}", title_justify="left")
    for name in ("plans", "drawn", *EVALUATORS):
        table.add_column(name)
    rng = np.random.default_rng(0)
    for kind in ("uniform", "searched"):
        for size in (size for size in SIZES if size <= len(plans) // 2):
            found: dict[str, list[tuple[bool, float]]] = {name: [] for name in EVALUATORS}
            for _ in range(draws):
                rows = draw(kind, speeds, size, rng)
                for name, shares_found in _importances([plans[row] for row in rows], speeds[rows], knobs).items():
                    found[name].append(_compared(shares_found, truth))
            cells = [np.mean(pairs, axis=0) for pairs in found.values()]
            table.add_row(str(size), kind, *(f"{100 * first:.0f} %, off by {off:.2f}" for first, off in cells))
    return table


def _importances(plans: Sequence[Plan], speeds: Floats, knobs: Sequence[str]) -> dict[str, dict[str, float]]:
    varied = [knob for knob in knobs if len({getattr(plan, knob) for plan in plans}) > 1]
    study = study_of([{knob: getattr(plan, knob) for knob in varied} for plan in plans], speeds.tolist())
    return {name: get_param_importances(study, evaluator=evaluator) for name, evaluator in EVALUATORS.items()}


def _compared(found: Mapping[str, float], truth: Mapping[str, float]) -> tuple[bool, float]:
    """Whether the first knob is the right one, and how far off the shares are."""
    off = sum(abs(found.get(knob, 0.0) - share) for knob, share in truth.items()) / 2
    return max(found, key=lambda knob: found[knob]) == max(truth, key=lambda knob: truth[knob]), off


def main() -> None:
    parser = argparse.ArgumentParser(description="fANOVA and PED-ANOVA against the truth.")
    parser.add_argument("specs", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=30)
    arguments = parser.parse_args()
    for spec_file in arguments.specs:
        Console(width=140).print(score(spec_file, arguments.draws))


if __name__ == "__main__":
    main()
