"""Clients of /v1/stream, spoken to as a server speaks to the application: what each was sent, event by event."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from fastapi import FastAPI

LIMIT_S = 60.0


@dataclass
class Sent:
    id: int
    kind: str
    data: dict[str, Any]


def parse(text: str) -> list[Sent]:
    """The events in a piece of text/event-stream; comments, `retry` and what is not finished are left out."""
    found = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            found.append(Sent(int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class StreamClient:
    """One open stream. stall: take nothing from now on."""

    app: FastAPI
    headers: dict[str, str]
    query: str = ""
    last_event_id: int | None = None
    status: int = 0
    answer: dict[str, str] = field(default_factory=dict)
    text: str = ""
    stall: bool = False

    @property
    def events(self) -> list[Sent]:
        return parse(self.text)

    @property
    def ids(self) -> list[int]:
        return [event.id for event in self.events if event.kind != "ready"]

    @property
    def ready(self) -> bool:
        return "event: ready\n" in self.text

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def __aenter__(self) -> Self:
        headers = dict(self.headers)
        if self.last_event_id is not None:
            headers["Last-Event-ID"] = str(self.last_event_id)
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/v1/stream",
            "raw_path": b"/v1/stream",
            "root_path": "",
            "query_string": self.query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("192.0.2.1", 1),
            "server": ("test", 80),
            "state": {},
        }
        self._gone = asyncio.Event()
        self._asked = False
        self._task = asyncio.create_task(self.app(scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def go(self) -> None:
        """The connection is lost."""
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self.stall:
            await asyncio.Event().wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.answer = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.text += message.get("body", b"").decode()
