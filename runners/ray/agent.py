"""The agent: the actor that holds a job's devices on one node, and has a fork server fork the job's processes there.
It lives on between jobs. Ray shows it all devices of its node's share: LOCAL_RANK chooses among them."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray

from meshtune.runners.processes.gang import JOB_MARK, kill_marked, minimal_environment

# The fork server's loop turns every few milliseconds; one that says nothing for so long never will.
ANSWER_S = 10.0
# How long one look may wait for news: a look that has come back proves that the node lives.
WATCH_S = 1.0
_ANSWERS = {"warm": ("warm",), "start": ("started", "failed"), "end": ("ended",)}
_DIED = "the process that starts jobs has died"


class Agent:
    """One node's share of one job after another. Raises, and is of no use any more, when its fork server has died."""

    def __init__(self) -> None:
        self._fork_server: Process | None = None
        self._mark = ""
        self._deaths: list[tuple[int, int]] = []
        self._news = asyncio.Event()
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def warm(self, command: Sequence[str]) -> tuple[str, str]:
        """Get ready for jobs of this command, which takes seconds at first; return the node's id and address."""
        if self._fork_server is None:
            self._fork_server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "meshtune.runners.ray.fork_server"),
                stdin=PIPE,
                stdout=PIPE,
                env=minimal_environment(),
            )
            self._listening = asyncio.create_task(self._listen(self._fork_server))
        await self._ask({"do": "warm", "command": list(command)}, None)
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return ray.get_runtime_context().get_node_id(), address

    async def start(self, job: dict[str, Any], ranks: Sequence[int], meeting: tuple[str, int]) -> str:
        """Start these processes of the job; return why they could not be started, empty when they were."""
        self._mark = job["env"][JOB_MARK]
        answer = await self._ask({"do": "start", "job": job, "ranks": list(ranks), "meeting": list(meeting)}, ANSWER_S)
        return str(answer.get("why", ""))

    async def watch(self, seen: int) -> list[tuple[int, int]]:
        """(rank, exit code) of the processes that ended by themselves; waits a while for more than were seen."""
        if len(self._deaths) <= seen:
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), WATCH_S)
        self._require_fork_server()
        return self._deaths

    async def end(self) -> None:
        """Kill what is left of the job. A stuck fork server dies with it, and this raises."""
        try:
            await self._ask({"do": "end"}, ANSWER_S)
        except (OSError, TimeoutError):
            if self._fork_server is not None and self._fork_server.returncode is None:
                self._fork_server.kill()
            kill_marked(self._mark)
            raise
        self._deaths = []

    async def _ask(self, request: dict[str, Any], limit_s: float | None) -> dict[str, Any]:
        """What the fork server answers. Raises OSError when it has died, TimeoutError when it does not answer."""
        server = self._require_fork_server()
        assert server.stdin is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        await server.stdin.drain()
        while True:
            answer = await asyncio.wait_for(self._answers.get(), limit_s)
            if answer["said"] == "gone":
                raise BrokenPipeError(_DIED)
            if answer["said"] in _ANSWERS[request["do"]]:  # others come late, after somebody gave up waiting
                return answer

    def _require_fork_server(self) -> Process:
        if self._fork_server is None or self._fork_server.returncode is not None or self._listening.done():
            raise BrokenPipeError(_DIED)
        return self._fork_server

    async def _listen(self, server: Process) -> None:
        assert server.stdout is not None
        while line := await server.stdout.readline():
            answer = json.loads(line)  # noqa: TID251  # the fork server's; ranks have another output
            if answer["said"] == "died":
                self._deaths.append((answer["rank"], answer["code"]))
                self._news.set()
            else:
                self._answers.put_nowait(answer)
        self._answers.put_nowait({"said": "gone"})
        self._news.set()
