"""Times matrix products, memory and messages on every rank at once, as training uses them: the sharing is measured too.

A sample is as many operations in a row as take some milliseconds. What all ranks must do equally often is decided from
the slowest rank's time. Warm-up is dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshtune.runners.trainer.parallel.mesh import gather, slowest, synchronize
from meshtune.runners.trainer_answers import TRIAD, Message, Rate, spread

KIB, MIB = 2**10, 2**20
MESSAGE_BYTES = tuple(KIB * 4**power for power in range(9))  # 1 KiB to 64 MiB
MIN_SIZES = 6  # 1 MiB: without large ones there is no bandwidth to see
# Smaller products do not fill an accelerator, on CPU larger ones take seconds; the fastest counts.
MATMUL_ROWS, CPU_MATMUL_ROWS = (2048, 4096, 8192, 16384), (256, 512, 1024, 2048)
# Larger than any cache's share of one rank.
ARRAY_BYTES, CPU_ARRAY_BYTES = 512 * MIB, 64 * MIB
SAMPLE_S = 0.005
MAX_IN_A_ROW = 200
MIN_SAMPLES = 3
# Median seconds per operation, number of samples, spread.
Sample = tuple[float, int, float]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """This rank's device, its clock, and what it hears of the other ranks. clock: in seconds."""

    device: torch.device
    clock: Callable[[], float] = time.perf_counter

    def meet(self) -> None:
        """All ranks begin together. Collective."""
        synchronize(self.device)
        dist.barrier()

    def time(self, operation: Callable[[], object], times: int) -> float:
        """Seconds per operation, on this rank."""
        synchronize(self.device)
        start = self.clock()
        for _ in range(times):
            operation()
        synchronize(self.device)
        return (self.clock() - start) / times

    def slowest(self, elapsed_s: float) -> float:
        """The largest of all ranks' numbers. Collective."""
        return slowest(elapsed_s, self.device)


def dtypes(device: torch.device) -> list[torch.dtype]:
    """What the trainer trains in there and the device computes itself."""
    if device.type == "cpu":
        return [torch.float32, torch.bfloat16]
    has_bfloat16 = torch.get_device_module(device).is_bf16_supported(including_emulation=False)
    return [torch.float32, *([torch.bfloat16] if has_bfloat16 else []), torch.float16]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def time_matmul(place: RankPlace, dtype: torch.dtype, seconds: float) -> list[Rate]:
    """FLOP/s of products of square matrices (2 n^3), by size; larger ones are left out where time is short.
    Collective."""
    rates: list[Rate] = []
    remaining_s, sizes = seconds, CPU_MATMUL_ROWS if place.device.type == "cpu" else MATMUL_ROWS
    for index, rows in enumerate(sizes):
        left, right = (torch.randn(rows, rows, device=place.device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)

        def multiply(a: Tensor = left, b: Tensor = right, out: Tensor = product) -> Tensor:
            return torch.mm(a, b, out=out)

        share_s = remaining_s / (len(sizes) - index)
        samples, once_s = _time_rate(place, multiply, share_s)
        rates.append(_rate(name_of(dtype), rows, 2 * rows**3, samples))
        remaining_s -= share_s
        larger_s = once_s * (sizes[min(index + 1, len(sizes) - 1)] / rows) ** 3
        if larger_s * (MIN_SAMPLES + 2) > remaining_s:
            break
    return rates


def time_memory(place: RankPlace, seconds: float) -> list[Rate]:
    """Bytes/s read and written by one rank: copy (b = a) and triad (a = b + s c), as STREAM counts. Collective."""
    size = CPU_ARRAY_BYTES if place.device.type == "cpu" else ARRAY_BYTES
    target, left, right = (torch.ones(size // 4, device=place.device) for _ in range(3))
    copied, _ = _time_rate(place, lambda: target.copy_(left), seconds / 2)
    added, _ = _time_rate(place, lambda: torch.add(left, right, alpha=0.5, out=target), seconds / 2)
    return [_rate("copy", size, 2 * size, copied), _rate(TRIAD, size, 3 * size, added)]


def time_messages(
    place: RankPlace, exchange: Callable[[Tensor], None] | None, seconds: float, *, trips: int = 1
) -> list[Message]:
    """The time of one trip of `exchange`, which makes `trips`, by size; at least MIN_SIZES, more where `seconds` allow.

    Sizes take turns, so that a disturbance hits all alike. exchange None: this rank has no partner. Collective."""
    started = time.perf_counter()

    def spent() -> float:
        return place.slowest(time.perf_counter() - started)

    def sample(buffer: Tensor, times: int) -> float:
        place.meet()
        return place.slowest(place.time(lambda: exchange(buffer) if exchange else None, times))

    buffers: list[Tensor] = []
    in_a_row: list[int] = []
    once_s = 0.0
    for size in MESSAGE_BYTES:
        # A size takes at most four times as long as the one before, which is four times smaller.
        if len(buffers) >= MIN_SIZES and once_s * 4 * (2 + MIN_SAMPLES) > (seconds - spent()) / 2:
            break
        buffers.append(torch.zeros(size // 4, device=place.device))
        sample(buffers[-1], 1)
        once_s = min(sample(buffers[-1], 1) for _ in range(2))
        in_a_row.append(_in_a_row(once_s))
    times: list[list[float]] = [[] for _ in buffers]
    while len(times[0]) < MIN_SAMPLES or spent() < seconds:
        for taken, buffer, count in zip(times, buffers, in_a_row, strict=True):
            taken.append(sample(buffer, count))
    return [
        Message(size_bytes=buffer.numel() * 4, time_s=median(taken) / trips, samples=len(taken), spread=spread(taken))
        for buffer, taken in zip(buffers, times, strict=True)
    ]


def time_sustained(place: RankPlace, best: Rate, seconds: float) -> Rate:
    """The same products for so long that a device that draws too much power slows down: its last third. Collective."""
    left, right = (torch.randn(best.size, best.size, device=place.device).to(getattr(torch, best.what)) for _ in "ab")
    samples: list[Sample] = []
    for share in (2 / 3, 1 / 3):
        samples, _ = _time_rate(place, lambda: torch.mm(left, right), seconds * share)
    return _rate(best.what, best.size, 2 * best.size**3, samples)


def time_in_turn(place: RankPlace, operations: Mapping[Any, Callable[[], object]], seconds: float) -> dict[Any, float]:
    """Seconds of each operation: the median over the ranks of each one's median. They take turns, so that a disturbance
    hits all alike. Collective."""
    in_a_row: dict[Any, int] = {}
    for name, operation in operations.items():
        operation()
        place.meet()
        in_a_row[name] = _in_a_row(place.slowest(place.time(operation, 1)))
    times: dict[Any, list[float]] = {name: [] for name in operations}
    begun, rounds = time.perf_counter(), 0
    while rounds < MIN_SAMPLES or place.slowest(time.perf_counter() - begun) < seconds:
        rounds += 1
        for name, operation in operations.items():
            times[name].append(place.time(operation, in_a_row[name]))
    medians = gather({name: median(taken) for name, taken in times.items()})
    return {name: median(each[name] for each in medians) for name in operations}


def _time_rate(place: RankPlace, operation: Callable[[], object], seconds: float) -> tuple[list[Sample], float]:
    """Every rank's median seconds per operation, samples and spread; and the slowest rank's seconds of one.
    Collective."""
    operation()
    place.meet()
    once_s = place.slowest(place.time(operation, 1))
    in_a_row = _in_a_row(once_s)
    place.meet()
    deadline = time.perf_counter() + seconds - 2 * once_s
    times: list[float] = []
    while len(times) < MIN_SAMPLES or time.perf_counter() < deadline:
        times.append(place.time(operation, in_a_row))
    return gather((median(times), len(times), spread(times))), once_s


def _rate(what: str, size: int, work: float, ranks: list[Sample]) -> Rate:
    """work: FLOP or bytes of one operation. ranks: as from _time_rate."""
    rates = [work / median_s for median_s, _, _ in ranks]
    return Rate(
        what=what,
        size=size,
        per_s=median(rates),
        lowest_per_s=min(rates),
        highest_per_s=max(rates),
        samples=min(samples for _, samples, _ in ranks),
        spread=max(each for _, _, each in ranks),
    )


def _in_a_row(once_s: float) -> int:
    return max(1, min(MAX_IN_A_ROW, int(SAMPLE_S / max(once_s, 1e-9))))
