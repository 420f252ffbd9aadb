"""Tables of measured training runs: one row is one setting of one model on one cluster, and what became of it.

A table is a CSV file with the columns of `Row`, in any order. An empty value means that it was not stated, and is None
here. The reader checks the form alone; what a row means is the business of `reported`.

    TableError(ValueError)      the file, the line and the column at fault; reading the same file again fails again
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite, nan
from pathlib import Path
from typing import Any, get_type_hints


class TableError(ValueError):
    """A file that is no table, or a table that cannot be used as asked."""


class Status(StrEnum):
    """What became of a run. FAIL: out of memory, a crash or a time-out; the source does not say which."""

    OK = "ok"
    OOM = "oom"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured setting, as the table states it. file, line: where it stands.

    params_b: billions of weights. heads, kv_heads, ffn, vocab, experts, topk: shapes. gpu_mem_gb: size of a device.
    sp: 1 where the sequence is split over tp. zero_group: ranks that ZeRO shards over; few tables have the column.
    step_time_s: seconds per optimizer step. mem_gb: at the fullest moment.
    """

    file: str
    line: int
    model: str
    params_b: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    seq_len: int | None
    experts: int | None
    topk: int | None
    hardware: str
    nodes: int | None
    gpus: int
    gpus_per_node: int | None
    gpu_mem_gb: float | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    sp: int | None
    zero_stage: int | None
    micro_batch: int | None
    grad_accum: int | None
    global_batch: int | None
    act_ckpt: str | None
    precision: str | None
    status: Status
    step_time_s: float | None
    tokens_per_s: float | None
    tflops_per_gpu: float | None
    mfu: float | None
    mem_gb: float | None
    zero_group: int | None = None

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, slots=True)
class CellKey:
    """What the settings of one cell have in common: a search may choose among them."""

    model: str
    devices: int
    seq_len: int | None
    global_batch: int | None


_TYPES: Mapping[str, Any] = get_type_hints(Row)
COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Row) if field.name not in ("file", "line"))
# Columns that a table may lack.
FURTHER = ("zero_group",)
# Whole numbers that count what may be absent, and figures that sources round down to nothing.
MAY_BE_ZERO = ("experts", "topk", "sp", "zero_stage", "tokens_per_s", "tflops_per_gpu", "mfu")


def read_table(path: Path) -> tuple[Row, ...]:
    """Every row of the file, in its order. Raises TableError; OSError where the file cannot be read."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        for name in COLUMNS:
            if header.count(name) != 1 and (name not in FURTHER or name in header):
                problem = "is missing" if name not in header else "stands there twice"
                raise TableError(f"{path.name}, line 1: column {name} {problem}")
        read = [_row(path.name, lines.line_num, header, values) for values in lines if values]
    if not read:
        raise TableError(f"{path.name}: no rows")
    return tuple(read)


def cell_of(row: Row) -> CellKey:
    return CellKey(row.model, row.gpus, row.seq_len, row.global_batch)


def cells(rows: Sequence[Row]) -> dict[CellKey, tuple[Row, ...]]:
    """The rows by cell, cells and rows in the order of the table."""
    keys = dict.fromkeys(cell_of(row) for row in rows)
    return {key: tuple(row for row in rows if cell_of(row) == key) for key in keys}


def _row(file: str, line: int, header: Sequence[str], values: Sequence[str]) -> Row:
    if len(values) != len(header):
        raise TableError(f"{file}, line {line}: {len(values)} values for {len(header)} columns")
    stated = dict(zip(header, values, strict=True))
    read: dict[str, Any] = {}
    for name in COLUMNS:
        try:
            read[name] = _value(name, stated.get(name, "").strip())
        except ValueError as problem:
            raise TableError(f"{file}, line {line}, column {name}: {problem}") from None
    return Row(file=file, line=line, **read)


def _value(name: str, text: str) -> object:
    kind = _TYPES[name]
    if text == "":
        if kind in (str, int, Status):
            raise ValueError("must be stated")
        return None
    if kind is Status:
        if text not in list(Status):
            raise ValueError(f"must be one of {', '.join(Status)}, not {text!r}")
        return Status(text)
    if kind in (int, int | None):
        return _whole(text, 0 if name in MAY_BE_ZERO else 1)
    if kind == (float | None):
        return _number(text, name in MAY_BE_ZERO)
    return text


def _whole(text: str, minimum: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < minimum:
        raise ValueError(f"must be a whole number, at least {minimum}, not {text!r}")
    return int(text)


def _number(text: str, may_be_zero: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        raise ValueError(f"must be a {'number, at least 0' if may_be_zero else 'positive number'}, not {text!r}")
    return value
