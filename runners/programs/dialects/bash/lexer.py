"""Cuts a bash script into words and operators, with their lines; what bash would expand is kept as written.

Each character is looked at a few times, however the script is made; brackets are nested MAX_NESTING deep at most."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field

_OPERATORS = ("&&", "||", "<<<", "<<-", "<<", ">>", "&>>", "&>", ";;", ";", "&", "|", "<", ">", "(", ")")
# Of arrays, of defaults in defaults, and of tests in tests.
MAX_NESTING = 50
# 2>&1 joins streams, and the 2 of 2>file says which: neither is a word.
_STREAMS = re.compile(r"\d?[<>]&[\d-]|\d(?=[<>])")
# `<path to data>`, which people are to fill in; bash would read from a file, and take the next word for one to write.
PLACEHOLDER = re.compile(r"<[A-Za-z](?:[^<>|&;\n]*[^<>|&;\s])?>(?=[\s\"'/:]|$)")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
# Comments and continued lines are blanks.
_BLANKS = re.compile(r"(?:[ \t\r]+|\\\n|#[^\n]*)+")
# Letters that nothing is done with, in a word and between double quotes.
_PLAIN = re.compile(r"""[^ \t\r\n;&|<>()'"\\$`]+""")
_ESCAPED = re.compile(r"\\([$`\\\n])")
_PLAIN_QUOTED = re.compile(r"""[^"\\$`]+""")
# `expansion` marks with these what is unknown; bash itself drops NUL.
_MARKS = re.compile("[\0\1\2]")
PAIRS = {"{": "}", "(": ")"}
# `((N > 2))`, and `<(sort names)`: one word each.
_SUM = re.compile(r"\(\((?:[^()\n]|\([^()\n]*\))*\)\)")
_STREAM_OF = re.compile(r"[<>]\((?!\()")
_INSIDE = re.compile(r"\\.|\$[({]|[(){}'\"]", re.DOTALL)


class NotBash(ValueError):
    """A quote or bracket is never closed, or the script means more than is followed; the message names the line."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a word. quoted: not split at blanks. literal: nothing in it is expanded."""

    text: str
    quoted: bool = False
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """pieces: none for an empty word. items: the elements where it assigns an array. line: counted from 1."""

    pieces: tuple[Piece, ...]
    line: int
    items: tuple[Word, ...] | None = None

    @property
    def plain(self) -> str:
        """Its text as written, quotes left out."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Operator:
    """text: one of bash's operators, or a line's end. body: the here-document that `<<` reads, as one word."""

    text: str
    line: int
    body: Word | None = None


Token = Word | Operator


def cut(text: str, line: int = 1) -> list[Token]:
    """The tokens of a script whose first line has that number. Raises NotBash."""
    if mark := _MARKS.search(text):
        line += text.count("\n", 0, mark.start())
        raise NotBash(f"line {line}: holds the control character {ord(mark[0]):#04x}")
    return _Cutter(text, [end.start() for end in re.finditer("\n", text)], line).tokens()


def bracket_end(text: str, at: int) -> int:
    """Where the bracket that opens at `at` has been closed; 0 where it never is. One between quotes counts where the
    quotes do not close."""
    return _bracket_end(text, at, "'\"") or _bracket_end(text, at, "")


def _bracket_end(text: str, at: int, quotes: str) -> int:
    """quotes: the characters that are quotes and hide brackets."""
    open_ = [PAIRS[text[at]]]
    at += 1
    while found := _INSIDE.search(text, at):
        mark, at, closing = found[0], found.end(), open_[-1]
        opened = PAIRS.get(mark[-1], "")
        if mark == closing:
            open_.pop()
            if not open_:
                return at
        elif opened and (mark[0] == "$" or opened == closing):
            open_.append(opened)
        elif mark == '"' and mark in quotes:
            open_.append(mark)
        # Within ${...} it is a letter, as in "${NAME:-it's}".
        elif mark == "'" and mark in quotes and closing == ")":
            at = text.find("'", at) + 1
            if not at:
                return 0
    return 0


@dataclass(slots=True)
class _Cutter:
    """newlines: where they stand. first: the number of the first line. testing: within `[[`, where operators are words.
    waiting: the here-documents that start on the next line: the tokens and the place in them, the word that ends it,
    and whether tabs before its lines are left out."""

    text: str
    newlines: list[int]
    first: int
    at: int = 0
    depth: int = 0
    testing: bool = False
    waiting: list[tuple[list[Token], int, Word, bool]] = field(default_factory=list)

    @property
    def line(self) -> int:
        return bisect_left(self.newlines, self.at) + self.first

    def tokens(self, closing: str = "") -> list[Token]:
        """Up to the end, or to the operator `closing`, which is taken."""
        opened, found = self.at, list[Token]()
        while self._skip_blanks():
            line = self.line
            if self.text[self.at] == "\n":
                found.append(Operator("\n", line))
                self.at += 1
                self.testing = False
                for place, index, end, tabs in self.waiting:
                    place[index] = Operator("<<", self.line, self._document(end, tabs=tabs))
                self.waiting.clear()
            elif total := _SUM.match(self.text, self.at):
                found.append(Word((Piece(total[0], quoted=True),), line))
                self.at = total.end()
            elif PLACEHOLDER.match(self.text, self.at) or _STREAM_OF.match(self.text, self.at):
                found.append(self._word())
            elif streams := _STREAMS.match(self.text, self.at):
                self.at = streams.end()
            elif operator := next((known for known in _OPERATORS if self.text.startswith(known, self.at)), ""):
                self.at += len(operator)
                if operator == closing:
                    return found
                if self.testing:
                    found.append(Word((Piece(operator, quoted=True, literal=True),), line))
                    continue
                found.append(Operator(operator, line))
                # The text of a here-document starts on the next line and ends at the word that follows here.
                reads = operator in ("<<", "<<-") and not closing
                if reads and self._skip_blanks() and self.text[self.at] != "\n":
                    self.waiting.append((found, len(found) - 1, self._word(), operator == "<<-"))
            else:
                found.append(word := self._word())
                self.testing = word.plain == "[[" or (self.testing and word.plain != "]]")
        if closing:
            self._close("bracket", opened, 0)
        return found

    def _skip_blanks(self) -> bool:
        """False at the end."""
        if blanks := _BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        return self.at < len(self.text)

    def _document(self, end: Word, *, tabs: bool) -> Word:
        """tabs: those that lines begin with are left out."""
        start, lines, literal = self.line, list[str](), any(piece.quoted for piece in end.pieces)
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            line = self.text[self.at : stop if stop >= 0 else len(self.text)]
            self.at += len(line) + 1
            line = line.lstrip("\t") if tabs else line
            if line.removesuffix("\r") == end.plain:
                break
            lines.append(line)
        text = "\n".join(lines)
        if literal:
            return Word((Piece(text, quoted=True, literal=True),), start)
        # Every second part is a character that was escaped; a line's end is none.
        parts = enumerate(_ESCAPED.split(text))
        pieces = (
            Piece(part.strip("\n") if odd % 2 else part, quoted=True, literal=bool(odd % 2)) for odd, part in parts
        )
        return Word(tuple(pieces), start)

    def _word(self) -> Word:
        line, pieces, open_ = self.line, list[Piece](), ""
        while self.at < len(self.text):
            if plain := _PLAIN.match(self.text, self.at):
                open_ += plain[0]
                self.at = plain.end()
                continue
            char = self.text[self.at]
            if char == "(" and not pieces and _ARRAY.match(open_):
                return Word((Piece(open_),), line, self._items())
            if placeholder := PLACEHOLDER.match(self.text, self.at):
                pieces += [Piece(open_), Piece(placeholder[0])]
                open_ = ""
                self.at = placeholder.end()
            elif _STREAM_OF.match(self.text, self.at):
                start = self.at
                self._close("bracket", start, bracket_end(self.text, start + 1))
                pieces += [Piece(open_), Piece(self.text[start : self.at], quoted=True)]
                open_ = ""
            elif char in " \t\r\n;&|<>()":
                break
            elif char in "'\"\\":
                pieces += [Piece(open_)] if open_ else []
                open_ = ""
                pieces += self._quoted(char)
            else:
                open_ += self._expansion()
        return Word((*pieces, *([Piece(open_)] if open_ else [])), line)

    def _items(self) -> tuple[Word, ...]:
        """The elements of an array, whose bracket opens here."""
        self.at += 1
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise NotBash(f"line {self.line}: its brackets are nested deeper than {MAX_NESTING} levels")
        items = tuple(token for token in self.tokens(")") if isinstance(token, Word))
        self.depth -= 1
        return items

    def _quoted(self, char: str) -> list[Piece]:
        start = self.at + 1
        if char == "\\":
            self.at += 2
            escaped = self.text[start : self.at]
            return [Piece(escaped, quoted=True, literal=True)] if escaped not in ("", "\n") else []
        if char == "'":
            self._close("quote", self.at, self.text.find("'", start) + 1)
            return [Piece(self.text[start : self.at - 1], quoted=True, literal=True)]
        pieces, open_ = list[Piece](), ""
        self.at = start
        while self.at < len(self.text):
            if plain := _PLAIN_QUOTED.match(self.text, self.at):
                open_ += plain[0]
                self.at = plain.end()
                continue
            char, two = self.text[self.at], self.text[self.at : self.at + 2]
            if char == '"':
                self.at += 1
                return [*pieces, Piece(open_, quoted=True)]
            if char in "$`":
                open_ += self._expansion()
                continue
            if two in ('\\"', "\\$", "\\`", "\\\\"):
                pieces += [Piece(open_, quoted=True), Piece(two[1], quoted=True, literal=True)]
                open_ = ""
            elif two != "\\\n":
                open_, two = open_ + char, char
            self.at += len(two)
        self._close("quote", start, 0)
        return []

    def _expansion(self) -> str:
        """`$name`, `${...}`, `$(...)` or `` `...` `` as written."""
        start = self.at
        if self.text[start] == "`":
            self._close("quote", start, self.text.find("`", start + 1) + 1)
        elif self.text[start + 1 : start + 2] in PAIRS:
            self._close("bracket", start, bracket_end(self.text, start + 1))
        else:
            self.at += 1
        return self.text[start : self.at]

    def _close(self, what: str, start: int, end: int) -> None:
        """Go on at `end`, which is 0 where what opens at `start` is never closed. Raises NotBash."""
        self.at = end or start
        if not end:
            raise NotBash(f"line {self.line}: the {what} that opens here is never closed")
