"""Why a request is not let in. Each knows its HTTP headers; `api.errors` has their status.

Refused                  root; str() is fit for a user and tells nothing of any token
+-- Unauthenticated      no token, or one that opens nothing; the same request fails again
+-- ScopeMissing         the token does not allow this; the same request fails again
+-- TooManyRequests      come back later
+-- IdempotencyReused    the key was used for another request
+-- IdempotencyBusy      the first request with the key is under way; come back later
+-- IdempotencyUnclear   the first request with the key was cut off, and may have acted
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil


class Refused(Exception):
    """The request was not let in; nothing was done."""

    headers: Mapping[str, str] = {}


class Unauthenticated(Refused):
    """There is no token, or one that opens nothing."""

    headers = {"WWW-Authenticate": "Bearer"}  # noqa: RUF012  # read only, as the base class says


class ScopeMissing(Refused):
    """The caller is known, and may not do this."""


class TooManyRequests(Refused):
    """The caller's rate limit; trying again after `wait_s` helps."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(max(1, ceil(wait_s)))}


class IdempotencyReused(Refused):
    """The same key came with another request before."""


class IdempotencyBusy(Refused):
    """Another request with the same key is being answered."""

    headers = {"Retry-After": "1"}  # noqa: RUF012


class IdempotencyUnclear(Refused):
    """Nobody knows whether the first request with this key acted."""
