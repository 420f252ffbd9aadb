"""The parts of the kit within their time, and the record of each, which the next run goes on from. Standard library
only, Python 3.10 and later."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Of a part that does not end by itself: the share of its time that is kept for ending it.
MARGIN, MAX_MARGIN_S = 0.15, 15.0

DONE, PARTIAL, FAILED, SKIPPED, NOT_RUN = "done", "partial", "failed", "skipped", "not run"


@dataclass(frozen=True)
class Part:
    """weight: its share of the time, relative to the parts that are still to run. least_s: less is not worth a start.
    tuner: it runs the tuner, which needs Python 3.11. needs: a part before it whose result it reads."""

    name: str
    what: str
    weight: float
    least_s: float
    tuner: bool = False
    needs: str = ""


@dataclass
class Record:
    """What became of a part. status: DONE; PARTIAL (cut by the time limit; what it has is in the result, and the next
    run goes on); FAILED; SKIPPED (it cannot run here); NOT_RUN (no time was left). seconds: of all runs together."""

    status: str
    reason: str = ""
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)


class Records:
    """The records in a file, which is replaced after every part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_part: dict[str, Record] = {}
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            self.by_part = {name: Record(**record) for name, record in known.items()}

    def keep(self, part: Part, record: Record) -> None:
        before = self.by_part.get(part.name)
        if before is not None:
            record.seconds += before.seconds
            record.result = record.result or before.result
        self.by_part[part.name] = record
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        document = {name: asdict(each) for name, each in self.by_part.items()}
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draft.replace(self._path)


def still_to_run(parts: Sequence[Part], records: Records) -> list[Part]:
    """In their order; what failed comes last, so that it does not cost the others their time again, unless they need
    it."""
    known = {part.name: records.by_part.get(part.name, Record(NOT_RUN)).status for part in parts}
    needed = {part.needs for part in parts}
    last = [part for part in parts if known[part.name] == FAILED and part.name not in needed]
    return [part for part in parts if known[part.name] != DONE and part not in last] + last


def run_parts(
    parts: Sequence[Part],
    records: Records,
    seconds: float,
    clock: Callable[[], float],
    execute: Callable[[Part, float], Record],
) -> None:
    """Run what is not done, each part for its share of the time that is left: what one does not use is the others', and
    at the end once more those that were cut. execute: takes a part and its seconds, and keeps to them."""
    end = clock() + seconds
    _run_once(still_to_run(parts, records), records, end, clock, execute)
    cut = [part for part in parts if records.by_part[part.name].status in (PARTIAL, NOT_RUN)]
    _run_once(cut, records, end, clock, execute)


def _run_once(
    parts: Sequence[Part],
    records: Records,
    end: float,
    clock: Callable[[], float],
    execute: Callable[[Part, float], Record],
) -> None:
    for index, part in enumerate(parts):
        remaining_s = end - clock()
        weight = part.weight / sum(each.weight for each in parts[index:])
        share_s = max(part.least_s, remaining_s * weight)
        before = records.by_part.get(part.name, Record(NOT_RUN))
        if part.needs and records.by_part[part.needs].status != DONE:
            told = f"it needs the part {part.needs}"
        elif share_s > remaining_s:
            told = f"{max(0.0, remaining_s):.0f} s left, and it takes at least {part.least_s:.0f} s"
        else:
            begun = clock()
            record = execute(part, share_s)
            record.seconds = clock() - begun
            records.keep(part, record)
            continue
        if before.status == NOT_RUN:
            records.keep(part, Record(NOT_RUN, told))


def working_s(share_s: float) -> float:
    """The seconds that a part is told, of those that it gets."""
    return share_s - min(MAX_MARGIN_S, MARGIN * share_s)
