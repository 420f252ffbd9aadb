"""One replay: a search proposes settings of a cell until one is within the tolerance of the best, and each costs a
trial, whether it ran or not.

Searches are named as the product names them, with options after colons: `physics:prior=false`, `deephyper:n_initial=4`;
those of `wrong_prior` take no options.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from typing import Any
from zlib import crc32

import numpy as np
import yaml
from replay_cells import Cell
from wrong_prior import WRONG_PRIORS, create_wrong

from meshtune.tuner.search.base import Observation, Search, SearchMisconfigured
from meshtune.tuner.search.physics.search import PhysicsSearch
from meshtune.tuner.search.registry import create_search

# Optuna's samplers by the names that people know them under.
ALIASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "optuna-tpe": ("optuna", {"sampler": "tpe"}),
    "optuna-gp": ("optuna", {"sampler": "gp"}),
}
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """A search as named on the command line."""

    label: str
    kind: str
    options: Mapping[str, Any]

    def create(self, seed: int) -> Search:
        """Raises SearchError."""
        if self.kind in WRONG_PRIORS and not self.options:
            return create_wrong(WRONG_PRIORS[self.kind], seed)
        return create_search(self.kind, seed=seed, options=self.options)


@dataclass(frozen=True, slots=True)
class Rules:
    """tolerance: the share of the best that may be missing. batch: the settings asked for at a time."""

    tolerance: float
    batch: int
    max_trials: int


@dataclass(frozen=True, slots=True)
class Run:
    """One search on one cell with one seed. shares: each trial's tokens per second as a share of the best setting's,
    0 for a failed one; the last is the first within the tolerance where `reached`. ask_seconds: of every ask."""

    reached: bool
    shares: tuple[float, ...]
    ask_seconds: tuple[float, ...]

    @property
    def failed(self) -> int:
        """How many of the trials did not run."""
        return self.shares.count(0.0)


def parse_contenders(text: str) -> tuple[Contender, ...]:
    """Several, by commas. Raises SearchError where one is unknown, refuses its options or is named twice."""
    names = text.split(",")
    for name in names:
        if names.count(name) > 1:
            raise SearchMisconfigured(f"search {name} is named twice")
    contenders = tuple(map(_contender, names))
    for contender in contenders:
        contender.create(seed=0)
    return contenders


def _contender(text: str) -> Contender:
    """`NAME` or `NAME:option=value:...`, values as in YAML."""
    name, *given = text.split(":")
    kind, options = ALIASES.get(name, (name, {}))
    for one in given:
        option, equals, value = one.partition("=")
        if not equals:
            raise SearchMisconfigured(f"search {text}: {one!r} is no option; write NAME:option=value")
        options = {**options, option: _scalar(text, value)}
    return Contender(text, kind, options)


def play(cell: Cell, contender: Contender, number: int, rules: Rules) -> Run:
    """The run of this number. Raises SearchError."""
    search = contender.create(_seed(cell, number))
    if cell.hypotheses is not None and isinstance(search, PhysicsSearch):
        search = replace(search, hypotheses=cell.hypotheses)
    task, best = cell.task(rules.tolerance), cell.best
    seen: list[Observation] = []
    shares: list[float] = []
    ask_seconds: list[float] = []
    while len(seen) < rules.max_trials:
        began = time.perf_counter()
        plans = search.ask(task, tuple(seen), min(rules.batch, rules.max_trials - len(seen))).plans
        ask_seconds.append(time.perf_counter() - began)
        if not plans:
            break
        for plan in plans:
            seen.append(cell.outcomes[plan])
            shares.append((seen[-1].score or 0.0) / best)
            if shares[-1] >= 1 - rules.tolerance:
                return Run(True, tuple(shares), tuple(ask_seconds))
    return Run(False, tuple(shares), tuple(ask_seconds))


def play_all(cells: Sequence[Cell], contenders: Sequence[Contender], seeds: int, rules: Rules) -> Iterator[Run]:
    """Every run: by cell, then by search, then by number. The order and the runs do not depend on the processes."""
    jobs = [(cell, contender, number) for cell in cells for contender in contenders for number in range(seeds)]
    # A core for each worker: with threads of their own, sums and seconds would depend on the number of cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield from pool.map(play, *zip(*jobs, strict=True), repeat(rules, len(jobs)))


def _scalar(text: str, value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise SearchMisconfigured(f"search {text}: {value!r} is no YAML value") from None


def _seed(cell: Cell, number: int) -> int:
    # Of the cell's own: else every cell of one size would be searched in the same random order.
    return int(np.random.SeedSequence((crc32(cell.label.encode()), number)).generate_state(1)[0])
