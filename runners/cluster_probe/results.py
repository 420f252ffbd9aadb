"""What a probe measured, as its ranks wrote it: rates of one device, and times of messages by size.

Every number is a median over repeats, with its spread; `runners.cluster_probe.link_fit` fits links to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

from meshtune.runners.cluster_probe.link_fit import LinkFit, fit_all_reduce, fit_point_to_point
from meshtune.runners.json_files import read_json_value
from meshtune.runners.processes.job_json import write_whole
from meshtune.runners.processes.launcher_env import Launch
from meshtune.search_spaces.checks import StrEnum
from meshtune.search_spaces.cluster import DeviceKind

REQUEST_FILE = "request.json"
PROBE_FILE = "probe.json"
TRIAD = "triad"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What the ranks are asked to do. seconds: of measuring, all in all. devices_per_node: None: all that there are.
    launch: where a launcher put this process; None: it starts the ranks itself, on this machine."""

    seconds: float
    devices_per_node: int | None = None
    launch: Launch | None = None


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
    their median, the worst rank's.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One probe. memory_bytes: of one device; on CPU the machine's, divided by the ranks of a node. measured_at: UTC,
    ISO 8601. software: versions by name. seconds: what measuring took."""

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

    def best_matmul(self) -> list[Rate]:
        """Of each dtype the size that ran fastest."""
        best: dict[str, Rate] = {}
        for rate in self.matmul:
            best[rate.what] = max(best.get(rate.what, rate), rate, key=lambda each: each.per_s)
        return list(best.values())

    def exchange(self, pattern: Pattern, tier: Tier) -> Exchange | None:
        return next((found for found in self.exchanges if (found.pattern, found.tier) == (pattern, tier)), None)


def write_probed(directory: Path, probed: Probed) -> Path:
    """Write the file by rename; return its path. Raises OSError."""
    final = directory / PROBE_FILE
    write_whole(final, json.dumps(asdict(probed), indent=1) + "\n")
    return final


def read_probed(directory: Path) -> Probed:
    """Raises OSError when there is none, ValueError when it is none of ours."""
    return read_json_value(Probed, json.loads((directory / PROBE_FILE).read_text(encoding="utf-8")))


def spread(samples: Sequence[float]) -> float:
    """Half the interquartile range of positive samples over their median; 0 for a single one."""
    if len(samples) < 2:
        return 0.0
    lower, middle, upper = quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2 / middle
