"""How long one proposal takes, by how many plans are legal and how many were seen.

The spaces are real ones (Llama 3 8B on nodes of 8 H100). What became of the plans seen is what the physics says of
them, with noise; about half run out of memory. Cold: a new search, as after a restart. Warm: the same, a trial later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter
from replay_runs import Contender
from reported import cluster_spec
from rich.console import Console
from rich.table import Table

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import Capabilities, SpaceContext, rows
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import log_peak, log_step
from meshtune.search_spaces.physics.framework_profiles import NANOTRON
from meshtune.search_spaces.physics.training import Training, usable_bytes
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.presets import described, model_presets
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Search, Task

REPEATS = 5
# A search imports its library at the first ask that needs it, which is no part of a proposal; after so many, it has.
IMPORTING = 100
# Of the logarithm of what is measured, against what the physics says.
NOISE = 0.1
EVERY_WAY = Capabilities(
    schedules=frozenset(Schedule),
    recompute=frozenset(Recompute),
    contexts=frozenset(ContextParallel),
    recompute_intervals=True,
    choice_of_sequence_parallel=True,
)
SMALL = Bounds(recompute=tuple(Recompute), cp=(1, 2, 4))
MIDDLE = Bounds(
    recompute=tuple(Recompute),
    cp=(1, 2, 4, 8),
    vpp=(1, 2, 4, 8),
    schedule=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    sequence_parallel=(True, False),
    recompute_interval=(1, 2),
)
LARGE = Bounds(
    recompute=tuple(Recompute),
    cp=(1, 2, 4, 8),
    vpp=(1, 2, 4, 8),
    schedule=tuple(Schedule),
    sequence_parallel=(True, False),
    context=tuple(ContextParallel),
    recompute_interval=(1, 2, 4, 8, 16),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A space, and how many of its plans were seen, one case after the other."""

    nodes: int
    global_batch_size: int
    bounds: Bounds
    seen: tuple[int, ...]


# 2,000 legal plans hold no 10,000 seen ones: those are asked of the middle space.
CASES = (
    Case(16, 512, SMALL, (10, 100, 500, 1_000)),
    Case(16, 512, MIDDLE, (10_000,)),
    Case(64, 2_048, LARGE, (10, 500, 10_000)),
)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of each repetition."""

    legal: int
    seen: int
    cold_s: tuple[float, ...]
    warm_s: tuple[float, ...]


def show_latency(contender: Contender, console: Console) -> None:
    """Times every case and prints it. Raises SearchError."""
    table = Table(title=f"seconds of one proposal of {contender.label}, {REPEATS} times each", title_justify="left")
    for heading in ("legal plans", "seen", "cold, median", "cold, most", "warm, median", "warm, most"):
        table.add_column(heading, justify="right")
    for case in CASES:
        task = make_task(case)
        for seen in case.seen:
            found = latency(contender, task, seen)
            times = [f"{value:.3f}" for one in (found.cold_s, found.warm_s) for value in (np.median(one), max(one))]
            table.add_row(f"{found.legal:,}", f"{found.seen:,}", *times)
    console.print(table)


def make_task(case: Case) -> Task:
    entry = described(model_presets()["llama3-8b"])
    model = TypeAdapter(ModelSpec).validate_python(entry)
    cluster = cluster_spec("dgx-h100", case.nodes, 8)
    setting = SpaceContext(
        model=model, cluster=cluster, global_batch_size=case.global_batch_size, capabilities=EVERY_WAY
    )
    return Task(space=Space(case.bounds, setting), training=Training(model, cluster, NANOTRON))


def latency(contender: Contender, task: Task, count: int, repeats: int = REPEATS) -> Latency:
    """Times of an ask for one plan when `count` were seen. Raises SearchError."""
    cold_s: list[float] = []
    warm_s: list[float] = []
    contender.create(0).ask(task, seen_of(task, IMPORTING, 0), 1)
    for repeat in range(repeats):
        seen = seen_of(task, count + 1, repeat)
        search = contender.create(repeat)
        cold_s.append(_ask_s(search, task, seen[:-1]))
        warm_s.append(_ask_s(search, task, seen))
    return Latency(len(task.space), count, tuple(cold_s), tuple(warm_s))


def seen_of(task: Task, count: int, seed: int) -> tuple[Observation, ...]:
    """`count` plans of the space at random, with what the physics and some noise make of them."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(task.space), count, replace=False)
    columns = rows(task.space.columns, chosen)
    peaks, times = (
        np.exp(logs(task.training, columns, DEFAULTS) + random.normal(0.0, NOISE, count)).tolist()
        for logs in (log_peak, log_step)
    )
    plans = [task.space[index] for index in chosen.tolist()]
    return tuple(_outcome(task, *one) for one in zip(plans, peaks, times, strict=True))


def _outcome(task: Task, plan: Plan, peak_bytes: float, step_time_s: float) -> Observation:
    if peak_bytes > usable_bytes(task.training):
        return Observation(plan=plan, verdict=Verdict.OOM)
    tokens = plan.global_batch_size * task.training.model.seq_len
    score = tokens / step_time_s
    return Observation(plan=plan, verdict=Verdict.OK, score=score, step_time_s=step_time_s, peak_bytes=peak_bytes)


def _ask_s(search: Search, task: Task, seen: Sequence[Observation]) -> float:
    began = time.perf_counter()
    search.ask(task, seen, 1)
    return time.perf_counter() - began
