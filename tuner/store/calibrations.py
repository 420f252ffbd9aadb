"""Calibrations in the database, one for each campaign that measured one; they outlive their campaigns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
from sqlalchemy import Row, delete, insert, select

from meshtune.runners.documents import plain, read_value
from meshtune.search_spaces.cluster import DeviceSpec
from meshtune.search_spaces.physics.constants import CONSTANTS, UNCALIBRATED, Calibration, Constants
from meshtune.tuner.access.tokens import OPERATOR, Rights
from meshtune.tuner.campaign.calibration import OF_FIT, CalibrationKey, StoredCalibration
from meshtune.tuner.store.campaigns import readable_by
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import NotFound, StoreError, reading_row
from meshtune.tuner.store.tables import calibrations

_KEY = [each.name for each in fields(CalibrationKey)]
_OF_ROW = [column.name for column in calibrations.c if column.name != "document"]


class Calibrations:
    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, stored: StoredCalibration) -> None:
        """Keep it, in place of an earlier one of the same campaign."""
        fit = stored.calibration
        document = {
            "described": plain(stored.described),
            "constants": {name: getattr(fit.constants, name) for name in CONSTANTS},
            # Whose rows and columns stand in this order.
            "names": [*CONSTANTS],
            "covariance": fit.covariance.tolist(),
            **{name: getattr(fit, name) for name in OF_FIT},
        }
        with self._database.writing() as connection:
            connection.execute(delete(calibrations).where(calibrations.c.campaign == stored.campaign))
            row = {**{name: getattr(stored, name) for name in _OF_ROW}, "document": document}
            connection.execute(insert(calibrations), row)

    def newest_first(
        self, key: CalibrationKey | None = None, *, reader: Rights = OPERATOR, limit: int = 1000
    ) -> list[StoredCalibration]:
        """Those that the reader may read, of one key or of all, newest first. One with constants that today's formulas
        do not have is left out."""
        query = select(calibrations).where(*readable_by(reader, calibrations))
        if key is not None:
            query = query.where(*(calibrations.c[name] == getattr(key, name) for name in _KEY))
        newest = query.order_by(calibrations.c.created_at.desc(), calibrations.c.campaign.desc()).limit(limit)
        stored: list[StoredCalibration] = []
        with self._database.reading() as connection:
            for row in connection.execute(newest):
                with suppress(StoreError), reading_row(f"calibration {row.campaign}"):
                    stored.append(_stored_of(row))
        return stored

    def remove(self, campaign_id: str) -> None:
        """Forget the calibration of this campaign. Raises NotFound."""
        with self._database.writing() as connection:
            if not connection.execute(delete(calibrations).where(calibrations.c.campaign == campaign_id)).rowcount:
                raise NotFound(f"there is no calibration {campaign_id}")


def _stored_of(row: Row[Any]) -> StoredCalibration:
    """Constants of today that it has not are as before any calibration. Raises StoreError where it has others."""
    document: Mapping[str, Any] = row.document
    names: list[str] = document["names"]
    if not set(names) <= set(CONSTANTS):
        raise StoreError(f"calibration {row.campaign}: its constants are not those that this meshtune reads")
    places = [CONSTANTS.index(name) for name in names]
    covariance = UNCALIBRATED.covariance.copy()
    covariance[np.ix_(places, places)] = np.array(document["covariance"], dtype=np.float64)
    return StoredCalibration(
        **{name: getattr(row, name) for name in _OF_ROW},
        described=read_value(DeviceSpec, document["described"]),
        calibration=Calibration(
            Constants(**document["constants"]), covariance, **{name: document[name] for name in OF_FIT}
        ),
    )
