"""Page tokens are opaque: where the page before ended, and which question it was a page of.

A token with another question (another order or other filters) is refused, since it would skip or repeat entries.
Trials in the order of their numbers have no need of it: their token is the last number, which fits every filter.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

from fastapi.exceptions import RequestValidationError

from meshtune.tuner.campaign.listing import Cursor

# A name of 100 characters, each six bytes of JSON at the most, and a third more in base64.
MAX_CHARACTERS = 1200
MAX_NUMBER = 2**31 - 1


def encode(question: str, cursor: Cursor) -> str:
    text = json.dumps([_digest(question, cursor), cursor.value, cursor.name], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(question: str, token: str) -> Cursor:
    """The cursor that `encode` was given with this question. Raises RequestValidationError."""
    try:
        padded = token + "=" * (-len(token) % 4)
        digest, found, named = json.loads(urlsafe_b64decode(padded.encode()))
    except (ValueError, TypeError, RecursionError):
        raise refused("page_token", token, "is no page token") from None
    cursor = Cursor(found, named)
    if digest != _digest(question, cursor):
        raise refused("page_token", token, "is of a page in another order or with other filters; start again")
    return cursor


def decode_number(token: str) -> Cursor:
    """The cursor of trials in the order of their numbers. Raises RequestValidationError."""
    try:
        number = int(token) if len(token) <= len(str(MAX_NUMBER)) else MAX_NUMBER + 1
    except ValueError:
        raise refused("page_token", token, "is no page token of trials in the order of their numbers") from None
    if not -1 <= number <= MAX_NUMBER:
        raise refused("page_token", token, f"must be from -1 to {MAX_NUMBER}")
    return Cursor(number, number)


def refused(name: str, value: object, why: str) -> RequestValidationError:
    """A mistake that only shows when parameters are taken together."""
    return RequestValidationError([{"type": "value_error", "loc": ("query", name), "msg": why, "input": value}])


def _digest(question: str, cursor: Cursor) -> str:
    """Over the cursor, too: what was altered is refused before its types can surprise the database."""
    return blake2b(f"{question} {cursor!r}".encode(), digest_size=6).hexdigest()
