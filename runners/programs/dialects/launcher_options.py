"""What the options of a launcher come to in trials, which start their ranks by themselves: each is read, kept, named as
left out with the reason, or asked about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import PurePath
from typing import Any

from meshtune.runners.programs.capture.stand_in import AROUND, TABLE
from meshtune.runners.programs.dialects.base import Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.untrusted_text import option_value

_READ = ("read", "sets")
_WHOLE = re.compile(r"[1-9][0-9]{0,8}")
_REASONS, _CONSOLE, _COUNTS = TABLE["reasons"], TABLE["console"], TABLE["counts"]
# Why trials leave out what binds ranks to cores.
BINDING = _REASONS["binding"]
SUBMITTERS, HEADS = TABLE["submitters"], TABLE["heads"]
CONSOLES = frozenset(_CONSOLE)
# By launcher, of each option that it names the row.
_ROWS = {
    tool: {name: row for row, names in rows.items() for name in names.split()}
    for tool, rows in TABLE["options"].items()
}
OF_SBATCH, OF_SRUN, OF_ACCELERATE = (frozenset(_ROWS[tool]) for tool in ("sbatch", "srun", "accelerate"))


def spelled_out(words: Sequence[str], variables: Mapping[str, str]) -> Sequence[str]:
    """The command, a console script replaced by the start that it stands for: `trl sft` by that of trl.scripts.sft.
    variables: that it finds."""
    for at, (word, next_word) in enumerate(pairwise(words)):
        console = _CONSOLE.get(PurePath(word).name, {"of": ""})
        known = {"*", next_word} & {*console["of"].split()} if "of" in console else next_word.isidentifier()
        if known and (not at or not words[at - 1].startswith("-")):
            given = {**variables, **dict(each.split("=", 1) for each in words[:at] if "=" in each)}
            if "alone" in console and not any(f"${name}" in console["start"] for name in given):
                console = {**console, "start": console["alone"]}
            launcher, rest = _own_launcher(console, words[at + 2 :])
            if (option := console.get("before")) in rest[1:]:
                end = rest.index(option) - 1
                if not {"-m", "--module"}.intersection(rest[:end]):
                    rest = [*rest[:end], "-m", f"{console['module']}{rest[end]}", *rest[end + 1 :]]
            parts = [part.partition("$") for part in f"{launcher} {console['start']}".split()]
            # Of `NAME` or `NAME:default`; None where it is not set.
            names = [variable.partition(":") for _, _, variable in parts]
            values = [given.get(name, default if has or not name else None) for name, has, default in names]
            start = [f"{text}{value}" for (text, _, _), value in zip(parts, values, strict=True) if value is not None]
            return [*words[:at], *(part.replace("*", next_word) for part in start), *rest]
    return words


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
        # `-n2` holds its number.
        yield re.sub(r"^([A-Za-z])[0-9]+$", r"\1", name), tuple(words[at:end])


def tell(remarks: Remarks, tool: str, options: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Name what trials start without: in a note with the reason, in a question where it may change what is measured.
    options: as `options_of` has them; of a tool that the table does not have, nothing is told."""
    told: dict[str, list[str]] = defaultdict(list)
    for name, words in options if tool in _ROWS else ():
        told[_ROWS[tool].get(name, "")].append(as_written(" ".join(words)))
    for text in told.pop("", ()):
        remarks.ask("", f"{tool} has `{text}`, and trials start without it")
    for row, texts in told.items():
        if row not in _READ:
            remarks.note(f"{tool} has {', '.join(texts)}, left out: {_REASONS[row]}")


def binding_of(words: Sequence[str]) -> list[str]:
    """What of mpirun's words says where ranks run, or how they meet, with all that the table does not have."""
    of_binding = ("", "binding")
    return [
        word for name, option in options_of(words) if _ROWS["mpirun"].get(name, "") in of_binding for word in option
    ]


def exported(tool: str, words: Sequence[str]) -> dict[str, str]:
    """The variables that a launcher's words set: mpirun's `-x NAME=VALUE`, `-genv NAME VALUE`."""
    found = {}
    for name, (_, *values) in options_of(words):
        if _ROWS.get(tool, {}).get(name) == "sets" and values:
            variable, joined, value = values[0].partition("=")
            if joined or len(values) > 1:
                found[variable] = value if joined else values[1]
    return found


@dataclass(frozen=True, slots=True)
class Counts:
    """nodes, ranks of each node, ranks in all; None where no word says it. unknown: what says one of the first two by
    no number that is known."""

    nodes: int | None = None
    each: int | None = None
    ranks: int | None = None
    unknown: tuple[str, ...] = ()

    def settled(self) -> Counts:
        """With the number of nodes, or of ranks of a node, that follows from the others."""
        nodes, each, ranks = self.nodes, self.each, self.ranks
        if ranks and not each and nodes and ranks % nodes == 0:
            each = ranks // nodes
        if ranks and each and not nodes and ranks % each == 0:
            nodes = ranks // each
        return Counts(nodes, each, ranks, self.unknown)


def around_of(tool: str) -> str:
    """The table's name of a launcher that starts another program's ranks: of mpiexec and the like mpirun; "" of any
    other word."""
    return tool if tool in AROUND and tool in _COUNTS else "mpirun" if tool in AROUND else ""


def counts_of(tool: str, words: Sequence[str]) -> Counts:
    """What the words of a launcher say of the processes that it starts."""
    found, unknown = dict[str, int](), list[str]()
    rows = _COUNTS.get(tool, {})
    for name in ("nodes", "each", "ranks"):
        for text in rows.get(name, ()):
            values = [(options.split(), option_value(words, *options.split())) for options in text.split(" * ")]
            if values[0][1] is None or name in found:
                continue
            numbers = [1 if value is None else whole(value) for _, value in values]
            if None not in numbers:
                found[name] = prod(number or 1 for number in numbers)
            # All devices of a node, by the words of torchrun; all ranks of a job, as far as anybody knows.
            elif values[0][1] not in ("gpu", "auto") and name != "ranks":
                texts = [f"{options[0]} {as_written(value)}" for options, value in values if value and not whole(value)]
                unknown += [f"{tool} has `{text}`, whose number is not known here" for text in texts]
    # mpirun(1) of Open MPI 5, --map-by.
    if mapped := re.search(r"(?:^| )-?-map-by[ =]ppr:(\d+):node\b", " ".join(words)):
        found.setdefault("each", int(mapped[1]))
    if any(word in rows.get("alone", "").split() for word in words):
        found.setdefault("each", 1)
    return Counts(**found, unknown=tuple(unknown))


def open_words(words: Sequence[str]) -> list[str]:
    """The unknown words among a launcher's that may stand for further options: none is an option's value."""
    return [
        as_written(word)
        for before, word in pairwise(["", *words])
        if not is_known(word) and not word.startswith("-") and (not before.startswith("-") or "=" in before)
    ]


def whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None
