"""A job as plain JSON values, which `json_files.read_json_value` reads again. Standard library only."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec


def encode_job(spec: JobSpec) -> dict[str, Any]:
    """Everything but the files, which are in the job's directory by then."""
    return {**asdict(spec), "directory": str(spec.directory), "files": {}, "env": dict(spec.env)}


def write_whole(path: Path, text: str) -> None:
    """Write a file by rename, so that a reader sees all of it or what was there before. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
