"""Profiles of sites: what a machine's jobs need of their runner, read from files that come with meshtune or are a
site's own, each value with its source and how sure it is. A spec takes one by `runner: {site: NAME}`; what the spec
says itself wins. Nobody has run the profiles that come with meshtune on their machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.runners.registry import runners
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file, read_yaml
from meshtune.search_spaces.checks import Checks, Closed, InvalidValue, Problem, StrEnum, did_you_mean
from meshtune.search_spaces.presets import cluster_presets

SUFFIX = ".yaml"
# Of the environment: a folder of profiles; by default ~/.config/meshtune/sites.
FOLDER_VARIABLE = "MESHTUNE_SITES"


class Sure(StrEnum):
    """How sure a value of a profile is."""

    # The site's documentation says so.
    DOCUMENTED = "documented"
    # A job that its source says ran there has it.
    PUBLISHED = "published"
    # It follows from how Slurm, PBS or Cray systems are otherwise; nobody has said so of this site.
    GUESSED = "guessed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEvidence(Closed):
    sure: Sure
    # An address, with the commit where it is a repository's.
    source: str
    # What the source leaves open, or what else to know.
    note: str = ""

    def _check(self, checks: Checks) -> None:
        checks.require(bool(self.source.strip()), "source", "must not be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(Closed):
    # What it is a profile of, in a line.
    about: str
    # The `runner` section: `kind`, and options of that kind.
    runner: Mapping[str, Any]
    # The preset of the `cluster` section, where a spec names none.
    cluster: str = ""
    # The options that a user must add, such as the project that pays.
    needs: tuple[str, ...] = ()
    # Option of `runner`, or `cluster` -> where it is from.
    evidence: Mapping[str, SiteEvidence] = field(default_factory=dict)

    def _check(self, checks: Checks) -> None:
        kind = self.runner.get("kind")
        known = ", ".join(sorted(runners()))
        checks.require(kind in runners(), "runner.kind", f"must be one of {known}, not {kind!r}")
        presets = cluster_presets()
        if self.cluster:
            hint = did_you_mean(self.cluster, presets)
            checks.require(self.cluster in presets, "cluster", f"no cluster preset is called {self.cluster!r}; {hint}")
        for name in self.evidence:
            fault = "is evidence for nothing: there is no such option in `runner`"
            checks.require(name in self.runner or (name == "cluster" and bool(self.cluster)), f"evidence.{name}", fault)

    @property
    def kind(self) -> str:
        return str(self.runner["kind"])


def own_folder(environment: Mapping[str, str] = os.environ) -> Path:
    named = environment.get(FOLDER_VARIABLE)
    return Path(named) if named else Path.home() / ".config" / "meshtune" / "sites"


def site_names(folder: Path) -> Mapping[str, bool]:
    """All profiles by name, own ones first; whether it is this machine's own, which goes before one of that name that
    comes with meshtune."""
    own = sorted(path.stem for path in folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    shipped = sorted(entry.name.removesuffix(SUFFIX) for entry in _shipped().iterdir() if entry.name.endswith(SUFFIX))
    return {**dict.fromkeys(own, True), **{name: False for name in shipped if name not in own}}


def find_site(name: str, folder: Path) -> Site:
    """The profile of that name. folder: of own profiles. Raises InvalidValue."""
    known = site_names(folder)
    if name not in known:
        raise InvalidValue([Problem("", f"no site is called {name!r}; {did_you_mean(name, known)}")])
    return read_site_file(folder / f"{name}{SUFFIX}") if known[name] else _shipped_site(name)


def read_site_file(path: Path) -> Site:
    """The profile in a file. Raises InvalidValue."""
    try:
        return parse_site(read_yaml(read_file(path, SLOW_LIMITS.max_bytes)))
    except (OSError, UnreadableText) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValue([Problem("", f"{path}: {reason}")]) from None
    except InvalidValue as error:
        raise InvalidValue([problem.under(str(path)) for problem in error.problems]) from None


def parse_site(document: object) -> Site:
    """The profile that a document describes. Raises InvalidValue."""
    return read_value(Site, document)


def with_site(site: Site, section: Mapping[str, Any]) -> dict[str, Any]:
    """The `runner` section of a spec over the site's: mappings, such as `environment`, are merged; of anything else,
    lists included, the spec's own value counts. Raises InvalidValue where it names a runner of another kind."""
    own = {key: value for key, value in section.items() if key != "site"}
    if own.get("kind", site.kind) != site.kind:
        raise InvalidValue([Problem("kind", f"must be {site.kind} or left out with this site, not {own['kind']!r}")])
    merged = dict(site.runner)
    for key, value in own.items():
        base = merged.get(key)
        merged[key] = {**base, **value} if isinstance(base, Mapping) and isinstance(value, Mapping) else value
    return merged


@cache
def _shipped_site(name: str) -> Site:
    return parse_site(read_yaml(_shipped().joinpath(f"{name}{SUFFIX}").read_text(encoding="utf-8")))


def _shipped() -> Any:
    return files(__package__)
