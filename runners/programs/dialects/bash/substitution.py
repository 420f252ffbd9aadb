"""What `$(...)` prints, of tools whose output follows from their words alone; nothing is run."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from posixpath import basename, dirname, join, normpath

from meshtune.runners.programs.dialects.bash.arithmetic import calculated
from meshtune.runners.programs.dialects.bash.commands import statements
from meshtune.runners.programs.dialects.bash.lexer import NotBash, Word

# Numbers of a `seq`, and characters of a text.
_MAX_NUMBERS = 1_000
_MAX_TEXT = 20_000
_CLASSES = {"[:upper:]": string.ascii_uppercase, "[:lower:]": string.ascii_lowercase, "\\n": "\n", "[:space:]": " \t\n"}
_PLAIN_SED = re.compile(r"s([/|#,])([\w./ :=-]*)\1([\w./ :=-]*)\1(g?)")
_FIELD = re.compile(r"\{ *print \$(\d|NF) *;? *\}")


class _Unknown(Exception):
    """The output does not follow from the words."""


def printed(text: str, words_of: Callable[[Word], list[str] | None], present: str | None) -> str | None:
    """The output of the commands without the line's end; None where it is not known. words_of: of a word, None where
    that is not known. present: the folder that they are run in."""
    outputs, folder = list[str](), present
    try:
        for one in statements(text):
            if one.kind or one.joiner == "&":
                return None
            if one.joiner == "||":
                continue
            made = [words_of(word) for word in (*one.words, *([one.body] if one.body else []))]
            if any(each is None for each in made):
                return None
            words = [text for each in made[: len(one.words)] for text in each or ()]
            given = "".join(made[-1] or ()) + "\n" if one.body else outputs.pop() if one.joiner == "|" else None
            if words[0] == "cd":
                folder = None if folder is None and not words[-1].startswith("/") else join(folder or "", words[-1])
            else:
                outputs.append(_output(words, given, folder))
            if sum(map(len, outputs)) > _MAX_TEXT:
                return None
    except (NotBash, _Unknown, ValueError, IndexError, KeyError):
        return None
    return None if text.lstrip().startswith("<") else "".join(outputs).rstrip("\n")


def _output(words: list[str], given: str | None, folder: str | None) -> str:
    """What one tool prints for what it is given, None where that is a file's. Raises _Unknown and what its words raise
    where they are not plain."""
    tool, options = words[0], [word for word in words[1:] if word.startswith("-") and len(word) > 1]
    operands = [word for word in words[1:] if word not in options]
    if tool == "echo" and words[1:2] not in (["-e"], ["-ne"], ["-en"]):
        return " ".join(words[2:] if words[1:2] == ["-n"] else words[1:]) + "\n"
    if tool == "printf" and (shape := re.fullmatch(r"([^%\\]*)(%s|%d|%0?\d{1,3}d)?([^%\\]*)(\\n)?", words[1])):
        value = "" if not shape[2] else f"{int(words[2]):{shape[2][1:]}}" if shape[2] != "%s" else words[2]
        return f"{shape[1]}{value}{shape[3]}\n"
    if tool in ("basename", "dirname") and not options:
        name = operands[0].rstrip("/")
        last = basename(name)
        return (
            last.removesuffix(operands[1] if operands[1:] else "") if tool == "basename" else dirname(name) or "."
        ) + "\n"
    if tool in ("pwd", "realpath", "readlink") and folder is not None:
        return normpath(join(folder, *operands[:1])) + "\n"
    if tool == "expr":
        return _known(calculated(" ".join(operands), {})) + "\n"
    if tool == "seq" and not options:
        first, step, last_ = (*([1] if len(operands) == 1 else [int(operands[0])]), 1, int(operands[-1]))
        step = int(operands[1]) if len(operands) == 3 else step
        numbers = range(first, last_ + (1 if step > 0 else -1), step)
        if len(numbers) <= _MAX_NUMBERS:
            return "".join(f"{number}\n" for number in numbers)
    if given is None:
        raise _Unknown
    lines = given.splitlines()
    if tool == "cat" and not words[1:]:
        return given
    if tool == "bc":
        return _known(calculated(given, {})) + "\n"
    if tool == "wc" and not operands and options[0] in ("-l", "-w", "-c"):
        return {"-l": str(len(lines)), "-w": str(len(given.split())), "-c": str(len(given))}[options[0]] + "\n"
    if tool in ("head", "tail"):
        count = int(re.sub(r"\D", "", "".join(words[1:])) or 10)
        return "".join(f"{line}\n" for line in (lines[:count] if tool == "head" else lines[-count:]))
    if tool == "tr" and options in ([], ["-d"]):
        old, new = (_CLASSES.get(text, text) for text in (*operands, "")[:2])
        if not re.search(r"[\[\\-].", old + new) and (options or len(old) == len(new)):
            return given.translate({ord(char): None if options else new[at] for at, char in enumerate(old)})
    if tool == "sed" and (rule := _PLAIN_SED.fullmatch(words[-1])) and "." not in rule[2]:
        return "".join(f"{line.replace(rule[2], rule[3], -1 if rule[4] else 1)}\n" for line in lines)
    if tool in ("cut", "awk"):
        return "".join(f"{_field(tool, words[1:], line)}\n" for line in lines)
    raise _Unknown


def _known(total: int | None) -> str:
    if total is None:
        raise _Unknown
    return str(total)


def _field(tool: str, words: list[str], line: str) -> str:
    """The fields of a line that cut or awk print."""
    text, said = " ".join(words), dict[str, str]()
    for option, value in re.findall(r"(?:^|(?<=\s))-([dfcF]) ?(\S+|\s)", text):
        said[option] = value
    if tool == "awk":
        found = _FIELD.fullmatch(words[-1])
        if found is None:
            raise _Unknown
        parts = line.split(said.get("F"))
        return parts[-1] if found[1] == "NF" else line if found[1] == "0" else "".join(parts[int(found[1]) - 1 :][:1])
    mark = "" if "c" in said else said.get("d", "\t")
    first, joined, last = said["c" if "c" in said else "f"].partition("-")
    parts = line.split(mark) if mark else list(line)
    if len(parts) == 1 and mark:
        return line
    return mark.join(parts[int(first or 1) - 1 : int(last or len(parts)) if joined else int(first)])
