"""The route to stored calibrations: the physics' constants as campaigns measured them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query

from meshtune.api.dependencies import CallerHandle, ServiceHandle, reads
from meshtune.tuner.results.calibrations import CalibrationView, calibration_view

router = APIRouter(prefix="/v1", tags=["catalog"], dependencies=[reads])


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationsView:
    calibrations: list[CalibrationView]


@router.get("/calibrations")
def list_calibrations(
    service: ServiceHandle,
    caller: CallerHandle,
    limit: Annotated[int, Query(ge=1, le=500, description="The newest so many.")] = 100,
) -> CalibrationsView:
    """The calibrations of campaigns that the caller may read, newest first."""
    found = service.store.calibrations.newest_first(reader=caller, limit=limit)
    return CalibrationsView(calibrations=[calibration_view(one) for one in found])
