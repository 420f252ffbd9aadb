"""Connections of the service: how many there may be, how long a slow client is waited for, and which end first.

The numbers follow from how many files the process may open. A connection is a stranger until a request of it has shown
a valid token. Strangers are few, and one too many ends the oldest one that waits for nothing of ours, and of whom
nothing waits to be read: who holds connections open, or opens thousands at once, keeps nobody else out. HTTP is
uvicorn's (with h11); this adds what it lacks.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

# Jobs inherit the limit, and some programs walk through all descriptors that they might have.
MAX_FILES = 65_536
# For the database, the jobs' files, logs, runners and libraries.
OWN_FILES = 250
# Where enough files may be opened; where not, all shrink alike.
STREAMS, REQUESTS, STRANGERS, BACKLOG = 1000, 500, 500, 1000
# For what a client owes us: the head of a request (from its first byte on, of the first request from the connection
# on), its body, and the taking of an answer. Between two requests uvicorn waits for 5 s.
HEAD_S, BODY_S, ANSWER_S = 10.0, 60.0, 60.0
_LIMITS_S = {"head": HEAD_S, "body": BODY_S, "answer": ANSWER_S}
# What may come up a thousand times a second is logged so often.
LOGGED_EVERY_S = 60.0
# As asyncio names it where a connection cannot be accepted for want of files.
_ACCEPT_FAILED = "socket.accept() out of system resource"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """streams: of events. connections: in all; strangers: among these. backlog: connections not accepted yet."""

    streams: int
    connections: int
    strangers: int
    backlog: int


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows it, up to MAX_FILES; how many that are."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MAX_FILES if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = min(hard, MAX_FILES)
    if soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
            return wanted
    return soft


def capacity_of(files: int) -> Capacity:
    """What a process serves that may open so many files."""
    share = min(1.0, (files - OWN_FILES) / (STREAMS + REQUESTS + STRANGERS + BACKLOG))
    streams, requests, strangers, backlog = (
        max(8, int(share * number)) for number in (STREAMS, REQUESTS, STRANGERS, BACKLOG)
    )
    return Capacity(streams=streams, connections=streams + requests + strangers, strangers=strangers, backlog=backlog)


def protocol(capacity: Capacity) -> type[asyncio.Protocol]:
    """The class of one server's connections, for `uvicorn.Config(http=...)`."""

    class Connection(_Connection):
        table = _Table(capacity)

    return Connection


def log_accept_failures_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """asyncio tells of each connection that cannot be accepted, which may be thousands a second."""
    warning = _RareWarning("connections cannot be accepted, too many files are open")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") == _ACCEPT_FAILED:
            warning.give()
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


class _RareWarning:
    """A line in the log once a minute at most, with how often it would have been written since the last one."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._times, self._next_at = 0, -inf

    def give(self) -> None:
        self._times += 1
        now = time.monotonic()
        if now >= self._next_at:
            _log.warning("%s (%d times since this was last said)", self._words, self._times)
            self._times, self._next_at = 0, now + LOGGED_EVERY_S


class _Table:
    """All connections of a server that may be strangers, the oldest first."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._strangers: dict[_Connection, None] = {}
        self._warning = _RareWarning("a connection without a token was ended to make room for others")

    def add(self, connection: _Connection) -> None:
        """Let it in; where that is one too many, the oldest stranger that waits for nothing of ours ends, which may be
        this one. Whose request has arrived, and was not read for all those that were accepted since, does wait."""
        self._strangers[connection] = None
        total = len(connection.connections)
        for oldest in list(self._strangers):
            if total <= self._capacity.connections and len(self._strangers) <= self._capacity.strangers:
                return
            if oldest.known:
                del self._strangers[oldest]
            elif not oldest.served and not oldest.has_arrived:
                del self._strangers[oldest]
                oldest.transport.abort()
                self._warning.give()
                return

    def discard(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)


class _Connection(H11Protocol):
    """One connection, which ends where its client does not do in time what it has to."""

    table: ClassVar[_Table]
    _known = False
    # What the client owes us just now, "" for nothing, and the end of our patience.
    _owed = ""
    _deadline: asyncio.TimerHandle | None = None

    @property
    def known(self) -> bool:
        """Whether a request has shown a valid token (`api.middleware.gate`)."""
        if self.scope is not None and self.scope["state"].get("caller") is not None:
            self._known = True
        return self._known

    @property
    def served(self) -> bool:
        """Whether an answer is being made, and what has been sent of it is taken."""
        return self._answering and not self.flow.write_paused

    @property
    def has_arrived(self) -> bool:
        """Whether the client has sent something that was not read yet."""
        arrived = select.poll()
        arrived.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(arrived.poll(0))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._watch()
        self.table.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        if self.known:
            self.table.discard(self)
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Start the clock where the client owes us something else than before."""
        owed = self._debt()
        if owed == self._owed:
            return
        self._owed = owed
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if owed:
            self._deadline = self.loop.call_later(_LIMITS_S[owed], self._give_up)

    def _debt(self) -> str:
        if self.flow.write_paused or (not self._answering and self.transport.get_write_buffer_size()):
            return "answer"
        if self._answering:
            return "body" if self.cycle.more_body else ""
        return "head" if self.timeout_keep_alive_task is None else ""

    def _give_up(self) -> None:
        # An answer may have been taken since, without a word to us.
        if self._debt() == self._owed:
            self.transport.abort()
        else:
            self._watch()
