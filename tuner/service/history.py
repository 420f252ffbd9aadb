"""What a service knows of a campaign that it drives: read once, then kept up by the events of what changed.

Every change of a trial and of a campaign's state tells an event in its own transaction, so a look that finds no new
event has missed nothing, and costs one small query however long the history is.
"""

from __future__ import annotations

from dataclasses import replace

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.store import Store

# Of more changes than this everything is read again.
MOST_EVENTS = 1000


class Known:
    """One campaign's row and trials. campaign: as it was at the last look."""

    def __init__(self, store: Store, campaign: Campaign) -> None:
        self._store = store
        self.campaign = campaign
        self._trials: list[Trial] = []
        self._event: int | None = None

    def look(self) -> tuple[Campaign, list[Trial]]:
        """The campaign and its trials now; the list is the caller's own."""
        if self._event is None:
            self._read_all()
        else:
            self._read_changes(self._event)
        return self.campaign, list(self._trials)

    def add_elapsed(self, seconds: float) -> None:
        """Know what was saved of the time worked on it, which is no event."""
        self.campaign = replace(self.campaign, elapsed_s=self.campaign.elapsed_s + seconds)

    def _read_all(self) -> None:
        id = self.campaign.id
        # First: what happens meanwhile is read twice, not missed.
        event = self._store.newest_event(id)
        self.campaign = self._store.campaign(id)
        self._trials = self._store.trials(id)
        self._event = event

    def _read_changes(self, after: int) -> None:
        id = self.campaign.id
        events = self._store.events(id, after=after, limit=MOST_EVENTS)
        if len(events) == MOST_EVENTS:
            self._read_all()
            return
        if any(not event.kind.startswith("trial.") for event in events):
            self.campaign = self._store.campaign(id)
        changed = [event.data["number"] for event in events if event.kind.startswith("trial.")]
        numbers = sorted({number for number in changed if isinstance(number, int)})
        if numbers:
            fresh = self._store.pages.numbered(id, numbers)
            # New ones come last, and their numbers have no gaps.
            self._trials += [fresh[number] for number in numbers if number >= len(self._trials)]
            for number in numbers:
                self._trials[number] = fresh[number]
        if events:
            self._event = events[-1].id
