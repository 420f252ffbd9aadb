"""The store is the only writer of truth, and the only place with SQL: rows and events change in one transaction."""

from meshtune.tuner.store.errors import AlreadyExists, IllegalMove, LeaseLost, NotFound, StoreError, StoreUnavailable
from meshtune.tuner.store.leases import Lease, Standing
from meshtune.tuner.store.serving import claim_database
from meshtune.tuner.store.store import Store

__all__ = [
    "AlreadyExists",
    "IllegalMove",
    "Lease",
    "LeaseLost",
    "NotFound",
    "Standing",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "claim_database",
]
