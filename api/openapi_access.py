"""What the OpenAPI document says of every guarded route alike: who is refused, and how a POST is sent again safely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.api.middleware.idempotency import PARAMETER


def describe(document: dict[str, Any], refusals: Mapping[int | str, Any], conflict: Mapping[int | str, Any]) -> None:
    """Add to each guarded operation the refusals that it may answer with, and to each POST the key of a repetition.

    refusals, conflict: as a route documents them, by status.
    """
    for methods in document["paths"].values():
        for method, operation in methods.items():
            if "security" not in operation:
                continue
            answers = {**refusals, **(conflict if method == "post" else {})}
            for status, answer in answers.items():
                operation["responses"].setdefault(str(status), answer)
            if method == "post":
                operation.setdefault("parameters", []).append(PARAMETER)
