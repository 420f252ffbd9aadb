"""What happens in campaigns, and what troubles them, as lines in the log: once when it begins and once when it ends."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from meshtune.tuner.campaign.campaign import Event

_log = logging.getLogger(__name__)


def log_events(events: Sequence[Event]) -> None:
    """A line for each; those of single trials only where details are wanted."""
    for event in events:
        level = logging.DEBUG if event.kind.startswith("trial.") else logging.INFO
        fields = {"campaign": event.campaign_id, "event": event.kind, "event_id": event.id, "data": event.data}
        why = f": {event.data['reason']}" if event.data.get("reason") else ""
        _log.log(level, "%s %s%s", event.campaign_id, event.kind, why, extra=fields)


class TroubleLog:
    """Tells of troubles when they change. One that only counts on, such as seconds waited, is the same."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def look(self, troubles: Mapping[str, str]) -> None:
        now = dict(troubles)
        for campaign, trouble in now.items():
            if _kind(trouble) != _kind(self._told.get(campaign, "")):
                _log.warning("%s: %s", campaign, trouble, extra={"campaign": campaign, "trouble": trouble})
        for campaign in self._told.keys() - now.keys():
            _log.info("%s: the trouble is over", campaign, extra={"campaign": campaign})
        self._told = now


def _kind(trouble: str) -> str:
    return re.sub(r"\d+", "#", trouble)
