"""Expands bash's variables and sums as far as a script says their values; the rest is kept as written, and marked.

`$name`, `${name}`, `${name:-default}` (and `-`, `:=`, `=`), `${name[@]}`, `$(( ... ))`, and the folder of the script
or the present one (`$(pwd)`, `$(dirname "$0")`) are understood. What a script is told from outside ($1, the
environment, the output of other commands, `<path to data>`) is unknown.

Variables can double what they mean with each line (`A=$A$A`), so that what a script expands to is counted: a character
costs one, a word one more. There are MAX_EXPANDED of them at one time, what variables held before not counted, and
MAX_PASSING in all. MAX_SCRIPT characters are read at most, those of scripts in its words included."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import PurePath

from meshtune.runners.programs.dialects.bash.lexer import (
    MAX_NESTING,
    PAIRS,
    PLACEHOLDER,
    NotBash,
    Piece,
    Word,
    bracket_end,
)

# What is unknown stands between these marks, as the script has it.
_OPEN, _CLOSE = "\x01", "\x02"
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!]")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+|[@*#])(?:\[[@*0]\])?(?:(?P<how>:?[-=])(?P<default>.*))?", re.DOTALL)
# Far beyond any launch script; the worst of them take half a second.
MAX_SCRIPT = 50_000
MAX_EXPANDED = 500_000
MAX_PASSING = 20_000_000
# A word of a list, and a character of a text that is split, take as long as so many that are copied.
_WORK = 10
MAX_SUM = 1_000
_SUM_WORDS = re.compile(r"\w+|\S")
# What begins with 0 is to base 8 or 16, which nobody writes of purpose.
_INTEGER = re.compile(r"-?[1-9][0-9]{0,18}|0")
_LIST = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}|\$(@)|\$\{(@)\}")
# `{TP}`, which another program is to fill in.
_TEMPLATE = re.compile(r"\{\{?\s?[A-Za-z_]\w*\s?\}\}?")
# What people write where somebody is to fill a value in: <VOCAB_FILE>, {{ path }}, /path/to/x, YOUR_DATA, CHANGE_THIS.
_PLACEHOLDER = re.compile(
    r"<[^<>]+>|\{\{|(?:^|[/:=])path/to(?:/|$)|(?:^|[^a-z0-9])your[_-]\w+|(?:^|[^a-z0-9])(?:TODO|FIXME|PLACEHOLDER|X{3,}"
    r"|CHANGE[_-]?(?:ME|THIS|IT)|REPLACE[_-]?(?:ME|THIS|WITH\w*))(?![a-z0-9])",
    re.IGNORECASE,
)
Values = MutableMapping[str, "str | list[str]"]


@dataclass(slots=True)
class Budget:
    """What of a script may still be read, what it may still expand to, at one time and in all. line: of the word that
    is being expanded."""

    unread: int = MAX_SCRIPT
    left: int = MAX_EXPANDED
    passing: int = MAX_PASSING
    line: int = 1

    def read(self, script: str) -> None:
        """Raises NotBash."""
        self.unread -= len(script)
        if self.unread < 0:
            told = f"the script and those in its words have more than {MAX_SCRIPT:,} characters"
            raise NotBash(f"line {self.line}: {told}")

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


def is_placeholder(text: str) -> bool:
    """Whether a known text has somebody's placeholder in it."""
    return bool(_PLACEHOLDER.search(text))


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


def expand(word: Word, values: Values, budget: Budget) -> list[str]:
    """The words that bash would make of one. Raises NotBash where the budget is spent."""
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
        text = _piece(piece, values, budget)
        if piece.quoted:
            fields.add(text)
        else:
            budget.passing -= _WORK * len(text)
            fields.add_split(text)
    return ["".join(parts) for parts in fields.words]


def joined(word: Word, values: Values, budget: Budget) -> str:
    """The one text that bash assigns for a word: expanded, not split. Raises NotBash where the budget is spent."""
    budget.line = word.line
    return "".join(_piece(piece, values, budget) for piece in word.pieces)


def _piece(piece: Piece, values: Values, budget: Budget) -> str:
    if PLACEHOLDER.fullmatch(piece.text) or (not piece.quoted and _TEMPLATE.fullmatch(piece.text)):
        return unknown(piece.text)
    return piece.text if piece.literal else "".join(_expanded(piece.text, values, budget, 0))


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
        total = _sum("".join(_expanded(written[3:-2], values, budget, depth)), values)
        return unknown(written) if total is None else str(total)
    if by_expr := _EXPR.fullmatch(written):
        total = _sum("".join(_expanded(by_expr[1].replace("\\*", "*"), values, budget, depth)), {})
        return unknown(written) if total is None else str(total)
    if written.startswith(("$(", "`")):
        return _folder(written, values) or unknown(written)
    if written == "$":
        return written
    braced = _BRACED.fullmatch(written[2:-1] if written.startswith("${") else written[1:])
    if braced is None or written[0] != "$":
        return unknown(written)
    name, how, default = braced["name"], braced["how"], braced["default"]
    known = values.get(name)
    if known is not None and not (how and how.startswith(":") and not known):
        return known if isinstance(known, str) else " ".join(known)
    if how is None:
        return unknown(written)
    chosen = "".join(_expanded(default.strip("\"'"), values, budget, depth))
    if how.endswith("="):
        values[name] = chosen
    return chosen


# `$(expr 32 / $NODES)`.
_EXPR = re.compile(r"(?:\$\(|`)\s*expr\s+([^|;&<>]*?)\s*[)`]")
# How scripts ask for the folder they lie in: what may stand around, the script, and steps of the words.
_AROUND = re.compile(r"[\"']|&?>\s*/dev/null|2>&1|\s-[PLfme]\b|\s--(?=\s)")
_SELF = re.compile(r"\$\{?(?:BASH_SOURCE(?:\[0\])?|0)(?::-\$0)?\}?")
_STEPS = (
    (re.compile(r"(?:realpath|readlink) ?@"), "@"),
    (re.compile(r"\$\(\s*(@|%(?:/\.\.)*)\s*\)|`\s*(@|%)\s*`"), r"\1\2"),
    (re.compile(r"dirname @"), "%"),
    (re.compile(r"(?:cd|realpath|readlink) (%(?:/\.\.)*)(?:\s*(?:&&|;)\s*pwd)?"), r"\1"),
)


def _folder(written: str, values: Values) -> str:
    """What `$(pwd)`, `$(dirname "$0")` and their like print, where it is known; "" of all else."""
    inner = " ".join(_SELF.sub("@", _AROUND.sub("", written[:300])).split())
    pwd, script = values.get("PWD"), values.get("0")
    if inner in ("$(pwd)", "`pwd`") and isinstance(pwd, str):
        return pwd
    for _ in range(4):
        for step, made in _STEPS:
            inner = step.sub(made, inner)
    found = re.fullmatch(r"%((?:/\.\.)*)", inner)
    if found is None or not isinstance(script, str):
        return ""
    folder = PurePath(script).parent
    for _ in range(found[1].count("..")):
        folder = folder.parent
    return str(folder)


def _sum(expression: str, values: Values) -> int | None:
    """The value of bash's arithmetic, None where it is not known or not plain."""
    words = _SUM_WORDS.findall(expression[:MAX_SUM])[::-1]
    try:
        value = _terms(words, values)
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        return None
    return None if words or len(expression) > MAX_SUM else value


def _terms(words: list[str], values: Values) -> int:
    """Of words in reverse, of which what is read is taken away."""
    total = _factors(words, values)
    while words[-1:] in (["+"], ["-"]):
        sign = 1 if words.pop() == "+" else -1
        total = _wrapped(total + sign * _factors(words, values))
    return total


def _factors(words: list[str], values: Values) -> int:
    product = _factor(words, values)
    while words[-1:] in (["*"], ["/"], ["%"]):
        how, right = words.pop(), _factor(words, values)
        # bash rounds towards zero, and the rest has the sign of the left.
        quotient = 0 if how == "*" else abs(product) // abs(right) * (1 if (product < 0) == (right < 0) else -1)
        product = _wrapped({"*": product * right, "/": quotient, "%": product - quotient * right}[how])
    return product


def _factor(words: list[str], values: Values) -> int:
    word = words.pop()
    if word == "-":
        return _wrapped(-_factor(words, values))
    if word == "(":
        inner = _terms(words, values)
        if words.pop() != ")":
            raise ValueError("a bracket is never closed")
        return inner
    known = values.get(word, word)
    if not isinstance(known, str) or not _INTEGER.fullmatch(known):
        raise ValueError(f"{word} is no known whole number")
    return _wrapped(int(known))


def _wrapped(number: int) -> int:
    """As a machine's 64 bits hold it."""
    return (number + 2**63) % 2**64 - 2**63
