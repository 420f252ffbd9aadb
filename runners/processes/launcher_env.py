"""Where a launcher put this process, from the environment alone: torchrun and what sets the same variables, or srun. A
batch script's own variables are no launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.runners.base import RunnerError

# As the jobs of our runners: one port per job, so that two on one node do not meet.
FIRST_PORT = 20_000


class InvalidLaunch(RunnerError):
    """The launcher's variables contradict each other or are not all there; the same start fails again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process of several. node: equal for the processes of one node, whatever the launcher calls it."""

    rank: int
    world_size: int
    local_rank: int
    node: str
    address: str
    port: int


def read_launch(environment: Mapping[str, str], host: str) -> Launch | None:
    """The launch that these variables describe, None when no launcher did. Raises InvalidLaunch."""
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
    return Launch(rank=rank, world_size=world_size, local_rank=local_rank, node=node, address=address, port=int(port))


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
