"""What the options of a launcher come to in trials, which start their ranks by themselves: each is read, kept, named as
left out with the reason, or asked about."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from meshtune.runners.programs.dialects.base import Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written

_READ = "read"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))  # noqa: TID251 - our own file
_REASONS = _TABLE.pop("reasons")
_CONSOLE = _TABLE.pop("console")
CONSOLES = frozenset(_CONSOLE)
# By launcher, of each option that it names the row.
_ROWS = {tool: {name: row for row, names in rows.items() for name in names.split()} for tool, rows in _TABLE.items()}
OF_SBATCH, OF_SRUN, OF_ACCELERATE = (frozenset(_ROWS[tool]) for tool in ("sbatch", "srun", "accelerate"))


def spelled_out(words: Sequence[str], variables: Mapping[str, str]) -> Sequence[str]:
    """The command, a console script replaced by the start that it stands for: `trl sft` by that of trl.scripts.sft.
    variables: that it finds."""
    for at, (word, next_word) in enumerate(pairwise(words)):
        console = _CONSOLE.get(PurePath(word).name, {"of": ""})
        known = next_word in console["of"].split() if "of" in console else next_word.isidentifier()
        if known and (not at or not words[at - 1].startswith("-")):
            given = {**variables, **dict(each.split("=", 1) for each in words[:at] if "=" in each)}
            if "alone" in console and not any(f"${name}" in console["start"] for name in given):
                console = {**console, "start": console["alone"]}
            launcher, rest = _own_launcher(console, words[at + 2 :])
            if (option := console.get("before")) in rest[1:]:
                end = rest.index(option) - 1
                rest = [*rest[:end], "-m", f"{console['module']}{rest[end]}", *rest[end + 1 :]]
            parts = [part.partition("$") for part in f"{launcher} {console['start']}".split()]
            values = [_value(variable, given) for _, _, variable in parts]
            start = [f"{text}{value}" for (text, _, _), value in zip(parts, values, strict=True) if value is not None]
            return [*words[:at], *(part.replace("*", next_word) for part in start), *rest]
    return words


def _value(variable: str, given: Mapping[str, str]) -> str | None:
    """Of `NAME` or `NAME:default`; None where it is not set."""
    name, has_default, default = variable.partition(":")
    return given.get(name, default if has_default or not name else None)


def _own_launcher(console: Mapping[str, Any], words: Sequence[str]) -> tuple[str, list[str]]:
    """The launcher that a script's own words name, with its words among them, and the rest."""
    launchers: Mapping[str, str] = console.get("launchers", {})
    if not launchers:
        return "", list(words)
    end = words.index("--") if "--" in words else len(words)
    inner, own, chosen = list(words[end + 1 :]), list[str](), next(iter(launchers))
    rest = iter(words[:end])
    for word in rest:
        name, joined, value = word.partition("=")
        if name not in console["passed"].split():
            own.append(word)
            continue
        value = value if joined else next(rest, "")
        if name == "--launcher":
            chosen = value
        else:
            inner += [f"--{name[2:].replace('-', '_')}", value]
    return " ".join((launchers.get(chosen, chosen), *inner)), own


def options_of(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option's name, as the table has it, and its words: `--name=value`, or all up to the next option."""
    starts = [at for at, word in enumerate(words) if word.startswith("-") and " " not in word]
    for at, end in zip(starts, [*starts[1:], len(words)], strict=False):
        name = words[at].partition("=")[0].lstrip("-").replace("_", "-")
        yield name, tuple(words[at:end])


def tell(remarks: Remarks, tool: str, options: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Name what trials start without: in a note with the reason, in a question where it may change what is measured.
    options: as `options_of` has them; of a tool that the table does not have, nothing is told."""
    told: dict[str, list[str]] = defaultdict(list)
    for name, words in options if tool in _ROWS else ():
        told[_ROWS[tool].get(name, "")].append(as_written(" ".join(words)))
    for text in told.pop("", ()):
        remarks.ask("", f"{tool} has `{text}`, and trials start without it")
    for row, texts in told.items():
        if row != _READ:
            remarks.note(f"{tool} has {', '.join(texts)}, left out: {_REASONS[row]}")


def binding_of(words: Sequence[str]) -> list[str]:
    """What of mpirun's words says where ranks run, or how they meet: all that the table does not have."""
    return [word for name, option in options_of(words) if name not in _ROWS["mpirun"] for word in option]


def exported(words: Sequence[str]) -> dict[str, str]:
    """The variables that mpirun's words set: `-x NAME=VALUE`, `-genv NAME VALUE`."""
    found = {}
    for name, (_, *values) in options_of(words):
        if name in ("x", "env", "genv") and values:
            variable, joined, value = values[0].partition("=")
            if joined or len(values) > 1:
                found[variable] = value if joined else values[1]
    return found
