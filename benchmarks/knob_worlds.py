"""One draw of a landscape: what every plan really costs, and which plan is the best.

A layout costs what `schedulers.ground_truth` says; knobs multiply its time (or add seconds to it) and its
memory. The best plan is exact, also where there are too many to look at: knobs that act on each other, or stand in each
other's conditions, are one group, all values of a group are enumerated for every layout, and the groups' fronts of time
and memory merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from knob_draws import Effect, Floats, Layouts, drawn_effect, drawn_pair, rng_of
from knob_landscapes import Landscape, task_of

from meshtune.runners.outcome import Verdict
from meshtune.runners.schedulers.ground_truth import truth
from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.base import Observation, Task

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest plan that fits."""

    plan: Plan
    step_s: float


@dataclass(frozen=True, eq=False)
class Simulated:
    """The hidden truth of a landscape under one seed, whatever makes its costs: a kind has `costs`, and by these its
    `baseline` and its `best` plan. noise: of the logarithm of a run's step time."""

    landscape: Landscape
    seed: int
    noise: ClassVar[float]

    @property
    def task(self) -> Task:
        return task_of(self.landscape.name)

    @property
    def memory_bytes(self) -> float:
        """That a rank can use."""
        return float(self.task.training.cluster.device.memory_bytes)

    def costs(self, index: Ints, codes: Codes) -> tuple[Floats, Floats]:
        """Seconds per step and bytes at the fullest rank, without noise, of the layouts at these positions with these
        values of their knobs."""
        raise NotImplementedError

    def cost(self, plan: Plan) -> tuple[float, float]:
        space = self.task.space
        index = np.array([space.index_of(plan)])
        step_s, peak_bytes = self.costs(index, space.knobs.codes_of([plan]))
        return float(step_s[0]), float(peak_bytes[0])

    def is_near(self, plan: Plan, tolerance: float) -> bool:
        """True where the plan fits and really is within this share of the best one."""
        step_s, peak_bytes = self.cost(plan)
        return peak_bytes <= self.memory_bytes and step_s <= self.best.step_s * (1.0 + tolerance)

    def observe(self, plan: Plan) -> Observation:
        """What a trial of the plan measures; the same each time."""
        step_s, peak_bytes = self.cost(plan)
        if peak_bytes > self.memory_bytes:
            return Observation(plan=plan, verdict=Verdict.OOM)
        step_s *= float(np.exp(self.noise * rng_of("noise", self.seed, plan.key).standard_normal()))
        tokens = plan.global_batch_size * self.task.training.model.seq_len
        return Observation(
            plan=plan, verdict=Verdict.OK, score=tokens / step_s, step_time_s=step_s, peak_bytes=peak_bytes
        )


@dataclass(frozen=True, eq=False)
class World(Simulated):
    """Costs of layouts, and of knobs by drawn effects. effects: of its knobs, by pairs too."""

    noise: ClassVar[float] = 0.015

    layouts: Layouts
    effects: tuple[Effect, ...]

    @classmethod
    def of(cls, landscape: Landscape, seed: int) -> World:
        task = task_of(landscape.name)
        layouts = _layouts(landscape.name, seed)

        def rng(*knobs: str) -> np.random.Generator:
            # By the family's name: a landscape with further knobs has the same effects of those that it shares.
            return rng_of(landscape.draws or landscape.name, seed, *knobs)

        effects = [drawn_effect(slot, layouts, rng(slot.knob.name)) for slot in landscape.slots_of(task.space.knobs)]
        for pair in landscape.pairs_of(task.space.knobs):
            effects.append(drawn_pair(pair, layouts, rng(*(knob.name for knob in pair.knobs))))
        return cls(landscape, seed, layouts, tuple(effects))

    def costs(self, index: Ints, codes: Codes) -> tuple[Floats, Floats]:
        """Seconds per step and bytes at the fullest rank, without noise, of the layouts at these positions with these
        values of their knobs."""
        time, memory = self._felt(self.effects, index, codes)
        return self._seconds(index, time), self.layouts.peak_bytes[index] * np.exp(memory)

    @cached_property
    def baseline(self) -> Plan:
        """What a person runs today: tensor parallelism over a node, small micro-batches, a short pipeline, every knob
        at its default; the first such layout that fits."""
        columns, per_node = self.layouts.columns, self.task.training.cluster.devices_per_node
        fits = self.layouts.peak_bytes <= self.memory_bytes
        away = np.abs(np.log2(columns["tp"] / min(per_node, int(columns["tp"].max()))))
        sharded = -np.minimum(columns["zero_stage"], 1 if columns["tp"].max() > 1 else 3)
        tried = (columns["recompute"], sharded, columns["ep"], columns["pp"], columns["micro_batch_size"], away, ~fits)
        return self.task.space.plan(int(np.lexsort(tried)[0]))

    @cached_property
    def best(self) -> Best:
        space, found = self.task.space, list[tuple[float, int, Codes]]()
        fronts = [list(self._fronts(group)) for group in self._groups()]
        room = np.log(self.memory_bytes / self.layouts.peak_bytes)
        for layout in range(len(space)):
            front = _Front.nothing(len(space.knobs))
            for own in fronts:
                front = front.merged(own[layout])
            front = front.at(front.memory <= room[layout])
            if len(front.time):
                first = int(np.argmin(front.time))
                step_s = self._seconds(np.array([layout]), front.time[first : first + 1])[0]
                found.append((float(step_s), layout, front.codes[first]))
        step_s, layout, chosen = min(found, key=lambda one: one[:2])
        codes = np.where(chosen > 0, chosen, space.default_codes[layout])
        codes = space.canonical(np.array([layout]), codes[None, :])[0]
        return Best(space.plan(layout, codes.tolist()), step_s)

    def _seconds(self, index: Ints, time: Floats) -> Floats:
        factor = 1.0 + time if self.landscape.adds_seconds else np.exp(time)
        return self.layouts.step_s[index] * factor

    def _felt(self, effects: Sequence[Effect], index: Ints, codes: Codes) -> tuple[Floats, Floats]:
        time, memory = np.zeros(len(index)), np.zeros(len(index))
        names = self.task.space.knobs.names
        for effect in effects:
            own = codes[:, [names.index(name) for name in effect.knobs]]
            active, place = np.all(own > 0, axis=1), tuple(np.maximum(own - 1, 0).T)
            time += np.where(active, self._weight(effect)[index] * effect.time[place], 0.0)
            memory += np.where(active, effect.memory[place], 0.0)
        return time, memory

    def _weight(self, effect: Effect) -> Floats:
        if not self.landscape.adds_seconds:
            return effect.weight
        # The same seconds on every layout: a share of the fastest one's step, and of others' a smaller one.
        fastest = self.layouts.step_s[self.layouts.peak_bytes <= self.memory_bytes].min()
        share: Floats = effect.weight * fastest / self.layouts.step_s
        return share

    def _groups(self) -> list[tuple[str, ...]]:
        """The knobs apart into groups that neither effects nor conditions join."""
        knobs = self.task.space.knobs
        joined = [set(effect.knobs) for effect in self.effects]
        joined += [{knob.name, *(name for name in knobs.names if name in knob.when)} for knob in knobs]
        groups: list[set[str]] = []
        for one in joined:
            touching = [group for group in groups if group & one]
            groups = [group for group in groups if not group & one] + [one.union(*touching)]
        return [tuple(sorted(group)) for group in groups]

    def _fronts(self, group: tuple[str, ...]) -> Iterator[_Front]:
        """For each layout, what the group's values can do to its time and memory."""
        space, effects = self.task.space, [one for one in self.effects if set(one.knobs) <= set(group)]
        per_node = space.context.cluster.devices_per_node
        index, codes = space.knobs.expand(space.columns, per_node, group)
        time, memory = self._felt(effects, index, codes)
        codes = np.where([name in group for name in space.knobs.names], codes, 0)
        order = np.argsort(index, kind="stable")
        for rows in np.split(order, np.searchsorted(index[order], np.arange(1, len(space)))):
            yield _Front(time[rows], memory[rows], codes[rows]).pruned()


@dataclass(frozen=True, slots=True, eq=False)
class _Front:
    """Choices none of which is both slower and larger than another; codes: 0 where a choice says nothing."""

    time: Floats
    memory: Floats
    codes: Codes

    @classmethod
    def nothing(cls, knobs: int) -> _Front:
        return cls(np.zeros(1), np.zeros(1), np.zeros((1, knobs), dtype=np.int64))

    def at(self, rows: npt.NDArray[np.bool_]) -> _Front:
        return _Front(self.time[rows], self.memory[rows], self.codes[rows])

    def pruned(self) -> _Front:
        order = np.lexsort((self.memory, self.time))
        least = np.minimum.accumulate(self.memory[order])
        kept = order[np.concatenate([[True], self.memory[order][1:] < least[:-1]])]
        return _Front(self.time[kept], self.memory[kept], self.codes[kept])

    def merged(self, other: _Front) -> _Front:
        time = (self.time[:, None] + other.time).reshape(-1)
        memory = (self.memory[:, None] + other.memory).reshape(-1)
        codes = np.maximum(self.codes[:, None, :], other.codes[None, :, :]).reshape(len(time), -1)
        return _Front(time, memory, codes).pruned()


@lru_cache(maxsize=8)
def _layouts(name: str, seed: int) -> Layouts:
    task = task_of(name)
    truths = [truth(task.training, plan, seed) for plan in task.space]
    return Layouts.of(task.space.columns, truths)
