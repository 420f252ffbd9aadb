"""The frame of a report: sections of prose, tables and figures as one HTML file, with its style in it.

Texts may come from jobs and users: the template escapes all of them and shows control characters by their numbers, and
the page's own policy forbids scripts and requests. Only an SVG is taken as it is, which must be ours
(`tuner.results.figures.canvas.svg`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from meshtune.runners.untrusted_text import visible
from meshtune.tuner.results.figures.canvas import svg

_HERE = Path(__file__).parent
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
# Of a text; an SVG and the style are Markup.
_ENVIRONMENT.finalize = lambda value: visible(value) if type(value) is str else value
_ID = re.compile(r'(\bid="|href="#|url\(#)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """svg: of `canvas.svg`; empty where it has nothing to show. title: for those who hear it. caption: below it."""

    svg: str
    title: str
    caption: str = ""


def drawn(figure: Figure, title: str, caption: str = "") -> Picture:
    return Picture(svg=svg(figure) if any(axes.axison for axes in figure.axes) else "", title=title, caption=caption)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """rows: cells as texts, as many as columns. numbers: the places of the columns that are aligned to the right. long:
    of those whose words may be broken anywhere."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    numbers: frozenset[int] = frozenset()
    long: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """level: 1 for a part of the report, 2 for a section of one, or of a report without parts. verbatim: a text that
    keeps its lines, such as YAML. new_page: it begins one in print. One of level 2 with nothing in it is left out."""

    heading: str
    level: Literal[1, 2] = 2
    prose: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[PageTable] = ()
    verbatim: str = ""
    new_page: bool = False


def page(title: str, sections: Sequence[Section], *, subtitle: Sequence[str] = (), notices: Sequence[str] = ()) -> str:
    """The HTML file. subtitle: lines below the title. notices: what nobody may overlook, such as that it is all
    simulated."""
    numbers = count(1)
    filled = [replace(one, pictures=[each for each in one.pictures if each.svg]) for one in sections]
    return _ENVIRONMENT.get_template("page.html").render(
        title=title,
        # Of the headings of level 1: no level is left out below the title's.
        shift=1 if any(section.level == 1 for section in sections) else 0,
        subtitle=subtitle,
        notices=notices,
        sections=[
            replace(section, pictures=[_inlined(picture, next(numbers)) for picture in section.pictures])
            for section in filled
            if section.level == 1 or section.prose or section.pictures or section.tables or section.verbatim
        ],
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        footer=f"Written by meshtune {version('meshtune')}.",
    )


def _inlined(picture: Picture, place: int) -> Picture:
    """With ids that no other figure of the page has, and a name."""
    own = _ID.sub(rf"\g<1>f{place}-", picture.svg)
    named = own.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" ', 1)
    return replace(picture, svg=Markup(visible(named)))
