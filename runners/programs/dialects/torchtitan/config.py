"""A torchtitan configuration as one flat mapping, in the words of 0.2 whichever release it was written for;
its values taken out one by one, with what is asked for on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import Arguments, CannotRead, Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.torchtitan.keys import (
    FLOAT8_SWITCHES,
    GONE,
    GONE_FEATURES,
    KEYS_0_2,
    KEYS_0_3,
    OLD,
    ONLY_0_2_0,
    RENAMED,
    SECTIONS_0_3,
    SINCE_0_2_1,
    Key,
)
from meshtune.runners.programs.dialects.torchtitan.options import Release
from meshtune.search_spaces.checks import MAX_WHOLE

Config = Mapping[Key, Any]
# Of more digits none is a degree or a size.
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "none": None}
# Lists that are written with commas on a command line (torchtitan's tyro rule for list[str]).
_LISTS = ("converters", "components", "filter_fqns", "fqns", "exclude_from_loading")
# torchtitan's word for what it chooses itself.
NOT_SAID = -1


@dataclass(frozen=True, slots=True)
class NotKnown:
    """A value that depends on what is not known here. written: as it stands in the script."""

    written: str


def flat(config: Mapping[str, Any], section: str = "") -> dict[Key, Any]:
    """Each value by its section, which is dotted where it is nested, and its key."""
    found: dict[Key, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{section}.{key}" if section else key)
        else:
            found[section, key] = value
    return found


def nested(config: Config) -> dict[str, Any]:
    """The document that `flat` makes such a mapping of."""
    document: dict[str, Any] = {}
    for (section, key), value in config.items():
        holder = document
        for part in section.split(".") if section else ():
            holder = holder.setdefault(part, {})
        holder[key] = value
    return document


def key_of(flag: str) -> tuple[Key, bool]:
    """The key that a flag such as `--training.local-batch-size` stands for; False for the `no_` form of a switch."""
    section, _, key = flag.removeprefix("--").replace("-", "_").rpartition(".")
    return (section, key.removeprefix("no_")), not key.startswith("no_")


def of_flags(flags: Arguments) -> dict[Key, Any]:
    """What flags set; NotKnown where a value depends on what is not known here."""
    found = {}
    for flag, values in flags.items():
        key, on = key_of(flag)
        known = all(map(is_known, values))
        found[key] = _value(key[1], values, on) if known else NotKnown(as_written(" ".join(values)))
    return found


def _value(key: str, values: tuple[str, ...], on: bool) -> Any:
    if not values:
        return on
    if key in _LISTS:
        return [part for value in values for part in value.split(",") if part]
    value = values[0]
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    return int(value) if _WHOLE.fullmatch(value) else value


def modern(config: Config) -> dict[Key, Any]:
    """The same in the names of 0.2; where both names stand, the new one counts."""
    renamed = {RENAMED[key]: value for key, value in config.items() if key in RENAMED}
    gone = GONE | GONE_FEATURES | FLOAT8_SWITCHES | {("model", "norm_type")}
    kept = {key: value for key, value in config.items() if key not in RENAMED and key not in gone}
    if any(config.get(key) for key in FLOAT8_SWITCHES):
        kept.setdefault(("model", "converters"), ["float8"])
    return renamed | kept


def file_release(config: Config) -> Release:
    """Which of the releases 0.2.0 to 0.2.2 a file without older keys is for: 0.2.0 where it has what 0.2.1 refuses."""
    return Release.TOML_0_2_0 if ONLY_0_2_0 & config.keys() and not SINCE_0_2_1 & config.keys() else Release.TOML


def unknown_keys(config: Config, release: Release) -> Iterator[tuple[str, str]]:
    """Keys that no release has, each with the nearest name that one has, "" where none is near."""
    if release.has_file:
        known, strange = KEYS_0_2 | OLD, [key for key in config if key not in KEYS_0_2 | OLD]
    else:
        known, strange = KEYS_0_3, [key for key in config if key[0] in SECTIONS_0_3 and key not in KEYS_0_3]
        strange = [key for key in strange if key != ("activation_checkpoint", "mode")]
    names = {written(key): key for key in known}
    for key in strange:
        near = get_close_matches(key[1], [other for section, other in known if section == key[0]], n=1)
        close = [written((key[0], near[0]))] if near else get_close_matches(written(key), names, n=1)
        yield written(key), close[0] if close else ""


def written(key: Key) -> str:
    return f"{key[0]}.{key[1]}" if key[0] else key[1]


@dataclass(slots=True)
class Values(Remarks):
    """config: what is not taken yet, flat. defaults: whether torchtitan's own hold for what is not said. absent: what
    is not said, where they do not."""

    config: dict[Key, Any]
    defaults: bool = True
    absent: list[str] = field(default_factory=list)

    def value(self, section: str, key: str, default: Any, path: str) -> Any:
        """What is said, else torchtitan's default; None where it is open, which `path` is then asked for."""
        if (section, key) not in self.config:
            if self.defaults or default is None:
                return default
            self.absent.append(path or f"{section}.{key}")
            return None
        value = self.config.pop((section, key))
        if isinstance(value, NotKnown):
            self.ask(path, f"{section}.{key} is {value.written}, which is not known here")
            return None
        return default if value is None else value

    def optional(self, section: str, key: str, default: Any = None) -> Any:
        """What is said, else `default`, which holds in every release that has the key."""
        value = self.config.pop((section, key), default)
        if isinstance(value, NotKnown):
            self.ask("", f"{section}.{key} is {value.written}, which is not known here")
            return default
        return value

    def whole(self, section: str, key: str, default: int | None, path: str) -> int | None:
        """A positive number, or `default`. torchtitan's -1 stands for not said: of a degree, for the devices that are
        left. Raises CannotRead."""
        value = self.value(section, key, default, path)
        if value is None or value == NOT_SAID:
            return default if value == NOT_SAID else None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_WHOLE:
            what = "-1 or" if default == NOT_SAID else "an integer"
            raise CannotRead(f"{section}.{key}: must be {what} from 1 to {MAX_WHOLE}, not {shown(value)}")
        return value
