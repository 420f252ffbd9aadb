"""An error of the service as the REST API shows it: a problem document by RFC 9457."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong at one place of the request. pointer: "" is the whole body."""

    pointer: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemDetails:
    """An error as RFC 9457 has it. errors: every mistake of the request, where that is the trouble."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: tuple[Mistake, ...] = ()
