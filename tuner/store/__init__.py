"""The store is the only writer of truth, and the only place with SQL: rows and events change in one transaction."""

from tuner.store.errors import AlreadyExists, IllegalMove, NotFound, StoreError, StoreUnavailable
from tuner.store.store import Store

__all__ = ["AlreadyExists", "IllegalMove", "NotFound", "Store", "StoreError", "StoreUnavailable"]
