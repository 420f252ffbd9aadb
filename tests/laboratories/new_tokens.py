"""Tokens of a store, made without the command that makes them."""

from __future__ import annotations

import time
from typing import Any

from meshtune.tuner.access.tokens import UNLIMITED, Quotas, Scope, Token, digest, new_secret
from meshtune.tuner.store import Store


def new_token(
    store: Store, name: str = "tester", *scopes: Scope, quotas: Quotas = UNLIMITED, **times: Any
) -> dict[str, str]:
    """The header that shows a new token, which has every scope unless some are named."""
    secret = new_secret()
    made = {"scopes": frozenset(scopes or Scope), "created_at": time.time(), "expires_at": None, **times}
    store.access.create(Token(name=name, sha256=digest(secret), quotas=quotas, **made))
    return {"Authorization": f"Bearer {secret}"}
