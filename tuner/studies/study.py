"""A study: published work as campaigns and figures, each figure beside its source, and how ours is obtained.

Values alone: `tuner.studies.read` makes them of a folder and checks them against its specs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from meshtune.search_spaces.checks import Checks, Closed, unfit_name

STUDY_FILE = "study.yaml"
# A row within this share of the published value agrees with it, unless it says otherwise.
WITHIN = 0.15


class Certainty(StrEnum):
    """How sure a published figure is, with its words for people."""

    VERIFIED = "verified", "read in the source"  # the paper or its repository
    ABSTRACT = "abstract", "abstract or press"
    SECONDARY = "secondary", "quoted by others"
    COMPUTED = "computed", "computed from what was read"
    MEMORY = "memory", "from memory, not the paper's word"

    words: str

    def __new__(cls, name: str, words: str) -> Certainty:
        member = str.__new__(cls, name)
        member._value_, member.words = name, words
        return member


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper(Closed):
    """What the study repeats. source: where it is found, such as an arXiv number."""

    title: str
    authors: str
    year: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCampaigns(Closed):
    """The campaigns of one spec, one for each seed. spec: a file of the study's folder. change: an RFC 7396 merge patch
    of it. seeds: of the search, and on the runner `simulated` of the hidden cluster; none: as the spec has them."""

    spec: str
    change: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()

    def _check(self, checks: Checks) -> None:
        checks.require(all(seed >= 0 for seed in self.seeds), "seeds", f"must be at least 0, not {self.seeds}")
        checks.require(len({*self.seeds}) == len(self.seeds), "seeds", f"must each stand once, not {self.seeds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Closed):
    """A published figure, in the unit of its row. source: the place where it was found."""

    value: float
    source: str
    certainty: Certainty


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow(Closed):
    """One figure, published beside ours. published: none where nobody published one. predicted, measured: how ours is
    obtained, a measure of `tuner.studies.measures` with its parameters. within: the share of the published value that
    ours may be off by. explanation: why it is off by more, where it is."""

    name: str
    unit: str
    published: Published | None = None
    predicted: Mapping[str, Any] | None = None
    measured: Mapping[str, Any] | None = None
    within: float = WITHIN
    explanation: str = ""

    def _check(self, checks: Checks) -> None:
        given = self.predicted is not None or self.measured is not None
        checks.require(given, "", "needs `predicted` or `measured`: how ours is obtained")
        checks.require(self.within > 0, "within", f"must be positive, not {self.within}")


class DrawingKind(StrEnum):
    """best_so_far: after each trial, of several searches. failures: their share as searches go on. shapley: what each
    knob accounts for, by SHAP. worth: what a change of a knob is worth. scaling:
    the efficiency of the baselines of campaigns of several sizes."""

    BEST_SO_FAR = "best_so_far"
    FAILURES = "failures"
    SHAPLEY = "shapley"
    WORTH = "worth"
    SCALING = "scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDrawing(Closed):
    """A section of the report with a figure. campaigns: what it is drawn of; none: all."""

    kind: DrawingKind
    campaigns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Closed):
    """shows: what it is to show, in a few sentences. assumptions: what of its settings no source gives. notes: on the
    results, for the report."""

    title: str
    paper: Paper
    shows: str
    assumptions: str = ""
    campaigns: Mapping[str, StudyCampaigns]
    rows: tuple[StudyRow, ...]
    draw: tuple[StudyDrawing, ...] = ()
    notes: str = ""

    def _check(self, checks: Checks) -> None:
        checks.require(bool(self.campaigns), "campaigns", "must name at least one")
        for name in self.campaigns:
            unfit = unfit_name(name)
            checks.require(not unfit, f"campaigns.{name}", unfit or "")
        checks.require(bool(self.rows), "rows", "must hold at least one")


def shipped() -> Mapping[str, Traversable]:
    """The folders of the studies that are installed with meshtune, as data, by name."""
    root = files("meshtune.examples") / "studies"
    studies = {entry.name: entry for entry in root.iterdir() if (entry / STUDY_FILE).is_file()} if root.is_dir() else {}
    return dict(sorted(studies.items()))
