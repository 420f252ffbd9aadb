"""What the commands of a script leave behind: variables, files and the folder, and the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import join, normpath

from meshtune.runners.programs.capture.stand_in import NAMES
from meshtune.runners.programs.dialects.bash.arithmetic import calculated
from meshtune.runners.programs.dialects.bash.commands import Statement, assignment
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
from meshtune.runners.programs.dialects.bash.lexer import Piece, Word


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


@dataclass(slots=True)
class Script:
    """commands: in order. doubtful: those that may run, each with its `doubt`. export_lines: of the variables that are
    exported. files: here-documents by the name of the file that they are written to. changed: files that other commands
    write, why each is not known. unknown: the variables that something which is not followed sets, and what. causes:
    the variables that decide those; cause: those of what was read last. notes: what was not followed, with its line.
    held: what variables hold of the budget, by name. locals: those of each function that is being read."""

    budget: Budget
    values: Values = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    doubtful: list[Command] = field(default_factory=list)
    export_lines: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    causes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cause: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    directory: str = ""
    held: dict[str, int] = field(default_factory=dict)
    locals: list[dict[str, str | list[str] | None]] = field(default_factory=list)

    @property
    def exported(self) -> dict[str, tuple[str, int]]:
        """By name, the value (see `expansion.is_known`) and its line."""
        found = ((name, self.values.get(name), line) for name, line in self.export_lines.items())
        return {name: (value, line) for name, value, line in found if isinstance(value, str)}

    def set_arguments(self, arguments: Sequence[str] | None) -> None:
        """None: not known."""
        for name in [name for name in self.values if not name[0].isalpha() and name[0] not in "_0"]:
            del self.values[name]
        if arguments is not None:
            numbered = {str(number): word for number, word in enumerate(arguments, 1)}
            self.values.update({"@": list(arguments), "*": " ".join(arguments), "#": str(len(arguments)), **numbered})

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
                self.export_lines[name] = word.line

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
        elif made[0] in NAMES["reading"]:
            for word in simple.words[1:]:
                if word.plain.isidentifier():
                    self._forget(word.plain, f"line {line}: `{made[0]}` sets it")
        # The configurations that a command such as `sed -i` changes.
        if set(made).intersection(NAMES["writing"]):
            written = made[-1:] if made[0] == "cp" else made
            changed = [name for name in written if name.endswith(NAMES["configurations"])]
            self.changed |= dict.fromkeys(changed, f"line {line}: `{made[0]}` changes it")
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
