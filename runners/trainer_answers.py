"""What the trainer's commands print beside measurements, as values: a probe's figures, with the launch that it ran
under and the links fitted to them; exact peaks of memory; the build of torch.

A link is the alpha-beta model, fitted by relative least squares, because the times span five decades: a large message's
noise does not drown a small one's latency. Every number is a median over repeats, with its spread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import fsum, inf
from pathlib import Path
from statistics import quantiles

from meshtune.runners.base import RunnerError
from meshtune.runners.json_files import read_json_file, write_whole
from meshtune.search_spaces.checks import StrEnum
from meshtune.search_spaces.cluster import DeviceKind, LayerRun, MeasuredRates
from meshtune.search_spaces.model import ModelSpec

# As the jobs of our runners: one port per job, so that two on one node do not meet.
FIRST_PORT = 20_000


class InvalidLaunch(RunnerError):
    """The launcher's variables contradict each other or are not all there; the same start fails again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLaunch:
    """One process of several. node: equal for the processes of one node, whatever the launcher calls it."""

    rank: int
    world_size: int
    local_rank: int
    node: str
    address: str
    port: int


def read_launch(environment: Mapping[str, str], host: str) -> RankLaunch | None:
    """The launch that these variables describe: of torchrun and what sets the same ones, or of srun; None when no
    launcher started this process, as in a batch script itself. Raises InvalidLaunch."""
    if "RANK" in environment:
        ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        node = environment.get("GROUP_RANK", host)
    elif "SLURM_STEP_NUM_TASKS" in environment:
        ranks = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        node = environment.get("SLURM_NODEID", host)
    else:
        return None
    rank, world_size, local_rank = (_whole(environment, name) for name in ranks)
    if not 0 <= rank < world_size:
        raise InvalidLaunch(f"{ranks[0]}({rank}) is no rank of {ranks[1]}({world_size})")
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not address and "SLURM_STEP_NODELIST" in environment:
        address = first_host(environment["SLURM_STEP_NODELIST"])
    if not address:
        raise InvalidLaunch(f"{ranks[0]} is set, so MASTER_ADDR must say where the {world_size} ranks meet")
    if not port and "SLURM_JOB_ID" in environment:
        port = str(FIRST_PORT + _whole(environment, "SLURM_JOB_ID") % FIRST_PORT)
    if not port.isdecimal():
        raise InvalidLaunch(f"MASTER_PORT must be a port's number, not {port!r}")
    return RankLaunch(
        rank=rank, world_size=world_size, local_rank=local_rank, node=node, address=address, port=int(port)
    )


def first_host(nodelist: str) -> str:
    """The first host of a Slurm list: gpu[007-012,020],login1 -> gpu007. One pair of brackets per name."""
    prefix, bracket, rest = nodelist.partition("[")
    if not bracket or "," in prefix:
        return nodelist.partition(",")[0]
    inside, _, after = rest.partition("]")
    return prefix + inside.partition(",")[0].partition("-")[0] + after.partition(",")[0]


def _whole(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise InvalidLaunch(f"{name} must be a whole number under a launcher, not {text!r}")
    return int(text)


class NoFit(ValueError):
    """The times do not say what the link does; measuring longer may help."""


@dataclass(frozen=True, slots=True)
class LinkFit:
    """alpha_s: seconds per hop. bandwidth_bytes_per_s: per device and direction. worst_residual: the largest
    |fitted - measured| / measured of all sizes."""

    alpha_s: float
    bandwidth_bytes_per_s: float
    worst_residual: float


def fit_all_reduce(sizes_bytes: Sequence[int], times_s: Sequence[float], ranks: int) -> LinkFit:
    """The link under a ring all-reduce of S bytes over n ranks: t = 2 (n - 1) alpha + 2 (n - 1) / n * S / B.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.5, without the time of adding. Raises NoFit."""
    if ranks < 2:
        raise NoFit(f"an all-reduce over {ranks} rank uses no link")
    steps = 2 * (ranks - 1)
    return _fit(float(steps), [steps / ranks * size for size in sizes_bytes], times_s)


def fit_point_to_point(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> LinkFit:
    """The link under one message of S bytes: t = alpha + S / B. Raises NoFit."""
    return _fit(1.0, [float(size) for size in sizes_bytes], times_s)


def _fit(hops: float, loads_bytes: Sequence[float], times_s: Sequence[float]) -> LinkFit:
    """hops * alpha + load / B = t, in the least squares of (fitted - t) / t; a negative alpha becomes 0, and B is then
    fitted alone."""
    if len(set(loads_bytes)) < 2:
        raise NoFit(f"two sizes at least are needed, not {len(set(loads_bytes))}")
    wrong = [time for time in times_s if not 0 < time < inf]
    if wrong:
        raise NoFit(f"times must be positive and finite, not {wrong[0]}")
    latency = [hops / time for time in times_s]
    load = [size / time for size, time in zip(loads_bytes, times_s, strict=True)]
    # The normal equations. The columns differ by ten decades, so each is scaled to a largest value of 1.
    scale = max(latency), max(load)
    first, second = [each / scale[0] for each in latency], [each / scale[1] for each in load]
    aa, ab, bb = _dot(first, first), _dot(first, second), _dot(second, second)
    determinant = aa * bb - ab * ab
    if determinant <= 0:
        raise NoFit("the times do not tell latency and bandwidth apart")
    alpha = (bb * sum(first) - ab * sum(second)) / determinant / scale[0]
    per_byte = (aa * sum(second) - ab * sum(first)) / determinant / scale[1]
    if alpha < 0:
        alpha, per_byte = 0.0, sum(load) / _dot(load, load)
    if per_byte <= 0:
        raise NoFit("larger messages did not take longer")
    residuals = [abs(alpha * hop + per_byte * byte - 1) for hop, byte in zip(latency, load, strict=True)]
    return LinkFit(alpha, 1 / per_byte, max(residuals))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return fsum(a * b for a, b in zip(left, right, strict=True))


REQUEST_FILE = "request.json"
PROBE_FILE = "probe.json"
TRIAD = "triad"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What the ranks are asked to do. seconds: of measuring, all in all. devices_per_node: None: all that there are.
    launch: where a launcher put this process; None: it starts the ranks itself, on this machine. model: at whose shapes
    training is timed; None: what depends on no shapes."""

    seconds: float
    devices_per_node: int | None = None
    launch: RankLaunch | None = None
    model: ModelSpec | None = None


class Pattern(StrEnum):
    """Who talks to whom: all ranks of a group, or two of them, both ways in turn."""

    ALL_REDUCE = "all_reduce"
    POINT_TO_POINT = "point_to_point"


class Tier(StrEnum):
    """Which ranks: those of one node, or one of each node (as many such groups at once as a node has ranks)."""

    NODE = "node"
    NETWORK = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast one rank does `what` while all others do it too: FLOP/s of square matrix products of a dtype, or bytes/s
    read and written by a `copy` or a `triad` (a = b + s c).

    size: rows of the matrices, or bytes of an array. per_s: the median over the ranks of each one's median; lowest and
    highest: of the ranks. samples: per rank, the fewest. spread: half the interquartile range of a rank's samples over
    their median, the worst rank's."""

    what: str
    size: int
    per_s: float
    lowest_per_s: float
    highest_per_s: float
    samples: int
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """time_s: the median over the samples of the slowest rank's time. spread: as a rate's."""

    size_bytes: int
    time_s: float
    samples: int
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One pattern over one tier. ranks: of one group. messages: by ascending size."""

    pattern: Pattern
    tier: Tier
    ranks: int
    messages: tuple[Message, ...]

    def fit(self) -> LinkFit:
        """The link under it. Raises NoFit."""
        sizes = [message.size_bytes for message in self.messages]
        times = [message.time_s for message in self.messages]
        if self.pattern is Pattern.ALL_REDUCE:
            return fit_all_reduce(sizes, times, self.ranks)
        return fit_point_to_point(sizes, times)


def best_rates(rates: Sequence[Rate]) -> list[Rate]:
    """Of each `what` the size that ran fastest."""
    best: dict[str, Rate] = {}
    for rate in rates:
        best[rate.what] = max(best.get(rate.what, rate), rate, key=lambda each: each.per_s)
    return list(best.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One probe. memory_bytes: of one device; on CPU the machine's, divided by the ranks of a node. measured_at: UTC,
    ISO 8601. software: versions by name. seconds: what measuring took. sustained: of each dtype's best matmul, for
    seconds. model: at whose shapes training was timed. rates, runs: of training, by dtype; `rates` without what only
    `runs` tell, which are none where the layers do not fit into the memory."""

    host: str
    measured_at: str
    software: Mapping[str, str]
    seconds: float
    nodes: int
    devices_per_node: int
    kind: DeviceKind
    device: str
    memory_bytes: int
    matmul: tuple[Rate, ...]
    memory: tuple[Rate, ...]
    exchanges: tuple[Exchange, ...]
    sustained: tuple[Rate, ...] = ()
    model: ModelSpec | None = None
    rates: Mapping[str, MeasuredRates] = field(default_factory=dict)
    runs: Mapping[str, tuple[LayerRun, ...]] = field(default_factory=dict)

    def exchange(self, pattern: Pattern, tier: Tier) -> Exchange | None:
        return next((one for one in self.exchanges if (one.pattern, one.tier) == (pattern, tier)), None)


def write_probed(directory: Path, probed: Probed) -> Path:
    """Write the file by rename; return its path. Raises OSError."""
    final = directory / PROBE_FILE
    write_whole(final, json.dumps(asdict(probed), indent=1) + "\n")
    return final


def read_probed(directory: Path) -> Probed:
    """Raises OSError when there is none, ValueError when it is none of ours."""
    return read_json_file(Probed, directory / PROBE_FILE)


def spread(samples: Sequence[float]) -> float:
    """Half the interquartile range of positive samples over their median; 0 for a single one."""
    if len(samples) < 2:
        return 0.0
    lower, middle, upper = quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPeak:
    """What the tensors of one rank of a job take at most, as `trainer.exact` finds it."""

    rank: int
    stage: int
    peak_bytes: int
    # Of the peak, what stays from step to step.
    lasting_bytes: int
    parameters: int
    # Fewer layers were run.
    extrapolated: bool
    # How many were run.
    micro_batches: int
    seconds: float
