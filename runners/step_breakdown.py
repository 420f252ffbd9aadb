"""Where the time of a step went, rank by rank, and whether one rank holds the others up.

The parts of a rank are exclusive and add up to the step. They come from steps run for this alone, after the timed
ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, inf
from statistics import median

from meshtune.runners.measuring import MAX_STEP_S
from meshtune.search_spaces.checks import StrEnum

# A rank is named from here on: what people would act on, and beyond what placement on a socket explains.
MIN_RATIO = 1.2
# Fewer steps say nothing about noise: 3 against 3 are in order by chance in 1 of 20.
MIN_TIMES = 3


class Part(StrEnum):
    """What a rank was at. Communication beside work is seen as far as the rank waited for it, or whole where the
    profiled steps were serialised (see Profile).

    COMPUTE: forward and backward passes, and whatever is in no other part. TP, DP, CP, EP (and etp): their collectives,
    waiting for peers included: a slow peer is not the network's fault, so `Profile.waiting_s` says how much of it was
    waiting for the last peer to arrive. SEND_RECEIVE: moving tensors between stages, once both sides are there. BUBBLE:
    idle: waiting for the neighbouring stage to be there, and after the rank's own end for the slowest rank. OPTIMIZER:
    the update without its collectives, which are DP's."""

    COMPUTE = "compute"
    TP = "tp"
    DP = "dp"
    CP = "cp"
    EP = "ep"
    SEND_RECEIVE = "send_receive"
    BUBBLE = "bubble"
    OPTIMIZER = "optimizer"


class StepPhase(StrEnum):
    """Of a step of reinforcement learning; they follow each other. GENERATION: of its rows. LOG_PROBS: by the trained
    model and by a reference. REFIT: the engine gets the new weights."""

    GENERATION = "generation"
    REWARD = "reward"
    LOG_PROBS = "log_probs"
    UPDATE = "update"
    REFIT = "refit"


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that computes slower than its peers, by this ratio."""

    rank: int
    ratio: float

    def __str__(self) -> str:
        return f"rank {self.rank} takes {self.ratio:.2f} times as long as its peers for the same work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One value per rank, in order of rank; the parts are those of the profiled step of median length. Where a log
    tells phases: one value, the mean of the job's timed steps.

    step_time_s: that step, until the slowest rank ended. parts_s: seconds by part. waiting_s: of the collectives'
    parts, seconds until the last peer arrived. own_times_s: of every profiled step, the rank's own work (compute and
    optimizer). stages: the rank's pipeline stage; ranks of one stage do the same work. serialised: the device was
    waited for where parts meet, so nothing overlapped: communication counts whole, the step is longer than the timed
    ones, and those alone say how fast the plan is."""

    step_time_s: float
    parts_s: tuple[Mapping[str, float], ...]
    waiting_s: tuple[Mapping[str, float], ...]
    own_times_s: tuple[tuple[float, ...], ...]
    stages: tuple[int, ...]
    serialised: bool = False

    def __post_init__(self) -> None:
        lengths = {len(self.parts_s), len(self.waiting_s), len(self.own_times_s), len(self.stages)}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"profile: one value per rank is needed, but the lengths are {sorted(lengths)}")
        if not all(self.own_times_s):
            raise ValueError("profile: own_times_s must name at least one step of each rank")
        by_part = (seconds for parts in (*self.parts_s, *self.waiting_s) for seconds in parts.values())
        for seconds in chain([self.step_time_s], by_part, *self.own_times_s):
            if not -MAX_STEP_S <= seconds <= MAX_STEP_S:
                raise ValueError(f"profile: times must be at most {MAX_STEP_S:g} s, not {seconds}")

    @property
    def own_time_s(self) -> tuple[float, ...]:
        return tuple(median(times) for times in self.own_times_s)

    def exposed_s(self, timed_step_s: float) -> tuple[float, ...]:
        """Per rank, what its own work leaves of a timed step: communication that no work hid, or that slowed the work
        beside it, and idle time. At least that: launching piece by piece makes the work of a serialised step longer."""
        return tuple(max(0.0, timed_step_s - own_s) for own_s in self.own_time_s)

    @property
    def straggler(self) -> Straggler | None:
        return find_straggler(self.own_times_s, self.stages)


def find_straggler(own_times_s: Sequence[Sequence[float]], stages: Sequence[int]) -> Straggler | None:
    """The slowest rank, if its median own time is clearly above that of the other ranks of its stage.

    Clearly: 1.2 times their median, and even its fastest step slower than three quarters of theirs: no assumption about
    noise, and one hiccup names nobody. By chance, of 2 equal ranks and 5 steps, in 1 of 21 profiles, before the ratio
    is looked at; a rank that is alone in its stage has nobody to be compared with. By the wall's clock: a rank that its
    machine keeps from working, stopped or beside a busy neighbour, holds its peers up like one that is slow."""
    by_stage: defaultdict[int, list[int]] = defaultdict(list)
    for rank, stage in enumerate(stages):
        by_stage[stage].append(rank)
    middles, straggler = [median(times) for times in own_times_s], None
    for ranks in by_stage.values():
        *others, rank = sorted(ranks, key=middles.__getitem__)
        own = own_times_s[rank]
        if not others or len(own) < MIN_TIMES:
            continue
        theirs = sorted(value for other in others for value in own_times_s[other])
        clear = min(own) > theirs[ceil(0.75 * len(theirs)) - 1]
        ratio = middles[rank] / (median(map(middles.__getitem__, others)) or inf)
        if clear and ratio >= MIN_RATIO and (straggler is None or ratio > straggler.ratio):
            straggler = Straggler(rank, ratio)
    return straggler
