"""The agent: the actor that holds a job's devices on one node, and has a fork server fork the job's processes there.
It lives on between jobs. Ray shows it all devices of its node's share: LOCAL_RANK chooses among them."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any

import ray

from meshtune.runners.processes.gang import JOB_MARK, kill_marked, minimal_environment

# The fork server's loop turns every few milliseconds; one that has not ended a job after so long never will.
END_LIMIT_S = 10.0


class Agent:
    """One node's share of one job after another. Raises, and is of no use any more, when its fork server has died."""

    def __init__(self) -> None:
        self._fork_server: Process | None = None
        self._idle = asyncio.Event()

    async def warm(self, command: Sequence[str]) -> tuple[str, str]:
        """Get ready for jobs of this command, which takes seconds at first; return the node's id and address."""
        if self._fork_server is None:
            self._fork_server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "meshtune.runners.schedulers.ray.fork_server"),
                stdin=PIPE,
                stdout=PIPE,
                env=minimal_environment(),
            )
        await self._answer({"do": "warm", "command": list(command)})
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return ray.get_runtime_context().get_node_id(), address

    async def run(self, job: dict[str, Any], ranks: Sequence[int], meeting: tuple[str, int]) -> dict[str, Any]:
        """Run these processes of the job to their end; see `fork_server` for the answer. Without any: until `end`."""
        self._mark = job["env"][JOB_MARK]
        self._idle.clear()
        try:
            return await self._answer({"do": "run", "job": job, "ranks": list(ranks), "meeting": list(meeting)})
        finally:
            self._idle.set()

    async def end(self) -> None:
        """Kill what is left of the job, with a fork server that does not."""
        assert self._fork_server is not None
        self._send({"do": "end"})
        try:
            await asyncio.wait_for(self._idle.wait(), END_LIMIT_S)
        except TimeoutError:
            self._fork_server.kill()
            kill_marked(self._mark)

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send(request)
        assert self._fork_server is not None
        assert self._fork_server.stdout is not None
        line = await self._fork_server.stdout.readline()
        if not line:
            raise BrokenPipeError("the process that starts jobs has died")
        answer: dict[str, Any] = json.loads(line)  # noqa: TID251  # the fork server's; ranks have another output
        return answer

    def _send(self, request: dict[str, Any]) -> None:
        assert self._fork_server is not None
        assert self._fork_server.stdin is not None
        self._fork_server.stdin.write(json.dumps(request).encode() + b"\n")
