"""Pages of campaigns and trials: what is asked for, and where the page before ended.

A page is found by the place of its first entry in the order, not by counting from the start: entries that come or go
meanwhile neither repeat nor hide others. Ties are broken by the campaign's id and the trial's number. Entries without
the value that they are sorted by come last, in either direction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NewType, TypeVar

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin, TrialState


class CampaignKey(StrEnum):
    """What campaigns are sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
    NAME = "name"
    STATE = "state"
    LEGAL = "legal"


# What trials are sorted by; all but the number may be unknown. Measured ones: `tuner.results.quantities`.
TrialKey = NewType("TrialKey", str)
NUMBER, DEVICE_SECONDS = TrialKey("number"), TrialKey("device_seconds")
STEP_TIME, TOKENS_PER_S_PER_DEVICE = TrialKey("step_time_s"), TrialKey("tokens_per_s_per_device")
TFLOPS_PER_DEVICE, MFU = TrialKey("tflops_per_device"), TrialKey("mfu")
Key = TypeVar("Key", CampaignKey, TrialKey)


@dataclass(frozen=True, slots=True)
class Order(Generic[Key]):
    key: Key
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last entry of the page before: the value it was sorted by, and its id or number."""

    value: float | str | None
    name: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignsWanted:
    """One page of campaigns; what is empty or None filters nothing. name: a part of it, in any case. at_least, at_most:
    of created_at and updated_at, in seconds, and of devices."""

    order: Order[CampaignKey] = Order(CampaignKey.CREATED_AT, descending=True)
    state: Collection[CampaignState] = ()
    owner: str | None = None
    project: str | None = None
    name: str = ""
    model: str | None = None
    cluster: str | None = None
    tag: str = ""
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    after: Cursor | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsWanted:
    """One page of a campaign's trials; what is empty filters nothing, of several values any will do. plan: values by
    the names of Plan's fields. knobs: values by the names of knobs, None where the knob is inactive; values that the
    plan's key writes alike are alike, and equal numbers are. at_least, at_most: of what trials are sorted by, and of
    finished_at, in seconds; what lacks the value is left out."""

    order: Order[TrialKey] = Order(NUMBER)
    verdict: Collection[Verdict] = ()
    state: Collection[TrialState] = ()
    origin: Collection[Origin] = ()
    failure: Collection[Cause] = ()
    number: Collection[int] = ()
    plan: Mapping[str, Collection[object]] = field(default_factory=dict)
    knobs: Mapping[str, tuple[KnobValue | None, ...]] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    after: Cursor | None = None
    limit: int = 100
