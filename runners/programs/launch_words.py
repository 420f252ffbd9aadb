"""The words of a start by the options that they name: what a trial or another plan changes in them, for people, and in
the text of a launcher."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

from meshtune.runners.programs.capture.stand_in import LAUNCH_MODULES, NAMES
from meshtune.runners.programs.dialects.base import Launch
from meshtune.search_spaces.checks import UserError

# The words of each option by its name; None: it is taken out; no words: the name alone.
Changes = Mapping[str, tuple[str, ...] | None]
_OPTION = re.compile(r"--?[A-Za-z]")
# `key=value`, with hydra's marks.
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w.@/-]*=")
_SCRIPTS = (".py", *NAMES["scripts"])
# One word as a shell's text has it, and what stands between two.
_PLAIN = r"""[^\s'"\\();&|<>`]+"""
_RAW = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\$\{[^}]*\}|\\[^\n]|[^\s'"\\();&|<>`])+"""
_GAP = r"(?:\s|\\\n)+"
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")


class CannotApply(UserError, ValueError):
    """No edit of the text gives a start these words; the message has the words to change by hand."""


def groups(words: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each option's name and its words: `--a b c` up to the next one or a script, `--a=b`, `key=value`; for any other
    word, and for a choice of words in a workload's command, ""."""
    group: list[str] = []
    for word in words:
        takes = isinstance(word, str) and bool(group) and "=" not in group[0] and not word.endswith(_SCRIPTS)
        names = bool(_OPTION.match(str(word)) or (_KEY.match(str(word)) and not (takes and len(group) == 1)))
        if takes and not names:
            group.append(word)
            continue
        if group:
            yield _name(group[0]), tuple(group)
        group = [word] if names else []
        if not names:
            yield "", (word,)
    if group:
        yield _name(group[0]), tuple(group)


def at_program(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words of the launcher, and those from the script or the module on; without one all are the program's."""
    modules = {at for at, pair in enumerate(pairwise(words)) if pair[0] == "-m" and pair[1] not in LAUNCH_MODULES}
    at = next((at for at, word in enumerate(words) if word.endswith(_SCRIPTS) or at in modules), 0)
    return words[:at], words[at:]


def shell_words(line: str) -> list[str] | None:
    """The words of a shell's line as they are written; None where more than words stands in it."""
    return None if re.sub(_RAW, "", line).strip() else [match[0] for match in re.finditer(_RAW, line)]


def laid_over(words: Sequence[Any], changes: Changes) -> list[Any]:
    """The words, with the changes in place of the options' own words, hydra's marks kept, or at the end."""
    kept, left = list[str](), dict(changes)
    for name, group in groups(words):
        if name not in changes:
            kept += group
        elif (values := left.pop(name, None)) is not None:
            kept += _written(group[0].partition("=")[0], values, joined="=" in group[0])
    return [*kept, *(word for name, values in left.items() if values is not None for word in _written(name, values))]


def differences(old: Sequence[str], new: Sequence[str]) -> Changes:
    """What makes the options of `new` of those of `old`. Of an option that stands twice the last counts; "" has the
    words that belong to none, all of them. An added one has hydra's marks."""
    before, after = _values(old), _values(new)
    marked = {name: group[0].partition("=")[0] for name, group in groups(new) if name not in before}
    changed = {marked.get(name, name): values for name, values in after.items() if before.get(name) != values}
    return {**dict.fromkeys(name for name in before if name not in after), **changed}


def changed_words(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, bool]]:
    """The new words, each with whether it is changed or added."""
    marked = list[tuple[str, bool]]()
    for kind, _, _, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        marked += [(word, kind != "equal") for word in new[first:last]]
    return marked


def changed_options(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """What `differences` finds, for people: `--mbs 2 -> 4`, `without --checkpoint`."""
    before = _values(old)
    return [
        f"without {name}"
        if values is None
        else " ".join([name, *([*before[name], "->"] if name in before else []), *values])
        for name, values in differences(old, new).items()
    ]


def applied(text: str, old: Sequence[str], new: Sequence[str], reread: Callable[[str], Sequence[Launch]]) -> str:
    """A launcher's text in which the start of the words `old` has those of `new`, in any order of the options.

    Each edit is read again: every other word, start and variable stays. reread: all starts of a text. Raises
    CannotApply, CannotRead."""
    starts, changes = reread(text), differences(old, new)
    mine = [at for at, start in enumerate(starts) if list(start.words) == list(old)]
    if len(mine) != 1:
        raise CannotApply(f"{len(mine) or 'no'} starts of the file have the words `{shlex.join(old)}`")
    for name, values in changes.items():
        start = starts[mine[0]]
        words = tuple(laid_over(start.words, {name: values}))
        wanted = [*starts[: mine[0]], replace(start, words=words), *starts[mine[0] + 1 :]]
        for candidate, variable in _edits(text, start, name, values):
            found = reread(candidate)
            if _read(found, variable) == _read(wanted, variable):
                text, starts = candidate, found
                break
        else:
            told = "take it out" if values is None else f"write `{shlex.join(_written(name, values))}`"
            raise CannotApply(
                f"{name or 'a word without a name'}: no edit of one place changes it alone; {told} by hand"
            )
    return text


def _read(starts: Sequence[Launch], variable: str) -> list[Any]:
    """What an edit of one option leaves as it is. variable: whose value is changed."""
    said = {"place": "", "notes": (), "questions": (), "head": "", "words": ()}
    return [
        (_values(start.words), replace(start, env={**start.env, variable: ""}, **said))  # type: ignore[arg-type]
        for start in starts
    ]


def _edits(text: str, start: Launch, name: str, values: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    """Texts with one edit that may change the option so, each with the variable that it sets."""
    old = _values(start.words).get(name)
    if old is None:
        words = shlex.join(_written(name, values or ()))
        for other, _ in reversed(list(groups(start.words))):
            for match in _places(text, re.escape(other) + r"(?=[\s='\"]|$)") if other else ():
                yield f"{text[: match.start()]}{words} {text[match.start() :]}", ""
        for match in _places(text, re.escape(start.script)):
            yield f"{text[: match.end()]} {words}{text[match.end() :]}", ""
        return
    # Amid a text in quotes the next one ends the word.
    for raw in (_PLAIN, _RAW) if old else ("",):
        pattern = re.escape(name) + (
            f"(=|{_GAP})({raw}{f'{_GAP}{raw}' * (len(old) - 1)})" if old else r"()()(?![\w=-])"
        )
        if values is None:
            # Of a line that goes on, of one of an array, or amid a line.
            for before, behind in ((r"[ \t]*\\\n[ \t]*", ""), (r"\n[ \t]*", r"(?=[ \t]*\n)"), (r"[ \t]*", "")):
                for match in _places(text, before + r"(?<![\w.-])" + pattern + behind):
                    yield text[: match.start()] + text[match.end() :], ""
            continue
        for match in _places(text, r"(?<![\w.-])" + pattern):
            changed = [pair for pair in zip(old, values, strict=False) if pair[0] != pair[1]]
            if len(old) == len(values) and len(changed) == 1:
                for variable in _VARIABLE.findall(match[2]):
                    for edited in _assigned(text, variable, *changed[0], depth=3):
                        # What the program finds under another name stays.
                        yield edited, variable
            between = " " if match[1] == "=" and len(values) != 1 else match[1] or " "
            written = between.join(filter(None, (name, shlex.join(values))))
            yield f"{text[: match.start()]}{written}{text[match.end() :]}", ""


def _assigned(text: str, variable: str, old: str, new: str, depth: int) -> Iterator[str]:
    """Texts with another value where the variable gets its value or its default, or one of those that it is made of."""
    for match in _places(text, rf"(?<![\w$]){variable}=({_RAW})|\$\{{{variable}:?[-=]([^}}]*)\}}"):
        at = match.start(match.lastindex or 0)
        for value in re.finditer(rf"(?<![\w.$])(?<!\w-){re.escape(old)}(?![\w.-])", match[match.lastindex or 0]):
            yield f"{text[: at + value.start()]}{shlex.quote(new)}{text[at + value.end() :]}"
        for other in _VARIABLE.findall(match[0]) if depth else ():
            yield from _assigned(text, other, old, new, depth - 1)


def _places(text: str, pattern: str) -> Iterator[re.Match[str]]:
    """Where it stands, but for lines of comments."""
    for match in re.finditer(pattern, text):
        line = text[text.rfind("\n", 0, match.start(match.lastindex or 0)) + 1 :].lstrip()
        if not line.startswith("#"):
            yield match


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("+")


def _values(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {"": ()}
    for name, group in groups(words):
        own = group if not name else (group[0].partition("=")[2],) if "=" in group[0] else group[1:]
        found[name] = own if name else (*found[""], *own)
    return found


def _written(name: str, values: Sequence[str], joined: bool = False) -> list[str]:
    """The words of an option; of a key without dashes they are one. joined: by `=`, as long as there is one value."""
    if name and values and (not name.startswith("-") or (joined and len(values) == 1)):
        return [f"{name}={values[0]}", *values[1:]]
    return [*([name] if name else []), *values]
