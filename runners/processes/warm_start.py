"""Modules that a process imports once and then forks every job from, which spares each job the import."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache

from meshtune.runners.processes.gang import Entry

# What `python -m KEY` runs is `main` of the module named beside it.
WARM_MODULES: Mapping[str, str] = {"meshtune.runners.trainer": "meshtune.runners.trainer.main"}


def warm_entry(command: Sequence[str]) -> Entry | None:
    """What to run in a fork of this process instead of starting an interpreter; None where that is not possible."""
    if len(command) < 3 or command[0] != sys.executable or command[1] != "-m" or command[2] not in WARM_MODULES:
        return None
    return _import(WARM_MODULES[command[2]])


@cache
def _import(module: str) -> Entry | None:
    """None when it cannot be imported: its jobs then start cold and say why."""
    try:
        entry: Entry = importlib.import_module(module).main
    except Exception:
        traceback.print_exc()
        return None
    return entry
