"""The one reader of text that we did not write ourselves: JSON, YAML, TOML, literals of Python and command lines,
bounded before it costs.

A text has at most so many bytes, levels and values; what YAML's aliases stand for counts as often as they stand there,
so that a text means no more than one of that length can. The time is bounded because every step is linear in the size
that was checked before it: json's scanner, libyaml's events and our walk each look at a character or node once; YAML is
counted from its events, of which nothing is made, before its values are. What is known to be worse is kept small:
numbers to base 60 and dotted keys are quadratic in their length, shlex in the length of a word.

Standard library only where this is imported: jobs read their files by it, on Python 3.10 and without PyYAML.
Documents of our own (a database's column, a preset) are read without it; `pyproject.toml` forbids json.loads and its
like elsewhere, so that each such place says so."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshtune.search_spaces.checks import raising

if TYPE_CHECKING:
    import yaml

# As Python's own limit, which an environment variable can lift.
MAX_DIGITS = 4300
# YAML's own limit; a path names every key above a mistake.
MAX_KEY_CHARACTERS = 1024
# Whole numbers of more digits can share their hashes, which makes a mapping of them quadratic.
_MAX_KEY_DIGITS = 18
# tomllib walks along all parts of a dotted key for each key below it.
_MAX_KEY_PARTS = 16
# shlex copies a word at each of its letters: 10 ms for so many.
MAX_LINE_CHARACTERS = 20_000
_NUMBER = re.compile(r"[-+]?[0-9.][0-9A-Fa-fxXoO_.:+-]*")
# C0 but tab and newline, DEL, C1; marks, overrides and isolates of bidirectional text; separators of lines.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with its control characters as \\x1b or \\u202e, for people who read it in a terminal or on a page."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """max_bytes: of the text in UTF-8, and of the scalars that it means. max_depth: levels of lists and mappings.
    max_values: scalars, lists and mappings, aliases written out."""

    max_bytes: int
    max_depth: int = 64
    max_values: int = 100_000


# A spec with every section written out has about 2 kB and 100 values.
JSON_LIMITS = Limits(max_bytes=1_000_000)
# Of texts that Python reads, 10 us per value.
SLOW_LIMITS = Limits(max_bytes=100_000, max_values=10_000)


class UnreadableText(ValueError):
    """A text that is not read; the same text is never read. message: what is wrong, a sentence about the text. line,
    column: from 1, 0 where they are not known."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        self.message, self.line, self.column = message, line, column
        super().__init__(f"{message}, {self.place}" if line else message)

    @property
    def place(self) -> str:
        return f"line {self.line}, column {self.column}" if self.line else ""


def read_json(text: str | bytes, limits: Limits = JSON_LIMITS, *, unique_keys: bool = True) -> Any:
    """The value of a JSON text; NaN and Infinity are numbers. unique_keys: a key that stands twice in an object is a
    mistake; else the last counts. Raises UnreadableText."""
    hook = _unique if unique_keys else None
    try:
        value = json.loads(_decoded(text, limits), object_pairs_hook=hook, parse_int=_integer)  # noqa: TID251
    except json.JSONDecodeError as error:
        raise UnreadableText(f"is not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise _too_deep(limits) from None
    _require_small(value, limits)
    return value


def read_yaml(
    text: str | bytes, limits: Limits = SLOW_LIMITS, *, unique_keys: bool = True, off_is_word: bool = False
) -> Any:
    """The value of a YAML text, of plain types alone. unique_keys: as in `read_json`. off_is_word: only true and false
    are truth values, as YAML 1.2 has it; else on, off, yes and no are, too, as programs in Python read them. Raises
    UnreadableText."""
    import yaml

    decoded = _decoded(text, limits)
    loader: Any = _words_loader() if off_is_word else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _Counting(limits, unique_keys).count(yaml.parse(decoded, Loader=loader))  # noqa: TID251
        return yaml.load(decoded, Loader=loader)  # noqa: TID251
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else ()
        raise UnreadableText(f"is not YAML: {error.problem or 'it ends too early'}", *place) from None
    except UnreadableText:
        raise
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError, TypeError) as error:
        # The others are what SafeLoader's constructors let through: 2024-99-99, `!!bool x`.
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableText(f"is not YAML: {message}") from None


@cache
def _words_loader() -> Any:
    """YAML's safe loader, for which on, off, yes and no are words."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    truth = "tag:yaml.org,2002:bool"
    kept = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag != truth]
        for letter, resolvers in base.yaml_implicit_resolvers.items()
    }
    loader: Any = type("WordsLoader", (base,), {"yaml_implicit_resolvers": kept})
    loader.add_implicit_resolver(truth, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    return loader


def read_toml(text: str | bytes, limits: Limits = SLOW_LIMITS) -> dict[str, Any]:
    """The document of a TOML text. Raises UnreadableText."""
    import tomllib

    decoded = _decoded(text, limits)
    _require_short_keys(decoded)
    try:
        value = tomllib.loads(decoded)  # noqa: TID251
    except ValueError as error:  # TOMLDecodeError, whose text names the place, and a number of too many digits
        raise UnreadableText(f"is not TOML: {error}") from None
    except RecursionError:
        raise _too_deep(limits) from None
    _require_small(value, limits)
    return value


# Strings of Python, and the brackets outside of them.
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[][(){}]""", re.DOTALL)


def read_literal(text: str, limits: Limits = SLOW_LIMITS) -> Any:
    """The value of a literal of Python, as programs print their settings. Raises UnreadableText."""
    import ast

    decoded = _decoded(text, limits)
    depth = 0
    for token in _LITERAL.finditer(decoded):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth > limits.max_depth:
            raise _too_deep(limits)
    try:
        value = ast.literal_eval(decoded)  # noqa: TID251
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UnreadableText("is no literal of Python") from None
    _require_small(value, limits)
    return value


def read_words(line: str, *, comments: bool = False) -> list[str]:
    """The words of a command line, quoted as for a shell. Raises UnreadableText."""
    if len(line) > MAX_LINE_CHARACTERS:
        message = f"has {len(line):,} characters, and at most {MAX_LINE_CHARACTERS:,} of a line of arguments are read"
        raise UnreadableText(message)
    with raising(UnreadableText, "a quote is never closed", ValueError):
        return shlex.split(line, comments=comments)  # noqa: TID251


def option_value(words: Sequence[str], *names: str) -> str | None:
    """What the last of these options says: `--long=x`, `--long x`, `-s x`, and `-s2` of a number; None where none is
    there."""
    value = None
    for word, following in pairwise([*words, ""]):
        name, joined, inner = word.partition("=")
        if name in names:
            value = inner if joined else following
        elif short := next((one for one in names if len(one) == 2 and re.match(rf"{one}[0-9]", word)), ""):
            value = word.removeprefix(short)
    return value


# The one folder whose files are read for a text that somebody else sent; empty: this machine's.
READABLE: ContextVar[str] = ContextVar("READABLE", default="")


def is_there(path: str | Path) -> bool:
    """Whether a name is a file's that may be read."""
    return os.path.isfile(path) and Path(path).resolve().is_relative_to(Path(READABLE.get() or "/").resolve())


def read_file(path: Path, max_bytes: int, *, regular: bool = True) -> str:
    """The text of a file that somebody names, of which no more is read than max_bytes. regular: a pipe or a device is
    refused, unread; else it is waited for. Raises OSError, UnreadableText."""
    if READABLE.get() and not is_there(path):
        raise UnreadableText("is not among the files that were sent")
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if regular else 0)
    # By an opener, so that an error names the path, not the descriptor.
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if regular and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnreadableText("is not a regular file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UnreadableText(f"has more than {max_bytes:,} bytes, and at most so many are read")
    return decoded(content)


def decoded(content: bytes) -> str:
    """The text in UTF-8 bytes. Raises UnreadableText."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableText(f"is not UTF-8: byte {error.start} is {content[error.start]:#04x}") from None


def _decoded(text: str | bytes, limits: Limits) -> str:
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > limits.max_bytes:
        raise UnreadableText(f"has {size:,} bytes, and at most {limits.max_bytes:,} are read")
    return text if isinstance(text, str) else decoded(text)


def _too_deep(limits: Limits, *place: int) -> UnreadableText:
    return UnreadableText(f"is nested deeper than {limits.max_depth} levels", *place)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, inner in pairs:
        if key in value:
            raise UnreadableText(f"has the key {key[:60]!r} twice in one object")
        value[key] = inner
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise UnreadableText(f"holds a number of {len(digits):,} digits, and at most {MAX_DIGITS:,} are read")
    return int(digits)


def _require_small(value: object, limits: Limits) -> None:
    """Level by level, without recursion. Raises UnreadableText."""
    count = depth = 0
    level = [value]
    while level:
        count += len(level)
        if count > limits.max_values:
            raise UnreadableText(f"holds more than {limits.max_values:,} values")
        holders = [holder for holder in level if isinstance(holder, (dict, list))]
        depth += bool(holders)
        if depth > limits.max_depth:
            raise _too_deep(limits)
        long = [
            key for holder in holders if isinstance(holder, dict) for key in holder if len(key) > MAX_KEY_CHARACTERS
        ]
        if long:
            raise _long_key(long[0])
        level = [inner for holder in holders for inner in (holder.values() if isinstance(holder, dict) else holder)]


def _long_key(key: str, *place: int) -> UnreadableText:
    message = f"has a key of {len(key):,} characters, {key[:20]!r} ..., and at most {MAX_KEY_CHARACTERS:,} are read"
    return UnreadableText(message, *place)


# Words, quoted ones whole, the dots between them, and everything else but blanks. What is never closed reaches to the
# end, so that no text is looked through twice.
_TOML = re.compile(
    r'"""(?:[^\\]|\\.|\\\Z)*?(?:"""|\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\.)*"?'
    r"|'[^'\n]*'?|#[^\n]*|[\w+-]+|\n|[^ \t]",
    re.DOTALL,
)


def _require_short_keys(text: str) -> None:
    """Raises UnreadableText."""
    dots, after_dot = 0, True
    for token in _TOML.finditer(text):
        if token[0] == ".":
            dots, after_dot = dots + 1, True
            if dots >= _MAX_KEY_PARTS:
                message = f"has a key of more than {_MAX_KEY_PARTS} parts"
                raise UnreadableText(message, text.count("\n", 0, token.start()) + 1, 1)
        elif not after_dot or token[0] in "\n=[]{},":
            dots, after_dot = 0, False
        else:
            after_dot = False


@dataclass(slots=True)
class _Open:
    """A list or mapping whose events are being read. values, characters: of the whole text before it. height: levels of
    what it holds so far. keys: those of a mapping so far, None for a list."""

    anchor: str | None
    values: int
    characters: int
    keys: set[str] | None
    height: int = 0
    at_key: bool = True


@dataclass(slots=True)
class _Counting:
    """Adds up what a YAML text means, aliases written out, from its events, of which libyaml makes a few per line."""

    limits: Limits
    unique_keys: bool
    values: int = 0
    characters: int = 0
    open: list[_Open] = field(default_factory=list)
    # Values, characters and levels of what is complete.
    anchors: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def count(self, events: Iterable[yaml.Event]) -> None:
        """Raises UnreadableText, and what the parser raises."""
        import yaml

        documents = 0
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                keys = set[str]() if isinstance(event, yaml.MappingStartEvent) else None
                self.open.append(_Open(event.anchor, self.values, self.characters, keys))
                self._add(event, 1, 0, 0)
            elif isinstance(event, yaml.CollectionEndEvent):
                done = self.open.pop()
                size = (self.values - done.values, self.characters - done.characters, done.height + 1)
                self._complete(done.anchor, size)
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self.anchors:
                    inside = any(holder.anchor == event.anchor for holder in self.open)
                    message = "holds a part that contains itself" if inside else "is not YAML: found undefined alias"
                    raise UnreadableText(message, *_place(event))
                size = self.anchors[event.anchor]
                self._add(event, *size)
                self._complete(None, size)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise UnreadableText("is not YAML: it holds more than one document", *_place(event))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        value, holder = event.value, self.open[-1] if self.open else None
        is_key = holder is not None and holder.keys is not None and holder.at_key
        plain = event.implicit[0] or event.tag is not None
        if plain and len(value) > (_MAX_KEY_DIGITS if is_key else MAX_DIGITS) and _NUMBER.fullmatch(value):
            most = f"at most {MAX_DIGITS:,} are read, {_MAX_KEY_DIGITS} in a key"
            raise UnreadableText(f"holds a number of {len(value):,} characters, and {most}", *_place(event))
        if is_key and holder is not None and holder.keys is not None:
            if len(value) > MAX_KEY_CHARACTERS:
                raise _long_key(value, *_place(event))
            if self.unique_keys and value in holder.keys:
                raise UnreadableText(f"has the key {value[:60]!r} twice in one mapping", *_place(event))
            holder.keys.add(value)
        size = (1, len(value), 0)
        self._add(event, *size)
        self._complete(event.anchor, size)

    def _add(self, event: yaml.Event, values: int, characters: int, height: int) -> None:
        self.values += values
        self.characters += characters
        if len(self.open) + height > self.limits.max_depth:
            raise _too_deep(self.limits, *_place(event))
        if self.values > self.limits.max_values:
            fault = f"means {self.values:,} values or more, aliases written out, and at most {self.limits.max_values:,}"
            raise UnreadableText(f"{fault} are read", *_place(event))
        if self.characters > self.limits.max_bytes:
            fault = f"means {self.characters:,} characters or more, aliases written out"
            raise UnreadableText(f"{fault}, and at most {self.limits.max_bytes:,} are read", *_place(event))

    def _complete(self, anchor: str | None, size: tuple[int, int, int]) -> None:
        if anchor is not None:
            self.anchors[anchor] = size
        if self.open:
            holder = self.open[-1]
            holder.height, holder.at_key = max(holder.height, size[2]), not holder.at_key


def _place(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (0, 0)
