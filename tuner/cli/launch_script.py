"""What meshtune reads and fills in of somebody's launch script: `#MESHTUNE` lines and `@MESHTUNE_NAME:-default@`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.cli.common import Refused
from meshtune.tuner.results.known_best import ENVIRONMENT_NAMES

# What a script may say of itself; the route takes the same names.
KEYS = ("model", "cluster", "global_batch_size", "workload", "software")
PLACEHOLDER = re.compile(r"@(MESHTUNE_[A-Z_]+)(?::-([^@\n]*))?@")


def read_directive(words: Sequence[str]) -> dict[str, str]:
    """The `key=value` words of `#MESHTUNE` lines. Raises Refused."""
    found: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in KEYS or not value:
            raise Refused(f"#MESHTUNE {word}: must be key=value; {did_you_mean(key, KEYS)}")
        found[key] = value
    return found


def has_placeholders(script: str) -> bool:
    return PLACEHOLDER.search(script) is not None


def fill(script: str, values: Mapping[str, str]) -> str:
    """The script with values, or the defaults of those that have none, for its placeholders. Raises Refused for a name
    that meshtune never gives, and for one that has neither."""
    missing: list[str] = []

    def replaced(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name not in ENVIRONMENT_NAMES:
            raise Refused(f"{found[0]}: there is no {name}; {did_you_mean(name, ENVIRONMENT_NAMES)}")
        if name not in values and default is None:
            missing.append(name)
        return values.get(name, default or "")

    filled = PLACEHOLDER.sub(replaced, script)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise Refused(
            f"there is no value for {names}, and no default, such as @{missing[0]}:-1@; nothing was submitted"
        )
    return filled
