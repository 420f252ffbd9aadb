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
from posixpath import join, normpath

from meshtune.runners.programs.dialects.bash.arithmetic import calculated
from meshtune.runners.programs.dialects.bash.commands import Statement, assignment, statements
from meshtune.runners.programs.dialects.bash.conditions import TESTS, holds
from meshtune.runners.programs.dialects.bash.expansion import (
    Budget,
    Values,
    as_written,
    expand,
    is_known,
    joined,
    unknown,
    unknown_parts,
)
from meshtune.runners.programs.dialects.bash.lexer import MAX_NESTING, NotBash, Piece, Word
from meshtune.search_spaces.checks import names_in

_DECLARING = ("export", "declare", "local", "readonly", "typeset")
# Commands of which nothing that is read here depends.
_HARMLESS = names_in(
    "mkdir echo printf set shift exit return wait sleep rm trap touch date tee true ls wc pwd [ [[ test"
)
# They set the variables that they name, or write the files.
_READING = frozenset({"read", "mapfile", "readarray", "getopts", "let"})
_WRITING = frozenset({"sed", "perl", "cp", "mv", "tee", "yq", "install", "ln"})
_CONFIGURATION = (".json", ".yaml", ".yml", ".toml")
# Their success is an answer, which is not known here.
_ASKING = names_in("command which type hash grep egrep diff cmp pgrep nvidia-smi test read")
# A variable that is held as it was, for a branch, is as much as so many characters.
_WORK = 10
# Arguments of logs alone, which no test needs to decide.
_LOGGING = re.compile(r"(?:\s+--(?:wandb|tensorboard|report)[-_]\S+(?:\s+(?!-)\S+)?)*\s*")
# What a script was called with.
_ARGUMENTS = re.compile(r"\$\{?[1-9@*#](?![\w(])|\bgetopts?\b")


@dataclass(frozen=True, slots=True)
class Command:
    """words: as the command would get them; see `expansion.is_known`. env: what is assigned before it, for it alone.
    directory: where the last `cd` led, "" for none. body: the here-document that it reads. written: the line as people
    would write it. doubt: why it is not known whether it runs, "" where it does."""

    words: tuple[str, ...]
    line: int
    env: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    body: str = ""
    doubt: str = ""

    @property
    def written(self) -> str:
        return as_written(" ".join(self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """commands: in order. doubtful: those that may run, each with its `doubt`. exported: by name, the value (see
    `expansion.is_known`) and its line. files: here-documents by the name of the file that they are written to. changed:
    files that other commands write, why each is not known. unknown: the variables that something which is not followed
    sets, and what. causes: the variables that decide those. notes: what was not followed, with its line."""

    commands: tuple[Command, ...]
    doubtful: tuple[Command, ...]
    exported: Mapping[str, tuple[str, int]]
    files: Mapping[str, str]
    changed: Mapping[str, str]
    unknown: Mapping[str, str]
    causes: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


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
    return Script(
        commands=tuple(reader.commands),
        doubtful=tuple(reader.doubtful),
        exported={
            name: (value, line)
            for name, line in reader.exported.items()
            if isinstance(value := reader.values.get(name), str)
        },
        files={name: text for name, text in reader.files.items() if name not in reader.changed},
        changed=reader.changed,
        unknown=reader.unknown,
        causes=reader.causes,
        notes=tuple(dict.fromkeys(reader.notes)),
    )


class _Stop(Exception):
    """The script ends here (`exit`), or the function (`return`) or loop (`break`, `continue`) that is being read."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how)


@dataclass(slots=True)
class _Reader:
    """held: what variables hold of the budget, by name. testing: within the test of an `if`, where the success of a
    command counts. doubt: why what is read may not run. loose: why what is left of a function or loop may not run.
    causes: of variables that are unknown, those that decide them. locals: those of each function that is being read."""

    budget: Budget
    values: Values = field(default_factory=dict)
    exported: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    doubtful: list[Command] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    directory: str = ""
    held: dict[str, int] = field(default_factory=dict)
    functions: dict[str, Statement] = field(default_factory=dict)
    locals: list[dict[str, str | list[str] | None]] = field(default_factory=list)
    testing: bool = False
    doubt: str = ""
    loose: str = ""
    cause: tuple[str, ...] = ()
    causes: dict[str, tuple[str, ...]] = field(default_factory=dict)
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

    def set_arguments(self, arguments: Sequence[str] | None) -> None:
        """None: not known."""
        for name in [name for name in self.values if not name[0].isalpha() and name[0] not in "_0"]:
            del self.values[name]
        if arguments is not None:
            numbered = {str(number): word for number, word in enumerate(arguments, 1)}
            self.values.update({"@": list(arguments), "*": " ".join(arguments), "#": str(len(arguments)), **numbered})

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
                    return self._if(one)
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
        return dict(self.values), dict(self.exported), dict(self.files), self.directory, dict(self.held)

    def _restore(self, state: _State) -> None:
        self.values, self.exported, self.files = dict(state[0]), dict(state[1]), dict(state[2])
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
        self.exported |= {name: line for state in states for name, line in state[1].items() if name in self.values}
        if any(state[3] != first[3] for state in states):
            self.directory, differs = unknown("$PWD"), True
        elif first[3] != before[3]:
            self.directory = first[3]
        return differs

    def _if(self, one: Statement) -> bool | None:
        return self._first(one, ((part.body, self._test(part.test) if part.test else True) for part in one.parts))

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

    def _deciding(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The variables that decide what is unknown in texts."""
        found = list[str]()
        for written in (part for text in texts for part in unknown_parts(text)):
            name = re.split(r"[^\w@#*?]", written.strip('${}"'))[0]
            if not written.startswith(("$(", "`", "<")):
                found += self.causes.get(name, (name,))
        return tuple(dict.fromkeys(found))

    def _forget(self, name: str, reason: str, cause: tuple[str, ...] = (), *, appended: bool = False) -> None:
        """appended: what the variable holds stays, and more may follow."""
        known, mark = self.values.get(name), unknown(f"${name}")
        if appended and isinstance(known, list):
            self.values[name] = [*known, mark]
        else:
            self.values[name] = self.budget.spend(f"{known} {mark}") if appended and known else mark
        self.unknown[name] = reason
        self.causes[name] = cause

    def _rewritten(self, words: Sequence[str], reason: str) -> None:
        """The configurations that a command such as `sed -i` changes."""
        if _WRITING & set(words):
            written = words[-1:] if words[0] == "cp" else words
            self.changed |= {name: reason for name in written if name.endswith(_CONFIGURATION)}

    def _simple(self, simple: Statement) -> bool | None:
        words, self.cause = simple.words, ()
        first = words[0].plain
        if first == "!" and words[1:]:
            found = self._simple(replace(simple, words=words[1:]))
            return None if found is None else not found
        if first in _DECLARING:
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

    def _calculate(self, expression: str, line: int) -> bool | None:
        """`((N > 2))`, and `((N += 1))`."""
        text = as_written(joined(Word((Piece(expression),), line), self.values, self.budget))
        if assigned := re.fullmatch(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)|\s*([A-Za-z_]\w*)(\+\+|--)\s*", text):
            name = assigned[1] or assigned[4]
            value = (
                f"{name} {assigned[2]} ({assigned[3]})" if assigned[2] else assigned[3] or f"{name} {assigned[5][0]} 1"
            )
            total = calculated(value, self.values)
            if total is None:
                self._forget(name, f"line {line}: `(({expression}))` sets it")
            else:
                self.values[name] = str(total)
            return True
        total = calculated(text, self.values)
        if total is None:
            names = re.findall(r"[A-Za-z_]\w*", text)
            self.cause = self._deciding(unknown(f"${name}") for name in names if name not in self.values)
        return None if total is None else total != 0

    def _write(self, target: Word, text: str | None, appends: bool) -> None:
        """text: None where it is not known."""
        name = joined(target, self.values, self.budget)
        line = f"line {target.line}: a command that is not followed writes it"
        if appends:
            text = None if text is None or name not in self.files else self.budget.spend(self.files[name] + text)
        if text is None:
            self.changed[name] = line
        else:
            self.changed.pop(name, None)
            self.files[name] = text

    def _declare(self, words: Sequence[Word], how: str) -> None:
        for word in words:
            assigned = assignment(word)
            name = word.plain if assigned is None else assigned[0]
            if how not in ("export", "readonly") and self.locals:
                self.locals[-1].setdefault(name, self.values.get(name))
            if assigned is not None:
                self._assign(*assigned, word)
            if how == "export":
                self.exported[name] = word.line

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
        if made[0] not in _HARMLESS:
            body = joined(simple.body, self.values, self.budget) if simple.body else ""
            command = Command(tuple(made), rest[0].line, env, self.directory, body, self.doubt)
            (self.doubtful if self.doubt else self.commands).append(command)
        if made[0] == "exec" and made[1:]:
            raise _Stop("exit")
        return None if self.testing or made[0] in _ASKING else True

    def _effects(self, made: Sequence[str], simple: Statement) -> None:
        """What a command changes for those after it."""
        line = simple.words[0].line
        if made[0] in ("cd", "pushd") and len(made) == 2:
            present = self.values.get("PWD")
            leads = join(present, made[1]) if isinstance(present, str) else made[1]
            self.directory = normpath(leads) if is_known(leads) else leads
            self.values["PWD"] = self.directory if is_known(leads) and isinstance(present, str) else unknown("$PWD")
        elif made[0] == "shift" and isinstance(arguments := self.values.get("@"), list):
            self.set_arguments(arguments[int(made[1]) if made[1:] and made[1].isdecimal() else 1 :])
        elif made[:2] == ["set", "--"]:
            self.set_arguments(made[2:])
        elif made[0] == "read" and "-d" in made and simple.body is not None:
            self.values[made[-1]] = joined(simple.body, self.values, self.budget).strip()
        elif made[0] in _READING:
            for word in simple.words[1:]:
                if word.plain.isidentifier():
                    self._forget(word.plain, f"line {line}: `{made[0]}` sets it")
        self._rewritten(made, f"line {line}: `{made[0]}` changes it")
        if made[0] == "tee" and simple.body is not None:
            for name in made[1:]:
                self.files[name] = joined(simple.body, self.values, self.budget)
                self.changed.pop(name, None)
        if simple.target is not None and simple.body is None:
            plain = made[0] == "echo" and not any(word.startswith("-") for word in made[1:2])
            self._write(simple.target, " ".join(made[1:]) + "\n" if plain else None, simple.appends)

    def _assign(self, name: str, append: str, value: Word, whole: Word) -> None:
        known, before, held = self.values.get(name), self.budget.left, self.held.pop(name, 0)
        if whole.items is not None:
            items = [text for item in whole.items for text in expand(item, self.values, self.budget)]
            elements = [re.match(r"\[([^]]+)\]=", text) for text in items]
            if items and all(elements):
                pairs = zip(elements, items, strict=True)
                self.values.update({f"{name}[{one[1]}]": text[one.end() :] for one, text in pairs if one})
                return
            if append and isinstance(known, list):
                self.values[name] = [*known, *items]
                self.held[name] = held + before - self.budget.left
                return
            self.values[name] = [known, *items] if append and isinstance(known, str) and known else items
            size = sum(map(len, self.values[name])) + len(self.values[name])
        else:
            text = joined(value, self.values, self.budget)
            self.values[name] = self.budget.spend(known + text if append and isinstance(known, str) else text)
            size = len(self.values[name]) + 1
        # What was there before, and what passed on the way, is kept no longer.
        self.held[name] = size
        self.budget.left = before + held - size


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
