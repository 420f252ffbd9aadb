"""One service process for each SQLite database: a lock beside its file, which the kernel takes back from the dead.

PostgreSQL takes any number of services: campaigns are leased there (`tuner.service.leases`). What does not serve, such
as `meshtune run`, needs no claim.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import StoreUnavailable
from meshtune.tuner.store.store import Store

LOCK_SUFFIX = ".serving"


@contextmanager
def claim_database(store: Store | Database) -> Iterator[None]:
    """Be the one process that serves this database meanwhile; nothing to claim on PostgreSQL and in memory.

    Raises StoreUnavailable that names the process which has it.
    """
    if store.file is None:
        yield
        return
    path = store.file.with_name(store.file.name + LOCK_SUFFIX)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}", transient=False) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise StoreUnavailable(
                f"{store.name} is served by process {holder} already, and SQLite takes one service; stop that one, or "
                "use a PostgreSQL database, which several services may share",
                transient=False,
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
