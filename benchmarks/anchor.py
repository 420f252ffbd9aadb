"""How well one node's rows predict more nodes: `python benchmarks/accuracy.py TABLE.csv [...] --anchor one-node`.

The rows on one node are the anchors of their device and training code. For each model on more nodes the constants are
fitted to `--calibrate K` (default 8) of the anchors, chosen as `meshtune calibrate` chooses its plans and of the same
model where there are so many, of all models else; and to all of them. Every row on more nodes is scored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import metrics
import numpy as np
from reported import Leaving, NamedCluster, Reported, reported
from rich.console import Console
from rich.table import Table
from scoring import SCORES, Cell, Score, combine
from tables import read_table

from meshtune.search_spaces.physics.constants import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.fitting import calibrate
from meshtune.tuner.search.calibration import MAX_SLOWER, Design, tells_of

ANCHORS = 8
# A model with fewer timed rows on one node is predicted from those of all models.
LEAST_ANCHORS = 8


@dataclass(frozen=True, slots=True)
class Anchored:
    """One model on so many devices. anchors: how many rows of one node were learnt from. of: their models."""

    model: str
    nodes: int
    device: str
    framework: str
    rows: int
    anchors: int
    of: str
    score: Score

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), **asdict(self.score)}


def anchored(
    paths: Sequence[Path], cluster: NamedCluster, family: str | None, count: int
) -> tuple[list[Anchored], tuple[Leaving, ...]]:
    """The scores with no anchor, with `count` and with all. Raises TableError, OSError."""
    reports, left = reported([row for path in paths for row in read_table(path)], cluster, family)
    near: dict[tuple[str, str], list[Reported]] = defaultdict(list)
    far: dict[tuple[str, str, str, int], list[Reported]] = defaultdict(list)
    for one in reports:
        key = (one.training.cluster.device.name, one.training.framework.name)
        if one.training.cluster.nodes > 1:
            far[(*key, one.row.model, one.training.cluster.nodes)].append(one)
        elif one.timed:
            near[key].append(one)
    known: dict[tuple[str, str, str], Mapping[int, Calibration]] = {}
    found: list[Anchored] = []
    for (device, framework, model, nodes), members in sorted(far.items(), key=lambda item: item[0]):
        every = near.get((device, framework), [])
        same = [one for one in every if one.row.model == model]
        anchors, of = (same, model) if len(same) >= LEAST_ANCHORS else (every, "all models")
        if len(anchors) < LEAST_ANCHORS or not any(one.timed for one in members):
            continue
        if (device, framework, of) not in known:
            known[device, framework, of] = fitted(anchors, count)
        cell = Cell(members)
        for learnt, calibration in known[device, framework, of].items():
            score = cell.by(calibration)
            found.append(Anchored(model, nodes, device, framework, len(members), learnt, of, score))
    return found, left


def fitted(anchors: Sequence[Reported], count: int) -> Mapping[int, Calibration]:
    """The constants after none, `count` and all of the anchors, by how many."""
    cell = Cell(anchors)
    chosen = {count: designed(cell, count), len(anchors): np.arange(len(anchors))}
    return {0: UNCALIBRATED} | {learnt: calibrate(cell.observed(at)) for learnt, at in chosen.items()}


def designed(cell: Cell, count: int) -> np.ndarray:
    """The rows that `tuner.search.calibration` would choose before any is measured; they are known to fit."""
    times, peaks = (np.zeros((len(cell.ok), len(UNCALIBRATED.covariance))) for _ in range(2))
    speed = np.zeros(len(cell.ok))
    for group in cell.groups:
        times[group.index], peaks[group.index] = tells_of(group.training, group.columns, UNCALIBRATED)
        expected = estimate(group.training, group.columns)
        # Of all devices of a node, model by model: a larger one is no slower plan.
        speed[group.index] = expected.model_flops_per_device
    fast = speed * MAX_SLOWER >= np.max(speed)
    return np.sort(Design(UNCALIBRATED.covariance).choose((times, peaks), fast, count))


def document(found: Sequence[Anchored]) -> dict[str, Any]:
    """What `--json` writes. summary: by how many anchors (none, chosen, all), each metric its median over models and
    node counts."""
    return {"cells": [one.as_dict() for one in found], "summary": {kind: _medians(of) for kind, of in _kinds(found)}}


def show(found: Sequence[Anchored], left: Sequence[Leaving], console: Console) -> None:
    table = Table(title="one node's rows predict more nodes", title_justify="left")
    for heading in ("model", "nodes", "rows", "anchors", *SCORES):
        table.add_column(heading, justify="left" if heading == "model" else "right", overflow="fold")
    for one in found:
        cells = (one.model, str(one.nodes), str(one.rows), f"{one.anchors} of {one.of}" if one.anchors else "none")
        table.add_row(*cells, *_texts(asdict(one.score)))
    table.add_section()
    for kind, of in _kinds(found):
        table.add_row(f"median of {len(of)}", "", "", kind, *_texts(_medians(of)))
    console.print(table)
    for reason in left:
        console.print(f"left out, {reason.kind}: {reason.rows} rows, first {reason.first}", markup=False)


def _kinds(found: Sequence[Anchored]) -> list[tuple[str, list[Anchored]]]:
    """Without anchors, with those chosen, and with all; each model and node count has the three, in this order."""
    return [(kind, list(found[at::3])) for at, kind in enumerate(("none", "chosen", "all"))]


def _medians(found: Sequence[Anchored]) -> dict[str, float | None]:
    return {name: combine([one.score for one in found], name, metrics.median) for name in SCORES}


def _texts(values: Mapping[str, float | None]) -> list[str]:
    return ["-" if (value := values[name]) is None else f"{value:.3f}" for name in SCORES]
