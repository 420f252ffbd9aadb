"""The studies that come with meshtune, as folders of `examples/studies/`: they are installed with it, as data."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

STUDY_FILE = "study.yaml"


def shipped() -> Mapping[str, Traversable]:
    """The folders of the studies that come with meshtune, by name."""
    root = files("meshtune.examples") / "studies"
    found = {entry.name: entry for entry in root.iterdir() if (entry / STUDY_FILE).is_file()} if root.is_dir() else {}
    return dict(sorted(found.items()))
