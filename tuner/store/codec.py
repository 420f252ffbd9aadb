"""A CampaignSpec as JSON values and back, exactly: the values check themselves again when they are read."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from meshtune.tuner.campaign.spec import CampaignSpec

_SPEC = TypeAdapter(CampaignSpec)


def encode_spec(spec: CampaignSpec) -> dict[str, Any]:
    """Plain JSON values; `decode_spec` makes an equal spec of them, for options that are plain JSON values too."""
    document: dict[str, Any] = _SPEC.dump_python(spec, mode="json")
    return document


def decode_spec(document: object) -> CampaignSpec:
    """The spec that `encode_spec` wrote. Raises ValueError for one that breaks today's rules."""
    return _SPEC.validate_python(document)
