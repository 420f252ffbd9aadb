"""Cuts a bash script into words and operators, with their lines; nothing is expanded and nothing is run.

Quotes, comments, continued lines, arrays and here-documents are understood; what bash would expand is kept as written,
in pieces that say how they were quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPERATORS = ("&&", "||", "<<-", "<<", ">>", "&>>", "&>", ";;", ";", "&", "|", "<", ">", "(", ")")
# 2>&1 joins streams, and the 2 of 2>file says which: neither is a word.
_STREAMS = re.compile(r"\d?[<>]&[\d-]|\d(?=[<>])")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
_PAIRS = {"{": "}", "(": ")"}


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


@dataclass(slots=True)
class _Cutter:
    text: str
    at: int = 0
    line: int = 1
    waiting: list[tuple[int, str, bool]] = field(default_factory=list)

    def tokens(self, closing: str = "") -> list[Token]:
        """Up to the end, or to the operator `closing`, which is taken."""
        opened, found = self.line, list[Token]()
        while (start := self._skip_blanks()) is not None:
            if self.text[self.at] == "\n":
                found.append(Operator("\n", self.line))
                self._newline(found)
            elif streams := _STREAMS.match(self.text, self.at):
                self.at = streams.end()
            elif operator := next((known for known in _OPERATORS if self.text.startswith(known, self.at)), ""):
                self.at += len(operator)
                if operator == closing:
                    return found
                found.append(Operator(operator, start))
                if operator in ("<<", "<<-"):
                    self._await_document(found)
            else:
                found.append(self._word())
        if closing:
            raise NotBash(f"line {opened}: the bracket that opens here is never closed")
        return found

    def _skip_blanks(self) -> int | None:
        """The line of the next token, None at the end. Comments and continued lines are blanks."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in " \t\r":
                self.at += 1
            else:
                return self.line
        return None

    def _newline(self, found: list[Token]) -> None:
        self.at, self.line = self.at + 1, self.line + 1
        for index, end, literal in self.waiting:
            found[index] = Operator("<<", self.line, self._document(end, literal))
        self.waiting.clear()

    def _await_document(self, found: list[Token]) -> None:
        """Its text starts on the next line and ends at the word that follows here."""
        index = len(found) - 1
        if self._skip_blanks() is not None and self.text[self.at] != "\n":
            end = self._word()
            self.waiting.append((index, end.plain, any(piece.quoted for piece in end.pieces)))

    def _document(self, end: str, literal: bool) -> Word:
        start, lines = self.line, list[str]()
        while self.at < len(self.text):
            line, _, _ = self.text[self.at :].partition("\n")
            self.at, self.line = self.at + len(line) + 1, self.line + 1
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
        if char == "\\":
            escaped = self.text[self.at + 1 : self.at + 2]
            self.at += 2
            self.line += escaped == "\n"
            return [Piece(escaped, quoted=True, literal=True)] if escaped not in ("", "\n") else []
        if char == "'":
            return [Piece(self._until("'", self.at + 1), quoted=True, literal=True)]
        return self._double_quoted()

    def _double_quoted(self) -> list[Piece]:
        opened, pieces, open_ = self.line, list[Piece](), ""
        self.at += 1
        while self.at < len(self.text):
            char, two = self.text[self.at], self.text[self.at : self.at + 2]
            if char == '"':
                self.at += 1
                return [*pieces, Piece(open_, quoted=True)]
            if two == "\\\n":
                self.at, self.line = self.at + 2, self.line + 1
            elif two in ('\\"', "\\$", "\\`", "\\\\"):
                pieces += [Piece(open_, quoted=True), Piece(two[1], quoted=True, literal=True)]
                open_ = ""
                self.at += 2
            elif char in "$`":
                open_ += self._expansion()
            else:
                open_ += char
                self.line += char == "\n"
                self.at += 1
        raise NotBash(f"line {opened}: the quote that opens here is never closed")

    def _expansion(self) -> str:
        """`$name`, `${...}`, `$(...)` or `` `...` `` as written."""
        start, opened = self.at, self.line
        if self.text[start] == "`":
            return f"`{self._until('`', start + 1)}`"
        self.at += 1
        bracket = self.text[self.at : self.at + 1]
        if bracket not in _PAIRS:
            return "$"
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            self.line += char == "\n"
            self.at += 1
            depth += (char == bracket) - (char == _PAIRS[bracket])
            if depth == 0:
                return self.text[start : self.at]
        raise NotBash(f"line {opened}: the bracket that opens here is never closed")

    def _until(self, char: str, start: int) -> str:
        end = self.text.find(char, start)
        if end < 0:
            raise NotBash(f"line {self.line}: the quote that opens here is never closed")
        inner = self.text[start:end]
        self.at, self.line = end + 1, self.line + inner.count("\n")
        return inner
