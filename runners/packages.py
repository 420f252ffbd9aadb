"""What other installed packages add to a registry, by entry points "NAME = module:attribute"."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger(__name__)

# Names become parts of paths and addresses.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """A row of a registry. harmless: the options that run no program and name no file, which need no scope `command`;
    None: the row itself needs it. package: name and version of the package it is from; empty: meshtune itself. trouble:
    why it cannot be used; empty: it can."""

    harmless: frozenset[str] | None = None
    package: str = ""
    trouble: str = ""


RowT = TypeVar("RowT", bound=Packaged)


def with_packages(group: str, what: str, kind: type[RowT], own: Mapping[str, RowT]) -> Mapping[str, RowT]:
    """The built-in rows, and those of installed packages; of a broken package, one with its trouble. A name that is
    taken stays with its owner, and a warning tells. what: a row, in words."""
    from importlib.metadata import entry_points

    rows = dict(own)
    for point in sorted(entry_points(group=group), key=_package):
        name, package = point.name, _package(point)
        if not _NAME.fullmatch(name):
            _log.warning("the %s %r of %s is not used: a name is as %s", what, name, package, _NAME.pattern)
        elif name in rows:
            owner = rows[name].package or "meshtune itself"
            _log.warning("the %s %s of %s is not used: it is the name of one of %s", what, name, package, owner)
        else:
            rows[name] = _row(point, package, what, kind)
            if rows[name].trouble:
                _log.warning("%s", rows[name].trouble)
    return rows


def unloadable(what: str, name: str, package: str, error: Exception) -> str:
    """Why a row cannot be used, in words."""
    return f"the {what} {name} of {package} cannot be loaded: {type(error).__name__}: {error}"


def _row(point: EntryPoint, package: str, what: str, kind: type[RowT]) -> RowT:
    try:
        row = point.load()
        if not isinstance(row, kind):
            raise TypeError(f"{point.value} is a {type(row).__name__}, not a {kind.__name__}")
    except Exception as error:  # another's code, which must break nothing but its own name
        return kind(package=package, trouble=unloadable(what, point.name, package, error))
    return replace(row, package=package, trouble="")


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module
