"""What Slurm's words mean: states, reasons, refusals, lists of hosts, and the lines of squeue, sacct, sinfo, scontrol.

The table of states holds every word of job_state_string (22.05) and of slurm.schedmd.com/job_state_codes.html.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from meshtune.runners.base import JobState
from meshtune.runners.failure_cause import Cause


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a state of Slurm's is to us. words: for people, where the state alone does not tell."""

    state: JobState
    cause: Cause | None = None
    words: str = ""


_QUEUED, _RUNNING = Meaning(JobState.QUEUED), Meaning(JobState.RUNNING)
_LOST_NODE = Meaning(JobState.LOST, Cause.NODE_FAULT, "a node failed")
# Flags that Slurm shows instead of a state (COMPLETING ...) are among them. A job that is requeued, against our
# --no-requeue, comes back to the queue; its second run would find the folder claimed and end.
STATES: Mapping[str, Meaning] = {
    "PENDING": _QUEUED,
    "CONFIGURING": Meaning(JobState.QUEUED, words="its nodes are being prepared"),
    "POWER_UP_NODE": Meaning(JobState.QUEUED, words="its nodes are being powered up"),
    "EXPEDITING": _QUEUED,
    "REQUEUED": _QUEUED,
    "REQUEUE_FED": _QUEUED,
    "REQUEUE_HOLD": _QUEUED,
    "RESV_DEL_HOLD": Meaning(JobState.QUEUED, words="held because its reservation was deleted"),
    "SPECIAL_EXIT": _QUEUED,
    "RUNNING": _RUNNING,
    "COMPLETING": _RUNNING,
    "RESIZING": _RUNNING,
    "SIGNALING": _RUNNING,
    "STAGE_OUT": _RUNNING,
    "STOPPED": Meaning(JobState.RUNNING, words="stopped by SIGSTOP"),
    "SUSPENDED": Meaning(JobState.RUNNING, words="suspended"),
    "UPDATE_DB": _RUNNING,
    "COMPLETED": Meaning(JobState.SUCCEEDED),
    "FAILED": Meaning(JobState.FAILED, words="the job script failed; see slurm.log"),
    "OUT_OF_MEMORY": Meaning(JobState.FAILED, Cause.OOM, "out of host memory, by Slurm's word"),
    "TIMEOUT": Meaning(JobState.TIMED_OUT, words="ended by Slurm at its time limit"),
    "DEADLINE": Meaning(JobState.CANCELLED, words="could not start by its deadline"),
    "CANCELLED": Meaning(JobState.CANCELLED, words="cancelled from outside"),
    "NODE_FAIL": _LOST_NODE,
    "BOOT_FAIL": Meaning(JobState.LOST, Cause.NODE_FAULT, "a node did not boot"),
    "LAUNCH_FAILED": Meaning(JobState.LOST, Cause.NODE_FAULT, "a node could not start it"),
    "RECONFIG_FAIL": Meaning(JobState.LOST, Cause.NODE_FAULT, "a node could not be configured"),
    "PREEMPTED": Meaning(JobState.LOST, Cause.PREEMPTION, "preempted by another job"),
    "REVOKED": Meaning(JobState.LOST, words="revoked: another cluster of the federation took it"),
}
# Reasons that make of a FAILED job one that a node failed.
_FAILED_BY: Mapping[str, Meaning] = {
    "JobLaunchFailure": Meaning(JobState.LOST, Cause.NODE_FAULT, "its first node could not start it"),
    "NodeDown": _LOST_NODE,
    "SystemFailure": _LOST_NODE,
    "FrontEndDown": _LOST_NODE,
}
# Of a node's states (node_state_string), those in which it is to blame for what ran there; '*' is "does not respond".
_BAD_NODE = ("down", "drain", "fail", "error", "unknown", "reboot", "power")

# slurm_strerror, and sbatch's own: the same request is refused again, whenever it is sent.
REFUSALS = (
    *("Invalid partition name specified", "invalid partition specified", "No partition specified"),
    *("Invalid account", "Invalid qos specification", "Invalid wckey specification", "Invalid license specification"),
    *("Invalid feature specification", "Invalid generic resource", "Invalid Trackable RESource"),
    *("Invalid node name specified", "Requested nodes not in this partition", "Requested reservation is invalid"),
    *("Access denied to requested reservation", "User's group not permitted", "Access/permission denied"),
    *("Requested node configuration is not available", "Node count specification invalid"),
    *("More processors requested than permitted", "CPU count specification invalid"),
    *("Task count specification invalid", "Memory required by task is not available"),
    *("Requested time limit is invalid", "Invalid time specified", "Batch script is empty"),
    *("Pathname of a file, directory or other parameter too long", "Invalid user id"),
    *("unrecognized option", "Invalid --", "ambiguous", "requires an argument", "invalid option"),
)
# The controller did not answer, or not in time: whether it took the request is not known.
SILENCES = (
    *("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Connection timed out"),
    *("Communication connection failure", "Message send failure", "Message receive failure", "Zero Bytes were"),
    *("Unexpected missing socket error", "Transport endpoint", "standby mode", "Rate limit exceeded"),
    *("Slurm temporarily unable to accept job", "Protocol authentication error", "Insane message length"),
)


def is_refusal(complaint: str) -> bool:
    """Whether Slurm will say the same of the same request another time."""
    return any(words in complaint for words in REFUSALS)


def is_silence(complaint: str) -> bool:
    """Whether nobody knows what became of the request."""
    return any(words in complaint for words in SILENCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One job as Slurm shows it. Times are seconds since the epoch, None where they are not known (yet)."""

    id: str
    word: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def meaning(self) -> Meaning:
        """A word that nobody knows is no end: the job is looked at again."""
        if self.word == "FAILED" and self.reason in _FAILED_BY:
            return _FAILED_BY[self.reason]
        return STATES.get(self.word, Meaning(JobState.RUNNING, words=f"in Slurm's state {self.word}"))

    @property
    def never_started(self) -> bool:
        """Its first node is to blame then: it runs the job's script."""
        return self.reason == "JobLaunchFailure"


# The fields of a sighting in the words of squeue and of sacct; both are asked for seconds since the epoch by
# SLURM_TIME_FORMAT=%s. The reason comes last: it is the only one that may hold the separator.
SQUEUE_FORMAT = "%i|%T|%N|%S|%e|%r"
SACCT_FORMAT = "JobIDRaw,State,NodeList,Start,End,Reason"


def parse_sightings(text: str) -> dict[str, Sighting]:
    """By number, the jobs in what squeue or sacct said in the format above; other lines are left out."""
    found: dict[str, Sighting] = {}
    for line in text.splitlines():
        fields = line.split("|", 5)
        if len(fields) != 6 or not fields[0].isdecimal():
            continue
        id, word, nodes, start, end, reason = fields
        found[id] = Sighting(
            id=id,
            # sacct says "CANCELLED by 1000".
            word=word.partition(" ")[0],
            reason="" if reason in ("None", "(null)") else reason,
            nodes=expand_hosts(nodes),
            started_at=_seconds(start),
            finished_at=_seconds(end),
        )
    return found


def _seconds(text: str) -> float | None:
    """Slurm says N/A, NONE, Unknown or nothing of what has not happened."""
    return float(text) if text.isdecimal() else None


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts of a list such as "n[0-2,7],rack[1-2]node[08-09]"; empty for none ("None assigned")."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]\s]|\[[^\]]*\])+", text if "assigned" not in text else ""):
        pieces = [list(_range(piece[1:-1])) if piece[:1] == "[" else [piece] for piece in _pieces(part)]
        hosts += ["".join(choice) for choice in product(*pieces)]
    return tuple(host for host in hosts if host != "(null)")


def _pieces(part: str) -> list[str]:
    return re.findall(r"\[[^\]]*\]|[^\[\]]+", part)


def _range(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if not last:
            yield first
            continue
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def parse_bad_nodes(text: str) -> tuple[str, ...]:
    """The nodes that are down, failing or silent, in what `sinfo -h -N -o '%N|%T'` said, each once."""
    bad: dict[str, None] = {}
    for line in text.splitlines():
        node, _, state = line.partition("|")
        if state.endswith("*") or state.startswith(_BAD_NODE):
            bad[node] = None
    return tuple(bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What a job may have there. most_minutes, most_nodes: None where there is no limit."""

    name: str
    default: bool
    nodes: tuple[str, ...]
    most_nodes: int | None
    most_minutes: int | None

    def refusal(self, nodes: int, minutes: int) -> str | None:
        """Why a job of that size can never start there. Slurm takes it all the same and lets it wait for ever."""
        if nodes > len(self.nodes):
            return f"{nodes} nodes, but partition {self.name} has {len(self.nodes)}"
        if self.most_nodes is not None and nodes > self.most_nodes:
            return f"{nodes} nodes, but partition {self.name} allows {self.most_nodes} in one job"
        if self.most_minutes is not None and minutes > self.most_minutes:
            return f"{minutes} min, but partition {self.name} allows {self.most_minutes}"
        return None


def parse_partitions(text: str) -> list[Partition]:
    """The partitions in what `scontrol show partition --oneliner` said."""
    found = []
    for line in text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" in fields:
            most = fields.get("MaxNodes", "")
            found.append(
                Partition(
                    name=fields["PartitionName"],
                    default=fields.get("Default") == "YES",
                    nodes=expand_hosts(fields.get("Nodes", "")),
                    most_nodes=int(most) if most.isdecimal() else None,
                    most_minutes=_minutes(fields.get("MaxTime", "")),
                )
            )
    return found


def _minutes(text: str) -> int | None:
    """Of a time such as "1-00:30:00"; None for UNLIMITED."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, _ = (int(group or 0) for group in match.groups())
    return (days * 24 + hours) * 60 + minutes


def room_for(partitions: Sequence[Partition], nodes: int, avoid: Collection[str]) -> bool:
    """Whether one of the partitions has that many nodes besides those to keep away from."""
    return any(len(set(partition.nodes) - set(avoid)) >= nodes for partition in partitions)
