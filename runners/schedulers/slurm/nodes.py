"""The nodes and partitions of a cluster, as sinfo and scontrol show them: which can run a job now, and how much of a
node belongs to each of its devices."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from meshtune.runners.schedulers.batch.script import duration_s

# Of a node's states (node_state_string), those in which it is to blame for what ran there; '*' is "does not respond".
_BAD_NODE = ("down", "drain", "fail", "error", "unknown", "reboot", "power")
# In these a node starts no job. "powering_up", "powered_down" and "planned" nodes do, in their time.
_UNUSABLE = ("down", "drain", "fail", "error", "unknown", "reboot", "inval", "future", "blocked", "no_respond")
# In these it starts only jobs of its reservation.
_RESERVED = ("reserved", "maint")
# %N node, %T state, %c CPUs, %m MiB, %f features, %G devices; the features have no bar in them.
NODE_FORMAT = "%N|%T|%c|%m|%f|%G"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node, as sinfo shows it."""

    name: str
    # As "idle" or "mixed*"; the last character may be a flag.
    state: str
    cpus: int = 0
    memory_mib: int = 0
    features: tuple[str, ...] = ()
    # As "gpu:h100:8(S:0-1),nic:1".
    gres: str = ""

    def devices(self, gres: str) -> int:
        """How many devices it has of a kind such as "gpu" or "gpu:h100"."""
        return sum(map(int, re.findall(rf"(?:^|,){re.escape(gres)}(?::[^:,()]+)?:(\d+)(?=[(,]|$)", self.gres)))

    def starts_jobs(self, *, reserved: bool) -> bool:
        """True where it runs jobs, or will by itself. reserved: for a job of a reservation."""
        closed = _UNUSABLE if reserved else (*_UNUSABLE, *_RESERVED)
        silent = self.state.endswith(("*", "^") if reserved else ("*", "^", "$"))
        return not silent and not self.state.startswith(closed)

    def fits(self, constraint: str) -> bool:
        """Whether it has the features of a constraint such as "a100&ib" or "a100|h100"; a constraint of another form
        fits every node."""
        if not re.fullmatch(r"[A-Za-z0-9_.:-]+([&|][A-Za-z0-9_.:-]+)*", constraint) or {"&", "|"} <= set(constraint):
            return True
        one_of = "|" in constraint
        has = [feature in self.features for feature in re.split(r"[&|]", constraint)]
        return any(has) if one_of else all(has)


def parse_nodes(text: str) -> list[SlurmNode]:
    """The nodes in what `sinfo -h -N` said in the format above, each once."""
    by_name: dict[str, SlurmNode] = {}
    for line in text.splitlines():
        fields = line.split("|", 5)
        if len(fields) == 6:
            name, state, cpus, memory, features, gres = (field.strip() for field in fields)
            by_name[name] = SlurmNode(
                name=name,
                state=state,
                cpus=_count(cpus),
                memory_mib=_count(memory),
                features=tuple(features.split(",")),
                gres=gres,
            )
    return list(by_name.values())


def _count(text: str) -> int:
    """Of "96" or "96+"."""
    number = text.rstrip("+")
    return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What of a node belongs to each of its devices."""

    cpus: int
    memory_mib: int


def share_per_device(nodes: Sequence[SlurmNode], gres: str, otherwise: int) -> DeviceShare | None:
    """The least share of a device over the nodes that have such devices; where Slurm knows of none, of nodes of
    `otherwise` devices. None: there are no nodes, or they do not say what they have."""
    having = [(node, count) for node in nodes if (count := node.devices(gres))]
    counted = having or [(node, otherwise) for node in nodes]
    cpus = min((max(1, node.cpus // count) for node, count in counted if node.cpus), default=0)
    memory = min((node.memory_mib // count for node, count in counted), default=0)
    return DeviceShare(cpus, memory) if cpus else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The part of a partition that says what a job may have there."""

    name: str
    nodes: tuple[str, ...]
    # None where there is no limit.
    max_nodes: int | None
    max_minutes: int | None

    def refusal(self, nodes: int, minutes: int) -> str | None:
        """Why a job of that size can never start there. Slurm takes it all the same and lets it wait for ever."""
        if nodes > len(self.nodes):
            return f"{nodes} nodes, but partition {self.name} has {len(self.nodes)}"
        if self.max_nodes is not None and nodes > self.max_nodes:
            return f"{nodes} nodes, but partition {self.name} allows {self.max_nodes} in one job"
        if self.max_minutes is not None and minutes > self.max_minutes:
            return f"{minutes} min, but partition {self.name} allows {self.max_minutes}"
        return None


def parse_partitions(text: str) -> list[Partition]:
    """The partitions in what `scontrol show partition --oneliner` said."""
    partitions = []
    for line in text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" in fields:
            limit, longest_s = fields.get("MaxNodes", ""), duration_s(fields.get("MaxTime", ""))
            partitions.append(
                Partition(
                    name=fields["PartitionName"],
                    nodes=expand_hosts(fields.get("Nodes", "")),
                    max_nodes=int(limit) if limit.isdecimal() else None,
                    max_minutes=None if longest_s is None else longest_s // 60,
                )
            )
    return partitions


def room_for(partitions: Sequence[Partition], usable: Collection[str], nodes: int, avoid: Collection[str]) -> bool:
    """Whether one of the partitions has that many usable nodes besides those to keep away from."""
    left = set(usable) - set(avoid)
    return any(len(left.intersection(partition.nodes)) >= nodes for partition in partitions)


def ask_states(nodes: Collection[str]) -> tuple[str, ...]:
    """The command whose answer `parse_bad_nodes` reads."""
    return ("sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(nodes))}", "--format=%N|%T")


def parse_bad_nodes(text: str) -> tuple[str, ...]:
    """The nodes that are down, failing or silent, in what `sinfo -h -N -o '%N|%T'` said, each once."""
    bad: dict[str, None] = {}
    for line in text.splitlines():
        node, _, state = line.partition("|")
        if state.endswith("*") or state.startswith(_BAD_NODE):
            bad[node] = None
    return tuple(bad)


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts of a list such as "n[0-2,7],rack[1-2]node[08-09]"; empty for none ("None assigned")."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]\s]|\[[^\]]*\])+", text if "assigned" not in text else ""):
        parts = re.findall(r"\[[^\]]*\]|[^\[\]]+", part)
        pieces = [list(_range(piece[1:-1])) if piece[:1] == "[" else [piece] for piece in parts]
        hosts += ["".join(choice) for choice in product(*pieces)]
    return tuple(host for host in hosts if host != "(null)")


def _range(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if not last:
            yield first
            continue
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
