"""What the store raises; nothing of SQLAlchemy leaves this package.

    StoreError               root; raised itself where the database refuses a statement: a defect, trying again fails
    +-- NotFound             no such campaign or trial; trying again fails until someone creates it
    +-- AlreadyExists        the campaign's id, or the plan within its campaign, is taken; trying again fails
    +-- LeaseLost            another process drives the campaign now; trying again fails while it does
    +-- IllegalMove          the state does not allow it; trying again fails until the state is another
    +-- StoreUnavailable     the database cannot be used now; `transient` says whether waiting can help

Whatever is raised, the transaction left nothing behind. One exception: a server that is lost during the commit itself
may have committed; the same call then answers IllegalMove or AlreadyExists.
"""

from __future__ import annotations


class StoreError(Exception):
    """The store could not do it. The message is fit for a user and holds no password."""


class NotFound(StoreError):
    """No such object; the message names it."""


class AlreadyExists(StoreError):
    """The object is there already; the message names it."""


class IllegalMove(StoreError):
    """`thing` is in `state` and may not become `wanted`; `because` says why where the two states do not."""

    def __init__(self, thing: str, state: str, wanted: str, because: str = "") -> None:
        self.thing, self.state, self.wanted = thing, state, wanted
        super().__init__(f"{thing} is {state} and cannot become {wanted}" + (f": {because}" if because else ""))


class LeaseLost(StoreError):
    """Another process holds the campaign's lease, or nobody does; the message names the campaign and the process."""


class StoreUnavailable(StoreError):
    """The database does not answer or does not take writes. transient: it may pass without a change of settings."""

    def __init__(self, message: str, *, transient: bool) -> None:
        self.transient = transient
        super().__init__(message)
