"""The driver: the process that speaks to Ray on behalf of a service, which stays free of Ray's threads and its fate.

`python -m meshtune.runners.ray.driver`, a child of `runners.ray.link`. Ray ends a driver whose cluster is gone, and
some of its calls cannot be given a time limit: here neither harms anybody else. It reads one JSON request per line and
answers each in one line, `{"answer": ...}` or `{"error": "..."}`; the first line tells whether it is connected. It ends
with its input.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError

from meshtune.runners.ray.host import ACTOR_NAME, local_address
from meshtune.runners.ray.job_manager import JobManager

CALL_LIMIT_S = 10.0
REACH_LIMIT_S = 5.0
_ENDPOINT = re.compile(r"[^:/]+:[0-9]+")
# On the head node: the job manager lives as long as the cluster.
_HEAD = {"node:__internal_head__": 0.001}


class Driver:
    """Job managers by namespace, and what they say."""

    def __init__(self) -> None:
        self._managers: dict[str, Any] = {}

    def ask(self, namespace: str, verb: str, arguments: Sequence[Any]) -> Any:
        """A manager's answer; one is started where there is none. Raises RayError; where the manager has died, the next
        question goes to a new one."""
        if namespace not in self._managers:
            options = {"name": ACTOR_NAME, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
            self._managers[namespace] = ray.remote(JobManager).options(**options, num_cpus=0, resources=_HEAD).remote()
        try:
            return ray.get(getattr(self._managers[namespace], verb).remote(*arguments), timeout=CALL_LIMIT_S)
        except ActorDiedError:
            del self._managers[namespace]
            raise


def connect(address: str) -> None:
    """Connect to a cluster. Raises OSError and whatever Ray raises."""
    if _ENDPOINT.fullmatch(address):
        host, _, port = address.rpartition(":")
        # Ray itself waits a minute for an address that nobody listens at.
        socket.create_connection((host, int(port)), REACH_LIMIT_S).close()
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)


def message_of(error: BaseException) -> str:
    """What an error says, with its reason, in one line."""
    reasons = f"{error} {error.__cause__ or ''}"
    return " ".join(reasons.split())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="meshtune.runners.ray.driver")
    parser.add_argument("--address")
    parser.add_argument("--local", type=Path, help="without an address: the folder of a cluster on this machine")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--idle-s", type=float, default=30.0)
    options = parser.parse_args(arguments)
    # Whatever Ray prints goes to the log, not among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def say(**document: Any) -> None:
        answers.write(json.dumps(document) + "\n")

    try:
        connect(options.address or local_address(options.local, options.devices, options.idle_s))
    except Exception as error:
        say(error=f"{options.address or 'the cluster on this machine'}: {message_of(error)}")
        return 1
    say(answer="connected")
    driver = Driver()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            say(answer=driver.ask(request["namespace"], request["verb"], request["arguments"]))
        except RayError as error:
            say(error=message_of(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
