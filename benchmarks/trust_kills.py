"""Kills, and what is left.

Two services on one PostgreSQL and one home drive short campaigns whose jobs are real processes. Services, the local
runner's server, ranks and the postmaster are killed by SIGKILL at random moments. A POST whose answer was lost is sent
again with its idempotency key. At the end `trust_reader` counts what was lost, doubled or started twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from service_fork import Forked, Forking
from service_process import OVER, UNPACED, Postgres, Server, free_port, meshtune, new_token, without_ours
from trust_reader import findings, totals

# How often each is killed, of a hundred kills.
VICTIMS = {"service": 50, "runner": 20, "rank": 20, "postgres": 10}
ACTIVE, TRIALS, SLOTS = 3, 6, 2
END_LIMIT_S = 600.0
# Six steps, long enough to be killed; the name goes to the ledger first, in one write.
JOB = """
printf '%s\\n' "$1" >> "$2"
for step in 1 2 3 4 5 6; do sleep 0.25; echo "step $step 250.0 ms"; done
"""


def spec_of(folder: Path) -> dict[str, Any]:
    command = [
        "sh",
        str(folder / "job.sh"),
        "{name}",
        str(folder / "ledger"),
        "{micro_batch_size}",
        "{grad_accum_steps}",
    ]
    return {
        "name": "trust",
        "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
        "cluster": {"preset": "local-cpu", "devices_per_node": 1},
        "global_batch_size": 2**TRIALS,
        "space": {"micro_batch_size": [2**power for power in range(TRIALS)]},
        "workload": {
            "kind": "command",
            "command": command,
            "steps": 6,
            "warmup_steps": 2,
            "log": {"step": r"step (\d+)", "step_time_ms": r"([\d.]+) ms"},
        },
        "search": "grid",
        "runner": {"kind": "local", "slots": SLOTS, "idle_s": 5},
        "budget": {"trials": TRIALS},
        # The runner's host dies more often than any real one.
        "trial": {"attempts": 100},
        "confirm": 0,
        "warm_start": False,
    }


class Service:
    """One of them; `kill` starts it again. forking: what starts it; None: a new interpreter."""

    def __init__(self, home: Path, database: str, token: str, forking: Forking | None = None) -> None:
        self.port = free_port()
        self._forking = forking
        self._command = meshtune("serve", "--port", str(self.port), "--home", str(home))
        self._environment = {**without_ours(os.environ), **UNPACED, "MESHTUNE_DB": database}
        self._log = home / f"serve-{self.port}.log"
        self._token = token
        self._start()

    @property
    def server(self) -> Server:
        return Server("127.0.0.1", self.port, self._token, self._process.pid)

    def _start(self) -> None:
        self._process: subprocess.Popen[bytes] | Forked
        if self._forking is not None:
            self._process = self._forking.start(self._command[3:], self._environment, self._log)
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def revive(self) -> None:
        """Start it again where it ended by itself, as systemd does: while the database was away, for example."""
        if self._process.poll() is not None:
            self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def processes(home: Path, what: str) -> Iterator[int]:
    """The local runner's servers of this home, or the ranks of its jobs, which carry a mark."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal():
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if (
                    what == "runner"
                    and b"meshtune.runners.schedulers.local.server" in words
                    and str(home / "local").encode() in words
                ):
                    yield int(folder.name)
                marked = f"MESHTUNE_JOB={home}/".encode()
                if what == "rank" and any(
                    each.startswith(marked) for each in (folder / "environ").read_bytes().split(b"\0")
                ):
                    yield int(folder.name)


def end_runner(home: Path) -> None:
    """The local runner's server outlives its services for a while."""
    for pid in processes(home, "runner"):
        os.kill(pid, signal.SIGTERM)


def kill(victim: str, home: Path, services: list[Service], postgres: Postgres, moments: random.Random) -> bool:
    """False where there was none to kill."""
    if victim == "service":
        moments.choice(services).kill()
    elif victim == "postgres":
        postgres.kill()
        time.sleep(moments.uniform(0.0, 1.0))
        postgres.start()
    else:
        found = list(processes(home, victim))
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(moments.choice(found), signal.SIGKILL)
    return True


@contextmanager
def unreachable_suppressed() -> Iterator[None]:
    """A service that is killed, starts, or has no database does not answer, or says so; any other refusal is raised."""
    try:
        yield
    except HTTPError as error:
        if error.code not in (409, 500, 503):
            raise
    except (OSError, HTTPException, ValueError):
        pass


class Asked:
    """Campaigns that were asked for, by idempotency key: the id, empty while no answer came."""

    def __init__(self, spec: dict[str, Any], moments: random.Random) -> None:
        self.ids: dict[str, str] = {}
        self._spec, self._moments = spec, moments

    @property
    def unanswered(self) -> list[str]:
        return [key for key, id in self.ids.items() if not id]

    def ask(self, services: list[Service], key: str = "") -> None:
        """Ask for one more, or again with a key; an answer may be lost."""
        chosen = key or uuid.UUID(int=self._moments.getrandbits(128)).hex
        self.ids.setdefault(chosen, "")
        with unreachable_suppressed():
            self.ids[chosen] = self._moments.choice(services).server.post("/v1/campaigns", self._spec, chosen)["id"]


def active(services: list[Service]) -> int | None:
    """How many campaigns are not over, None where nobody answers."""
    for service in services:
        with unreachable_suppressed():
            found = service.server.get("/v1/campaigns?page_size=50")["campaigns"]
            return sum(each["state"] not in OVER for each in found)
    return None


def attack(folder: Path, kills: int, seed: int) -> bool:
    """Kill, wait for the campaigns' end, and print what the reader found; True where it found nothing."""
    try:
        return _attack(folder, kills, seed)
    finally:
        end_runner(folder / "home")


def _attack(folder: Path, kills: int, seed: int) -> bool:
    moments, done = random.Random(seed), Counter[str]()
    home, ledger = folder / "home", folder / "ledger"
    home.mkdir(mode=0o700)
    (folder / "job.sh").write_text(JOB)
    ledger.touch()
    with ExitStack() as stack:
        postgres = Postgres()
        stack.callback(postgres.stop)
        token = new_token(postgres.url)
        services = [Service(home, postgres.url, token) for _ in range(2)]
        for service in services:
            stack.callback(service.stop)
        asked, begun = Asked(spec_of(folder), moments), time.monotonic()
        while done.total() < kills:
            for service in services:
                service.revive()
            if (running := active(services)) is None:
                time.sleep(0.2)
                continue  # nobody answers yet
            if running < ACTIVE:
                asked.ask(services, moments.choice([*asked.unanswered, ""]))
            time.sleep(moments.uniform(0.0, 1.5))
            (victim,) = moments.choices(list(VICTIMS), list(VICTIMS.values()))
            if kill(victim, home, services, postgres, moments):
                done[victim] += 1
        end = time.monotonic() + END_LIMIT_S
        while time.monotonic() < end and (asked.unanswered or active(services) != 0):
            for service in services:
                service.revive()
            for key in asked.unanswered:
                asked.ask(services, key)
            time.sleep(1.0)
        created = [id for id in asked.ids.values() if id]
        found = findings(postgres.url, ledger, created, len(asked.unanswered))
        words = ", ".join(f"{count} of {victim}" for victim, count in done.items())
        sys.stdout.write(f"{done.total()} kills ({words}) in {time.monotonic() - begun:.0f} s, seed {seed}\n")
        for name, count in totals(postgres.url, ledger).items():
            sys.stdout.write(f"{count:6} {name}\n")
        sys.stdout.write(f"{len(asked.unanswered):6} creations without an answer at the end\n")
        for kind, cases in found.items():
            sys.stdout.write(f"{len(cases):6} {kind}\n" + "".join(f"       {case}\n" for case in cases[:20]))
        return not any(found.values())
