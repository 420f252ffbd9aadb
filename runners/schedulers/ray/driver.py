"""The driver: the process that speaks to Ray on behalf of a service, which stays free of Ray's threads and its fate.

`python -m meshtune.runners.schedulers.ray.driver`, a child of `ray.runner`. Ray ends a driver whose cluster is gone,
and some of its calls cannot be given a time limit: here neither harms anybody else. It answers each (namespace, verb,
arguments) with (answer, error), after a first such pair that tells whether it is connected, until the link is closed.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError

from meshtune.runners.schedulers.ray.job_manager import JobManager

# Of the job manager, in each namespace.
ACTOR_NAME = "job_manager"
CALL_LIMIT_S = 10.0
REACH_LIMIT_S = 5.0
_ENDPOINT = re.compile(r"[^:/]+:[0-9]+")
# On the head node: the job manager lives as long as the cluster.
_HEAD = {"node:__internal_head__": 0.001}


class RayDriver:
    """Job managers by namespace, and what they say."""

    def __init__(self) -> None:
        self._managers: dict[str, Any] = {}

    def ask(self, namespace: str, verb: str, arguments: Sequence[Any]) -> tuple[Any, str]:
        """A manager's answer, or what went wrong; one is started where there is none, and after its death."""
        if namespace not in self._managers:
            options = {"name": ACTOR_NAME, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
            self._managers[namespace] = ray.remote(JobManager).options(**options, num_cpus=0, resources=_HEAD).remote()
        try:
            return ray.get(getattr(self._managers[namespace], verb).remote(*arguments), timeout=CALL_LIMIT_S), ""
        except RayError as error:
            if isinstance(error, ActorDiedError):
                del self._managers[namespace]
            return None, message_of(error)


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


def main(descriptor: str, address: str) -> int:
    """descriptor: of a connection to the link."""
    os.set_inheritable(int(descriptor), False)
    channel: Connection = Connection(int(descriptor))
    try:
        connect(address)
    except Exception as error:
        channel.send((None, f"{address}: {message_of(error)}"))
        return 1
    channel.send(("connected", ""))
    driver = RayDriver()
    with suppress(EOFError):
        while True:
            channel.send(driver.ask(*channel.recv()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
