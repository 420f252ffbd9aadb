"""A database is brought to the newest schema when it is opened; one from a newer meshtune is refused, untouched.

To add a version, change `tables` and run, in the repository:
`python -c "from meshtune.tuner.store.schema import revise; revise('what changes')"`, then read what was written.
A table that counts (`sqlite_autoincrement`) is copied by `batch_alter_table` with the same word in its `table_kwargs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, create_engine, false, insert, inspect, select, table, update

from meshtune.search_spaces.checks import raising
from meshtune.tuner.store.errors import OtherSchema, StoreError, StoreUnavailable
from meshtune.tuner.store.tables import probes

if TYPE_CHECKING:
    from alembic.config import Config

# Of our own, so that a PostgreSQL database may be shared with another program that uses Alembic.
VERSION_TABLE = "meshtune_version"
version = table(VERSION_TABLE, column("version_num"))
_sequence = table("sqlite_sequence", column("name"), column("seq"))
_MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, database: str) -> None:
    """Run the missing migrations within the connection's transaction.

    Raises StoreUnavailable where the database has a version that this meshtune does not know.
    """
    present, known = version_of(connection), _known()
    if present and present not in known:
        words = f"{database} was written by a newer meshtune (schema {present}, this one knows up to {known[-1]})"
        raise StoreUnavailable(f"{words}; install that version, or restore a copy from before it")
    if present == known[-1]:
        return
    from alembic import command  # costs 0.1 s
    from alembic.util import CommandError

    # A table that SQLite copies would count on from its rows, and newer ones may have been deleted.
    counters = connection.execute(select(_sequence)).all() if present and connection.dialect.name == "sqlite" else ()
    with raising(StoreError, f"{database} refused", CommandError):
        command.upgrade(_config(connection), "head")
    for name, given in counters:
        connection.execute(update(_sequence).where(_sequence.c.name == name).values(seq=given))


def version_of(connection: Connection) -> str:
    """The schema that the database has, empty for one that is no store yet."""
    versions = connection.scalars(select(version.c.version_num)) if inspect(connection).has_table(VERSION_TABLE) else ()
    return ", ".join(versions)


def outdated(version: str) -> bool:
    """Whether there are migrations from it."""
    return version in _known()[:-1]


def require_newest(connection: Connection, database: str) -> str:
    """The schema that the database has. Raises OtherSchema where that is not the newest."""
    present = version_of(connection)
    newest = _known()[-1]
    if present != newest:
        has = f"has the schema {present}" if present else "is no store of meshtune"
        raise OtherSchema(f"{database} {has}, and this meshtune knows {newest}")
    return present


def revise(message: str) -> None:
    """Write a new version into `migrations/versions`: the difference between its newest version and `tables`."""
    from alembic import command

    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        config = _config(connection)
        command.upgrade(config, "head")
        command.revision(config, message, autogenerate=True, rev_id=f"{int(_known()[-1]) + 1:04d}")
    engine.dispose()


def probe(connection: Connection) -> None:
    """Return when the schema is there and the database takes writes; write nothing."""
    # Both databases refuse a statement that may write when they are read-only, though it would change no row.
    connection.execute(update(version).values(version_num="").where(false()))


def write_probe(connection: Connection) -> int:
    """Count one further in the table that is there for it; the new number."""
    counted = connection.execute(update(probes).values(number=probes.c.number + 1).returning(probes.c.number)).scalar()
    if counted is None:
        connection.execute(insert(probes), {"id": 1, "number": 1})
    return counted or 1


def read_probe(connection: Connection) -> int:
    """The number of the last `write_probe`."""
    return connection.scalar(select(probes.c.number)) or 0


def _known() -> list[str]:
    """The versions that there are migrations to, the newest last, by the names of their files."""
    return sorted(path.name[1:].partition("_")[0] for path in _MIGRATIONS.glob("versions/v*.py"))


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    # ConfigParser reads % as the start of an interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("file_template", "v%%(rev)s_%%(slug)s")
    return config
