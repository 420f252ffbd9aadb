"""How much a calibration on one node of a simulated cluster improves predictions for more nodes, over hidden clusters.

`python benchmarks/calibration.py SPEC.yaml [--nodes 1,8,64] [--seeds 5] [--trials 8] [--plans 40] [--json OUT]`: for
each seed of the simulated runner, the errors of time and memory at each node count over the `--plans` plans predicted
best by score and as many drawn evenly, by the default constants and by the calibration, and the share of times inside
the 90 % interval. The truth is the hidden cluster's own, without noise (`runners.schedulers.ground_truth`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from meshtune.runners.schedulers.ground_truth import truth
from meshtune.search_spaces.columns import rows
from meshtune.search_spaces.physics.constants import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.service.calibrations import known_calibration
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.calibrating import calibration_setup
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

# Of the standard normal distribution: 90 % lie within.
NINETY = 1.645


@dataclass(frozen=True, slots=True)
class Score:
    """At one node count with one hidden cluster. Errors: medians of |expected / real - 1|. holds: the share of real
    times inside the 90 % interval. regret: how much slower the plan predicted best really is than the best of the
    scored ones that fits."""

    seed: int
    nodes: int
    calibrated: bool
    time_error: float
    memory_error: float
    holds: float
    regret: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="calibration.py", description="Calibrate on one node, predict more.")
    parser.add_argument("spec", metavar="SPEC.yaml", type=Path)
    parser.add_argument("--nodes", default="1,8,64", help="node counts to predict; default 1,8,64")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--json", metavar="OUT", type=Path)
    given = parser.parse_args(arguments)
    document = parse_yaml(given.spec.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    counts = [int(count) for count in given.nodes.split(",")]
    scores = [
        score for seed in range(given.seeds) for score in scored(document, seed, counts, given.trials, given.plans)
    ]
    show(scores, Console(width=None if sys.stdout.isatty() else 140))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(one) for one in scores], indent=1) + "\n", encoding="utf-8")
    return 0


def scored(document: Mapping[str, Any], seed: int, counts: Sequence[int], trials: int, plans: int) -> Iterator[Score]:
    """The scores of one hidden cluster, before and after its calibration."""
    spec, _ = read_spec({**document, "runner": {**document["runner"], "seed": seed}}, None)
    calibration = calibrated(spec, trials)
    for nodes in counts:
        cluster = replace(spec.cluster, nodes=nodes)
        batch = spec.global_batch_size
        grown = None if batch is None else batch * nodes // spec.cluster.nodes
        there = replace(spec, cluster=cluster, global_batch_size=grown)
        space, training = space_of(there), training_of(there)
        chosen = _chosen(training, space, plans, np.random.default_rng(seed))
        for known in (UNCALIBRATED, calibration):
            yield _score(training, space, chosen, known, seed, nodes, known is calibration)


def calibrated(spec: CampaignSpec, trials: int) -> Calibration:
    """By a campaign of its own, as `meshtune calibrate` runs it. Raises RuntimeError where it stores none."""
    with a_service() as service:
        setup = calibration_setup(spec, trials=trials)
        campaign = service.add(setup.spec, setup.space.counts, drives=True)
        drive_one(Driver(service), service, campaign.id, lambda: None)
        stored, ended = known_calibration(service.store, setup.spec), service.campaign(campaign.id)
        if stored is None or ended.state is not CampaignState.COMPLETED:
            raise RuntimeError(ended.reason)
        return stored.calibration


@contextmanager
def a_service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder, Store.open("sqlite://") as store:
        service = Service(store, Home(Path(folder)))
        try:
            yield service
        finally:
            service.close()


def _chosen(training: Training, space: Space, plans: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of the space: half predicted best by the defaults, half drawn evenly from those that may fit."""
    expected = estimate(training, space.columns)
    best = np.argsort(-expected.tokens_per_s * expected.fits, kind="stable")[:plans]
    fitting = np.flatnonzero(expected.fits >= 0.5)
    return np.union1d(best, rng.choice(fitting, min(plans, len(fitting)), replace=False))


def _score(
    training: Training,
    space: Space,
    chosen: np.ndarray,
    known: Calibration,
    seed: int,
    nodes: int,
    is_calibrated: bool,
) -> Score:
    expected = estimate(training, rows(space.columns, chosen), known)
    real = [truth(training, space[int(row)], seed) for row in chosen]
    step_s = np.array([one.step_s for one in real])
    peak_bytes = np.array([one.peak_bytes for one in real])
    tokens = np.array([space[int(row)].global_batch_size for row in chosen]) / step_s
    runs = peak_bytes <= training.cluster.device.memory_bytes
    first = int(np.argmax(np.where(runs, expected.tokens_per_s * expected.fits, -np.inf)))
    off = np.log(step_s / expected.time.step_s)
    return Score(
        seed=seed,
        nodes=nodes,
        calibrated=is_calibrated,
        time_error=float(np.median(np.abs(expected.time.step_s / step_s - 1))),
        memory_error=float(np.median(np.abs(expected.memory.peak_bytes / peak_bytes - 1))),
        holds=float(np.mean(np.abs(off) <= NINETY * expected.time.log_sd)),
        regret=float(np.max(tokens[runs]) / tokens[first] - 1),
    )


def show(scores: Sequence[Score], console: Console) -> None:
    table = Table(title="medians over hidden clusters (worst)", title_justify="left")
    for heading in ("nodes", "", "time", "memory", "90 % interval holds", "best plan slower by"):
        table.add_column(heading, justify="right")
    for nodes in sorted({score.nodes for score in scores}):
        for known in (False, True):
            found = [score for score in scores if (score.nodes, score.calibrated) == (nodes, known)]
            cells = []
            for name in ("time_error", "memory_error", "holds", "regret"):
                values = [getattr(score, name) for score in found]
                worst = min(values) if name == "holds" else max(values)
                cells.append(f"{100 * float(np.median(values)):.1f} % ({100 * worst:.1f} %)")
            table.add_row(str(nodes), "calibrated" if known else "defaults", *cells)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
