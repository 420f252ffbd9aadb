"""The physics' rows of one task's legal layouts, and of any plans in the same units, knobs included."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from math import inf, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import Columns, FloatColumn, columns_of
from meshtune.search_spaces.columns import rows as columns_at
from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.physics.estimate import log_step
from meshtune.search_spaces.physics.training import Training, with_usual_speeds
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.tuner.search.base import OtherCodes, Task
from meshtune.tuner.search.physics.knob_effects import KnobEffects, part_shares
from meshtune.tuner.search.physics.prior import Matrix, Rows, RowsOf, log_peak_of

# Plans whose slopes are worked out at once.
MAX_SLOPED = 20_000
# Plans whose costs are kept, by the physics with their knobs: some tens of MB.
MAX_KEPT = 100_000


class Catalogue:
    """The physics' rows of one task's legal layouts; with slopes where there are at most MAX_SLOPED. All that a search
    keeps between its asks, since the task alone determines it. knobs: what they can do; None where there are none.
    most_codes: of more combinations of values the physics expects nothing, where all are looked at."""

    def __init__(self, task: Task, rows_of: RowsOf, most_codes: float = inf) -> None:
        self.task = task
        codes = prod(len(task.space.knobs[at].values) for at in task.others.knobs)
        self._others = task.others if codes <= most_codes else OtherCodes()
        self._rows_of = rows_of
        self._away: FloatColumn | None = None
        self._costs: dict[bytes, FloatColumn] = {}
        self.complete = len(task.space) <= MAX_SLOPED
        self.legal = self.physics(task.space.columns, sloped=self.complete)
        self.knobs = KnobEffects.of(task.space.knobs, self._others.knobs) if task.space.knobs.searched else None
        self._shares = None if self.knobs is None else self._shares_of(task.training, task.space.columns)

    def refitted(self, away: FloatColumn) -> Catalogue:
        """With refitted times of all plans so far away from the constants (`rows_of`), by the slopes at these."""
        other = copy(self)
        other._away, columns = away, self.task.space.columns
        other.legal = self.physics(columns, sloped=False, refitted=(self.legal, away))
        return other

    def unseen(self, plans: Sequence[Plan]) -> npt.NDArray[np.int64]:
        """The positions in the space of the layouts of all but these plans."""
        free = np.ones(len(self.task.space), dtype=np.bool_)
        free[[at for plan in plans if (at := self.task.space.find(plan)) is not None]] = False
        return np.flatnonzero(free)

    def at(self, index: npt.NDArray[np.int64], codes: Codes | None = None, *, sloped: bool = True) -> Rows:
        """The rows of the layouts at these positions, with these values of their knobs; with slopes unless there are
        too many."""
        rows = self._layouts(index) if sloped else self.legal.take(index)
        if self.knobs is None or codes is None or self._shares is None:
            return rows
        rows = self._by_code(rows, codes, columns_at(self.task.space.columns, index))
        return self.knobs.attach(rows, codes, self._shares[index])

    def default_codes(self, index: npt.NDArray[np.int64]) -> Codes | None:
        """Of the knobs at their defaults, for the layouts at these positions; None without knobs."""
        return None if self.knobs is None else self.task.space.default_codes[index]

    def rows(self, plans: Sequence[Plan], campaign: int = 0) -> Rows:
        """The rows of any plans, with their slopes. campaign: 0 for the task's own, 1 for the first of its past."""
        rows, shares = self._found(plans, campaign)
        if self.knobs is None or shares is None:
            return rows
        codes = self.task.space.knobs.known_codes(plans)
        rows = rows if campaign else self._by_code(rows, codes, columns_of(plans))
        return self.knobs.attach(rows, codes, shares)

    def _by_code(self, rows: Rows, codes: Codes, columns: Columns) -> Rows:
        """The rows, yet without knobs, with what the physics expects of the code and the recipe that these make."""
        others, constants = self._others, self.task.calibration.constants
        if others.trained is None or not others.knobs or not self.task.training.model.known:
            return rows
        own = codes[:, others.knobs]
        table = np.ascontiguousarray(np.concatenate([np.stack([columns[name] for name in PLAN_FIELDS], 1), own], 1))
        keys = [row.tobytes() for row in table]
        if len(self._costs) > MAX_KEPT:
            self._costs.clear()
        by_values: dict[tuple[int, ...], list[int]] = {}
        for at, key in enumerate(keys):
            if key not in self._costs:
                by_values.setdefault(tuple(own[at].tolist()), []).append(at)
        for values, places in by_values.items():
            some, code = columns_at(columns, np.array(places)), with_usual_speeds(others.trained(values))
            both = log_step(code, some, constants), *log_peak_of(code, some, constants)
            self._costs.update(zip([keys[at] for at in places], np.stack(both, axis=1), strict=True))
        step, peak, engine = np.array([self._costs[key] for key in keys]).reshape(-1, 3).T
        step = step - rows.log_step - rows.log_tokens
        return replace(
            rows,
            log_step=rows.log_step + step,
            log_refitted=rows.log_refitted + step,
            log_stalled=rows.log_stalled + step,
            log_peak=peak,
            engine=engine,
        )

    def _found(self, plans: Sequence[Plan], campaign: int) -> tuple[Rows, Matrix | None]:
        if self.complete and not campaign:
            places = [self.task.space.find_layout(plan) for plan in plans]
            if None not in places:
                index = np.array(places, dtype=np.int64)
                return self.legal.take(index), None if self._shares is None else self._shares[index]
        columns = columns_of(plans)
        shares = None if self._shares is None else self._shares_of(self._training(campaign), columns)
        return self.physics(columns, campaign), shares

    def _layouts(self, index: npt.NDArray[np.int64]) -> Rows:
        if self.complete:
            return self.legal.take(index)
        columns = columns_at(self.task.space.columns, index)
        rows = self.physics(columns)
        return rows if self._away is None else self.physics(columns, sloped=False, refitted=(rows, self._away))

    def physics(self, columns: Columns, campaign: int = 0, **how: Any) -> Rows:
        """As `rows_of`, of plans without knobs."""
        how = {**how, "calibration": self.task.calibration, "per_device": self.task.per_device}
        return self._rows_of(self._training(campaign), columns, campaign, **how)

    def _training(self, campaign: int) -> Training:
        return self.task.past[campaign - 1].training if campaign else self.task.training

    def _shares_of(self, training: Training, columns: Columns) -> Matrix:
        return part_shares(training, columns, self.task.calibration.constants)
