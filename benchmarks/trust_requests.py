"""Requests that schemathesis generates from the OpenAPI document, sent to a real service with a token of few rights and
one of all, and judged by every check that schemathesis has."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from service_process import Server, new_token, serving
from trust_kills import end_runner

from meshtune.tuner.access.tokens import ALL_SCOPES, Scope

EXAMPLES = Path(__file__).parents[1] / "examples"
TOKENS = {"read": frozenset({Scope.READ}), "admin": ALL_SCOPES}
# Of one operation; a run has as many again from its other phases.
EXAMPLES_EACH = 40
# A spec has rules that no schema says (`heads` divide by `tp`), a page token is one that was given, and a key for
# idempotency belongs to its first request.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "413", "422", "429"]
"""
# The stream of events has no end.
EXCLUDED = ("--exclude-path", "/v1/stream")


def attack(folder: Path, cases: int, seed: int) -> bool:
    """At least as many cases, half of them by each token; True where there is no finding."""
    home, config = folder / "home", folder / "schemathesis.toml"
    home.mkdir(mode=0o700)
    config.write_text(CONFIG)
    database, clean = f"sqlite:///{home}/meshtune.db", True
    with ExitStack() as stack:
        stack.callback(end_runner, home)
        server = stack.enter_context(serving(database, home))
        stack.enter_context(_campaigns(server))
        for name, scopes in TOKENS.items():
            secret, sent, found, begun = new_token(database, scopes), 0, 0, time.monotonic()
            while sent < cases / len(TOKENS):
                # Examples and coverage are the same in every run.
                phases = "fuzzing,stateful" if sent else "examples,coverage,fuzzing,stateful"
                report = _asked(folder, server, secret, phases, seed)
                sent += report["test_cases"]["generated"]
                found += len(report["failures"]) + len(report["errors"])
                for each in (*report["failures"], *report["errors"]):
                    sys.stdout.write(f"{json.dumps(each)[:3000]}\n")
                seed += 1
            # Raises where a request has revoked the token, and all since was refused.
            Server(server.host, server.port, secret, server.pid).get("/v1/campaigns?page_size=1")
            sys.stdout.write(f"token {name}: {sent} cases in {time.monotonic() - begun:.0f} s, {found} findings\n")
            clean = clean and not found
    return clean


def _asked(folder: Path, server: Server, secret: str, phases: str, seed: int) -> dict[str, Any]:
    """The report of one run of schemathesis."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    program = [
        str(Path(sys.executable).with_name("schemathesis")),
        "--config-file",
        str(folder / "schemathesis.toml"),
        "run",
    ]
    how = ["--checks", "all", "--phases", phases, "--max-examples", str(EXAMPLES_EACH), "--seed", str(seed), *EXCLUDED]
    out = ["--continue-on-failure", "--request-timeout", "30", "--report", "json", "--report-json-path", str(report)]
    done = subprocess.run(
        [*program, f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {secret}", *how, *out],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.exists():
        raise RuntimeError(f"schemathesis gave no report:\n{(done.stdout + done.stderr)[-3000:]}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@contextmanager
def _campaigns(server: Server) -> Iterator[None]:
    """One campaign is known. What the requests create is cancelled soon: its jobs are not what is tested."""
    document = yaml.safe_load((EXAMPLES / "demo.yaml").read_text())
    server.post("/v1/campaigns", document | {"runner": {"kind": "simulated"}, "workload": {"kind": "simulated"}})
    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(2.0):
            with suppress(OSError, ValueError):
                for each in server.get("/v1/campaigns?state=running&page_size=200")["campaigns"]:
                    server.post(f"/v1/campaigns/{each['id']}:cancel", {})

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
