"""Cuts a bash script into words and operators, with their lines; what bash would expand is kept as written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPERATORS = ("&&", "||", "<<-", "<<", ">>", "&>>", "&>", ";;", ";", "&", "|", "<", ">", "(", ")")
# 2>&1 joins streams, and the 2 of 2>file says which: neither is a word.
_STREAMS = re.compile(r"\d?[<>]&[\d-]|\d(?=[<>])")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
# Comments and continued lines are blanks.
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n|#[^\n]*)+")
PAIRS = {"{": "}", "(": ")"}


class NotBash(ValueError):
    """A quote or bracket is never closed; the message names the line where it opens."""


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


def cut(text: str) -> list[Token]:
    """The tokens of a script. Raises NotBash."""
    return _Cutter(text).tokens()


def bracket_end(text: str, at: int) -> int:
    """Where the bracket that opens at `at` has been closed; 0 where it never is."""
    opening, closing, depth = text[at], PAIRS[text[at]], 0
    for end in range(at, len(text)):
        depth += (text[end] == opening) - (text[end] == closing)
        if depth == 0:
            return end + 1
    return 0


@dataclass(slots=True)
class _Cutter:
    text: str
    at: int = 0
    waiting: list[tuple[int, str, bool]] = field(default_factory=list)

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def tokens(self, closing: str = "") -> list[Token]:
        """Up to the end, or to the operator `closing`, which is taken."""
        opened, found = self.at, list[Token]()
        while self._skip_blanks():
            line = self.line
            if self.text[self.at] == "\n":
                found.append(Operator("\n", line))
                self._newline(found)
            elif streams := _STREAMS.match(self.text, self.at):
                self.at = streams.end()
            elif operator := next((known for known in _OPERATORS if self.text.startswith(known, self.at)), ""):
                self.at += len(operator)
                if operator == closing:
                    return found
                found.append(Operator(operator, line))
                if operator in ("<<", "<<-"):
                    self._await_document(found)
            else:
                found.append(self._word())
        if closing:
            self._close("bracket", opened, 0)
        return found

    def _skip_blanks(self) -> bool:
        """False at the end."""
        if blanks := _BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        return self.at < len(self.text)

    def _newline(self, found: list[Token]) -> None:
        self.at += 1
        for index, end, literal in self.waiting:
            found[index] = Operator("<<", self.line, self._document(end, literal))
        self.waiting.clear()

    def _await_document(self, found: list[Token]) -> None:
        """Its text starts on the next line and ends at the word that follows here."""
        index = len(found) - 1
        if self._skip_blanks() and self.text[self.at] != "\n":
            end = self._word()
            self.waiting.append((index, end.plain, any(piece.quoted for piece in end.pieces)))

    def _document(self, end: str, literal: bool) -> Word:
        start, lines = self.line, list[str]()
        while self.at < len(self.text):
            line, _, _ = self.text[self.at :].partition("\n")
            self.at += len(line) + 1
            if line.strip() == end:
                break
            lines.append(line)
        return Word((Piece("\n".join(lines), quoted=True, literal=literal),), start)

    def _word(self) -> Word:
        line, pieces, open_ = self.line, list[Piece](), ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "(" and not pieces and _ARRAY.match(open_):
                self.at += 1
                items = tuple(token for token in self.tokens(")") if isinstance(token, Word))
                return Word((Piece(open_),), line, items)
            if char in " \t\r\n;&|<>()":
                break
            if char in "'\"\\":
                pieces += [Piece(open_)] if open_ else []
                open_ = ""
                pieces += self._quoted(char)
            elif char in "$`":
                open_ += self._expansion()
            else:
                open_ += char
                self.at += 1
        return Word((*pieces, *([Piece(open_)] if open_ else [])), line)

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
