"""The store is the only writer of truth, and the only place with SQL: rows and events change in one transaction."""

from meshtune.tuner.store.errors import (
    AlreadyExists,
    BudgetSpent,
    IllegalMove,
    LeaseLost,
    NotFound,
    OtherSchema,
    Outdated,
    StoreError,
    StoreUnavailable,
    Unreadable,
)
from meshtune.tuner.store.leases import Drivers, Lease
from meshtune.tuner.store.store import Store

__all__ = [
    "AlreadyExists",
    "BudgetSpent",
    "Drivers",
    "IllegalMove",
    "Lease",
    "LeaseLost",
    "NotFound",
    "OtherSchema",
    "Outdated",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Unreadable",
]
