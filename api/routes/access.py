"""The routes about access: the caller's own token, and the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter

from meshtune.api.dependencies import AfterId, CallerHandle, PageSize, ServiceHandle, administers, reads
from meshtune.tuner.access.tokens import WhoamiView
from meshtune.tuner.results.quantities import optional_time, rfc3339
from meshtune.tuner.results.views import view_of

router = APIRouter(prefix="/v1", tags=["access"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntryView:
    """Something that was done or refused. token: a name, empty for nobody known and the command line.
    outcome: `done`, or an HTTP status with the kind of the problem."""

    id: int
    at: datetime
    token: str
    action: str
    object: str
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    entries: list[AuditEntryView]
    next_page_token: str | None


@router.get("/whoami", dependencies=[reads])
def whoami(caller: CallerHandle, service: ServiceHandle) -> WhoamiView:
    """What the token that was sent allows, and what of its quotas is used."""
    return view_of(
        WhoamiView,
        caller,
        scopes=sorted(caller.scopes),
        projects=sorted(caller.projects),
        expires_at=optional_time(caller.expires_at),
        used=service.used(caller.name),
    )


@router.get("/audit", dependencies=[administers])
def list_audit(
    service: ServiceHandle, after: AfterId = 0, page_size: PageSize = 100, page_token: AfterId = 0
) -> AuditPage:
    """Who did what, in order: all that changed something, and what was refused for want of a token or a scope."""
    entries = service.access.audit(after=max(after, page_token), limit=page_size + 1)
    shown = entries[:page_size]
    return AuditPage(
        entries=[view_of(AuditEntryView, record, at=rfc3339(record.at)) for record in shown],
        next_page_token=str(shown[-1].id) if len(entries) > page_size else None,
    )
