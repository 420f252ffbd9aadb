"""The campaigns of `examples/`, which are installed with meshtune."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from meshtune.tuner.studies.shipped import shipped

FOLDER = "examples"
SPEC, SUFFIX = "campaign.yaml", ".yaml"
# What stands beside a spec: a script that trains, or the launch script that it was imported from.
BESIDE = (SPEC, "train.py", "launch.sh")
_SENTENCE = re.compile(r".*?[.?](?= |$)")


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
