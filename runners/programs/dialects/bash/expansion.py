"""Expands bash's variables and sums as far as a script says their values; the rest is kept as written, and marked.

`$name`, `${name:-default}`, `${name%.*}` and the like, elements of arrays, `$(( ... ))`, braces, and `$(...)` of tools
whose output follows from their words are understood. What a script is told from outside ($1, the environment, the
output of other commands, `<path to data>`) is unknown.

Variables can double what they mean with each line (`A=$A$A`), so that what a script expands to is counted: a character
costs one, a word one more. There are MAX_EXPANDED of them at one time, what variables held before not counted, and
MAX_PASSING in all. MAX_SCRIPT characters are read at most, those of scripts in its words included."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

from meshtune.runners.programs.dialects.bash.arithmetic import calculated
from meshtune.runners.programs.dialects.bash.lexer import (
    MAX_NESTING,
    PAIRS,
    PLACEHOLDER,
    NotBash,
    Piece,
    Word,
    bracket_end,
)
from meshtune.runners.programs.dialects.bash.substitution import printed

# What is unknown stands between these marks, as the script has it.
_OPEN, _CLOSE = "\x01", "\x02"
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!]")
_BRACED = re.compile(
    r"(?P<length>#(?=[A-Za-z_@*]))?(?P<name>[A-Za-z_]\w*|\d+|[@*#])(?:\[(?P<index>[^\]]+)\])?"
    r"(?:(?P<how>:?[-=+?]|:|##?|%%?|//?|\^\^?|,,?)(?P<argument>.*))?",
    re.DOTALL,
)
# A variable of more characters is not changed by a pattern.
_MAX_CHANGED = 1_000
# `{1..8}` and `{a,b}`.
_BRACES = re.compile(r"([^{}$\x01]*)\{(?:(\d{1,9})\.\.(\d{1,9})|([^{}\s,]*(?:,[^{}\s,]*)+))\}([^{}]*)")
# Far beyond any launch script; the worst of them take half a second.
MAX_SCRIPT = 50_000
MAX_EXPANDED = 500_000
MAX_PASSING = 20_000_000
# A word of a list takes as long as so many characters that are copied, one of a text that is split longer.
_WORK = 10
_SPLITTING = 30
# Commands that are read, those of each turn of a loop counted.
MAX_COMMANDS = 30_000
_LIST = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}|\$(@)|\$\{(@)\}")
# `{TP}`, which another program is to fill in.
_TEMPLATE = re.compile(r"\{\{?\s?[A-Za-z_]\w*\s?\}\}?")
# What people write where somebody is to fill a value in: <VOCAB_FILE>, {{ path }}, /path/to/x, YOUR_DATA, CHANGE_THIS;
# `<|im_end|>` is a token, and so is all that stands behind a flag of tokens.
_PLACEHOLDER = re.compile(
    r"<[^<>|]+>|\{\{|(?:^|[/:=])path/to(?:/|$)|(?:^|=)path[_-]to[_-]|(?:^|[^a-z0-9])your[_-]\w+|(?:^|[^a-z0-9])(?:TODO|FIXME|PLACEHOLDER|X{3,}"
    r"|CHANGE[_-]?(?:ME|THIS|IT)|REPLACE[_-]?(?:ME|THIS|WITH\w*))(?![a-z0-9])",
    re.IGNORECASE,
)
_TEXTS = re.compile(r"tokens?$|template|prompt|run[_-]name|wandb|description|comment|tags?$")
Values = MutableMapping[str, "str | list[str]"]


@dataclass(slots=True)
class Budget:
    """What of a script may still be read, what it may still expand to, at one time and in all. line: of the word that
    is being expanded."""

    unread: int = MAX_SCRIPT
    left: int = MAX_EXPANDED
    passing: int = MAX_PASSING
    commands: int = MAX_COMMANDS
    line: int = 1

    def read(self, script: str) -> None:
        """Raises NotBash."""
        self.unread -= len(script)
        if self.unread < 0:
            told = f"the script and those in its words have more than {MAX_SCRIPT:,} characters"
            raise NotBash(f"line {self.line}: {told}")

    def step(self, line: int) -> None:
        """Raises NotBash."""
        self.commands -= 1
        if self.commands < 0:
            raise NotBash(f"line {line}: the script's loops run more than {MAX_COMMANDS:,} commands")

    def spend(self, text: str) -> str:
        """The text itself. Raises NotBash."""
        self.left -= len(text) + 1
        self.passing -= len(text) + 1
        if min(self.left, self.passing) < 0:
            most = MAX_EXPANDED if self.left < 0 else MAX_PASSING
            told = f"its variables make more than {most:,} characters and words of the script"
            raise NotBash(f"line {self.line}: {told}")
        return text


def unknown(written: str) -> str:
    """The mark of what a script has there and nobody knows."""
    return f"{_OPEN}{written}{_CLOSE}"


def unknown_parts(text: str) -> list[str]:
    """What is unknown in an expanded text, as written."""
    return re.findall(rf"{_OPEN}([^{_CLOSE}]*){_CLOSE}", text)


def is_known(text: str) -> bool:
    """Whether nothing in an expanded text is unknown."""
    return _OPEN not in text


def is_placeholder(text: str, flag: str = "") -> bool:
    """Whether a known text has somebody's placeholder in it. flag: whose value it is; texts are as they are."""
    return bool(_PLACEHOLDER.search(text)) and not _TEXTS.search(flag)


def as_written(text: str) -> str:
    """An expanded text without the marks: what is unknown reads as in the script."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")


@dataclass(slots=True)
class _Fields:
    """The words that one word becomes, each in parts. open_: the last of them may go on."""

    words: list[list[str]] = field(default_factory=list)
    open_: bool = False

    def add(self, text: str) -> None:
        if self.open_:
            self.words[-1].append(text)
        else:
            self.words.append([text])
        self.open_ = True

    def add_split(self, text: str) -> None:
        """Text that is split at blanks, those of what is unknown left out."""
        for part in re.findall(rf"\s+|(?:{_OPEN}[^{_CLOSE}]*{_CLOSE}|[^\s{_OPEN}]+)+", text):
            if part.isspace():
                self.open_ = False
            else:
                self.add(part)


def expand(word: Word, values: Values, budget: Budget, depth: int = 0) -> list[str]:
    """The words that bash would make of one. depth: of the brackets around it. Raises NotBash where the budget is
    spent."""
    if len(word.pieces) == 1 and not word.pieces[0].quoted and (braces := _BRACES.fullmatch(word.pieces[0].text)):
        return [
            text
            for inner in _of_braces(braces)
            for text in expand(Word((Piece(inner),), word.line), values, budget, depth)
        ]
    fields, budget.line = _Fields(), word.line
    for piece in word.pieces:
        whole = None if piece.literal else _LIST.fullmatch(piece.text)
        name = whole[1] or whole[2] or whole[3] if whole else ""
        if whole and piece.quoted and isinstance(known := values.get(name, None if name == "@" else []), list):
            for index, item in enumerate(known):
                fields.open_ = fields.open_ and index == 0
                fields.add(budget.spend(item))
                budget.passing -= _WORK
            continue
        text = _piece(piece, values, budget, depth)
        if piece.quoted:
            fields.add(text)
        else:
            budget.passing -= _SPLITTING * len(text)
            fields.add_split(text)
    return ["".join(parts) for parts in fields.words]


def joined(word: Word, values: Values, budget: Budget) -> str:
    """The one text that bash assigns for a word: expanded, not split. Raises NotBash where the budget is spent."""
    budget.line = word.line
    return "".join(_piece(piece, values, budget) for piece in word.pieces)


def _of_braces(braces: re.Match[str]) -> list[str]:
    """The words of `{1..8}` and `{a,b}`."""
    before, first, last, listed, after = braces.groups()
    if listed is not None:
        return [f"{before}{inner}{after}" for inner in listed.split(",")]
    step = 1 if int(first) <= int(last) else -1
    numbers = range(int(first), int(last) + step, step)
    if len(numbers) > _MAX_CHANGED or first != str(int(first)):
        return [unknown(braces[0])]
    return [f"{before}{number}{after}" for number in numbers]


def _piece(piece: Piece, values: Values, budget: Budget, depth: int = 0) -> str:
    if PLACEHOLDER.fullmatch(piece.text) or (not piece.quoted and _TEMPLATE.fullmatch(piece.text)):
        return unknown(piece.text)
    if not piece.literal and piece.text.startswith(("<(", ">(")):
        return unknown(piece.text)
    budget.passing -= len(piece.text)
    return piece.text if piece.literal else "".join(_expanded(piece.text, values, budget, depth))


def _expanded(text: str, values: Values, budget: Budget, depth: int) -> Iterator[str]:
    if depth > MAX_NESTING:
        raise NotBash(f"line {budget.line}: its brackets are nested deeper than {MAX_NESTING} levels")
    at = 0
    while at < len(text):
        start = re.compile(r"[$`]").search(text, at)
        if start is None:
            yield text[at:]
            return
        yield text[at : start.start()]
        at = _end(text, start.start())
        yield budget.spend(_value(text[start.start() : at], values, budget, depth + 1))


def _end(text: str, start: int) -> int:
    """Where the expansion that begins at `start` ends."""
    if text[start] == "`":
        return text.find("`", start + 1) + 1 or len(text)
    if text[start + 1 : start + 2] in PAIRS:
        return bracket_end(text, start + 1) or len(text)
    name = _NAME.match(text, start + 1)
    return name.end() if name else start + 1


def _value(written: str, values: Values, budget: Budget, depth: int) -> str:
    if written.startswith("$(("):
        total = calculated("".join(_expanded(written[3:-2], values, budget, depth)), values)
        return unknown(written) if total is None else str(total)
    if written.startswith(("$(", "`")):
        budget.passing -= _WORK * len(written)

        def words_of(word: Word) -> list[str] | None:
            made = expand(word, values, budget, depth)
            return made if all(map(is_known, made)) else None

        inner, pwd = written[2:-1] if written[0] == "$" else written[1:-1].replace("\\", ""), values.get("PWD")
        output = printed(inner, words_of, pwd if isinstance(pwd, str) and is_known(pwd) else None)
        return unknown(written) if output is None else output
    if written == "$":
        return written
    braced = _BRACED.fullmatch(written[2:-1] if written.startswith("${") else written[1:])
    if braced is None or written[0] != "$":
        return unknown(written)
    how, argument = braced["how"] or "", braced["argument"]
    name, known = _held(braced["name"], braced["index"], values, budget, depth)
    if braced["length"]:
        return unknown(written) if how or known is None or not is_known("".join(known)) else str(len(known))
    text = " ".join(known) if isinstance(known, list) else known
    if how in ("-", "=", "+", "?", ":-", ":=", ":+", ":?"):
        there = text is not None and not (how[0] == ":" and not text)
        if text is not None and there and how[-1] != "+":
            return text
        if how[-1] in "?+" and not there:
            return unknown(written) if how[-1] == "?" else ""
        chosen = "".join(_expanded(argument.strip("\"'"), values, budget, depth))
        if how[-1] == "=":
            values[name] = chosen
        return chosen
    if text is None or not how:
        return unknown(written) if text is None else text
    argument = "".join(_expanded(argument, values, budget, depth))
    budget.passing -= _WORK * len(text)
    changed = _changed(text, how, argument, values) if is_known(text + argument) else None
    return unknown(written) if changed is None else changed


def _held(
    name: str, index: str | None, values: Values, budget: Budget, depth: int
) -> tuple[str, str | list[str] | None]:
    """The name under which a variable or an element of one is held, and its value; of a list alone, its first."""
    name, known = (name, values.get(name)) if name != "BASH_SOURCE" else ("0", values.get("0"))
    if index in ("@", "*") or (name in ("@", "*") and index is None) or (index is None and isinstance(known, str)):
        return name, known
    key = "".join(_expanded((index or "0").strip("\"'"), values, budget, depth))
    if f"{name}[{key}]" in values:
        return f"{name}[{key}]", values[f"{name}[{key}]"]
    at = calculated(key, values)
    if isinstance(known, list) and at is not None and is_known("".join(known)):
        return name, known[at] if -len(known) <= at < len(known) else ""
    return name, known if at == 0 and isinstance(known, str) else None


def _changed(text: str, how: str, argument: str, values: Values) -> str | None:
    """The value that `how` makes of a variable's: cut at a pattern, replaced, of other case, a part of it. None
    where that is not known."""
    if how in ("^", "^^", ",", ",,"):
        changed = text.upper() if how[0] == "^" else text.lower()
        return changed if len(how) == 2 else changed[:1] + text[1:]
    if how == ":":
        start, _, length = argument.partition(":")
        first, most = calculated(start, values), calculated(length, values) if length else len(text)
        known = first is not None and most is not None and most >= 0
        return text[first:][:most] if known else None
    argument = argument.replace("\\", "").replace('"', "").replace("'", "")
    if len(text) > _MAX_CHANGED or len(argument) > _MAX_CHANGED:
        return None
    pattern, _, new = argument.partition("/") if how[0] == "/" else (argument, "", "")
    if how[0] == "/":
        return re.sub(_glob(pattern), lambda _: new, text, count=len(how) == 1) if pattern else text
    # The shortest or the longest stretch at the start or the end.
    places = range(len(text) + 1) if (how == "#") or (how == "%%") else range(len(text), -1, -1)
    matches = re.compile(_glob(pattern)).fullmatch
    at = next((at for at in places if matches(text[:at] if how[0] == "#" else text[at:])), None)
    return text if at is None else text[at:] if how[0] == "#" else text[:at]


def _glob(pattern: str) -> str:
    """A pattern of bash as a regular expression."""
    return fnmatch.translate(pattern).removesuffix("\\Z")
