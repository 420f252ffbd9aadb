"""Authorization: each route under /v1 names the scope that it needs by one of these dependencies:

    @router.get("/things", dependencies=[reads])
    @router.post("/things", dependencies=[launches])

`launches_unless_dry` asks for `read` alone where the query has dry_run=true.
The caller is authenticated before, by `api.middleware.gate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from meshtune.api.errors import ScopeMissing, Unauthenticated
from meshtune.api.requests.body import document_of
from meshtune.tuner.access.tokens import ALL_SCOPES, UNLIMITED, Quotas, Scope, allows
from meshtune.tuner.specs.document import CommandNotAllowed, commands_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request: a token, or a program on this machine where these are trusted."""

    # Of the token; empty on trusted loopback.
    name: str
    # The token's digest; empty on trusted loopback.
    identity: str
    scopes: frozenset[Scope]
    # Epoch seconds; None: never.
    expires_at: float | None = None
    quotas: Quotas = UNLIMITED

    @property
    def loopback(self) -> bool:
        return not self.identity

    def may(self, scope: Scope) -> bool:
        return allows(self.scopes, scope)


LOOPBACK = Caller(name="", identity="", scopes=ALL_SCOPES)
_bearer = HTTPBearer(
    scheme_name="token",
    bearerFormat="mt_...",
    description="A token of `meshtune token create`. Scopes: read; launch starts and moves campaigns; command lets a "
    "spec name what is executed; admin contains all.",
    auto_error=False,
)


async def caller_of(request: Request) -> Caller:
    """Raises Unauthenticated where the gate let the request through without a token."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        raise Unauthenticated("this needs a token: send the header `Authorization: Bearer mt_...`")
    return caller


CallerHandle = Annotated[Caller, Depends(caller_of)]


# Puts the scheme into the OpenAPI document; the gate has read the header.
_Shown = Annotated[object, Security(_bearer)]


async def _scoped(request: Request, scopes: SecurityScopes, caller: CallerHandle, _: _Shown) -> None:
    """Raises ScopeMissing."""
    for scope in scopes.scopes:
        _require(request, caller, Scope(scope))


async def _scoped_unless_dry(
    request: Request, scopes: SecurityScopes, caller: CallerHandle, _: _Shown, dry_run: bool = False
) -> None:
    for scope in scopes.scopes:
        _require(request, caller, Scope.READ if dry_run else Scope(scope))


def _require(request: Request, caller: Caller, scope: Scope) -> None:
    if not caller.may(scope):
        has = ", ".join(sorted(caller.scopes))
        raise ScopeMissing(f"this needs the scope {scope}; the token {caller.name} has {has}")
    # For the audit log.
    request.state.changes = scope is not Scope.READ and request.method != "GET"


reads = Security(_scoped, scopes=[Scope.READ.value])
launches = Security(_scoped, scopes=[Scope.LAUNCH.value])
launches_unless_dry = Security(_scoped_unless_dry, scopes=[Scope.LAUNCH.value])
administers = Security(_scoped, scopes=[Scope.ADMIN.value])


def require_harmless(caller: Caller, document: object, under: str = "") -> None:
    """Raises CommandNotAllowed where a spec names a command or files, and the caller may not. Before it is read.
    under: where the body has the spec."""
    found = [] if caller.may(Scope.COMMAND) else commands_named(document)
    if found:
        raise CommandNotAllowed([problem.under(under) for problem in found])


async def _harmless(document: Annotated[object, Depends(document_of)], caller: CallerHandle) -> object:
    require_harmless(caller, document)
    return document


# The body of a request that is a spec.
HarmlessSpec = Annotated[object, Depends(_harmless)]
