"""What the whole database holds, counted: campaigns by state, trials by how far they are or how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select

from meshtune.tuner.store.tables import attempts, campaigns
from meshtune.tuner.store.usage import spent_device_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """campaigns: by state. verdicts: trials that ended, by the verdict of their last attempt. in_flight: the others, by
    the state of it. device_s: devices times the seconds that jobs have held them."""

    campaigns: Mapping[str, int]
    verdicts: Mapping[str, int]
    in_flight: Mapping[str, int]
    device_s: float


def read_figures(connection: Connection, now: float) -> Figures:
    newer = attempts.alias()
    trials = (
        select(attempts.c.verdict, attempts.c.state, func.count())
        .outerjoin(newer, and_(newer.c.trial_id == attempts.c.trial_id, newer.c.number > attempts.c.number))
        .where(newer.c.id.is_(None))
        .group_by(attempts.c.verdict, attempts.c.state)
    )
    verdicts: dict[str, int] = {}
    in_flight: dict[str, int] = {}
    for verdict, state, count in connection.execute(trials):
        if verdict is None:
            in_flight[state] = in_flight.get(state, 0) + count
        else:
            verdicts[verdict] = verdicts.get(verdict, 0) + count
    by_state = select(campaigns.c.state, func.count()).group_by(campaigns.c.state)
    return Figures(
        campaigns={state: count for state, count in connection.execute(by_state)},
        verdicts=verdicts,
        in_flight=in_flight,
        device_s=spent_device_s(connection, 0.0, now),
    )
