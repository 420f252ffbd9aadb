"""Alembic runs this for every command: on the connection that `tuner.store.schema` hands over, in its transaction."""

from typing import Any, Literal

from alembic import context

from meshtune.tuner.store.schema import VERSION_TABLE
from meshtune.tuner.store.tables import PlainText, metadata


def _render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """A version must stay what it was, so it names no types of ours."""
    return "sa.Text()" if kind == "type" and isinstance(item, PlainText) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # SQLite cannot alter most of a table; batch mode copies it.
    render_as_batch=True,
    render_item=_render,
)
with context.begin_transaction():
    context.run_migrations()
