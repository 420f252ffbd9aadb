"""The record of a campaign: the campaign with its spec complete, and its trials with every attempt and measurement.

As JSON it reads back to equal values, so that whoever has the text can compute what a service would: rankings,
analyses, figures. Version 1; a reader takes no other. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from meshtune.runners.documents import plain, read_value
from meshtune.runners.json_files import shown
from meshtune.runners.untrusted_text import Limits, UnreadableText, read_json
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial

VERSION: Literal[1] = 1
# A trial on four devices, with its steps and a profile, has 4 kB; what grows
# are the values of each rank, about 300 bytes.
# Of the spec; records have them beside it, as before specs had them.
_BESIDE = ("tags", "notes")
RECORD_LIMITS = Limits(max_bytes=2**30, max_values=100_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """trials: in the order of planning, whole: with their steps, not the summaries of lists."""

    campaign: Campaign
    trials: tuple[Trial, ...]
    version: Literal[1] = VERSION

    def __post_init__(self) -> None:
        strange = next((one for one in self.trials if one.campaign_id != self.campaign.id), None)
        if strange is not None:
            problem = f"trial {strange.number} is of the campaign {strange.campaign_id}, not of {self.campaign.id}"
            raise InvalidValue([Problem("trials", problem)])


def record_json(record: Record) -> bytes:
    """The record as JSON of one line."""
    document = plain(record)
    spec = document["campaign"]["spec"]
    document["campaign"] |= {name: spec.pop(name) for name in _BESIDE}
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    except ValueError:  # JSON has no word for a loss that diverged; numbers are read from their names, too
        text = json.dumps(_named(document), allow_nan=False, separators=(",", ":"))
    return text.encode()


def record_of(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    """The JSON of a campaign and its trials, for another process."""
    return record_json(Record(campaign=campaign, trials=tuple(trials)))


def read_record(text: str | bytes) -> Record:
    """The record that `record_json` wrote. Raises InvalidValue with the paths of what is wrong."""
    try:
        document = read_json(text, RECORD_LIMITS)
    except UnreadableText as error:
        raise InvalidValue([Problem("", str(error))]) from None
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        problem = f"must be {VERSION}, the version of records that this meshtune reads, not {shown(version)}"
        raise InvalidValue([Problem("version", problem)])
    campaign = document.get("campaign")
    if isinstance(campaign, dict) and isinstance(campaign.get("spec"), dict):
        campaign["spec"] = {name: campaign[name] for name in _BESIDE if name in campaign} | campaign["spec"]
    return read_value(Record, document)


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value
