"""Slow and idle connections keep nobody out: a real service beside clients that hold hundreds of connections open."""

import asyncio
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle, islice
from typing import Any

import pytest
import uvicorn
from service_lab import ServiceLab
from uvicorn.server import ServerState

from meshtune.api import connections
from meshtune.api.connections import (
    HEAD_S,
    MAX_FILES,
    STRANGERS,
    STREAMS,
    Capacity,
    capacity_of,
    log_accept_failures_seldom,
    protocol,
    raise_file_limit,
)

HEAD = b"GET /v1/campaigns HTTP/1.1\r\nHost: meshtune\r\n"


def test_so_much_is_served_as_there_are_files_for():
    plenty = capacity_of(4096)
    assert plenty == capacity_of(MAX_FILES) == Capacity(streams=STREAMS, connections=2000, strangers=500, backlog=1000)
    scarce = capacity_of(1024)
    assert 200 < scarce.streams < STREAMS
    assert scarce.connections + scarce.backlog < 1024 - 200
    assert min(capacity_of(64).streams, capacity_of(64).strangers) > 0


def test_the_limit_of_files_is_raised_to_what_the_system_allows():
    asks = "import resource, meshtune.api.connections as c; print(c.raise_file_limit(), *resource.getrlimit(7))"
    done = subprocess.run(
        [sys.executable, "-c", asks],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2048"] * 3
    assert resource.RLIMIT_NOFILE == 7
    assert 0 < raise_file_limit() <= MAX_FILES


def test_connections_that_cannot_be_accepted_are_told_once_a_minute(caplog):
    async def fail() -> None:
        loop = asyncio.get_running_loop()
        log_accept_failures_seldom(loop)
        for _ in range(1000):
            loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": OSError()})
        loop.call_exception_handler({"message": "another"})

    asyncio.run(fail())
    assert [record.getMessage().split(",")[0].split("\n")[0] for record in caplog.records] == [
        "connections cannot be accepted",
        "another",
    ]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Knows whoever has a header, reads the body, and answers with as much as the path says."""
    if any(name == b"authorization" for name, _ in scope["headers"]):
        scope["state"]["caller"] = "somebody"
    while (await receive()).get("more_body"):
        pass
    size = scope["path"][1:]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", size.encode())]})
    await send({"type": "http.response.body", "body": b"x" * int(size)})


@asynccontextmanager
async def serving(capacity: Capacity) -> AsyncIterator[int]:
    """The port of a server of the application."""
    config = uvicorn.Config(application, http=protocol(capacity), ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    factory: Any = config.http_protocol_class
    made = await asyncio.get_running_loop().create_server(
        lambda: factory(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with made:
        yield made.sockets[0].getsockname()[1]


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /1 HTTP/1.1\r\n",
        b"POST /1 HTTP/1.1\r\nHost: m\r\nContent-Length: 9999\r\n\r\n",
        HEAD.replace(b"v1/campaigns", b"0") + b"\r\nGET /1",
    ],
    ids=["the head", "the body", "a second head"],
)
def test_a_request_that_drips_is_ended(monkeypatch, request_text):
    monkeypatch.setattr(connections, "_LIMITS_S", dict.fromkeys(("head", "body", "answer"), 0.2))

    async def drip() -> None:
        async with serving(capacity_of(4096)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_text)
            begun = time.monotonic()
            with suppress(ConnectionError):
                while not reader.at_eof() and time.monotonic() < begun + 20:
                    writer.write(b"a")
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(100), 0.02)
            assert 0.15 < time.monotonic() - begun < 10
            writer.close()

    asyncio.run(drip())


def test_an_answer_that_nobody_takes_is_ended(monkeypatch):
    monkeypatch.setattr(connections, "_LIMITS_S", dict.fromkeys(("head", "body", "answer"), 0.2))

    async def stall() -> None:
        async with serving(capacity_of(4096)) as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.settimeout(20)
                client.sendall(b"GET /50000000 HTTP/1.1\r\nHost: m\r\n\r\n")
                await asyncio.sleep(0.6)
                taken = 0
                while more := await asyncio.to_thread(client.recv, 2**20):
                    taken += len(more)
                assert taken < 50_000_000

    asyncio.run(stall())


def test_the_oldest_stranger_makes_room_and_who_has_shown_a_token_stays():
    async def crowd() -> None:
        few = Capacity(streams=1, connections=5, strangers=2, backlog=9)
        async with serving(few) as port:
            opened = [await asyncio.open_connection("127.0.0.1", port)]
            opened[0][1].write(HEAD.replace(b"v1/campaigns", b"0") + b"Authorization: a token\r\n\r\n")
            await answer_of(opened[0][0])
            opened += [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for reader, _ in opened[1:3]:
                async with asyncio.timeout(20):
                    with suppress(ConnectionError):
                        assert await reader.read() == b""
            for reader, writer in [opened[0], *opened[3:]]:
                writer.write(HEAD.replace(b"v1/campaigns", b"0") + b"\r\n")
                assert (await answer_of(reader)).startswith(b"HTTP/1.1 200"), "it was ended"
            for _, writer in opened:
                writer.close()

    asyncio.run(crowd())


def test_a_request_that_has_arrived_is_answered_however_many_connect_after_it():
    async def burst() -> None:
        few = Capacity(streams=1, connections=5, strangers=2, backlog=9)
        async with serving(few) as port:
            # All at once, as the loop sees it: it runs when they are connected.
            first = socket.create_connection(("127.0.0.1", port))
            first.sendall(HEAD.replace(b"v1/campaigns", b"0") + b"\r\n")
            others = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
            first.settimeout(20)
            assert (await asyncio.to_thread(first.recv, 100)).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.1)
            assert sum(map(ended, others)) >= 4
            for connection in [first, *others]:
                connection.close()

    asyncio.run(burst())


def connected(service: ServiceLab, times: int) -> list[socket.socket]:
    made = []
    for _ in range(times):
        made.append(socket.create_connection(("127.0.0.1", service.port), 30.0))
        made[-1].setblocking(False)
    return made


def seconds_of_requests(service: ServiceLab, times: int) -> list[float]:
    """How long each of some requests with a token takes, each on a connection of its own."""
    found = []
    for _ in range(times):
        begun = time.monotonic()
        assert service.ask("GET", "/v1/campaigns")[0] == 200
        found.append(time.monotonic() - begun)
    return found


def ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with suppress(BlockingIOError):
        try:
            return connection.recv(4096) == b""
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize(
    "seconds", [pytest.param(2.0, marks=pytest.mark.slow), pytest.param(HEAD_S + 2.0, marks=pytest.mark.long)]
)
def test_two_hundred_dripping_and_two_thousand_idle_connections_keep_nobody_out(tmp_path, seconds):
    """The service allows fewer strangers than come, and gives each HEAD_S for the head of its request."""
    with ServiceLab(tmp_path) as service:
        alone = seconds_of_requests(service, 20)
        drips = connected(service, 200)
        begun, bytes_of_head = time.monotonic(), cycle(HEAD)
        idle = connected(service, 2000)
        beside = []
        while time.monotonic() - begun < seconds:
            byte = bytes(islice(bytes_of_head, 1))
            for connection in drips:
                with suppress(OSError):
                    connection.send(byte)
            beside += seconds_of_requests(service, 5)
            time.sleep(1.0)
        assert seconds < HEAD_S or all(map(ended, drips)), "a byte a second is no request"
        assert sum(not ended(connection) for connection in idle) <= STRANGERS
        for connection in [*drips, *idle]:
            connection.close()
    for name, found in (("alone", alone), ("beside", beside)):
        in_ms = ", ".join(f"{1000 * one:.0f}" for one in sorted(found))
        print(f"{name}, in ms: {in_ms}")  # noqa: T201
    assert statistics.median(beside) < max(0.2, 3 * statistics.median(alone))
    assert service.log.read_text().count("to make room") <= 2
