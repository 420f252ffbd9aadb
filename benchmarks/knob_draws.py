"""Hidden effects of knobs on a simulated job, drawn by seed: what a value multiplies (or adds to) a step's time and a
rank's peak memory by, and under which layouts.

An effect is a table over the values of one knob, or of a pair, in logarithms; 0 at the defaults. Times a weight per
layout, such as the share of communication in its step, it is what the layout feels. Sizes follow what people report of
such knobs: a few per cent to 15 % each, 30 % of memory for what trades it (of the order that torchtitan's pull requests
4604 and 4605, Lagom, arXiv 2602.20656, and Mist, EuroSys'25, report).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshtune.runners.schedulers.ground_truth import Truth
from meshtune.search_spaces.columns import Columns
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.physics.timing import TimePart

Floats = npt.NDArray[np.float64]
COMMUNICATION = (TimePart.TP, TimePart.CP, TimePart.EP, TimePart.SEND_RECEIVE, TimePart.DP)
# Of what trades memory, at the most: logarithms of 1.2 to 1.4 times.
TRADED = (0.18, 0.34)


@dataclass(frozen=True, slots=True, eq=False)
class Layouts:
    """The layouts of one hidden cluster as columns, with their knobs at the defaults. shares: of a step, by part."""

    columns: Columns
    step_s: Floats
    peak_bytes: Floats
    shares: Mapping[TimePart, Floats]

    @classmethod
    def of(cls, columns: Columns, truths: Sequence[Truth]) -> Layouts:
        step_s = np.array([one.step_s for one in truths])
        shares = {part: np.array([one.time.get(part, 0.0) for one in truths]) / step_s for part in TimePart}
        return cls(columns, step_s, np.array([one.peak_bytes for one in truths]), shares)

    def share(self, *parts: TimePart) -> Floats:
        total: Floats = np.sum([self.shares[part] for part in parts], axis=0)
        return total


# Weights of an effect by layout. The shares are of steps, so their effects are the larger (`_SHARED`).
SCOPES: Mapping[str, Callable[[Layouts], Floats]] = {
    "all": lambda on: np.ones(len(on.step_s)),
    "communication": lambda on: on.share(*COMMUNICATION),
    "tensor": lambda on: on.share(TimePart.TP),
    "replicas": lambda on: on.share(TimePart.DP),
    "compute": lambda on: on.share(TimePart.COMPUTE, TimePart.RECOMPUTE),
    "bubble": lambda on: on.share(TimePart.BUBBLE),
    "small batches": lambda on: 1.0 / on.columns["micro_batch_size"],
    "tp": lambda on: (on.columns["tp"] > 1).astype(np.float64),
    "zero": lambda on: (on.columns["zero_stage"] == on.columns["zero_stage"].max()).astype(np.float64),
    # Good for some layouts and bad for others.
    "either way": lambda on: np.where(on.columns["micro_batch_size"] == 1, 1.0, -0.6),
    "deep": lambda on: np.log2(on.columns["pp"] * on.columns["vpp"]) / 3.0 - 0.4,
}
# How many times as large as on all layouts an effect is that counts by a share of the step.
_SHARED = {"communication": 3.5, "tensor": 4.0, "replicas": 5.0, "compute": 1.5, "bubble": 6.0}


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """time, memory: logarithms by the values of the knobs, one axis per knob. weight: of `time`, by layout."""

    knobs: tuple[str, ...]
    time: Floats
    memory: Floats
    weight: Floats


@dataclass(frozen=True, slots=True)
class Slot:
    """A knob with the part that it plays: one of `ROLES`. scope: one of `SCOPES`."""

    knob: Knob
    role: str = "null"
    scope: str = "all"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two knobs that only help together (`together`), or that each help, but not together (`clash`)."""

    kind: str
    knobs: tuple[Knob, Knob]
    scope: str = "all"


def rng_of(*what: object) -> np.random.Generator:
    """Random numbers for one purpose: what is drawn for another never shifts them."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(what).encode()).digest(), "big"))


def drawn_effect(slot: Slot, on: Layouts, rng: np.random.Generator) -> Effect:
    time, memory = ROLES[slot.role](slot.knob, rng)
    return Effect((slot.knob.name,), time * _SHARED.get(slot.scope, 1.0), memory, SCOPES[slot.scope](on))


def drawn_pair(pair: Pair, on: Layouts, rng: np.random.Generator) -> Effect:
    """Of one value of each knob; their other values do nothing."""
    first, second = pair.knobs
    time = np.zeros((len(first.values), len(second.values)))
    one, other = _not_default(first, rng), _not_default(second, rng)
    if pair.kind == "together":
        time[one, :] += rng.uniform(0.0, 0.04)
        time[:, other] += rng.uniform(0.0, 0.04)
        time[one, other] = -rng.uniform(0.08, 0.16)
    else:
        gains = rng.uniform(0.05, 0.1, 2)
        time[one, :] -= gains[0]
        time[:, other] -= gains[1]
        time[one, other] = -gains.max() + rng.uniform(0.05, 0.1)
    return Effect((first.name, second.name), time, np.zeros_like(time), SCOPES[pair.scope](on))


def _not_default(knob: Knob, rng: np.random.Generator) -> int:
    return int(rng.choice([at for at in range(len(knob.values)) if at != _default(knob)]))


def _default(knob: Knob) -> int:
    return knob.position(knob.default) or 0


def _null(knob: Knob, rng: np.random.Generator) -> tuple[Floats, Floats]:
    return np.zeros(len(knob.values)), np.zeros(len(knob.values))


def _helps(knob: Knob, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """One value is the best; the others do a part of it, or are a little worse than the default."""
    gain, best = rng.uniform(0.04, 0.14), _not_default(knob, rng)
    time = -gain * rng.uniform(-0.4, 0.6, len(knob.values))
    time[best], time[_default(knob)] = -gain, 0.0
    return time, np.zeros(len(time))


def _hurts(knob: Knob, rng: np.random.Generator) -> tuple[Floats, Floats]:
    time = rng.uniform(0.02, 0.2, len(knob.values))
    time[_default(knob)] = 0.0
    return time, np.zeros(len(time))


def _middle(knob: Knob, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A parabola over the ranks, which are logarithms of log-spaced numbers, with its best between the ends."""
    at = np.linspace(0.0, 1.0, len(knob.values))
    best, default = rng.uniform(0.35, 0.85), at[_default(knob)]
    depth = rng.uniform(0.06, 0.18) / max(0.05, (default - best) ** 2)
    return depth * ((at - best) ** 2 - (default - best) ** 2), np.zeros(len(at))


def _faster(knob: Knob, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Faster, for more memory."""
    steps = _from_default(knob)
    return -rng.uniform(0.05, 0.14) * steps, rng.uniform(*TRADED) * steps


def _smaller(knob: Knob, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Less memory, for a slower step."""
    steps = _from_default(knob)
    return rng.uniform(0.03, 0.1) * steps, -rng.uniform(*TRADED) * steps


def _from_default(knob: Knob) -> Floats:
    """0 at the default to 1 at the value farthest from it, in the values' order."""
    away = np.abs(np.arange(len(knob.values)) - _default(knob)).astype(np.float64)
    steps: Floats = away / away.max()
    return steps


# What a knob may be: logarithms of time and memory by value.
ROLES: Mapping[str, Callable[[Knob, np.random.Generator], tuple[Floats, Floats]]] = {
    "null": _null,
    "helps": _helps,
    "hurts": _hurts,
    "middle": _middle,
    "faster": _faster,
    "smaller": _smaller,
}
