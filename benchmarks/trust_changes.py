"""Kills while campaigns are extended, enqueued, rerun, asked and told: no change that was accepted may be lost.

Each client changes campaigns of its own, mostly where they are about to end, and writes each answer beside itself: the
oplog. A request whose answer was lost is sent again with its key until one comes. Services, on PostgreSQL the
postmaster too, are killed by SIGKILL at random moments; they are forked ready to run, so that most of the time they
serve. At the end the database is read by plain SQL and held against the oplog."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from contextlib import ExitStack, closing
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psycopg
from service_fork import Forking
from service_process import OVER, Postgres, new_token
from trust_kills import Service

CLIENTS, ASKERS = 5, 1
# Of a hundred kills where there is a postmaster.
POSTGRES_KILLS = 10
QUIET_LIMIT_S = 300.0
# Of one client's campaign.
CHANGES = 20
SPACE = {"tp": [1, 2, 4, 8], "micro_batch_size": [1, 2, 4, 8], "zero_stage": [0, 1], "recompute": ["none", "full"]}
SPEC: dict[str, Any] = {
    "name": "changes",
    "model": "gpt-micro",
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "global_batch_size": 64,
    "space": SPACE,
    "workload": "simulated",
    "runner": {"kind": "simulated", "seconds_per_trial": 0.02, "slots": 50},
    "search": "random",
    "budget": {"trials": 1},
    "parallel": 2,
    "confirm": 0,
    "warm_start": False,
}
TOLD = SPEC | {
    "name": "told",
    "workload": {
        "kind": "command",
        "command": ["train", "{tp}", "{micro_batch_size}", "{grad_accum_steps}", "{zero_stage}", "{recompute}", "{dp}"],
    },
    "runner": "external",
    "budget": {"trials": 12},
    "trial": {"time_limit_s": 100_000},
}


class Oplog:
    """What was asked for and what was answered: in memory, and a line each in a file."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = path.open("w"), threading.Lock()
        self.accepted: list[dict[str, Any]] = []
        self.answers = Counter[str]()

    def note(self, operation: str, status: int, **facts: Any) -> None:
        with self._lock:
            self.answers[f"{operation} {status}"] += 1
            line = {"operation": operation, "status": status, **facts}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            if status < 300:
                self.accepted.append(line)

    def close(self) -> None:
        self._file.close()


class Client(threading.Thread):
    """One that changes its campaigns until `over`, and then the last one to its end."""

    def __init__(self, services: list[Service], oplog: Oplog, over: threading.Event, seed: int, *, tells: bool) -> None:
        super().__init__(daemon=True)
        self._services, self._oplog, self._over, self._tells = services, oplog, over, tells
        self._moments = random.Random(seed)

    def run(self) -> None:
        while not self._over.is_set():
            status, made = self._send("POST", "/v1/campaigns", TOLD if self._tells else SPEC)
            self._oplog.note("create", status, campaign=made.get("id"))
            if status < 300:
                (self._tell if self._tells else self._change)(made["id"])

    def _change(self, id: str) -> None:
        path, budget, again = f"/v1/campaigns/{id}", 1, 0
        for _ in range(CHANGES):
            self._await_end(path, budget + again)
            match self._moments.choice(("patch", "patch", "enqueue", "rerun", "revalidate", "resume")):
                case "patch" | "resume" as how:
                    budget += 1
                    notes = uuid.uuid4().hex
                    if how == "patch":
                        status, _ = self._send("PATCH", path, {"budget": {"trials": budget}, "notes": notes})
                        self._oplog.note("patch", status, campaign=id, budget=budget, notes=notes)
                    else:
                        status, _ = self._send("POST", f"{path}:resume", {"budget": {"trials": budget}})
                        self._oplog.note("resume", status, campaign=id, budget=budget)
                    budget -= status >= 300
                case "enqueue":
                    plan = {name: self._moments.choice(values) for name, values in SPACE.items()}
                    status, made = self._send("POST", f"{path}/trials", {"plan": plan})
                    self._oplog.note("enqueue", status, campaign=id, trials=[made.get("number")])
                case "rerun":
                    status, made = self._send("POST", f"{path}/trials/0:rerun", None)
                    self._oplog.note("rerun", status, campaign=id, trials=[made.get("number")])
                    again += status < 300
                case _:
                    status, made = self._send("POST", f"{path}:revalidate", None)
                    numbers = [each["number"] for each in made["trials"]] if status < 300 else []
                    self._oplog.note("revalidate", status, campaign=id, trials=numbers)
                    again += len(numbers)

    def _await_end(self, path: str, trials: int) -> None:
        """Mostly until so many trials are measured, all that there will be: then the campaign is about to close."""
        for _ in range(self._moments.choice((0, 500, 500, 500))):
            if self._send("GET", path, None)[1]["trials"].get("ok", 0) >= trials:
                break
            time.sleep(0.01)

    def _tell(self, id: str) -> None:
        path = f"/v1/campaigns/{id}"
        while True:
            status, asked = self._send("POST", f"{path}:suggest", {"count": 1, "wait_s": 0.2})
            if status >= 300 or asked["state"] in OVER:
                return
            for each in asked["suggestions"]:
                seconds = self._moments.uniform(0.1, 0.2)
                completion = {"step_times_s": [seconds] * 5}
                status, _ = self._send("POST", f"{path}/trials/{each['trial']}:complete", completion)
                self._oplog.note("complete", status, campaign=id, trials=[each["trial"]], seconds=seconds)

    def _send(self, method: str, path: str, body: object) -> tuple[int, Any]:
        """Status and document of the answer that comes at last; a POST has the same key each time."""
        headers = {"Idempotency-Key": uuid.UUID(int=self._moments.getrandbits(128)).hex} if method == "POST" else {}
        data = None if method == "GET" else json.dumps(body or {}).encode()
        while True:
            server = self._moments.choice(self._services).server
            try:
                return 200, json.loads(server.text(path, data, headers, method))
            except HTTPError as error:
                answer = json.loads(error.read() or b"{}")
                if error.code not in (429, 500, 503) and "key-busy" not in answer.get("type", ""):
                    return error.code, answer
                self._oplog.answers[f"tried again after {error.code}"] += 1
            except (OSError, HTTPException, ValueError):
                self._oplog.answers["tried again after no answer"] += 1
            time.sleep(0.05)


def attack(folder: Path, kills: int, seed: int, *, sqlite: bool) -> bool:
    """Kill, wait for the campaigns' end, and print what was lost; True where nothing was."""
    home, moments, done = folder / "home", random.Random(seed), Counter[str]()
    home.mkdir(mode=0o700)
    with ExitStack() as stack:
        postgres = None if sqlite else Postgres()
        if postgres is not None:
            stack.callback(postgres.stop)
        url = f"sqlite:///{home}/meshtune.db" if postgres is None else postgres.url
        token, forking = new_token(url), Forking()
        stack.callback(forking.stop)
        services = [Service(home, url, token, forking) for _ in range(1 if sqlite else 2)]
        for service in services:
            stack.callback(service.stop)
        oplog, over = Oplog(folder / "oplog"), threading.Event()
        stack.callback(oplog.close)
        clients = [
            Client(services, oplog, over, seed + number, tells=number < ASKERS) for number in range(CLIENTS + ASKERS)
        ]
        for service in services:
            _await_answer(service)
        begun = time.monotonic()
        for client in clients:
            client.start()
        while done.total() < kills:
            time.sleep(moments.uniform(0.0, 0.8))
            for service in services:
                service.revive()
            if postgres is not None and moments.randrange(100) < POSTGRES_KILLS:
                postgres.kill()
                time.sleep(moments.uniform(0.0, 0.5))
                postgres.start()
                done["postgres"] += 1
            else:
                service = moments.choice(services)
                _await_answer(service)
                time.sleep(moments.uniform(0.0, 0.3))
                service.kill()
                done["service"] += 1
        took_s = time.monotonic() - begun
        over.set()
        _await_quiet(services, clients)
        lost = lost_changes(url, oplog.accepted)
    words = ", ".join(f"{count} of {victim}" for victim, count in done.items())
    pace = f"{done.total() / took_s * 60:.0f} a minute"
    where = "SQLite, one service" if sqlite else "PostgreSQL, two services"
    sys.stdout.write(f"{where}: {done.total()} kills ({words}) in {took_s:.0f} s, {pace}, seed {seed}\n")
    for answer, count in sorted(oplog.answers.items()):
        sys.stdout.write(f"{count:6} {answer}\n")
    changes = sum(each["operation"] != "create" for each in oplog.accepted)
    sys.stdout.write(
        f"{changes:6} changes accepted, {len(lost)} lost\n" + "".join(f"       {each}\n" for each in lost[:20])
    )
    return not lost


def _await_answer(service: Service) -> None:
    deadline = time.monotonic() + 60.0
    while True:
        service.revive()
        try:
            service.server.text("/healthz")
            return
        except (OSError, HTTPException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _await_quiet(services: list[Service], clients: list[Client]) -> None:
    """Until the clients have done and no campaign runs, or for so long."""
    end = time.monotonic() + QUIET_LIMIT_S
    while time.monotonic() < end:
        for service in services:
            service.revive()
        try:
            open_ = services[0].server.get("/v1/campaigns?state=running&state=cancelling&page_size=1")["campaigns"]
            if not open_ and not any(client.is_alive() for client in clients):
                return
        except (OSError, HTTPException, ValueError):
            pass
        time.sleep(0.5)


def lost_changes(url: str, accepted: list[dict[str, Any]]) -> list[str]:
    """A sentence of each accepted change that the database does not have, and of each campaign that got stuck."""
    campaigns = {
        id: (state, notes, json.loads(spec) if isinstance(spec, str) else spec)
        for id, state, notes, spec in _rows(url, "SELECT id, state, notes, spec FROM campaigns")
    }
    trials: defaultdict[str, dict[int, tuple[str, str | None, float | None]]] = defaultdict(dict)
    for id, number, origin, verdict, seconds in _rows(
        url,
        """SELECT t.campaign_id, t.number, t.origin, a.verdict, m.median_step_time_s FROM trials t
        LEFT JOIN attempts a ON a.trial_id = t.id
            AND a.number = (SELECT max(number) FROM attempts WHERE trial_id = t.id)
        LEFT JOIN measurements m ON m.attempt_id = a.id""",
    ):
        trials[id][number] = origin, verdict, seconds
    lost = [f"{id} is {state}" for id, (state, _, _) in campaigns.items() if state != "completed"]
    lost += [
        f"{id} has no end of trial {number}"
        for id, known in trials.items()
        for number, (_, verdict, _) in known.items()
        if verdict is None
    ]
    last: dict[tuple[str, str], Any] = {}
    for each in accepted:
        id = each["campaign"]
        if id not in campaigns:
            lost.append(f"gone: {each}")
            continue
        last |= {(id, what): each[what] for what in ("budget", "notes") if what in each}
        for number in each.get("trials", ()):
            origin, verdict, seconds = trials[id].get(number, ("", None, None))
            wanted = {"enqueue": "enqueued", "rerun": "confirmation", "revalidate": "confirmation"}
            told = seconds is None or "seconds" not in each or abs(seconds - each["seconds"]) < 1e-9
            if verdict != "ok" or origin != wanted.get(each["operation"], origin) or not told:
                lost.append(f"trial {number} is {origin or 'gone'}, {verdict}, {seconds}: {each}")
    for (id, what), value in last.items():
        _, notes, spec = campaigns[id]
        first = sum(origin != "confirmation" for origin, _, _ in trials[id].values())
        if what == "notes" and notes != value:
            lost.append(f"{id} has other notes than {value}")
        if what == "budget" and not spec["budget"]["trials"] == value == first:
            lost.append(f"{id} has a budget of {spec['budget']['trials']} and {first} trials, not {value}")
    return lost


def _rows(url: str, query: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return list(connection.execute(query))
    with psycopg.connect(url) as postgres:
        return list(postgres.execute(query.encode()))
