"""What routes share: the service and its driver, the form of ids and pages in a URL, the
body of a request as one JSON or YAML document of bounded size, and authorization. Each route under /v1 names the scope
that it needs by one of these dependencies:

    @router.get("/things", dependencies=[reads])
    @router.post("/things", dependencies=[launches])

and each that names a campaign takes it as a CampaignId or a ChangeableId, which look whose it is.
`launches_unless_dry` asks for `read` alone where the query has dry_run=true. The caller is authenticated before, by
`api.middleware.gate`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer, SecurityScopes
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from meshtune.api.errors import InvalidQuery, Malformed, ScopeMissing, Unauthenticated
from meshtune.runners.untrusted_text import JSON_LIMITS, SLOW_LIMITS, UnreadableText, read_json, read_yaml
from meshtune.search_spaces.checks import Problem, raising
from meshtune.tuner.access.tokens import Ownership, Scope, Token
from meshtune.tuner.campaign.changes import require_version
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import CommandNotAllowed, commands_named
from meshtune.tuner.store import NotFound

MAX_PER_PAGE = 500
# What the database's integer columns hold.
MAX_NUMBER = 2**31 - 1
# Of lists in the order of ids, whose page tokens are ids.
AfterId = Annotated[int, Query(ge=0, le=2**63 - 1, description="Only entries with larger ids.")]
PageSize = Annotated[int, Query(ge=1, le=1000)]
# Of a cluster that is asked about.
MAX_NODES = 1_000_000
Nodes = Annotated[int, Query(ge=1, le=MAX_NODES)]
# Ids hold no ':', so that `{id}:pause` is never taken for an id.
ID_PATTERN = r"^[A-Za-z0-9._-]+$"


class _Id(StringConvertor):
    regex = "[^/:]+"


# For the last part of a path, as `{campaign_id:id}`: the paths of verbs are others.
register_url_convertor("id", _Id())
# Of a body.
MAX_BYTES = JSON_LIMITS.max_bytes


def state(name: str) -> Callable[[Request], Awaitable[Any]]:
    """A dependency that is an attribute of the application's state."""

    # On the event loop: a thread for each would cost more than the rest of a request.
    async def attribute(request: Request) -> Any:
        return getattr(request.app.state, name)

    return attribute


ServiceHandle = Annotated[Service, Depends(state("service"))]
DriverHandle = Annotated[Driver, Depends(state("driver"))]
TrialNumber = Annotated[int, Path(ge=0, le=MAX_NUMBER)]


async def document_of(request: Request) -> object:
    """The value in the body, whose text is `request.state.text` then. Raises Malformed, and HTTPException 413 and 415.

    No other types are read: a page of another site can send a form or plain text without asking us first (CORS).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "PATCH" and kind == MERGE_PATCH:
        kind = "application/json"
    if kind not in READERS:
        given = f"not {kind}" if kind else "and the request names none"
        detail = f"the content type must be {' or '.join(READERS)}, {given}"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    max_bytes, parse = READERS[kind]
    content = await content_of(request, max_bytes)
    document = await run_in_threadpool(parse, content)
    request.state.text = content.decode("utf-8", "replace")
    return document


def parse_json(content: bytes) -> object:
    """The value of a JSON text. Raises Malformed, with the place, for what is no JSON or has a key twice."""
    try:
        return read_json(content)
    except UnreadableText as error:
        raise Malformed(str(error) if content else "is empty") from None


def parse_yaml_body(content: bytes) -> object:
    """The value of a YAML text. Raises Malformed, with the place."""
    with raising(Malformed, "", UnreadableText):
        return read_yaml(content, off_is_word=True)


async def optional_document(request: Request) -> object:
    """None where there is no body."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return None
    return await document_of(request)


# RFC 7396; what a PATCH has, in whatever type it comes.
MERGE_PATCH = "application/merge-patch+json"
READERS: Mapping[str, tuple[int, Callable[[bytes], object]]] = {
    "application/json": (MAX_BYTES, parse_json),
    "application/yaml": (SLOW_LIMITS.max_bytes, parse_yaml_body),
}


async def content_of(request: Request, max_bytes: int) -> bytes:
    """The bytes of the body. Raises HTTPException 413 and 400."""
    content, connected = await read_up_to(request, max_bytes)
    if len(content) > max_bytes:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of this type has at most {max_bytes} bytes")
    if not connected:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the connection ended before the body did")
    return content


async def read_up_to(request: Request, max_bytes: int) -> tuple[bytes, bool]:
    """The body, of a longer one little more than max_bytes, and whether the connection held."""
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                break
    except ClientDisconnect:
        return bytes(content), False
    return bytes(content), True


_bearer = HTTPBearer(
    scheme_name="token",
    bearerFormat="mt_...",
    description="A token of `meshtune token create`. Scopes: read is for the token's own campaigns and those of its "
    "projects, read:all for everybody's; launch starts and moves the token's and its projects' campaigns; command lets "
    "a spec name what is executed; admin contains all.",
    auto_error=False,
)


SpecDocument = Annotated[object, Depends(document_of)]


async def caller_of(request: Request) -> Token:
    """Raises Unauthenticated where the gate let the request through without a token."""
    caller: Token | None = getattr(request.state, "caller", None)
    if caller is None:
        raise Unauthenticated("this needs a token: send the header `Authorization: Bearer mt_...`")
    return caller


CallerHandle = Annotated[Token, Depends(caller_of)]


# Puts the scheme into the OpenAPI document; the gate has read the header.
_Shown = Annotated[object, Security(_bearer)]


async def _scoped(request: Request, scopes: SecurityScopes, caller: CallerHandle, _: _Shown) -> None:
    """Raises ScopeMissing."""
    for scope in scopes.scopes:
        if not caller.may(Scope(scope)):
            has = ", ".join(sorted(caller.scopes))
            raise ScopeMissing(f"this needs the scope {scope}; the token {caller.name} has {has}")
        # For the audit log.
        request.state.changes = scope != Scope.READ and request.method != "GET"


async def _changing(request: Request, scopes: SecurityScopes, caller: CallerHandle, _: _Shown) -> None:
    await _scoped(request, scopes, caller, _)
    _require_known(request)


async def _scoped_unless_dry(
    request: Request, scopes: SecurityScopes, caller: CallerHandle, _: _Shown, dry_run: bool = False
) -> None:
    await _scoped(request, SecurityScopes([Scope.READ]) if dry_run else scopes, caller, _)
    _require_known(request, "dry_run")


def _require_known(request: Request, *parameters: str) -> None:
    """Raises InvalidQuery for any other: a misspelt dry_run would act."""
    if unknown := request.query_params.keys() - set(parameters):
        raise InvalidQuery([Problem(name, "is no parameter of this request") for name in sorted(unknown)])


reads = Security(_scoped, scopes=[Scope.READ.value])
reads_all = Security(_scoped, scopes=[Scope.READ_ALL.value])
clones = Security(_changing, scopes=[Scope.READ.value, Scope.LAUNCH.value])
launches = Security(_changing, scopes=[Scope.LAUNCH.value])
launches_unless_dry = Security(_scoped_unless_dry, scopes=[Scope.LAUNCH.value])
administers = Security(_scoped, scopes=[Scope.ADMIN.value])
deletes = Security(_changing, scopes=[Scope.ADMIN.value])


def require_readable(caller: Token, service: Service, id: str) -> Ownership:
    """Whose the campaign is. Raises NotFound, the same for one that the caller may not read as for none."""
    ownership = service.ownerships([id]).get(id)
    if ownership is None or not caller.reads(ownership):
        raise NotFound(f"there is no campaign {id}")
    return ownership


CampaignPath = Annotated[str, Path(pattern=ID_PATTERN, max_length=100)]


def _readable(campaign_id: CampaignPath, caller: CallerHandle, service: ServiceHandle) -> str:
    require_readable(caller, service, campaign_id)
    return campaign_id


_VERSION = re.compile(r'"([^".]*)[^"]*"')
_MATCHES = r'^\s*(\*|(W/)?"[^"]*"(\s*,\s*(W/)?"[^"]*")*)\s*$'


async def _versions(
    if_match: Annotated[
        str | None,
        Header(
            json_schema_extra={"pattern": _MATCHES},
            description="Act only while the campaign's version is that of this ETag, or of one.",
        ),
    ] = None,
) -> Sequence[str]:
    """The versions that a request is for; none for any."""
    if if_match is not None and re.match(_MATCHES, if_match) is None:
        message = f"must be * or ETags in double quotes, with commas between them, not {if_match[:60]}"
        raise RequestValidationError([{"loc": ("header", "If-Match"), "msg": message, "type": "value_error"}])
    return _VERSION.findall(if_match or "")


# What `ETag`s of a campaign begin with, a dot after it.
Versions = Annotated[Sequence[str], Depends(_versions)]


def _changeable(campaign_id: CampaignPath, caller: CallerHandle, service: ServiceHandle, versions: Versions) -> str:
    ownership = require_readable(caller, service, campaign_id)
    if not caller.changes(ownership):
        owner = f"of {ownership.owner}" if ownership.owner else "of the command line"
        raise ScopeMissing(f"changing a campaign {owner} needs the scope admin, or its project")
    if versions:
        require_version(service.campaign(campaign_id), versions)
    return campaign_id


# The campaign in a path: one that the caller may read, and one that it may change. Others are as good as none.
CampaignId = Annotated[str, Depends(_readable)]
ChangeableId = Annotated[str, Depends(_changeable)]


def require_permitted(caller: Token, document: object, under: str = "") -> None:
    """Before a spec is read. Raises CommandNotAllowed where it names a command or files, and ScopeMissing where it
    names a project, and the caller may not. under: where the body has the spec."""
    problems = [] if caller.may(Scope.COMMAND) else commands_named(document)
    if problems:
        raise CommandNotAllowed([problem.under(under) for problem in problems])
    project = document.get("project") if isinstance(document, Mapping) else None
    if project and isinstance(project, str) and not caller.adds_to(project):
        message = f"the token {caller.name} may put no campaign into the project {project}; `project: null` is none"
        raise ScopeMissing(message)


async def _permitted(document: SpecDocument, caller: CallerHandle) -> object:
    require_permitted(caller, document)
    return document


# The body of a request that is a spec.
PermittedSpec = Annotated[object, Depends(_permitted)]
