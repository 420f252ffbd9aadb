"""What is asked of the service, as values, and the steps of a call: generators that yield what is to be done and take
what came of it, so that no call is written twice, for blocking code and for asyncio.

A request is tried again where that can do no harm: with a POST goes an Idempotency-Key, by which the service does
nothing twice. Does no input or output.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter, ValidationError

from meshtune.runners.documents import json_of
from meshtune.search_spaces.knob_values import word
from meshtune.tuner.client.errors import BY_STATUS, Refused, ServiceTrouble, ServiceUnreachable, UnreadableAnswer
from meshtune.tuner.service.views.campaigns import CampaignBriefPage, CampaignPage, EventPage
from meshtune.tuner.service.views.problems import ProblemDetails
from meshtune.tuner.service.views.trials import TrialBriefPage

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Page = TypeVar("Page", CampaignPage, CampaignBriefPage, TrialBriefPage, EventPage)
JSON, YAML = "application/json", "application/yaml"
PROBLEM = "application/problem+json"
# Between two tries; then twice as long each time.
FIRST_PAUSE_S, MOST_PAUSE_S = 0.25, 15.0
# What a proxy or the service says when nothing was done.
PASSING = (429, 502, 503, 504)
NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[Answer]):
    """answer: what the body is read as; bytes: as it is; None: there is none. key: of a POST or PATCH, the same with
    each try. version: the campaign's, of which alone something is wanted."""

    method: str
    path: str
    answer: type[Answer]
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    content_type: str = JSON
    key: str = ""
    version: str = ""

    @property
    def headers(self) -> dict[str, str]:
        typed = {} if self.body is None else {"Content-Type": self.content_type}
        matched = {"If-Match": f'"{self.version}"'} if self.version else {}
        return {**typed, **matched, **({"Idempotency-Key": self.key} if self.key else {})}

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


# What a transport does for a step: it sends a request, which comes back as a Reply or raises httpx2.TransportError, or
# it pauses.
Steps = Generator[Request[Any] | Pause, Any, Answer]


def get(path: str, answer: type[Answer], query: Mapping[str, object] | None = None) -> Request[Answer]:
    return Request(method="GET", path=path, answer=answer, query=_pairs(query or {}))


def post(
    path: str, answer: type[Answer], body: object = None, query: Mapping[str, object] | None = None, *, key: str = ""
) -> Request[Answer]:
    """body: a document, or a text in YAML."""
    text = body.encode() if isinstance(body, str) else None if body is None else json_of(body)
    return Request(
        method="POST",
        path=path,
        answer=answer,
        query=_pairs(query or {}),
        body=text,
        content_type=YAML if isinstance(body, str) else JSON,
        key=key or uuid.uuid4().hex,
    )


def place(*parts: object) -> str:
    """The path of a thing below /v1. A verb is joined to the last part by a colon."""
    return "/v1/" + "/".join(quote(str(part), safe=":") for part in parts)


def _pairs(query: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """As a query has it: a sequence is a parameter that stands several times; None is left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        pairs.extend((name, word(each)) for each in values if each is not None)
    return tuple(pairs)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def read_answer(request: Request[Answer], reply: Reply) -> Answer:
    """Raises Refused for a problem, UnreadableAnswer for what no meshtune of this version says."""
    if reply.status >= 300:
        raise refusal(request, reply)
    if request.answer is bytes:
        return cast(Answer, reply.body)
    if request.answer is type(None):
        return None
    try:
        answer: Answer = _adapter(request.answer).validate_json(reply.body)
        return answer
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"its answer is no {request.answer.__name__} of this version: {where}: {first['msg']}"
        raise UnreadableAnswer(f"{request}: {problem}") from None


def refusal(request: Request[Any], reply: Reply) -> Exception:
    kind = reply.headers.get("content-type", "").partition(";")[0]
    if kind != PROBLEM:
        what = kind or "without content"
        return UnreadableAnswer(f"{request}: status {reply.status}, {what}: this is no answer of a meshtune service")
    try:
        problem: ProblemDetails = _adapter(ProblemDetails).validate_json(reply.body)
    except ValidationError:
        return UnreadableAnswer(f"{request}: status {reply.status} with a problem that cannot be read")
    return BY_STATUS.get(problem.status, ServiceTrouble if problem.status >= 500 else Refused)(problem)


def ask(request: Request[Answer], patience_s: float) -> Steps[Answer]:
    """The answer, after as many tries as fit into `patience_s`. Raises ServiceError."""
    give_up, tries = time.monotonic() + patience_s, Tries()
    while True:
        trouble: Exception
        try:
            reply: Reply = yield request
            if reply.status < 300 or not passes(reply):
                return read_answer(request, reply)
            told = reply.headers.get("retry-after", "")
            trouble, least_s = refusal(request, reply), float(told) if told.isdecimal() else 0.0  # it may be a date
            if isinstance(trouble, UnreadableAnswer):  # a proxy's: it tells for whom
                trouble = ServiceUnreachable(str(trouble))
        except httpx2.TransportError as error:
            trouble, least_s = unreachable(request, error), 0.0
            # It may be sent again when nobody knows if it arrived.
            repeatable = request.method == "GET" or request.key
            if not (repeatable or isinstance(error, NEVER_SENT)):
                raise trouble from None
        pause_s = tries.pause_s(least_s)
        if time.monotonic() + pause_s > give_up:
            raise trouble
        yield Pause(pause_s)


class Calls:
    """Whose methods ask one service."""

    _link: Any

    def _ask(self, request: Request[Answer]) -> Steps[Answer]:
        return (yield from ask(request, self._link.patience_s))

    def _paged(
        self,
        path: str,
        kind: type[Page],
        items: Callable[[Page], Sequence[Item]],
        query: Mapping[str, object],
        limit: int | None,
        most: int,
    ) -> Steps[list[Item]]:
        """The items of all pages. limit: so many at the most; most: of a page."""
        read: list[Item] = []
        token: str | None = None
        while limit is None or len(read) < limit:
            size = most if limit is None else min(most, limit - len(read))
            page = yield from self._ask(get(path, kind, {**query, "page_size": size, "page_token": token}))
            read += items(page)
            for problem in getattr(page, "unreadable", ()):
                logging.getLogger(__name__).warning("left out: %s", problem)
            token = page.next_page_token
            if token is None:
                break
        return read


def unreachable(request: Request[Any], error: httpx2.TransportError) -> ServiceUnreachable:
    return ServiceUnreachable(f"{request}: {str(error) or type(error).__name__}")


class Tries:
    """Pauses that grow, each a little different, so that many clients of one service do not come back together."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, least_s: float = 0.0) -> float:
        pause_s = max(least_s, self._next_s * random.uniform(0.75, 1.25))
        self._next_s = min(MOST_PAUSE_S, 2 * self._next_s)
        return pause_s


def passes(reply: Reply) -> bool:
    """Whether nothing was done and a later try may be answered: by its status, or as the service says of a key whose
    first request is still being answered."""
    return reply.status in PASSING or (reply.status == 409 and "retry-after" in reply.headers)
