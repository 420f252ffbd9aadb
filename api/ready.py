"""Whether this process can do its work, said within a few seconds even where the database hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from meshtune.api.one_at_a_time import OneAtATime
from meshtune.api.stream_hub import StreamHub

# Shorter than a balancer waits for an answer.
LIMIT_S = 4.0


class Readiness:
    """check: returns when the database answers and takes writes. driver: the thread that drives the campaigns, None
    where nobody started one."""

    def __init__(self, check: Callable[[], None], hub: StreamHub) -> None:
        self._hub = hub
        self._question = OneAtATime(check)
        self.driver: threading.Thread | None = None

    async def trouble(self) -> str:
        """What is wrong here, empty where nothing is. Raises what the check raises."""
        try:
            await self._question.ask(LIMIT_S)
        except TimeoutError:
            return f"the database has not answered within {LIMIT_S:g} s"
        if self.driver is not None and not self.driver.is_alive():
            return "the thread that drives the campaigns has died; restart"
        if self.driver is not None and not self._hub.running:
            return "the thread that reads the events has died, or the service is ending"
        return ""
