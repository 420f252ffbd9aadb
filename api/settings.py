"""Settings of the service, read from environment variables MESHTUNE_* when it starts.

`meshtune serve` turns its options into these variables, since the process that serves may be another one. A field is
read from MESHTUNE_ and its name in capitals; one that is not set, or empty, keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from meshtune.search_spaces.checks import Checks, InvalidValue, Problem
from meshtune.tuner.access.tokens import NEVER, expiry

# What a text that is none of the type should have been.
_WORDS = {bool: "1 or 0", int: "an integer", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Rates are per token, those of requests without one per address; bursts are how many may come at once."""

    # /metrics needs no token.
    metrics_open: bool = False
    # Where jobs reach the service; empty: they do not report over HTTP.
    public_url: str = ""
    # How long files of jobs stay after their campaign has ended: 90d.
    retention: str = NEVER
    requests_per_s: float = 50.0
    requests_burst: int = 200
    posts_per_s: float = 5.0
    posts_burst: int = 20

    def __post_init__(self) -> None:
        checks = Checks()
        url = self.public_url
        checks.require(not url or url.startswith(("http://", "https://")), "public_url", f"is no http URL: {url!r}")
        for name in ("requests_per_s", "posts_per_s"):
            rate = getattr(self, name)
            checks.require(0 < rate < inf, name, f"must be positive and finite, not {rate}")
        expiry(self.retention, 0.0, "retention")
        checks.whole(1, requests_burst=self.requests_burst, posts_burst=self.posts_burst)
        checks.done()


DEFAULTS = ServiceSettings()


def from_environment(environment: Mapping[str, str]) -> ServiceSettings:
    """Raises InvalidValue, which names the variables."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, kind in get_type_hints(ServiceSettings).items():
        variable = variable_of(name)
        text = environment.get(variable, "").strip()
        if not text:
            continue
        try:
            values[name] = TypeAdapter(kind).validate_python(text)
        except ValueError:
            problems.append(Problem(variable, f"must be {_WORDS[kind]}, not {text!r}"))
    if problems:
        raise InvalidValue(problems)
    return ServiceSettings(**values)


def variable_of(field: str) -> str:
    return f"MESHTUNE_{field.upper()}"
