"""A spec's document before any of it is read as a spec: made of YAML and merge patches, and asked two things: what in
it cannot be stored and read again, everywhere, exactly, and which parts need the scope `command`.

YAML makes dates, sets, NaN and cycles of its own; JSON bodies may hold numbers and characters that databases refuse.
Parts that let somebody run programs, or read and write files, are all that `PLAIN` and `harmless` do not list: a new
option is refused until it is listed. They are found in the document as it came, before any backend reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from math import isfinite
from typing import Any

from meshtune.runners.documents import walk
from meshtune.runners.packages import Packaged
from meshtune.runners.registry import WORKLOADS, TrainingProgram, schedulers
from meshtune.runners.untrusted_text import Limits, UnreadableText, read_yaml
from meshtune.search_spaces.checks import InvalidValue, Mistaken, Problem
from meshtune.search_spaces.plan_names import SHORT_NAMES
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.search.registry import searches
from meshtune.tuner.specs.knobs import KNOBS, knobs_for_command
from meshtune.tuner.specs.named_files import SITE, read_named_site

# RFC 8259, section 6: up to here every reader of JSON keeps a whole number exactly.
MAX_INTEGER = 2**53
# Far beyond any spec.
MAX_DEPTH = 20
MAX_VALUES = 10_000
# A list of all mistakes names the keys above each of them.
MAX_PROBLEMS = 100
# Sections without backends: names, numbers and choices, which no program takes for a path or a command.
PLAIN = frozenset(
    {
        *("name", "model", "training", "cluster", "global_batch_size", "space", "baseline", "objective", "budget"),
        *("trial", "stop"),
        *("catalogs", "accept", "parallel", "seed", "pareto", "confirm", "confirm_rounds", "warm_start", "project"),
        *("tags", "notes", "open_questions"),
    }
)
DEFAULTS = {"workload": "torch", "runner": "local", "search": "physics"}


class InvalidSpec(Mistaken):
    """A campaign spec with mistakes; nothing was done."""

    between = "\n"


def parse_options(words: Sequence[str], option: str = "--option") -> dict[str, Any]:
    """Options from `name=value`, each value as a spec's YAML would have it. option: that has them. Raises
    InvalidSpec."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise InvalidSpec([Problem(f"{option} {word[:60]}", "must be name=value")])
        try:
            options[name] = read_yaml(value, Limits(max_bytes=20_000, max_values=2_000), off_is_word=True)
        except UnreadableText as error:
            raise InvalidSpec([Problem(f"{option} {name[:60]}", str(error))]) from None
    return options


def parse_yaml(text: str) -> object:
    """The document in a YAML text, where on, off, yes and no are words: values of knobs. Raises InvalidSpec with line
    and column; a key given twice is a mistake."""
    try:
        return read_yaml(text, off_is_word=True)
    except UnreadableText as error:
        raise InvalidSpec([Problem(error.place, error.message)]) from None


def changed_document(document: object, changes: object) -> object:
    """`document` with the changes of an RFC 7396 merge patch, whose fields of plans may have short names. Raises
    InvalidSpec for too deep or too many ones, and for what cannot be stored."""
    if problems := find_unstorable(changes):
        raise InvalidSpec(problems)
    if not isinstance(changes, Mapping):
        return changes
    merged = dict(document) if isinstance(document, Mapping) else {}
    for name, value in changes.items():
        key = full if (full := SHORT_NAMES.get(name)) in merged else name
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = changed_document(merged.get(key), value)
    return merged


def find_unstorable(document: object) -> list[Problem]:
    """Every value that JSON or a database cannot keep exactly, with its path. Raises InvalidSpec for a document that is
    too deep or too large."""
    problems: list[Problem] = []
    for count, (path, value, depth) in enumerate(walk("", document, 0), start=1):
        wrong = _unstorable(value)
        if wrong and len(problems) < MAX_PROBLEMS:
            problems.append(Problem(path, wrong))
        if depth > MAX_DEPTH:
            raise InvalidSpec([Problem(path, f"is nested deeper than {MAX_DEPTH} levels")])
        if count > MAX_VALUES:
            raise InvalidSpec([Problem(path, f"is one too many: a spec holds at most {MAX_VALUES} values")])
    return problems


def _unstorable(value: object) -> str:
    """Why one value cannot be kept, without looking into it; empty where it can."""
    match value:
        case Mapping():
            odd = [key for key in value if not isinstance(key, str) or _unstorable(key)]
            return f"a key must be plain text, not {odd[0]!r}" if odd else ""
        case str() if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
            return f"holds characters that cannot be stored: {value[:60]!r}"
        case int() if abs(value) > MAX_INTEGER:
            return f"must be at most 2^53, not a number of {value.bit_length()} bits"
        case float() if not isfinite(value):
            return f"must be a finite number, not {value}"
        case None | str() | int() | float() | list():
            return ""
    return f"must be text, a number, true or false, a list or a mapping, not the {type(value).__name__} {value}"


class CommandNotAllowed(InvalidSpec):
    """The spec says what is executed, or names files, and whoever sent it may not. `problems` has every such part."""


def harmless() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """section -> kind -> the options that are harmless. Of a kind that is not here, nothing is."""
    sections: Mapping[str, Mapping[str, Packaged | TrainingProgram]] = {
        "workload": WORKLOADS,
        "runner": schedulers(),
        "search": searches(),
    }
    return {
        section: {name: row.harmless for name, row in rows.items() if row.harmless is not None}
        for section, rows in sections.items()
    }


def commands_named(document: object) -> list[Problem]:
    """Every part of a spec's document that only the scope `command` allows, by its path; none where all is harmless.

    What is no spec at all has no such part: reading it tells what is wrong.
    """
    if not isinstance(document, Mapping):
        return []
    telling = {entry.name for entry in fields(CampaignSpec)} - PLAIN - {*DEFAULTS, KNOBS}
    words = "is not among the parts of a spec that need no scope `command`"
    problems = [Problem(key, words) for key in document if key in telling]
    problems += knobs_for_command(document)
    for section, kinds in harmless().items():
        problems += [problem.under(section) for problem in _of_backend(document.get(section), kinds, DEFAULTS[section])]
    return problems


def _of_backend(raw: Any, kinds: Mapping[str, frozenset[str]], default: str) -> list[Problem]:
    """As a section is read: a name, or a mapping with `kind` and options beside it."""
    options: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
    kind = options.get("kind", default) if raw is None or isinstance(raw, Mapping) else raw
    if default == DEFAULTS["runner"] and isinstance(options.get(SITE), str):
        # One that this machine knows by name is its operator's word.
        with suppress(InvalidValue):
            kind = read_named_site(options[SITE]).kind
            options = {key: value for key, value in options.items() if key != SITE}
    if not isinstance(kind, str) or kind not in kinds:
        # Of an unknown kind, too: reading it would say so, and say nothing of what it names.
        return [Problem("kind", f"{kind!r} runs what the spec names; without the scope `command`: {', '.join(kinds)}")]
    allowed = ", ".join(sorted(kinds[kind])) or "none"
    return [
        Problem(str(key), f"needs the scope `command`; the options of {kind} that do not: {allowed}")
        for key in options
        if key != "kind" and key not in kinds[kind]
    ]
