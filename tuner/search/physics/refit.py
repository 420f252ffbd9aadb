"""Constants that explain the measurements: where, with earlier campaigns, one hypothesis about speeds has its lines.

The processes of `speed` are linear in the constants, and lines at the prior say nothing of a network so slow that its
traffic no longer hides behind computing. Gauss and Newton's method (Bell & Cathey 1993). The campaign's trials alone do
not suffice: few are explained by far-fetched constants of a wrong physics, too (benchmarks/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshtune.search_spaces.columns import FloatColumn, columns_of
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.gaussian import JITTER, tamed
from meshtune.tuner.search.physics.history import Trials
from meshtune.tuner.search.physics.prior import Rows, stack
from meshtune.tuner.search.physics.speed import FAR, HYPOTHESES, NOISE, Expects, expected, points_of

REFITTED = next(one for one in HYPOTHESES if one.expects is Expects.REFITTED)
# Measurements that they are fitted to: the campaign's own, then those of the earlier ones that are most alike.
FITTED = 40
# Steps of the fit, and the longest, in units of the constants' doubt; a third after one that led uphill.
ROUNDS, LONGEST = 4, 4.0


def refitted(trials: Trials, catalogue: Catalogue, under_way: Sequence[Plan]) -> tuple[Trials, Catalogue]:
    """Both with the times at the constants that explain the measurements; the same where lines at the prior do."""
    rows, longest, task = trials.measured.take(slice(FITTED)), LONGEST, catalogue.task
    away = np.zeros(rows.refitted_slopes.shape[1])
    if not len(rows) or not task.past or not task.training.model.known:
        return trials, catalogue
    log_times, noise = trials.log_times[:FITTED], NOISE**2 / trials.weights[:FITTED]
    variance, rest = REFITTED.field.slopes**2, replace(REFITTED.field, slopes=0.0)

    def rows_at(rows: Rows, away: FloatColumn, *, sloped: bool) -> Rows:
        parts = [
            (number, rows.take(rows.campaign == number)) for number in np.unique(rows.campaign).astype(int).tolist()
        ]
        how = [(columns_of(trials.plans[number][: len(part)]), number, (part, away)) for number, part in parts]
        return stack([catalogue.physics(*which, sloped=sloped, refitted=told) for *which, told in how])

    for _ in range(ROUNDS):
        points, off, slopes = points_of(rows, REFITTED), log_times - rows.log_refitted, rows.refitted_slopes
        known = tamed(REFITTED.field, points, log_times - expected(REFITTED, rows), noise, FAR)
        precision = np.linalg.inv(rest.between(points, points) + np.diag(known + JITTER))
        system = slopes.T @ precision @ slopes + np.eye(len(away)) / variance
        step = np.linalg.solve(system, slopes.T @ precision @ off - away / variance)
        step *= longest / max(longest, float(np.max(np.abs(step))))
        there, to = rows_at(rows, away + step, sloped=False), away + step
        left, before = log_times - there.log_refitted, off @ precision @ off + away @ away / variance
        if left @ precision @ left + to @ to / variance > before:
            longest = float(np.max(np.abs(step))) / 3
            continue
        if np.all(np.abs(off - slopes @ step - left) < NOISE):
            break
        rows, away = rows_at(rows, to, sloped=True), to
    if not np.any(away):
        return trials, catalogue
    others = rows_at(trials.measured, away, sloped=False).take(slice(FITTED, None))
    measured, catalogue = stack([rows, others]), catalogue.refitted(away)
    fastest = np.flatnonzero(np.isin(trials.log_times, trials.own_times.min(initial=np.inf)))[:1]
    best, pending = measured.take(fastest), catalogue.rows(under_way)
    return replace(trials, measured=measured, best=best, pending=pending), catalogue
