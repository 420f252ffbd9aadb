"""How the campaigns of one token stand to its quotas, while they run. What is asked often is remembered for a while."""

from __future__ import annotations

from math import inf

from meshtune.tuner.access.token_quotas import spent, trials_wait, within
from meshtune.tuner.access.tokens import UNLIMITED, Quotas
from meshtune.tuner.campaign.decide import Ask, Confirm, Intent, PlanBaseline
from meshtune.tuner.store import Store

# A quota that somebody changed, and what a month of jobs took, are looked up again after so long.
LOOK_EVERY_S = 10.0


class OwnerQuotas:
    """Of all tokens of a store. An owner without a token, and none at all, has no quota."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._quotas: dict[str, tuple[Quotas, float]] = {}
        self._spent: dict[str, tuple[str, float]] = {}

    def exhausted(self, owner: str, now: float) -> str:
        """Why the owner's campaigns start no more jobs until something changes; empty where they may."""
        quotas = self._look_up(owner, now)
        if quotas.device_hours is None:
            return ""
        why, seen_at = self._spent.get(owner, ("", -inf))
        if not 0 <= now - seen_at < LOOK_EVERY_S:
            why = spent(owner, quotas, self._store.access.used(owner, now))
            self._spent[owner] = (why, now)
        return why

    def waits(self, owner: str, now: float) -> str:
        """Why the owner's campaigns plan no more trials just now; empty where they may."""
        quotas = self._look_up(owner, now)
        return "" if quotas.trials is None else trials_wait(owner, quotas, self._store.access.used(owner, now))

    def within(self, owner: str, intents: list[Intent], now: float) -> list[Intent]:
        """The intents without those that would plan more trials than the owner has left."""
        quotas = self._look_up(owner, now)
        if quotas.trials is None or not any(isinstance(each, PlanBaseline | Ask | Confirm) for each in intents):
            return intents
        return within(intents, quotas.trials - self._store.access.used(owner, now).trials)

    def _look_up(self, owner: str, now: float) -> Quotas:
        if not owner:
            return UNLIMITED
        quotas, seen_at = self._quotas.get(owner, (UNLIMITED, -inf))
        if not 0 <= now - seen_at < LOOK_EVERY_S:
            quotas = self._store.access.quotas(owner)
            self._quotas[owner] = (quotas, now)
        return quotas
