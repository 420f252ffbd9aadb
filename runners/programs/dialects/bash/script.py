"""Reads a bash script for what it would run: commands with their variables filled in. Runs nothing, guesses nothing.

Functions, `case`, and the turns of loops over known words are followed. Where a test is not known, each of its branches
is read from there, and what they leave differently is unknown from there on; a branch that ends the script counts no
more. A loop over the script's arguments is read as with none. What is unknown is said in a note with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import takewhile

from meshtune.runners.programs.capture.stand_in import NAMES
from meshtune.runners.programs.dialects.bash.commands import Statement, assignment, statements
from meshtune.runners.programs.dialects.bash.conditions import TESTS, holds
from meshtune.runners.programs.dialects.bash.effects import Command, Script
from meshtune.runners.programs.dialects.bash.expansion import (
    Budget,
    Values,
    as_written,
    expand,
    is_known,
    joined,
    unknown,
)
from meshtune.runners.programs.dialects.bash.lexer import MAX_NESTING, NotBash, Word

# A variable that is held as it was, for a branch, is as much as so many characters.
_WORK = 10
# Arguments of logs alone, which no test needs to decide.
_LOGGING = re.compile(r"(?:\s+--(?:wandb|tensorboard|report)[-_]\S+(?:\s+(?!-)\S+)?)*\s*")
# What a script was called with.
_ARGUMENTS = re.compile(r"\$\{?[1-9@*#](?![\w(])|\bgetopts?\b")


def read_script(
    text: str,
    budget: Budget | None = None,
    given: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> Script:
    """What a script would run. budget: of the script in a word of which it stands. given: variables that it finds; PWD
    is where it is started, and 0 its own path. arguments: of the script, None unknown. Raises NotBash."""
    reader = _Reader(budget or Budget(), dict(given or {}))
    if arguments is not None:
        reader.set_arguments(arguments)
    reader.budget.read(text)
    with suppress(_Stop):
        reader.read(statements(text))
    reader.files = {name: text for name, text in reader.files.items() if name not in reader.changed}
    reader.notes = list(dict.fromkeys(reader.notes))
    return reader


class _Stop(Exception):
    """The script ends here (`exit`), or the function (`return`) or loop (`break`, `continue`) that is being read."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how)


@dataclass(slots=True)
class _Reader(Script):
    """testing: within the test of an `if`, where the success of a command counts. doubt: why what is read may not run.
    loose: why what is left of a function or loop may not run."""

    functions: dict[str, Statement] = field(default_factory=dict)
    testing: bool = False
    doubt: str = ""
    loose: str = ""
    depth: int = 0

    def read(self, statements: Sequence[Statement]) -> bool | None:
        """Take commands in; whether the last of them succeeds, None where that is not known. Raises _Stop."""
        success: bool | None = True
        for at, one in enumerate(statements):
            if one.joiner in ("&&", "||") and success is not (one.joiner == "&&"):
                if success is None:
                    first = one.words[0].plain if one.words else one.kind
                    self._either([[one], []], f"line {one.line}: whether `{first}` comes to run is not known here")
            elif one.joiner == "|":
                self._aside(one)
            else:
                success = self._run(one)
            if self.loose:
                rest, loose, self.loose = statements[at + 1 :], self.loose, ""
                self._either([list(rest), []], loose)
                self.loose = loose
                return None
        return success

    def _run(self, one: Statement) -> bool | None:
        """One command; whether it succeeds."""
        self.budget.step(one.line)
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise NotBash(f"line {one.line}: its commands are nested deeper than {MAX_NESTING} levels")
        try:
            match one.kind:
                case "":
                    return self._simple(one)
                case "if":
                    parts = ((part.body, self._test(part.test) if part.test else True) for part in one.parts)
                    return self._first(one, parts)
                case "case":
                    return self._case(one)
                case "for" | "select":
                    self._for(one)
                case "while" | "until":
                    self._while(one)
                case "function":
                    self.functions[one.words[0].plain if one.words else ""] = one
                case "(":
                    self._aside(one)
                case _:
                    if one.target is not None:
                        self._write(one.target, None, one.appends)
                    return self.read(one.parts[0].body)
            return True
        finally:
            self.depth -= 1

    def _state(self) -> _State:
        return dict(self.values), dict(self.export_lines), dict(self.files), self.directory, dict(self.held)

    def _restore(self, state: _State) -> None:
        self.values, self.export_lines, self.files = dict(state[0]), dict(state[1]), dict(state[2])
        self.directory, self.held = state[3], dict(state[4])

    def _aside(self, one: Statement) -> None:
        """A command in a shell of its own, whose variables and folder end with it."""
        before = self._state()
        with suppress(_Stop):
            if one.kind == "(":
                self.read(one.parts[0].body)
            else:
                self._run(one)
        files = self.files
        self._restore(before)
        self.files = files

    def _either(self, branches: Sequence[list[Statement]], reason: str) -> bool | None:
        """Read the branches of which one is taken. What they do not leave alike is unknown afterwards."""
        cause, self.cause = self.cause, ()
        self.budget.passing -= _WORK * len(self.values) * len(branches)
        doubt, before, seen = self.doubt, self._state(), len(self.doubtful) + len(self.commands)
        left = list[tuple[_State, list[Statement]]]()
        notes = list(self.notes)
        names = [f"`${name}`{f', --set {name}=VALUE' * name.isidentifier()}" for name in cause]
        told = f"{reason} ({'; '.join(names)})" if cause else reason
        self.doubt = doubt or told
        for branch in branches:
            try:
                self.read(branch)
                left.append((self._state(), branch))
            except _Stop as stop:
                if stop.how != "exit":
                    left.append((self._state(), branch))
                    self.loose = told
            self._restore(before)
        self.doubt, self.notes, self.cause = doubt, notes, cause
        if not left:
            raise _Stop("exit")
        if len(left) == 1 and not self.loose:
            return self.read(left[0][1])
        differs = self._join([state for state, _ in left], before, told, cause)
        if differs or len(self.doubtful) + len(self.commands) > seen:
            self.notes.append(told)
        return None

    def _join(self, states: Sequence[_State], before: _State, reason: str, cause: tuple[str, ...]) -> bool:
        """Whether the states differ; where they do, what they hold is unknown."""
        first, differs = states[0], False
        for name in {name: None for state in states for name in state[0]}:
            all_ = [state[0].get(name) for state in states]
            if all(value == all_[0] for value in all_[1:]):
                if all_[0] is not before[0].get(name) and all_[0] is not None:
                    self.values[name] = all_[0]
                continue
            known, differs = before[0].get(name), True
            if known is not None and all(_logs(value, known) for value in all_):
                continue
            self._forget(name, reason, cause, appended=all(_starts(value, known) for value in all_))
        for name in {name: None for state in states for name in state[2]}:
            if any(state[2].get(name) != first[2].get(name) for state in states):
                self.changed[name], differs = reason, True
        self.export_lines |= {name: line for state in states for name, line in state[1].items() if name in self.values}
        if any(state[3] != first[3] for state in states):
            self.directory, differs = unknown("$PWD"), True
        elif first[3] != before[3]:
            self.directory = first[3]
        return differs

    def _test(self, test: Sequence[Statement]) -> bool | None:
        before, self.testing = self.testing, True
        found = self.read(test)
        self.testing = before
        return found

    def _first(self, one: Statement, branches: Iterable[tuple[list[Statement], bool | None]]) -> bool | None:
        """The first branch whose test holds; all that may be it where a test is not known."""
        maybe, cause = list[list[Statement]](), tuple[str, ...]()
        for body, found in branches:
            cause += self.cause * (found is None)
            if found is not False:
                maybe.append(body)
            if found:
                break
        else:
            maybe.append([])
        if len(maybe) == 1:
            return self.read(maybe[0])
        self.cause = tuple(dict.fromkeys(cause))
        return self._either(maybe, f"line {one.line}: whether this test holds is not known here")

    def _case(self, one: Statement) -> bool | None:
        subject = joined(one.words[0], self.values, self.budget) if one.words else ""

        def matches(patterns: Sequence[Word]) -> bool | None:
            texts = [joined(pattern, self.values, self.budget) for pattern in patterns]
            if "*" in texts:
                return True
            if not all(map(is_known, (subject, *texts))):
                self.cause = self._deciding([subject, *texts])
                return None
            return any(fnmatchcase(subject, text) for text in texts)

        return self._first(one, ((part.body, matches(part.patterns)) for part in one.parts))

    def _turn(self, body: Sequence[Statement]) -> bool:
        """One turn of a loop; whether it goes on."""
        try:
            self.read(body)
        except _Stop as stop:
            if stop.how not in ("break", "continue"):
                raise
            return stop.how == "continue"
        return not self.loose

    def _for(self, one: Statement) -> None:
        name, listed = one.words[0].plain if one.words else "", one.words[1:]
        if listed and listed[0].plain == "in":
            turns = [text for word in listed[1:] for text in expand(word, self.values, self.budget)]
            globs = any("*" in piece.text and not piece.quoted for word in listed[1:] for piece in word.pieces)
        else:
            known = self.values.get("@")
            turns, globs = known if isinstance(known, list) else [unknown("$@")], False
        if name.startswith("(("):
            self._forget_all(one, f"line {one.line}: what `for` opens is not followed")
        elif any(text[1:3] in ("$@", "$*", "${@") and not is_known(text) for text in turns[:1]):
            self.notes.append(f"line {one.line}: this loop is read as without arguments to the script")
        elif globs or not all(map(is_known, turns)):
            self.cause = self._deciding(turns)
            self._forget_all(one, f"line {one.line}: what `for` opens is not followed", name)
        else:
            for text in turns:
                self.values[name] = self.budget.spend(text)
                if not self._turn(one.parts[0].body):
                    break
            if self.loose:
                self._forget_all(one, self.loose, name)

    def _forget_all(self, one: Statement, reason: str, name: str = "") -> None:
        """Take what a loop would set as unknown. name: its variable."""
        self.loose = ""
        if name:
            self._forget(name, reason, self.cause)
        with suppress(_Stop):
            self._either([one.parts[0].body, []], reason)
        self.loose = ""

    def _while(self, one: Statement) -> None:
        part, before = one.parts[0], None
        asked = [*part.test, *(inner for inner in part.body[:1] if inner.kind == "case")]
        words = " ".join(word.plain for inner in asked for word in inner.words)
        if self.values.get("@") is None and _ARGUMENTS.search(words):
            self.notes.append(f"line {one.line}: this loop is read as without arguments to the script")
            return
        while (
            (found := self._test(part.test)) is not None and found is (one.kind == "while") and before != self._state()
        ):
            before = self._state()
            if not self._turn(part.body):
                break
        if found is None or self.loose:
            self._forget_all(one, self.loose or f"line {one.line}: what `{one.kind}` opens is not followed")

    def _call(self, function: Statement, arguments: Sequence[str]) -> bool | None:
        before = self.values.get("@")
        self.set_arguments(arguments)
        self.locals.append({})
        found: bool | None = True
        try:
            found = self.read(function.parts[0].body) if function.parts else True
        except _Stop as stop:
            if stop.how != "return":
                raise
        finally:
            self.loose = ""
            self.set_arguments(before if isinstance(before, list) else None)
            for name, value in self.locals.pop().items():
                if value is None:
                    self.values.pop(name, None)
                else:
                    self.values[name] = value
        return found

    def _simple(self, simple: Statement) -> bool | None:
        words, self.cause = simple.words, ()
        first = words[0].plain
        if first == "!" and words[1:]:
            found = self._simple(replace(simple, words=words[1:]))
            return None if found is None else not found
        if first in NAMES["declaring"]:
            self._declare(words[1:], first)
        elif first == "unset":
            for word in words[1:]:
                self.values.pop(word.plain, None)
        elif simple.body is not None and simple.target is not None:
            self._write(simple.target, joined(simple.body, self.values, self.budget), simple.appends)
        elif first.startswith("(("):
            return self._calculate(first[2:-2], simple.line)
        else:
            return self._command(simple)
        return True

    def _command(self, simple: Statement) -> bool | None:
        """A command with the assignments before it, which are its own; or assignments alone, which stay."""
        words = simple.words
        assigned = list(takewhile(lambda pair: pair[1] is not None, ((word, assignment(word)) for word in words)))
        rest = words[len(assigned) :]
        env = {}
        for word, parts in assigned:
            if parts is not None and rest:
                env[parts[0]] = joined(parts[2], self.values, self.budget)
            elif parts is not None:
                self._assign(*parts, word)
        made = [text for word in rest for text in expand(word, self.values, self.budget)]
        if not made:
            return True
        if made[0] in TESTS:
            found = holds(made, self.files)
            if found is None:
                self.cause = self._deciding(made)
            return found
        if made[0] in self.functions:
            return self._call(self.functions[made[0]], made[1:])
        if made[0] in ("exit", "return", "break", "continue"):
            if made[0] == "return" and made[1:] not in ([], ["0"]) and self.testing:
                return False
            raise _Stop(made[0])
        if made[0] in ("true", "false", ":"):
            return made[0] != "false"
        if made[0] == "eval" and (text := as_written(" ".join(made[1:]))):
            self.budget.read(text)
            return self.read(statements(text, simple.line))
        self._effects(made, simple)
        if made[0] not in NAMES["harmless"]:
            body = joined(simple.body, self.values, self.budget) if simple.body else ""
            command = Command(tuple(made), rest[0].line, env, self.directory, body, self.doubt)
            (self.doubtful if self.doubt else self.commands).append(command)
        if made[0] == "exec" and made[1:]:
            raise _Stop("exit")
        return None if self.testing or made[0] in NAMES["asking"] else True


# values, exported, files, directory and held of a reader.
_State = tuple[Values, dict[str, int], dict[str, str], str, dict[str, int]]


def _starts(value: str | list[str] | None, known: str | list[str] | None) -> bool:
    """Whether a variable's value is what is known and, it may be, more."""
    if isinstance(known, list):
        return isinstance(value, list) and value[: len(known)] == known
    return isinstance(known, str) and known != "" and isinstance(value, str) and value.startswith(known)


def _logs(value: str | list[str] | None, known: str | list[str] | None) -> bool:
    """Whether a variable's value is what is known and, it may be, arguments of logs."""
    text, start = (" ".join(each) if isinstance(each, list) else each or "" for each in (value, known))
    return text.startswith(start) and bool(_LOGGING.fullmatch(" " + text[len(start) :]))
