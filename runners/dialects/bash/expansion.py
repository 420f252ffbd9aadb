"""Expands bash's variables and sums as far as a script says their values; the rest is kept as written, and marked.

`$name`, `${name}`, `${name:-default}` (and `-`, `:=`, `=`), `${name[@]}` and `$(( ... ))` are understood. What a script
is told from outside ($1, the environment, the output of commands) is unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

from meshtune.runners.dialects.bash.lexer import PAIRS, Piece, Word, bracket_end

# What is unknown stands between these marks, as the script has it.
_OPEN, _CLOSE = "\x01", "\x02"
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!]")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?:(?P<how>:?[-=])(?P<default>.*))?", re.DOTALL)
_LIST = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_SUMS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.Div: lambda a, b: int(a / b),  # bash rounds towards zero
}

Values = MutableMapping[str, "str | list[str]"]


def is_known(text: str) -> bool:
    """Whether nothing in an expanded text is unknown."""
    return _OPEN not in text


def as_written(text: str) -> str:
    """An expanded text without the marks: what is unknown reads as in the script."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")


@dataclass(slots=True)
class _Fields:
    """The words that one word becomes. open_: the last of them may go on."""

    words: list[str] = field(default_factory=list)
    open_: bool = False

    def add(self, text: str) -> None:
        if self.open_:
            self.words[-1] += text
        else:
            self.words.append(text)
        self.open_ = True

    def add_split(self, text: str) -> None:
        """Text that is split at blanks, those of what is unknown left out."""
        for part in re.findall(rf"\s+|(?:{_OPEN}[^{_CLOSE}]*{_CLOSE}|[^\s{_OPEN}])+", text):
            if part.isspace():
                self.open_ = False
            else:
                self.add(part)


def expand(word: Word, values: Values) -> list[str]:
    """The words that bash would make of one."""
    fields = _Fields()
    for piece in word.pieces:
        whole = None if piece.literal else _LIST.fullmatch(piece.text)
        if whole and piece.quoted and isinstance(known := values.get(whole.group(1), []), list):
            for index, item in enumerate(known):
                fields.open_ = fields.open_ and index == 0
                fields.add(item)
            continue
        text = _piece(piece, values)
        if piece.quoted:
            fields.add(text)
        else:
            fields.add_split(text)
    return fields.words


def joined(word: Word, values: Values) -> str:
    """The one text that bash assigns for a word: expanded, not split."""
    return "".join(_piece(piece, values) for piece in word.pieces)


def _piece(piece: Piece, values: Values) -> str:
    return piece.text if piece.literal else "".join(_expanded(piece.text, values))


def _expanded(text: str, values: Values) -> Iterator[str]:
    at = 0
    while at < len(text):
        start = re.compile(r"[$`]").search(text, at)
        if start is None:
            yield text[at:]
            return
        yield text[at : start.start()]
        at = _end(text, start.start())
        yield _value(text[start.start() : at], values)


def _end(text: str, start: int) -> int:
    """Where the expansion that begins at `start` ends."""
    if text[start] == "`":
        return text.find("`", start + 1) + 1 or len(text)
    if text[start + 1 : start + 2] in PAIRS:
        return bracket_end(text, start + 1) or len(text)
    name = _NAME.match(text, start + 1)
    return name.end() if name else start + 1


def _value(written: str, values: Values) -> str:
    unknown = f"{_OPEN}{written}{_CLOSE}"
    if written.startswith("$(("):
        total = _sum("".join(_expanded(written[3:-2], values)), values)
        return unknown if total is None else str(total)
    if written == "$":
        return written
    braced = _BRACED.fullmatch(written[2:-1] if written.startswith("${") else written[1:])
    if braced is None or written[0] != "$":
        return unknown
    name, how, default = braced["name"], braced["how"], braced["default"]
    known = values.get(name)
    if known is not None and not (how and how.startswith(":") and not known):
        return known if isinstance(known, str) else " ".join(known)
    if how is None:
        return unknown
    chosen = "".join(_expanded(default.strip("\"'"), values))
    if how.endswith("="):
        values[name] = chosen
    return chosen


def _sum(expression: str, values: Values) -> int | None:
    """The value of bash's arithmetic, None where it is not known or not plain."""
    try:
        return _evaluate(ast.parse(expression.strip(), mode="eval").body, values)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
        return None


def _evaluate(node: ast.expr, values: Values) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and isinstance(known := values.get(node.id), str):
        return int(known)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, values)
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return _SUMS[type(node.op)](_evaluate(node.left, values), _evaluate(node.right, values))
    raise ValueError(f"not plain arithmetic: {ast.dump(node)}")
