"""The tokens of a script as commands: simple ones, and `if`, loops, `case`, functions and groups around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from meshtune.runners.programs.dialects.bash.lexer import MAX_NESTING, NotBash, Operator, Piece, Token, Word, cut

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]=]*\])?(\+?)=(.*)", re.DOTALL)
_REDIRECTIONS = ("<", ">", ">>", "&>", "&>>", "<<<")
_COMPOUND = ("if", "for", "select", "while", "until", "case", "function", "{")
_CLOSING = ("then", "elif", "else", "fi", "do", "done", "esac", "}", "in")


@dataclass(slots=True)
class Part:
    """A branch or body, with the test or the patterns of `case` before it."""

    body: list[Statement]
    test: list[Statement] = field(default_factory=list)
    patterns: list[Word] = field(default_factory=list)


@dataclass(slots=True)
class Statement:
    """One command. kind: "" of a simple one, which has a word at least; else the word that opens it, `(` of a subshell.
    joiner: what stands before it. words: of `for` the variable and the list, of `case` its subject, of a function the
    name. body, target: the here-document that it reads and the file that it writes."""

    joiner: str
    line: int
    kind: str = ""
    words: list[Word] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    body: Word | None = None
    target: Word | None = None
    appends: bool = False


def statements(text: str, line: int = 1) -> list[Statement]:
    """The commands of a script whose first line has that number. Raises NotBash."""
    return _Parser(cut(text, line)).statements()


def assignment(word: Word) -> tuple[str, str, Word] | None:
    """The name (`A[key]` of an element), the `+` and the value of an assignment; None for other words."""
    if not word.pieces or word.pieces[0].quoted:
        return None
    first, rest = word.pieces[0].text, word.pieces[1:]
    if first.endswith("[") and len(rest) > 1 and rest[0].literal | rest[0].quoted and rest[1].text[:1] == "]":
        # `A["key"]=1`
        first, rest = first + rest[0].text + rest[1].text, rest[2:]
    found = _ASSIGNMENT.fullmatch(first)
    if found is None:
        return None
    return found[1] + (found[2] or ""), found[3], Word((Piece(found[4]), *rest), word.line)


@dataclass(slots=True)
class _Parser:
    """A closing word that is missing is taken as the end of the script; one too many is left out."""

    tokens: Sequence[Token]
    at: int = 0
    depth: int = 0

    def statements(self, *ends: str) -> list[Statement]:
        """Up to one of the closing words or operators, which is not taken."""
        found, joiner = list[Statement](), "\n"
        while (text := self._next()) and text not in ends:
            if text in _CLOSING:
                self.at += 1
            elif isinstance(self.tokens[self.at], Word) or text in ("(", "<<", *_REDIRECTIONS):
                found.append(self._statement(joiner, text))
                joiner = "\n"
            else:
                joiner = joiner if text == "\n" and joiner in ("&&", "||", "|") else text
                self.at += 1
        # `cat <<EOF | sbatch`: what the next command reads.
        for one, after in pairwise(found):
            if after.joiner == "|" and [word.plain for word in one.words] == ["cat"] and one.body and not after.body:
                after.body, after.joiner, one.words = one.body, "\n", []
        return [one for one in found if one.words or one.kind]

    def _next(self) -> str:
        """The text of the next token: of a word only where it may be a reserved one, else a blank; "" at the end."""
        if self.at >= len(self.tokens):
            return ""
        token = self.tokens[self.at]
        if isinstance(token, Operator):
            return token.text
        return token.pieces[0].text if len(token.pieces) == 1 and not token.pieces[0].quoted else " "

    def _take(self, *texts: str) -> str:
        """Take the next token where it is one of these; its text, or ""."""
        found = text if (text := self._next()) in texts else ""
        self.at += bool(found)
        return found

    def _statement(self, joiner: str, text: str) -> Statement:
        line, self.depth = self.tokens[self.at].line, self.depth + 1
        if self.depth > MAX_NESTING:
            raise NotBash(f"line {line}: its commands are nested deeper than {MAX_NESTING} levels")
        made = Statement(joiner, line, text if text in (*_COMPOUND, "(") else "")
        if made.kind:
            self.at += 1
            self._compound(made)
        self._rest(made)
        self.depth -= 1
        return made

    def _rest(self, made: Statement) -> None:
        """The words of a simple command, and where a command reads and writes."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator) and token.text in ("<<", *_REDIRECTIONS):
                self.at += 1
                made.body = token.body or made.body
                if token.text != "<<" and self.at < len(self.tokens) and isinstance(self.tokens[self.at], Word):
                    if token.text in (">", ">>"):
                        made.target, made.appends = self.tokens[self.at], token.text == ">>"  # type: ignore[assignment]
                    self.at += 1
            elif isinstance(token, Word) and not made.kind:
                made.words.append(token)
                self.at += 1
            elif len(made.words) == 1 and not made.kind and [self._next(), self._peek()] == ["(", ")"]:
                made.kind = "function"
                self._function(made)
            else:
                return

    def _peek(self) -> str:
        after = self.tokens[self.at + 1 : self.at + 2]
        return after[0].text if after and isinstance(after[0], Operator) else ""

    def _function(self, made: Statement) -> None:
        while self._take("(", ")", "\n"):
            pass
        if text := self._next():
            made.parts = [Part([self._statement("\n", text)])]

    def _compound(self, made: Statement) -> None:
        match made.kind:
            case "if":
                following = "if"
                while following in ("if", "elif"):
                    test = self.statements("then", "elif", "else", "fi")
                    self._take("then")
                    made.parts.append(Part(self.statements("elif", "else", "fi"), test))
                    following = self._take("elif", "else", "fi")
                if following == "else":
                    made.parts.append(Part(self.statements("fi")))
                    self._take("fi")
            case "while" | "until":
                test = self.statements("do", "done")
                self._body(made, test)
            case "for" | "select":
                made.words = self._words()
                while self._take(";", "\n"):
                    pass
                self._body(made, [])
            case "case":
                made.words = self._words()[:1]
                while (text := self._next()) and text != "esac":
                    if self._take("\n", ";;", "(", ")", "|", ";", "&"):
                        continue
                    patterns = self._words(")")
                    self._take(")")
                    made.parts.append(Part(self.statements(";;", "esac"), patterns=patterns))
                self._take("esac")
            case "function":
                made.words = self._words("(", "{")[:1]
                self._function(made)
            case "{":
                made.parts = [Part(self.statements("}"))]
                self._take("}")
            case _:
                made.parts = [Part(self.statements(")"))]
                self._take(")")

    def _body(self, made: Statement, test: list[Statement]) -> None:
        self._take("do")
        made.parts = [Part(self.statements("done"), test)]
        self._take("done")

    def _words(self, *ends: str) -> list[Word]:
        """Up to the line's end, `do`, or one of the ends; `|` between patterns is left out."""
        found = list[Word]()
        while (text := self._next()) not in ("", ";", "\n", "do", *ends):
            token = self.tokens[self.at]
            self.at += 1
            if isinstance(token, Word):
                found.append(token)
            elif text not in ("|", "("):
                break
        return found
