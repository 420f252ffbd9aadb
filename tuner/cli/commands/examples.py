"""The campaigns of `examples/`, which are installed with meshtune: listed, and written where a user can change them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.cli.common import Refused, console
from meshtune.tuner.cli.render.tables import new_table
from meshtune.tuner.studies.shipped import shipped

FOLDER = "examples"
SPEC, SUFFIX = "campaign.yaml", ".yaml"
# What stands beside a spec: a script that trains, or the launch script that it was imported from.
BESIDE = (SPEC, "train.py", "launch.sh")
_SENTENCE = re.compile(r".*?[.?](?= |$)")


def show() -> None:
    """Print every example with the first sentence of its spec."""
    table = new_table("", "example", "what it is")
    for name, found in sorted(known().items()):
        table.add_row(name, first_sentence(next(text for file, text in found.items() if file.endswith(SUFFIX))))
    console.print(table)
    console.print("write one: meshtune examples NAME; studies of published work: meshtune study list")


def write(name: str, folder: Path) -> None:
    """Write the example's files below `folder`. Raises Refused, before anything is written, where one is there."""
    name, every = name.removesuffix(SUFFIX), {**known(), **known_studies()}
    if name not in every:
        raise Refused(f"there is no example {name!r}; {did_you_mean(name, every)}")
    texts = {folder / FOLDER / file: text for file, text in every[name].items()}
    for file in texts:
        if file.exists():
            raise Refused(f"{file} is there already; write the example elsewhere with -o DIR, or remove it first")
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        console.print(f"wrote {file}", soft_wrap=True)
    spec = next(file for file in texts if file.suffix == SUFFIX).relative_to(folder)
    place = "" if folder == Path() else f"cd {folder}; "
    command = f"study run {FOLDER}/{name}" if name in known_studies() else f"spaces {spec}"
    console.print(f"next: {place}meshtune {command}", soft_wrap=True)


def known() -> Mapping[str, Mapping[str, str]]:
    """The texts of every example by their paths below `examples/`."""
    found: dict[str, dict[str, str]] = {}
    for entry in files("meshtune.examples").iterdir():
        if entry.name.endswith(SUFFIX):
            found[entry.name.removesuffix(SUFFIX)] = {entry.name: _text(entry)}
        elif entry.is_dir() and (entry / SPEC).is_file():
            found[entry.name] = {
                f"{entry.name}/{file}": _text(entry / file) for file in BESIDE if (entry / file).is_file()
            }
    return found


def known_studies() -> Mapping[str, Mapping[str, str]]:
    """The texts of every study by their paths below `examples/`."""
    return {
        f"studies/{name}": {
            f"studies/{name}/{file.name}": _text(file) for file in folder.iterdir() if file.name.endswith(SUFFIX)
        }
        for name, folder in shipped().items()
    }


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def first_sentence(spec: str) -> str:
    """Of the comment that a spec begins with."""
    lines = []
    for line in spec.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    words = " ".join(lines)
    found = _SENTENCE.match(words)
    return found[0] if found else words
