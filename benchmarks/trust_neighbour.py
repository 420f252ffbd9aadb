"""A campaign alone, and beside a neighbour who does at once all that once stopped a service: costly requests at the
highest rate that a token has, jobs that leave pipes, endless files and hostile patterns, dripping and idle connections.

The campaign's jobs sleep: what is compared is what the service does to it, not what processors its jobs get."""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from service_process import Server, new_token, serving
from trust_kills import end_runner

from meshtune.api.worker_pool import MAX_COMBINATIONS
from meshtune.tuner.access.tokens import Scope

MAX_RATIO, MAX_P99_S = 1.3, 0.2
JOB_S, STEPS = 10.0, 20
POSTS_PER_S, READS_PER_S = 5, 5
DRIPPING, IDLE = 200, 2000
# Of those that the service ended.
REOPENED_PER_S = 200
HEAD = b"GET /v1/campaigns HTTP/1.1\r\nHost: meshtune\r\n"
# What the trial of each micro-batch size leaves in its folder.
LEAVES = {
    1: "mkfifo result.json",
    2: "ln -s /dev/zero result.json",
    4: "truncate -s 10G result.json",
    8: "rm -f rank-0.log; mkfifo rank-0.log brief.json.new; mv brief.json.new brief.json; exit 3",
    16: "rm -f rank-0.log; ln -s /dev/zero rank-0.log; exit 3",
    32: "mkdir result.json",
    64: "head -c 3000000 /dev/zero | tr '\\0' a; echo '!'; truncate -s 10G rank-0.log",
    128: 'rm -rf "$MESHTUNE_DIRECTORY"',
}
BASE = {
    "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
    "cluster": {"preset": "local-cpu", "devices_per_node": 1},
    "search": "grid",
    "confirm": 0,
    "warm_start": False,
    # One of this campaign's at a time, beside one of the other's.
    "runner": {"kind": "local", "slots": 2, "idle_s": 5},
    "parallel": 1,
}


def normal(trials: int) -> dict[str, Any]:
    steps = f"for step in $(seq {STEPS}); do sleep {JOB_S / STEPS}; echo step $step {1000 * JOB_S / STEPS} ms; done"
    return BASE | {
        "name": "normal",
        "global_batch_size": "free",
        "space": {"micro_batch_size": [1], "grad_accum_steps": list(range(1, trials + 1)), "zero_stage": [0]},
        "workload": {
            "kind": "command",
            "command": f": {{micro_batch_size}} {{grad_accum_steps}}; {steps}",
            "steps": STEPS,
            "warmup_steps": 2,
            "log": {"step": r"step (\d+)", "step_time_ms": r"([\d.]+) ms"},
        },
        "budget": {"trials": trials},
    }


def hostile() -> dict[str, Any]:
    cases = " ".join(f"{size}) {left} ;;" for size, left in LEAVES.items())
    return BASE | {
        "name": "hostile",
        "global_batch_size": 128,
        "space": {"micro_batch_size": list(LEAVES)},
        "workload": {
            "kind": "command",
            "command": f": {{grad_accum_steps}}; case {{micro_batch_size}} in {cases} esac",
            "log": {"step_time_s": "^(a+)+$"},
        },
        "trial": {"time_limit_s": 30, "attempts": 1},
        "budget": {"trials": len(LEAVES)},
    }


def costly(combinations: int) -> dict[str, Any]:
    """A spec with at most so many combinations, and nearly as many."""
    steps = list(range(1, combinations // (3 * 3 * 50 * 4 * 3) + 1))
    return {
        "model": "gpt-micro",
        "cluster": "local-cpu",
        "global_batch_size": "free",
        "space": {
            "grad_accum_steps": steps,
            "micro_batch_size": list(range(1, 51)),
            "recompute": ["none", "selective", "full"],
        },
    }


def attack(folder: Path, minutes: float) -> bool:
    """Print both times and those of cheap requests meanwhile; True where the neighbour cost no more than allowed."""
    trials = max(2, round(60 * minutes / JOB_S))
    alone = _campaign(folder / "alone", trials, beside=False)
    beside = _campaign(folder / "beside", trials, beside=True)
    ratio = beside.campaign_s / alone.campaign_s
    for name, seen in (("alone", alone), ("beside the neighbour", beside)):
        reads = sorted(seen.reads_s)
        p99_s = reads[int(0.99 * (len(reads) - 1))]
        sys.stdout.write(
            f"{name}: {seen.ok} of {trials} trials ok in {seen.campaign_s:.1f} s; {len(reads)} cheap requests: median"
            f" {1000 * statistics.median(reads):.0f} ms, p99 {1000 * p99_s:.0f} ms, worst {1000 * reads[-1]:.0f} ms\n"
        )
    told = ", ".join(f"{count} {what}" for what, count in sorted(beside.neighbour.items()))
    sys.stdout.write(f"the neighbour: {told}\nratio {ratio:.2f}\n")
    return alone.ok == beside.ok == trials and ratio <= MAX_RATIO and p99_s <= MAX_P99_S


class Seen:
    """Of one run: the campaign's seconds and trials that were ok, seconds of cheap requests, the neighbour's acts."""

    def __init__(self) -> None:
        self.campaign_s, self.ok = 0.0, 0
        self.reads_s: list[float] = []
        self.neighbour = Counter[str]()


def _campaign(home: Path, trials: int, *, beside: bool) -> Seen:
    home.mkdir(mode=0o700)
    database, seen = f"sqlite:///{home}/meshtune.db", Seen()
    with serving(database, home, pace={}) as server, ExitStack() as stack:
        reader = _as(server, new_token(database, frozenset({Scope.READ})))
        if beside:
            _neighbour(stack, server, database, seen.neighbour)

        def read() -> None:
            begun = time.monotonic()
            reader.get("/v1/campaigns")
            seen.reads_s.append(time.monotonic() - begun)

        stack.enter_context(_every(1 / READS_PER_S, read))
        begun = time.monotonic()
        id = server.post("/v1/campaigns", normal(trials))["id"]
        while not server.is_over(id):
            time.sleep(0.5)
        seen.campaign_s = time.monotonic() - begun
        found = server.get(f"/v1/campaigns/{id}/trials?page_size=200")["trials"]
        seen.ok = sum(each["verdict"] == "ok" for each in found)
    end_runner(home)
    return seen


def _as(server: Server, secret: str) -> Server:
    return Server(server.host, server.port, secret, server.pid)


def _neighbour(stack: ExitStack, server: Server, database: str, acts: Counter[str]) -> None:
    """All of it until the stack is closed."""
    reads, launches = (
        _as(server, new_token(database, frozenset(scopes)))
        for scopes in ((Scope.READ,), (Scope.READ, Scope.LAUNCH, Scope.COMMAND))
    )

    body = costly(MAX_COMBINATIONS)

    def ask_much() -> None:
        try:
            reads.post("/v1/spaces", body)
            acts["costly requests answered"] += 1
        except HTTPError as error:
            acts[f"costly requests refused with {error.code}"] += 1

    def campaign() -> None:
        id = launches.post("/v1/campaigns", hostile())["id"]
        acts["hostile campaigns"] += 1
        while not launches.is_over(id):
            time.sleep(1.0)

    held: list[socket.socket] = []
    heads = cycle(HEAD)

    def drip() -> None:
        byte = bytes([next(heads)])
        for connection in held[:DRIPPING]:
            with suppress(OSError):
                connection.send(byte)

    def connect() -> None:
        while len(held) < DRIPPING + IDLE:
            held.append(_connected(server))
        ended = [index for index, connection in enumerate(held) if _is_ended(connection)]
        for index in ended[: REOPENED_PER_S // 10]:
            held[index].close()
            held[index] = _connected(server)
            acts["connections made again"] += 1

    stack.callback(lambda: [connection.close() for connection in held])
    stack.enter_context(_every(1 / POSTS_PER_S, ask_much))
    stack.enter_context(_every(1.0, campaign, at_once=1))
    stack.enter_context(_every(1.0, drip, at_once=1))
    stack.enter_context(_every(0.1, connect, at_once=1))


def _connected(server: Server) -> socket.socket:
    connection = socket.create_connection((server.host, server.port), 30.0)
    connection.setblocking(False)
    return connection


def _is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextmanager
def _every(period_s: float, act: Callable[[], None], at_once: int = 50) -> Iterator[None]:
    """Act again and again until the end of the block, each time in a thread of its own, at most so many at once."""
    ended, free = threading.Event(), threading.Semaphore(at_once)

    def once() -> None:
        try:
            act()
        except (OSError, json.JSONDecodeError) as error:
            if not ended.is_set():
                sys.stdout.write(f"{act.__name__}: {error!r}\n")
        finally:
            free.release()

    def go() -> None:
        while not ended.wait(period_s):
            if free.acquire(blocking=False):
                threading.Thread(target=once, daemon=True).start()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
