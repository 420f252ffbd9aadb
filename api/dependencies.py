"""What routes share: the service and its driver, the form of ids and pages in a URL, the turns that spaces take."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from meshtune.api.requests.body import document_of
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.service.service import Service

MAX_PER_PAGE = 500
# What the database's integer columns hold.
MAX_NUMBER = 2**31 - 1
# Ids hold no ':', so that `{id}:pause` is never taken for an id.
ID_PATTERN = r"^[A-Za-z0-9._-]+$"
# A space holds up to 10^7 combinations, about 1 GB while it is enumerated: requests take turns.
ONE_SPACE = threading.Lock()


def state(name: str) -> Callable[[Request], Awaitable[Any]]:
    """A dependency that is an attribute of the application's state."""

    # On the event loop: a thread for each would cost more than the rest of a request.
    async def found(request: Request) -> Any:
        return getattr(request.app.state, name)

    return found


ServiceHandle = Annotated[Service, Depends(state("service"))]
DriverHandle = Annotated[Driver, Depends(state("driver"))]
CampaignId = Annotated[str, Path(pattern=ID_PATTERN, max_length=100)]
TrialNumber = Annotated[int, Path(ge=0, le=MAX_NUMBER)]
PageSize = Annotated[int, Query(ge=1, le=MAX_PER_PAGE, description="Most entries on this page.")]
PageToken = Annotated[
    str | None, Query(description="`next_page_token` of the page before.", pattern=ID_PATTERN, max_length=100)
]
SpecDocument = Annotated[object, Depends(document_of)]
