"""Answers about campaigns that are over outlive the service: nothing changes them any more but another meshtune."""

from __future__ import annotations

from meshtune.api.answers import Answer
from meshtune.api.later import Later
from meshtune.tuner.store import Store
from meshtune.tuner.store.answers import KeptAnswer


class Archive:
    """One for each process, over its store. `start` and `stop` are for the thread that writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._later = Later("answers", store.answers.keep)
        self.start = self._later.start
        self.stop = self._later.stop

    def kept(self, campaign_id: str, question: str, event: int) -> Answer | None:
        """The answer as of this event of the campaign, None where none is kept."""
        kept = self._store.answers.kept(campaign_id, question)
        return None if kept is None or kept.event != event else Answer(kept.etag, kept.packed)

    def keep(self, campaign_id: str, question: str, event: int, answer: Answer) -> None:
        """Keep it where the campaign is over; else it is soon another one. event: the newest one, read before the
        answer was made."""
        if self._store.pages.over(campaign_id):
            self._later.put((campaign_id, question), KeptAnswer(event, answer.etag, answer.packed))
