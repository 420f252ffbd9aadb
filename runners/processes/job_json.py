"""A job and its status as plain JSON values, for another process or a later one. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobState, JobStatus, Start
from meshtune.runners.failure_cause import Cause


def encode_job(spec: JobSpec) -> dict[str, Any]:
    """Everything but the files, which are in the job's directory by the time that somebody starts it."""
    return {**asdict(spec), "directory": str(spec.directory), "files": {}, "env": dict(spec.env)}


def decode_job(document: Mapping[str, Any]) -> JobSpec:
    """`encode_job` undone. Raises KeyError, TypeError or ValueError for what it never wrote."""
    return JobSpec(
        **{
            **document,
            "command": tuple(document["command"]),
            "directory": Path(document["directory"]),
            "start": Start(document["start"]),
            "avoid": tuple(document["avoid"]),
        }
    )


def decode_status(document: Mapping[str, Any]) -> JobStatus:
    """The status of which these are the fields. Raises ValueError for what is none."""
    try:
        cause = document["cause"]
        return JobStatus(
            **{
                **document,
                "state": JobState(document["state"]),
                "nodes": tuple(document["nodes"]),
                "failed_nodes": tuple(document["failed_nodes"]),
                "cause": None if cause is None else Cause(cause),
            }
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a job's status: {error!r}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file by rename, so that a reader sees all of it or what was there before. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
