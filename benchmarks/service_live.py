"""The service while campaigns run on the simulated cluster: its ticks, its streams of events, its memory over time."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service_fill import DOCUMENT
from service_process import Server

STREAMS = Path(__file__).parent / "service_streams.py"
# One campaign has at most so many trials in flight.
SLOTS = 50
SETTLE_LIMIT_S = 120.0
_SERIES = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ticks:
    """counts: how many ticks took at most so many seconds, by the bound; sum_s: of all."""

    counts: Mapping[float, float]
    sum_s: float

    def since(self, before: Ticks) -> Ticks:
        counts = {bound: count - before.counts[bound] for bound, count in self.counts.items()}
        return Ticks(counts, self.sum_s - before.sum_s)

    @property
    def number(self) -> float:
        return max(self.counts.values())

    def bound(self, share: float) -> float:
        """The smallest bound that so large a share of the ticks keeps."""
        return min(bound for bound, count in self.counts.items() if count >= share * self.number)


def metrics(server: Server) -> Mapping[str, float]:
    """By name and labels, as /metrics writes them."""
    found = _SERIES.finditer(server.text("/metrics"))
    return {f"{each['name']}{{{each['labels'] or ''}}}": float(each["value"]) for each in found}


def ticks(server: Server) -> Ticks:
    found, prefix = metrics(server), 'meshtune_tick_seconds_bucket{le="'
    counts = {float(key.removeprefix(prefix)[:-2]): value for key, value in found.items() if key.startswith(prefix)}
    return Ticks(counts, found["meshtune_tick_seconds_sum{}"])


def start(server: Server, *, slots: int, parallel: int, seconds_per_trial: float, trials: int, search: str) -> str:
    """A campaign on the simulated cluster, which has slots for so many jobs of all campaigns; its id."""
    runner = {"kind": "simulated", "slots": slots, "seconds_per_trial": seconds_per_trial}
    changes = {"name": "live", "runner": runner, "parallel": parallel, "budget": {"trials": trials}, "search": search}
    id: str = server.post("/v1/campaigns", {**DOCUMENT, **changes})["id"]
    return id


def in_flight(server: Server) -> int:
    found = metrics(server)
    return round(sum(found[f'meshtune_trials_in_flight{{state="{state}"}}'] for state in ("submitted", "running")))


def tick_row(server: Server, trials: int, seconds: float, search: str) -> list[str]:
    """So many trials in flight, each for 20 s, for so many seconds: how long ticks take and what they cost."""
    # What the runner holds is shared by all its campaigns, its slots too.
    per_campaign = min(SLOTS, trials)
    for _ in range(-(-trials // per_campaign)):
        start(server, slots=trials, seconds_per_trial=20.0, trials=1000, search=search, parallel=per_campaign)
    wait_until(lambda: in_flight(server) >= 0.9 * trials)
    before, cpu_s, begun, seen = ticks(server), server.cpu_s, time.monotonic(), [in_flight(server)]
    while time.monotonic() < begun + seconds:
        time.sleep(1.0)
        seen.append(in_flight(server))
    wait_until(lambda: ticks(server).since(before).number > 0)  # where ticks take long it rests up to 5 s after each
    took = ticks(server).since(before)
    share = (server.cpu_s - cpu_s) / (time.monotonic() - begun)
    bounds = [f"{took.bound(part):g}" for part in (0.5, 0.99, 1.0)]
    return [
        f"{min(seen)} to {max(seen)}",
        f"{took.number:.0f}",
        f"{took.sum_s / took.number:.3f}",
        *bounds,
        f"{share:.2f}",
    ]


def idle_row(server: Server, campaigns: int, seconds: float) -> list[str]:
    """So many active campaigns with one long job each: the processor time that the service takes of one core."""
    for _ in range(campaigns):
        start(server, slots=campaigns, seconds_per_trial=1e5, trials=1000, search="random", parallel=1)
    wait_until(lambda: in_flight(server) >= campaigns)
    cpu_s, begun = server.cpu_s, time.monotonic()
    time.sleep(seconds)
    return [str(campaigns), f"{(server.cpu_s - cpu_s) / (time.monotonic() - begun):.2f}"]


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SETTLE_LIMIT_S:.0f} s")
        time.sleep(0.5)


def late_ms(server: Server, streams: int, moves: int) -> list[float]:
    """How late each of so many events reached each of so many streams."""
    campaign = start(server, slots=1, seconds_per_trial=1e5, trials=10, search="random", parallel=1)
    wait_until(lambda: in_flight(server) > 0)
    order = {**_address(server), "streams": streams, "moves": moves, "campaign": campaign}
    done = subprocess.run(
        [sys.executable, STREAMS], input=json.dumps(order), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: list[float] = json.loads(done.stdout)
    return found


@contextmanager
def streaming(server: Server, streams: int) -> Iterator[None]:
    """Hold so many streams open meanwhile."""
    process = subprocess.Popen([sys.executable, STREAMS], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps({**_address(server), "streams": streams, "moves": 0}) + "\n")
        process.stdin.flush()
        yield
    finally:
        process.stdin.close()
        process.wait(120)


def soak(server: Server, seconds: float, every_s: float, ask: Callable[[Sequence[str]], object]) -> Iterator[list[str]]:
    """Three campaigns that follow each other, 20 streams, and clients that poll: the memory of the service, in MiB.
    ask: sends these requests."""
    rng, active = random.Random(1), [_soaked(server) for _ in range(3)]
    with streaming(server, 20):
        begun = time.monotonic()
        next_at = begun + every_s
        while time.monotonic() < begun + seconds:
            active = [id if _active(server, id) else _soaked(server) for id in active]
            paths = [f"/v1/campaigns/{id}{path}" for id in active for path in ("", "/trials?view=brief", "/best")]
            ask([rng.choice(["/v1/campaigns", *paths]) for _ in range(50)])
            time.sleep(0.5)
            if time.monotonic() >= min(next_at, begun + seconds):
                next_at += every_s
                trials = sum(value for name, value in metrics(server).items() if name.startswith("meshtune_trials{"))
                yield [f"{(time.monotonic() - begun) / 60:.1f}", f"{trials:.0f}", f"{server.memory_bytes / 2**20:.1f}"]


def _soaked(server: Server) -> str:
    return start(server, slots=12, seconds_per_trial=2.0, trials=200, search="random", parallel=4)


def _active(server: Server, id: str) -> bool:
    campaign: Any = server.get(f"/v1/campaigns/{id}")
    return campaign["state"] in ("running", "paused", "cancelling")


def _address(server: Server) -> dict[str, Any]:
    return {"host": server.host, "port": server.port, "token": server.token}
