"""What a replay plays: the settings that a table measured of one training, each with what became of it.

A cell is one (model, gpus, seq_len, global_batch) of one training: rows of another cluster or other number formats
cannot be compared with them and make a cell of their own. Rows of one plan are one setting.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from reported import Leaving, NamedCluster, Reported, reported
from tables import CellKey, Status, cell_of, read_table

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.physics.constants import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.base import Observation, PastCampaign, Task
from meshtune.tuner.search.physics.weighing import Hypotheses

# With fewer settings that ran there is little to search.
LEAST_OK = 10
FAILURES: Mapping[Status, Verdict] = {Status.OOM: Verdict.OOM, Status.FAIL: Verdict.CRASHED}


@dataclass(frozen=True, slots=True)
class Cell:
    """outcomes: of every setting, as a search sees it once it has chosen it. merged: rows of a plan that an earlier row
    had. past, calibration: what a search may know beforehand. hypotheses: of the physical search, None: its own."""

    table: str
    key: CellKey
    training: Training
    outcomes: Mapping[Plan, Observation]
    merged: int = 0
    past: tuple[PastCampaign, ...] = ()
    calibration: Calibration = UNCALIBRATED
    hypotheses: Hypotheses | None = None

    @property
    def label(self) -> str:
        return f"{self.key.model}, {self.key.devices} devices, seq {self.key.seq_len}, batch {self.key.global_batch}"

    @property
    def ok(self) -> int:
        """How many settings ran."""
        return sum(seen.score is not None for seen in self.outcomes.values())

    @property
    def best(self) -> float:
        """Tokens per second of the fastest setting."""
        return max(seen.score for seen in self.outcomes.values() if seen.score is not None)

    def task(self, tolerance: float) -> Task:
        """All that a search is told: the settings without their outcomes, the training, and the past."""
        setting = SpaceContext(
            model=self.training.model,
            cluster=self.training.cluster,
            global_batch_size=self.key.global_batch,
            tp_across_nodes=any(plan.tp > self.training.cluster.devices_per_node for plan in self.outcomes),
        )
        space = Space.listed(tuple(self.outcomes), setting)
        return Task(
            space=space, training=self.training, tolerance=tolerance, past=self.past, calibration=self.calibration
        )


@dataclass(frozen=True, slots=True)
class TableCells:
    """One table's cells. read: rows of the table. left: those that cannot be replayed. small: how many cells have too
    few settings that ran."""

    table: str
    read: int
    left: tuple[Leaving, ...]
    cells: tuple[Cell, ...]
    small: int

    @classmethod
    def of(cls, table: str, read: int, left: tuple[Leaving, ...], cells: Sequence[Cell]) -> TableCells:
        """With the cells that can be replayed, and the others counted."""
        large = tuple(cell for cell in cells if cell.ok >= LEAST_OK)
        return cls(table=table, read=read, left=left, cells=large, small=len(cells) - len(large))


def read_cells(path: Path, cluster: NamedCluster = None, family: str | None = None) -> TableCells:
    """The cells of one table. cluster: the preset of all rows; None: by their hardware. Raises TableError, OSError."""
    rows = read_table(path)
    reports, left = reported(rows, cluster, family, guess=True)
    groups: dict[Hashable, list[Reported]] = {}
    for one in reports:
        if _usable(one):
            groups.setdefault((cell_of(one.row), _identity(one.training)), []).append(one)
    cells = [_cell(path.stem, members) for members in groups.values()]
    return TableCells.of(path.stem, len(rows), (*left, *_without_time(reports)), cells)


def read_past(path: Path, cluster: NamedCluster = None, family: str | None = None) -> tuple[PastCampaign, ...]:
    """The rows of a table as earlier campaigns, one per training. Raises TableError, OSError."""
    groups: dict[Hashable, list[Reported]] = {}
    for one in reported(read_table(path), cluster, family, guess=True)[0]:
        if _usable(one):
            groups.setdefault(_identity(one.training), []).append(one)
    return tuple(PastCampaign(training=members[0].training, seen=_seen(members)) for members in groups.values())


def smaller(past: Sequence[PastCampaign], cell: Cell) -> tuple[PastCampaign, ...]:
    """Those of them on the cell's kind of cluster, with fewer devices than the cell has."""
    here = cell.training.cluster
    return tuple(
        one for one in past if one.training.cluster.name == here.name and one.training.cluster.devices < here.devices
    )


def _cell(table: str, members: Sequence[Reported]) -> Cell:
    first, outcomes = members[0], {seen.plan: seen for seen in _seen(members)}
    return Cell(table, cell_of(first.row), first.training, outcomes, merged=len(members) - len(outcomes))


def _seen(members: Sequence[Reported]) -> tuple[Observation, ...]:
    """What became of each plan. All devices and one batch belong to every row, so that two plans of a cell never differ
    only in what follows from the dimensions."""
    plans: dict[Plan, list[Reported]] = {}
    for one in members:
        plans.setdefault(one.plan, []).append(one)
    return tuple(_outcome(plan, rows) for plan, rows in plans.items())


def _outcome(plan: Plan, repeats: Sequence[Reported]) -> Observation:
    """A setting ran if any of its rows did; else it ran out of memory if any did, and crashed otherwise."""
    times = [time for one in repeats if (time := _step_time_s(one)) is not None]
    if not times:
        out_of_memory = any(one.row.status is Status.OOM for one in repeats)
        return Observation(plan=plan, verdict=Verdict.OOM if out_of_memory else Verdict.CRASHED)
    peaks = [peak for one in repeats if (peak := one.peak_memory_bytes) is not None]
    step_time_s = median(times)
    return Observation(
        plan=plan,
        verdict=Verdict.OK,
        score=_tokens(repeats[0]) / step_time_s,
        step_time_s=step_time_s,
        peak_bytes=median(peaks) if peaks else None,
    )


def _step_time_s(one: Reported) -> float | None:
    """Of a run that ended well: as stated, or from the tokens per second; None where neither is."""
    if one.row.status is not Status.OK or not one.telling:
        return None
    if one.row.step_time_s is not None:
        return one.row.step_time_s
    return _tokens(one) / one.row.tokens_per_s if one.row.tokens_per_s else None


def _tokens(one: Reported) -> int:
    return one.plan.global_batch_size * one.training.model.seq_len


def _usable(one: Reported) -> bool:
    return one.row.status is not Status.OK or _step_time_s(one) is not None


def _without_time(reports: Sequence[Reported]) -> tuple[Leaving, ...]:
    rows = [one.row for one in reports if not _usable(one)]
    return (Leaving("ok, but with neither a step time nor tokens/s", len(rows), rows[0].place),) if rows else ()


def _identity(training: Training) -> Hashable:
    # A cluster is told by its preset's name and its size: a ClusterSpec has no hash.
    cluster = training.cluster
    return training.model, training.framework, cluster.name, cluster.nodes, cluster.devices_per_node
