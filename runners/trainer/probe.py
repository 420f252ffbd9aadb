"""One rank of a probe, from its request to the file; or the process that starts all ranks of this machine.

    python -m meshtune.runners.trainer.probe DIRECTORY            one rank: of a launcher (the request says which), or
    python -m meshtune.runners.trainer.probe DIRECTORY --start    of ours, started here

DIRECTORY holds the request (`request.json`); rank 0 writes `probe.json` there. Exit status: 0 measured, 1 failed."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import inf
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from meshtune.runners.base import JobSpec
from meshtune.runners.devices.record import processor_name
from meshtune.runners.json_files import read_json_file
from meshtune.runners.processes.gang import exit_text, run_gang
from meshtune.runners.trainer.failure import Phase, describe, first_cause, read_failures, write_failure
from meshtune.runners.trainer.parallel.mesh import choose_device, gather, meet, own_group
from meshtune.runners.trainer.probe_rates import (
    RankPlace,
    dtypes,
    name_of,
    time_matmul,
    time_memory,
    time_messages,
    time_sustained,
)
from meshtune.runners.trainer.probe_training import time_training
from meshtune.runners.trainer.report import software
from meshtune.runners.trainer_answers import (
    REQUEST_FILE,
    Exchange,
    Pattern,
    Probed,
    ProbeRequest,
    Tier,
    best_rates,
    write_probed,
)
from meshtune.search_spaces.cluster import DeviceKind

# How long a rank waits for its peers; under a launcher they may start minutes apart.
PEER_TIMEOUT = timedelta(minutes=3)
# Links cannot be seen by a rank alone, and more processes than this say nothing new about a CPU.
MIN_CPU_RANKS, MAX_CPU_RANKS = 2, 8
# Shares of the time: products, memory, lasting products, training with a model and without; messages get the rest.
MATMUL, MEMORY, SUSTAINED, TRAINING, TRAINING_ALONE = 0.15, 0.05, 0.15, 0.5, 0.1


class ProbeRefused(Exception):
    """This machine, or this start, is not what the request says; the same request fails again."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Which ranks share a node, by node and there by rank; as many on every node."""

    nodes: tuple[tuple[int, ...], ...]

    @property
    def devices_per_node(self) -> int:
        return len(self.nodes[0])

    def groups(self, tier: Tier) -> list[tuple[int, ...]]:
        """The groups that talk at once: the nodes, or the k-th ranks of all nodes for each k."""
        return list(self.nodes) if tier is Tier.NODE else list(zip(*self.nodes, strict=True))


def lay_out(nodes: Sequence[str], devices_per_node: int | None) -> NodeLayout:
    """The layout of ranks that name their nodes, in order of rank. Raises ProbeRefused."""
    members: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    counts = sorted({len(ranks) for ranks in members.values()})
    if len(counts) > 1:
        raise ProbeRefused(f"the nodes must have as many ranks each, not {counts[0]} and {counts[-1]}")
    if devices_per_node not in (None, counts[0]):
        raise ProbeRefused(
            f"--devices-per-node {devices_per_node}, but the launcher started {counts[0]} ranks per node"
        )
    return NodeLayout(tuple(map(tuple, members.values())))


def count_ranks(wanted: int | None, accelerators: int, cores: int) -> int:
    """How many ranks one machine gets: the accelerators, else the cores. Raises ProbeRefused."""
    if accelerators and wanted is not None and wanted > accelerators:
        raise ProbeRefused(f"--devices-per-node {wanted}, but torch sees {accelerators} accelerators")
    return wanted or accelerators or max(MIN_CPU_RANKS, min(cores, MAX_CPU_RANKS))


def visible_kind() -> DeviceKind:
    """Of the devices that the ranks get."""
    kind = torch.accelerator.current_accelerator()
    return DeviceKind.CPU if kind is None or torch.accelerator.device_count() == 0 else DeviceKind(kind.type)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m meshtune.runners.trainer.probe", description="Measure this cluster."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--start", action="store_true", help="start the ranks of this machine")
    arguments = parser.parse_args(argv)
    directory: Path = arguments.directory
    request = read_json_file(ProbeRequest, directory / REQUEST_FILE)
    return start_ranks(request, directory) if arguments.start else run_rank(request, directory)


def start_ranks(request: ProbeRequest, directory: Path) -> int:
    visible = torch.accelerator.device_count()
    try:
        ranks = count_ranks(request.devices_per_node, visible, len(os.sched_getaffinity(0)))
    except ProbeRefused as error:
        sys.stderr.write(f"{error}\n")
        return 1
    logs = directory / "ranks"
    logs.mkdir()
    spec = JobSpec(
        name="probe",
        command=(sys.executable, "-m", "meshtune.runners.trainer.probe", str(directory)),
        directory=logs,
        devices_per_node=ranks,
        time_limit_s=inf,
        env=dict(os.environ),
    )
    # A fork shares the import of torch. On accelerators the rank is a program of its own: counting may have begun them.
    death = run_gang(spec, None if visible else lambda _: run_rank(request, directory)).death
    if death is None:
        return 0
    cause = first_cause(read_failures(directory))
    reason = exit_text(*death) if cause is None or cause.echo else f"rank {cause.rank}: {cause.reason}"
    sys.stderr.write(f"{reason}\n")
    return 1


def run_rank(request: ProbeRequest, directory: Path) -> int:
    """Failing, it says why and ends the process at once, as peers may be gone."""
    launch = request.launch
    rank = launch.rank if launch else int(os.environ["RANK"])
    try:
        local_rank = launch.local_rank if launch else int(os.environ["LOCAL_RANK"])
        device = choose_device(visible_kind(), local_rank)
        if launch is None:
            meet(device, rank, int(os.environ["WORLD_SIZE"]), PEER_TIMEOUT, directory / "rendezvous")
        else:
            if launch.address in ("127.0.0.1", "localhost"):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            os.environ |= {"MASTER_ADDR": launch.address, "MASTER_PORT": str(launch.port)}
            meet(device, rank, launch.world_size, PEER_TIMEOUT, None)
        nodes = gather(launch.node if launch else "here")
        probed = measure(request, lay_out(nodes, request.devices_per_node), RankPlace(device))
        if rank == 0:
            write_probed(directory, probed)
        dist.barrier()
    except BaseException as error:
        refused = isinstance(error, ProbeRefused)
        failure = describe(error, rank=rank, phase=Phase.INIT, at=time.time())
        write_failure(directory, failure)
        traceback.print_exc()
        sys.stderr.write(f"{error if refused else f'rank {rank}: {failure.reason}'}\n")
        sys.stderr.flush()
        os._exit(1)
    dist.destroy_process_group()
    return 0


def measure(request: ProbeRequest, layout: NodeLayout, place: RankPlace) -> Probed:
    """Collective. Raises InvalidValue for a model that the trainer does not have."""
    start, began, seconds = time.perf_counter(), datetime.now(timezone.utc), request.seconds
    kinds = dtypes(place.device)
    matmul = [rate for kind in kinds for rate in time_matmul(place, kind, seconds * MATMUL / len(kinds))]
    memory = time_memory(place, seconds * MEMORY)
    best = best_rates(matmul)
    sustained = [time_sustained(place, rate, seconds * SUSTAINED / len(best)) for rate in best]
    # float32 is what nobody trains in on an accelerator; of 16 bits the first that there is.
    trained = kinds if place.device.type == "cpu" else kinds[1:2]
    share = TRAINING if request.model else TRAINING_ALONE
    training = {
        name_of(kind): time_training(place, request.model, kind, seconds * share / len(trained)) for kind in trained
    }
    tiers = [tier for tier in Tier if len(layout.groups(tier)[0]) > 1]
    left_s = seconds * (1 - MATMUL - MEMORY - SUSTAINED - share) / (2 * max(len(tiers), 1))
    exchanges = [
        Exchange(pattern=pattern, tier=tier, ranks=ranks, messages=tuple(messages))
        for tier in tiers
        for pattern, ranks, messages in (
            (Pattern.ALL_REDUCE, len(layout.groups(tier)[0]), time_messages(place, _all_reduce(layout, tier), left_s)),
            (Pattern.POINT_TO_POINT, 2, time_messages(place, _ping_pong(layout, tier), left_s, trips=2)),
        )
    ]
    return Probed(
        host=socket.gethostname(),
        measured_at=began.isoformat(timespec="seconds"),
        software=software(place.device),
        seconds=time.perf_counter() - start,
        nodes=len(layout.nodes),
        devices_per_node=layout.devices_per_node,
        kind=DeviceKind(place.device.type),
        device=device_name(place.device),
        memory_bytes=memory_bytes(place.device, layout.devices_per_node),
        matmul=tuple(matmul),
        memory=tuple(memory),
        exchanges=tuple(exchanges),
        sustained=tuple(sustained),
        model=request.model,
        rates={name: rates for name, (rates, _) in training.items()},
        runs={name: runs for name, (_, runs) in training.items()},
    )


def _all_reduce(layout: NodeLayout, tier: Tier) -> Callable[[Tensor], None]:
    own = own_group(layout.groups(tier))
    return lambda buffer: dist.all_reduce(buffer, group=own) and None


def _ping_pong(layout: NodeLayout, tier: Tier) -> Callable[[Tensor], None] | None:
    """There and back within each pair of a group, all pairs at once; None for an odd one out."""
    pairs = [pair for ranks in layout.groups(tier) for pair in zip(ranks[::2], ranks[1::2], strict=False)]
    own = next((pair for pair in pairs if dist.get_rank() in pair), None)
    if own is None:
        return None
    first, second = own

    def there_and_back(buffer: Tensor) -> None:
        if dist.get_rank() == first:
            dist.send(buffer, second)
            dist.recv(buffer, second)
        else:
            dist.recv(buffer, first)
            dist.send(buffer, first)

    return there_and_back


def device_name(device: torch.device) -> str:
    if device.type != "cpu":
        return str(torch.get_device_module(device).get_device_name(device))
    return f"{processor_name()}, 1 core"


def memory_bytes(device: torch.device, ranks: int) -> int:
    """Of one device; on CPU an equal share of the machine's."""
    if device.type != "cpu":
        return int(torch.get_device_module(device).get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // ranks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
