"""Writes files that only their owner may read, at no moment anybody else."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600, in place of what is there. Raises OSError."""
    path.unlink(missing_ok=True)
    # O_EXCL: not through a link that somebody else put there meanwhile.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
