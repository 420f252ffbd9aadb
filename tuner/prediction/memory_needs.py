"""What memory asks of a space: recomputation where a spec leaves it open, and changes where no plan surely fits.

A spec has one space, so recomputation is decided by the constants' defaults, whatever was measured since. Every change
that is named was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshtune.search_spaces.bounds import dimensions, divisors
from meshtune.search_spaces.checks import InvalidValue, listed
from meshtune.search_spaces.columns import RECOMPUTES, rows
from meshtune.search_spaces.physics.constants import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import estimate_memory, log_step
from meshtune.search_spaces.physics.memory import loaded_bytes, offloaded_bytes
from meshtune.search_spaces.physics.training import Training, usable_bytes, with_usual_speeds
from meshtune.search_spaces.plan import Recompute
from meshtune.search_spaces.space import Bounds, Space, SpaceTooLarge
from meshtune.tuner.campaign.units import gibibytes, percent

# A plan surely fits from this probability on.
SURE = 0.9
# No usual host has more memory than so many times that of its devices: 2 TB over 640 GB in a DGX H100 and in AWS' p5.
USUAL_HOST = 3
# The memory of a node's host, in words.
OFFLOADED = "host memory of a node for the offloaded optimizer"
LOADED = "host memory of a node to load, where every rank reads the whole checkpoint"
# Recomputation is open where speed times probability to fit of the best plan grows by this share.
GAIN = 0.1
# Of legal plans so many are judged, in 0.2 seconds whenever a spec is read.
MAX_JUDGED = 2**13
# Combinations that are enumerated for that, in as much again, and for each change.
MAX_OPENED, MAX_TRIED = 2**17, 2**14
MAX_TIMES_NODES = 2**10


def open_recompute(space: Space, training: Training) -> tuple[Space, str]:
    """Of a space without recomputation: the same with all that its program can recompute, and why memory asks for it;
    or the space itself, and no reason."""
    able = space.context.capabilities
    kinds = tuple(kind for kind in RECOMPUTES if kind in able.recompute)
    if able.recompute_of_script or not (wide := _with(space, MAX_OPENED, recompute=kinds)):
        return space, ""
    judged = np.linspace(0, len(wide) - 1, min(len(wide), MAX_JUDGED)).round().astype(np.int64)
    c = rows(wide.columns, judged)
    if not (none := c["recompute"] == RECOMPUTES.index(Recompute.NONE)).any():
        return space, ""
    fits = estimate_memory(training, c).fits(usable_bytes(training))
    step_s = np.exp(log_step(with_usual_speeds(training), c, UNCALIBRATED.constants))
    worth = fits * c["micro_batch_size"] * c["grad_accum_steps"] / (c["tp"] * c["pp"] * c["cp"] * step_s)
    if fits[none].max() < min(SURE, fits.max()):
        why = f"no plan without it fits with {percent(SURE)}"
    elif worth.max() > (1 + GAIN) * worth[none].max():
        gain = percent(float(worth.max() / worth[none].max()) - 1)
        why = f"the best plan's speed x P(fits) is {gain} higher with it"
    else:
        return space, ""
    legal = tuple(RECOMPUTES[kind] for kind in np.unique(wide.columns["recompute"]))
    return _with(space, MAX_OPENED, recompute=legal) or space, why


def memory_needs(space: Space, training: Training, calibration: Calibration = UNCALIBRATED) -> tuple[str, ...]:
    """Why recomputation is open; where no plan surely fits, the least memory and what would help, the smallest change
    first; and what hosts need. Nothing of a space whose plans are too many to be judged, or without a model."""
    if not training.model.known or not (closed := _with(space, MAX_OPENED, recompute=(Recompute.NONE,))):
        return ()
    opened, why = open_recompute(closed, training)
    more = opened.combinations - closed.combinations
    needs = [f"recomputation: open, since {why}; {more} combinations more"] if why else []
    needs = needs if opened.bounds == space.bounds else []
    memory = estimate_memory(training, space.columns, calibration)
    fits = memory.fits(usable_bytes(training))
    if fits.max() < SURE:
        least = int(memory.peak_bytes.argmin())
        peak, device = gibibytes(int(memory.peak_bytes[least])), gibibytes(training.cluster.device.memory_bytes)
        words = f"the least memory is {peak} of {device}, P(fits) {percent(fits[least])}, with {space[least].key}"
        needs += [f"no plan fits with {percent(SURE)}: {words}", *_remedies(space, training, calibration)]
    # The memory of a node's host, which a peak of a device has no part of; to load where it is much.
    offloaded, loaded = offloaded_bytes(training, space.columns), loaded_bytes(training)
    ends = dict.fromkeys(gibibytes(int(value)) for value in (offloaded.min(), offloaded.max()))
    needs += [f"{OFFLOADED}: {' to '.join(ends)}{', by plan' * (len(ends) > 1)}"] * bool(offloaded.any())
    usual = USUAL_HOST * training.cluster.devices_per_node * training.cluster.device.memory_bytes
    return (*needs, *[f"{LOADED}: {gibibytes(int(loaded))}"] * (loaded > usual))


def sure_plans(space: Space | None, training: Training, calibration: Calibration = UNCALIBRATED) -> int:
    """How many plans surely fit, on the space's own cluster."""
    if not space:
        return 0
    memory = estimate_memory(replace(training, cluster=space.context.cluster), space.columns, calibration)
    return int(np.sum(memory.fits(usable_bytes(training)) >= SURE))


def _remedies(space: Space, training: Training, calibration: Calibration) -> Sequence[str]:
    """Each axis that would help alone; else the fewest of them together, on more nodes where it takes these."""
    if space.combinations > MAX_TRIED:
        return [f"changes are tried in up to {MAX_TRIED} combinations, not in {space.combinations}: bound the space"]
    changes = _changes(space)

    def would(axes: Sequence[str], times: int = 1) -> list[str]:
        """The changes in words, with what they do together; none where still no plan surely fits."""
        changed = _with(space, MAX_TRIED, times, **{axis: changes[axis] for axis in axes})
        if not (count := sure_plans(changed, training, calibration)):
            return []
        nodes = training.cluster.nodes * times
        size = [f"cluster.nodes: {nodes} ({nodes * training.cluster.devices_per_node} devices)"] if times > 1 else []
        words = [*size, *(f"space.{axis}: [{listed(changes[axis])}]" for axis in axes)]
        return [f"{', '.join(words)} would: {count} plan{' fits' if count == 1 else 's fit'} with {percent(SURE)}"]

    def opened(times: int) -> list[str]:
        """The axes that can be opened together."""
        axes: list[str] = []
        for axis in changes:
            values = {one: changes[one] for one in (*axes, axis)}
            axes += [axis] if _with(space, MAX_TRIED, times, **values) is not None else []
        return axes

    if alone := [words for axis in changes for words in would([axis])]:
        return alone
    times = 1
    while not would(every := opened(times), times):
        if times == MAX_TIMES_NODES or _with(space, MAX_TRIED, 2 * times) is None:
            axes = f"other value of {', '.join(every)}" if every else "axis"
            able = space.context.capabilities.recompute - {Recompute.NONE}
            told = "" if able else "; the workload is told no {recompute}"
            return [f"no {axes} would, nor up to {times} times the nodes{told}"]
        times *= 2
    for axis in reversed(every):
        fewer = [one for one in every if one != axis]
        every = fewer if would(fewer, times) else every
    return would(every, times)


def _changes(space: Space) -> dict[str, tuple[Any, ...]]:
    """The values of each axis with those that may need less memory, the least change first."""
    able, context, own = space.context.capabilities, space.context, space.dimensions
    usual = dimensions(Bounds(), context)
    useful: dict[str, Sequence[Any]] = {
        "micro_batch_size": (1,),
        "sequence_parallel": (True,),
        "zero_stage": sorted(able.zero_stages | able.zero_stages_with_pp),
        "zero_group": (0,),
        "etp": (0,),
        "recompute": [kind for kind in RECOMPUTES if kind in able.recompute],
        "tp": usual["tp"],
        "pp": usual["pp"],
        "ep": divisors(context.model.experts) if able.expert_parallel and context.model.experts else (),
        "cp": divisors(context.cluster.devices_per_node) if able.contexts & {*own["context"]} else (),
    }
    changed = {
        axis: tuple(dict.fromkeys([*values, *own[axis]])) for axis, values in useful.items() if {*values} - {*own[axis]}
    }
    return dict(sorted(changed.items(), key=lambda entry: len(entry[1]) / len(own[entry[0]])))


def _with(space: Space, most: int, times: int = 1, /, **bounds: Any) -> Space | None:
    """The space with other bounds, on so many times the nodes; None where it has more combinations than `most`."""
    cluster = replace(space.context.cluster, nodes=space.context.cluster.nodes * times)
    try:
        return Space(replace(space.bounds, **bounds), replace(space.context, cluster=cluster), most, space.knobs)
    except (SpaceTooLarge, InvalidValue):  # the latter: more than an axis may have
        return None
