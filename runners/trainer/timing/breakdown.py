"""Takes a few steps apart, after the timed ones: each rank's time by part, and what in it was waiting for others.

A blocking call splits at the moment when the last of its members arrived: before, the rank waited; after, data moved.
Ranks tell each other their arrivals once per step, outside of it: meant for tens to hundreds of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from meshtune.runners.step_breakdown import Part, Profile
from meshtune.runners.trainer.failure import Progress
from meshtune.runners.trainer.parallel.mesh import Mesh, gather
from meshtune.runners.trainer.timing.stopwatch import Interception, Key, PartOf, Span, Stopwatch
from meshtune.runners.trainer.train import Trainer

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CLOCK_BARRIERS = 9

Seconds = dict[str, float]


def profile_steps(steps: range, trainer: Trainer, mesh: Mesh, device: torch.device, progress: Progress) -> Profile:
    """Take these steps, and report the one of median length. Collective."""
    offset_s = clock_offset_s()
    seen: list[tuple[float, Seconds, Seconds]] = []
    for step in steps:
        seen.append(_profile_step(step, trainer, mesh, device, progress, offset_s))
        progress.beat()
    by_length = sorted(range(len(seen)), key=lambda index: seen[index][0])
    step_time_s, parts, waiting = seen[by_length[len(by_length) // 2]]
    own = [parts[Part.COMPUTE] + parts[Part.OPTIMIZER] for _, parts, _ in seen]
    every = gather((parts, waiting, own, mesh.pipeline_rank))
    return Profile(
        step_time_s=step_time_s,
        parts_s=tuple(parts for parts, _, _, _ in every),
        waiting_s=tuple(waiting for _, waiting, _, _ in every),
        own_times_s=tuple(tuple(own) for _, _, own, _ in every),
        stages=tuple(stage for _, _, _, stage in every),
        serialised=device.type != "cpu",
    )


def _profile_step(
    step: int, trainer: Trainer, mesh: Mesh, device: torch.device, progress: Progress, offset_s: float
) -> tuple[float, Seconds, Seconds]:
    """The step from its first rank's start to its last one's end, this rank's parts, and their waiting."""
    tokens, targets = trainer.batch(step)
    stopwatch = Stopwatch(device)
    with Interception(stopwatch, part_by_axis(mesh)).active():
        dist.barrier()
        stopwatch.start()
        progress.on_phase = stopwatch.enter_phase
        try:
            trainer.step(tokens, targets)
        finally:
            progress.on_phase = None
        stopwatch.stop()
    start_s, end_s = stopwatch.spans[0].start_s, stopwatch.spans[-1].end_s
    arrivals = {key: at - offset_s for key, at in stopwatch.arrivals.items()}
    every = gather((start_s - offset_s, end_s - offset_s, arrivals))
    # What lies before a rank's own start (it left the barrier late) or after its end is idle time of the same step.
    first_start_s, last_end_s = min(start for start, _, _ in every), max(end for _, end, _ in every)
    last = last_arrivals([arrivals for _, _, arrivals in every])
    parts, waiting = sum_parts(stopwatch.spans, {key: at + offset_s for key, at in last.items()})
    parts[Part.BUBBLE] += (last_end_s - first_start_s) - (end_s - start_s)
    return last_end_s - first_start_s, parts, waiting


def last_arrivals(arrivals: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """For every call, when the last of its members came to it."""
    last: dict[Key, float] = {}
    for own in arrivals:
        for key, at in own.items():
            last[key] = max(at, last.get(key, at))
    return last


def sum_parts(spans: Sequence[Span], last: Mapping[Key, float]) -> tuple[Seconds, Seconds]:
    """Seconds by part, and the waiting in those of collectives. last: see `last_arrivals`."""
    parts: Seconds = {str(part): 0.0 for part in Part}
    waiting: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        length_s = span.end_s - span.start_s
        if isinstance(span.what, Part):
            parts[span.what] += length_s
            continue
        waited_s = min(max(last[span.what.key] - span.start_s, 0.0), length_s)
        if span.what.part is Part.SEND_RECEIVE:
            parts[Part.BUBBLE] += waited_s
            parts[Part.SEND_RECEIVE] += length_s - waited_s
        else:
            parts[span.what.part] += length_s
            waiting[span.what.part] += waited_s
    return parts, {str(part): seconds for part, seconds in waiting.items()}


def part_by_axis(mesh: Mesh) -> PartOf:
    """Which part a group's communication is: of activations by the axis that splits them, else DP. Axes of the same
    ranks have a group each, but share the job's where they are all of it: then experts get the time."""
    axes, replicas = {mesh.tp.get_group(): Part.TP, mesh.cp.get_group(): Part.CP}, mesh.replicas.get_all_groups()
    if mesh.experts is not None:
        axes |= {mesh.experts.ep.get_group(): Part.EP, mesh.experts.etp.get_group(): Part.TP}
        replicas += mesh.experts.replicas.get_all_groups()
    stages = set(dist.get_process_group_ranks(mesh.pp.get_group()))

    def part_of(group: dist.ProcessGroup, activations: bool) -> Part:
        if group in axes and (activations or group not in replicas):
            return axes[group]
        # A group of no axis that lies across the stages is the one of a tied weight.
        ranks = dist.get_process_group_ranks(group)
        between = len(ranks) > 1 and stages.issuperset(ranks) and group not in replicas
        return Part.SEND_RECEIVE if between else Part.DP

    return part_of


def clock_offset_s() -> float:
    """This rank's clock minus rank 0's; 0 on one machine. Collective. Between machines the median difference of the
    clocks at the ends of a few barriers."""
    boot = BOOT_ID.read_text(encoding="ascii") if BOOT_ID.exists() else ""
    if len(set(gather(boot))) == 1:
        return 0.0
    ends = []
    for _ in range(CLOCK_BARRIERS):
        dist.barrier()
        ends.append(Stopwatch(torch.device("cpu")).now())
    first = gather(ends)[0]
    return median(own - other for own, other in zip(ends, first, strict=True))
