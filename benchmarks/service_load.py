"""Asks a service many things at once and says how long each took: `python benchmarks/service_load.py < order.json`.

The order names host, port, token, how many requests are in flight, and the paths, one request each, in turn over the
connections, which are kept. The answer, on standard output, has the latency of every request in milliseconds, from the
first byte sent to the last one received. It is a process of its own, so that it shares nothing with the service but the
machine; what it does itself between two requests of a connection counts for nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import time
from collections.abc import Iterator
from typing import Any


async def load(order: dict[str, Any]) -> list[float]:
    """Milliseconds of each request, in the order in which they ended. Raises RuntimeError for one that failed."""
    paths: Iterator[str] = iter(order["paths"])
    took_ms: list[float] = []

    async def work() -> None:
        reader, writer = await asyncio.open_connection(order["host"], order["port"], limit=2**20)
        for path in paths:
            start = time.perf_counter()
            writer.write(_request(order, path))
            status, headers, body = await _response(reader)
            took_ms.append(1e3 * (time.perf_counter() - start))
            _check(path, status, headers, body, thorough=len(took_ms) % 50 == 1)
        writer.close()

    await asyncio.gather(*(work() for _ in range(min(order["in_flight"], len(order["paths"])))))
    return took_ms


def _request(order: dict[str, Any], path: str) -> bytes:
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {order['host']}:{order['port']}",
        f"Authorization: Bearer {order['token']}",
        "Accept-Encoding: gzip",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, body


def _check(path: str, status: int, headers: dict[str, str], body: bytes, *, thorough: bool) -> None:
    """thorough: the body is read, too. Not each time, since that is the client's time and not the service's."""
    if status != 200:
        raise RuntimeError(f"GET {path}: {status} {body[:500]!r}")
    if thorough:
        json.loads(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)


if __name__ == "__main__":
    json.dump(asyncio.run(load(json.load(sys.stdin))), sys.stdout)
