"""What the options of a launcher come to in trials, which start their ranks by themselves: each is read, kept, named as
left out with the reason, or asked about."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath

from meshtune.runners.programs.dialects.base import Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written

_READ = "read"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))  # noqa: TID251 - our own file
_REASONS = _TABLE.pop("reasons")
_CONSOLE = _TABLE.pop("console")
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
            parts = [(part, part.partition("$")[2]) for part in f"{console['start']}{next_word}".split()]
            start = [part.replace(f"${name}", given.get(name, "")) for part, name in parts if not name or name in given]
            if "alone" in console and not any(name in given for _, name in parts):
                start = f"{console['alone']}{next_word}".split()
            return [*words[:at], *start, *words[at + 2 :]]
        if "before" in console and next_word in console["first"].split() and console["before"] in words[at + 3 :]:
            program = words.index(console["before"], at + 3) - 1
            module = f"{console['module']}{words[program]}"
            return [*words[:at], console["start"], *words[at + 2 : program], "-m", module, *words[program + 1 :]]
    return words


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
