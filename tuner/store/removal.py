"""Removing a campaign: every row that hangs on it by a foreign key, whichever table it is in."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Table, delete, or_, select

from meshtune.tuner.store import queries
from meshtune.tuner.store.errors import IllegalMove
from meshtune.tuner.store.tables import campaigns, metadata


def remove_campaign(connection: Connection, id: str) -> None:
    """Raises NotFound, and IllegalMove for a campaign that is not over."""
    state = queries.campaign_state(connection, id)
    if not state.final:
        raise IllegalMove(f"campaign {id}", state, "deleted", "only what is over is deleted; cancel it first")
    # Those that refer to others come first.
    for table in reversed(metadata.sorted_tables):
        belongs = _belongs(table, id)
        if belongs is not None:
            connection.execute(delete(table).where(belongs))


def _belongs(table: Table, id: str) -> ColumnElement[bool] | None:
    """Which rows of a table hang on the campaign, over any number of tables; None for a table of other things."""
    if table is campaigns:
        return campaigns.c.id == id
    ways = []
    for key in table.foreign_keys:
        above = _belongs(key.column.table, id)
        if above is not None:
            ways.append(key.parent.in_(select(key.column).where(above)))
    return or_(*ways) if ways else None
