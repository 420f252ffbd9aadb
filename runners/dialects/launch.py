"""A start of a training program, wherever it was read: from a script's text, a captured call, a live process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.runners.dialects.base import Question

# Who is who is the launcher's word; the others are ours to set for each plan.
NOT_KEPT = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES"),
    }
)
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """script: the program. words: its arguments, see `expansion.is_known`. place: where it was read, for notes.
    directory: where it starts, "" unknown. files: texts by the name that the words have for them. launcher: the words
    before the program, of the one that starts the processes: `accelerate launch --config_file x.yaml`; empty where it
    is not known. questions: what the source itself leaves open, beside what a dialect asks."""

    script: str
    words: tuple[str, ...]
    place: str
    nodes: int | None
    devices_per_node: int | None
    directory: str
    setup: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    notes: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()
