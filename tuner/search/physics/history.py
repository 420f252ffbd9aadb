"""A campaign's history, and that of earlier ones, as the physical search reads it: numbers, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

import numpy as np
import numpy.typing as npt

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.base import Observation, PastCampaign, Task
from meshtune.tuner.search.physics.acquisition import Cost, cost_of
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.feasibility import Tried
from meshtune.tuner.search.physics.knob_effects import Scales
from meshtune.tuner.search.physics.prior import Rows, stack

# More observations than this are thinned out: a Gaussian process costs their cube, and the last hundreds say little.
MAX_OBSERVATIONS = 300
# Of all earlier campaigns together, and of each at least.
MAX_PAST = 200
MIN_PAST = 20


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """The history of a task's campaign and of earlier ones."""

    # Plans with a step time, own and earlier ones: log(seconds per token), the weight of each; by campaign.
    measured: Rows
    log_times: FloatColumn
    weights: FloatColumn
    plans: Sequence[Sequence[Plan]]
    # Outcomes for memory.
    tried: Tried
    # Of the measured plans of this campaign that are of use (`Task.kept`); NaN where a peak is unknown.
    own_times: FloatColumn
    own_peaks: FloatColumn
    # The fastest of them, one row.
    best: Rows
    # Plans under way.
    pending: Rows
    # Positions in the space of layouts that were never chosen; with knobs, not at their defaults.
    unseen: npt.NDArray[np.int64]
    # Plans that ran out of memory in this campaign.
    ran_out: Sequence[Plan]
    cost: Cost

    def scaled(self, scales: Scales) -> Trials:
        """With these factors of the knobs' features."""
        return replace(
            self,
            measured=scales.of(self.measured),
            tried=replace(self.tried, rows=scales.of(self.tried.rows)),
            best=scales.of(self.best),
            pending=scales.of(self.pending),
        )

    def first_look(self, count: int) -> Trials:
        """With the fastest and the latest measurements alone, `count` at the most, and with no doubt about the physics'
        constants: for a first look at many plans."""
        kept = _telling(self.log_times, count)
        latest = self.tried.latest(count)
        fewer = replace(latest, rows=flat(latest.rows))
        return replace(
            self,
            measured=flat(self.measured.take(kept)),
            pending=flat(self.pending),
            log_times=self.log_times[kept],
            weights=self.weights[kept],
            tried=fewer,
        )


def read_trials(task: Task, seen: Sequence[Observation], catalogue: Catalogue) -> Trials:
    """The history of a campaign. catalogue: of the task.

    A plan outside of the space teaches like any other. Cancelled and lost ones teach nothing, broken scores neither.
    """
    informative = [one for one in seen if _teaches(one)]
    times = _log_times(task, task.training, informative)
    of_use = np.array([task.is_of_use(one.plan) for one in informative], dtype=np.bool_)
    timed = np.flatnonzero(np.isfinite(times) & of_use)
    fastest = [informative[int(i)].plan for i in timed[np.argsort(times[timed], kind="stable")[:1]]]
    used, weights, parts = list[Observation](), list[float](), list[Rows]()
    log_times: list[FloatColumn] = []
    plans: list[list[Plan]] = []
    most = max(MIN_PAST, MAX_PAST // max(1, len(task.past)))
    for number, past in enumerate((PastCampaign(training=task.training, seen=tuple(informative)), *task.past)):
        learnt = [one for one in past.seen if _teaches(one)]
        teaching = _thinned(task, past.training, learnt, most if number else MAX_OBSERVATIONS)
        parts.append(catalogue.rows([one.plan for one in teaching], number))
        log_times.append(_log_times(task, past.training, teaching))
        plans.append([one.plan for one, known in zip(teaching, np.isfinite(log_times[-1]), strict=True) if known])
        used += teaching
        weights += [past.weight] * len(teaching)
    rows, weight, log_time = stack(parts), np.array(weights), np.concatenate(log_times)
    measured = np.flatnonzero(np.isfinite(log_time))
    return Trials(
        measured=rows.take(measured),
        log_times=log_time[measured],
        weights=weight[measured],
        plans=plans,
        tried=Tried(rows, _log_peaks(used), [one.verdict for one in used if one.verdict is not None], weight),
        own_times=times[timed],
        own_peaks=_log_peaks([informative[int(i)] for i in timed]),
        best=catalogue.rows(fastest),
        pending=catalogue.rows([one.plan for one in seen if one.verdict is None]),
        unseen=catalogue.unseen([one.plan for one in seen]),
        ran_out=[one.plan for one in seen if one.verdict is Verdict.OOM],
        cost=_cost(informative),
    )


def flat(rows: Rows) -> Rows:
    none = np.zeros((len(rows), 0))
    return replace(rows, step_slopes=none, peak_slopes=none, refitted_slopes=none, log_gained=np.zeros(len(rows)))


def _thinned(task: Task, training: Training, informative: Sequence[Observation], most: int) -> list[Observation]:
    """At most so many, two thirds of them measured where there are: the physics is worked out for these alone."""
    times = _log_times(task, training, informative)
    timed, failed = np.flatnonzero(np.isfinite(times)), np.flatnonzero(~np.isfinite(times))
    if len(informative) > most:
        timed = timed[_telling(times[timed], max(2 * most // 3, most - len(failed)))]
        failed = failed[max(0, len(failed) - (most - len(timed))) :]
    return [informative[int(index)] for index in np.sort(np.concatenate([timed, failed]))]


def _log_times(task: Task, training: Training, seen: Sequence[Observation]) -> FloatColumn:
    """Logarithms of seconds per token, of all devices together where the task is per device; NaN for what was not
    measured."""
    devices = [one.plan.world_size if task.per_device else 1 for one in seen]
    tokens = [
        one.plan.global_batch_size * training.model.seq_len / many for one, many in zip(seen, devices, strict=True)
    ]
    return np.log([nan if one.step_time_s is None else one.step_time_s for one in seen]) - np.log(tokens)


def _log_peaks(seen: Sequence[Observation]) -> FloatColumn:
    return np.log([nan if one.peak_bytes is None else one.peak_bytes for one in seen])


def _teaches(one: Observation) -> bool:
    if one.verdict is None or not one.verdict.informative:
        return False
    return one.score is None or (isfinite(one.score) and one.step_time_s is not None)


def _telling(log_times: FloatColumn, most: int) -> npt.NDArray[np.int64]:
    """Positions of at most `most` observations: the fastest third, the latest third, and others evenly, in order."""
    count = len(log_times)
    if count <= most:
        return np.arange(count)
    third = max(1, most // 3)
    chosen = {*np.argsort(log_times, kind="stable")[:third].tolist(), *range(count - third, count)}
    others = [index for index in range(count) if index not in chosen]
    spread = np.linspace(0, len(others) - 1, max(0, most - len(chosen))).round().astype(int)
    return np.array(sorted(chosen | {others[index] for index in spread}), dtype=np.int64)


def _cost(informative: Sequence[Observation]) -> Cost:
    good = [(one.held_s, one.step_time_s) for one in informative if one.held_s and one.step_time_s]
    failed = [one.held_s for one in informative if one.held_s and one.step_time_s is None]
    return cost_of([held for held, _ in good], [step for _, step in good], failed)
