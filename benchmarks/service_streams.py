"""Holds many streams of events open and says how late an event reaches each: `service_streams.py < order.json`.

The order names host, port, token, how many streams, a campaign that is active and has nothing else to tell, and how
often it is paused and resumed in turn. The answer has, for each event and stream, the milliseconds from the request
that caused the event to its arrival. With no moves it holds the streams until its standard input ends, and prints
nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

ARRIVAL_LIMIT_S = 60.0


class Stream:
    """One open stream."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self.arrived: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self.ready = asyncio.Event()

    async def read(self) -> None:
        """Until the service ends it."""
        reader, writer = await asyncio.open_connection(self._order["host"], self._order["port"])
        writer.write(request_of(self._order, "GET", "/v1/stream"))
        while line := await reader.readline():
            now = time.perf_counter()
            if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise RuntimeError(line.decode())
            if line.startswith(b"event: "):
                kind = line[len(b"event: ") :].decode().strip()
                self.ready.set() if kind == "ready" else self.arrived.put_nowait((kind, now))
        writer.close()

    async def late_ms(self, kind: str, since: float) -> float:
        while True:
            found, at = await asyncio.wait_for(self.arrived.get(), ARRIVAL_LIMIT_S)
            if found == kind and at >= since:
                return 1e3 * (at - since)


def request_of(order: dict[str, Any], method: str, path: str) -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1",
        f"Host: {order['host']}:{order['port']}",
        f"Authorization: Bearer {order['token']}",
        "Content-Length: 0",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def move(order: dict[str, Any], action: str) -> float:
    """Pause or resume the campaign; when the request began."""
    reader, writer = await asyncio.open_connection(order["host"], order["port"])
    start = time.perf_counter()
    writer.write(request_of(order, "POST", f"/v1/campaigns/{order['campaign']}:{action}"))
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(status.decode())
    writer.close()
    return start


async def measure(order: dict[str, Any]) -> list[float]:
    streams = [Stream(order) for _ in range(order["streams"])]
    reading = [asyncio.create_task(stream.read()) for stream in streams]
    await asyncio.wait_for(asyncio.gather(*(stream.ready.wait() for stream in streams)), ARRIVAL_LIMIT_S)
    late_ms: list[float] = []
    for number in range(order["moves"]):
        action, kind = (("resume", "campaign.running"), ("pause", "campaign.paused"))[(number + 1) % 2]
        since = await move(order, action)
        late_ms += await asyncio.gather(*(stream.late_ms(kind, since) for stream in streams))
    if not order["moves"]:
        await asyncio.to_thread(sys.stdin.read)
    for task in reading:
        task.cancel()
    return late_ms


if __name__ == "__main__":
    json.dump(asyncio.run(measure(json.loads(sys.stdin.readline()))), sys.stdout)
