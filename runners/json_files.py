"""Dataclasses as JSON files of our own (job, result, probe ...), read and written with the standard library alone.

Jobs read and write these files in their site's own environment, which need not have Pydantic. What users write (specs,
options) is read by `runners.documents`, with the same words for what is wrong."""

from __future__ import annotations

import json
import os
import re
import secrets
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from meshtune.runners.base import JobSpec
from meshtune.runners.job_files import MAX_DOCUMENT_BYTES, opened_folder, read_document
from meshtune.runners.untrusted_text import Limits, read_json
from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean

Value = TypeVar("Value")

# Of a file in a job's folder.
JOB_LIMITS = Limits(max_bytes=MAX_DOCUMENT_BYTES, max_values=1_000_000)

# The JSON values that a plain type takes, and its name in messages. A whole float is an integer, as in JSON itself.
_PLAIN: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "boolean"),
    int: ((int,), "integer"),
    float: ((int, float), "number"),
    str: ((str,), "string"),
    Path: ((str,), "string"),
}
# What JSON can say, and neither UTF-8 nor a database can hold.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def read_json_value(kind: type[Value], document: object) -> Value:
    """The value of a dataclass that parsed JSON describes. Raises InvalidValue with the problems found.

    An unknown key is a problem where the dataclass is closed (see `checks.Closed`), and is ignored elsewhere."""
    value: Value = _read(kind, document, "")
    return value


def read_json_file(kind: type[Value], path: Path, most_bytes: int = MAX_DOCUMENT_BYTES) -> Value:
    """Raises OSError when there is none, ValueError when it is none of ours."""
    return read_json_value(kind, read_json(read_document(path, most_bytes), JOB_LIMITS, unique_keys=False))


def render_versioned(value: Any, version: int) -> str:
    """The text of a file that holds one dataclass; `read_versioned` gives it back."""
    return json.dumps({"version": version, **asdict(value)}, indent=1) + "\n"


def read_versioned(kind: type[Value], text: str, version: int) -> Value:
    """The value in such a file's text. Raises ValueError, whose message names the field."""
    document = read_json(text, JOB_LIMITS, unique_keys=False)
    if not isinstance(document, dict) or document.pop("version", None) != version:
        raise ValueError(f"must be an object with version {version}")
    return read_json_value(kind, document)


def _read(kind: Any, value: Any, path: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):  # of a type and None, or of plain types, of which the value's own is meant
        if value is None and type(None) in inner:
            return None
        arms = [arm for arm in inner if arm is not type(None)]
        return _read(next((arm for arm in arms if arm is type(value)), arms[-1]), value, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _wrong(path, "must be array", value)
        return tuple(_read(inner[0], item, f"{path}.{index}") for index, item in enumerate(value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {
            _read(str, key, path): _read(inner[1], item, f"{path}.{key}") for key, item in _object(value, path).items()
        }
    if is_dataclass(kind):
        return _read_dataclass(kind, _object(value, path), path)
    if issubclass(kind, Enum):
        known = [member.value for member in kind]
        if value not in known:
            *others, last = map(repr, known)
            raise _wrong(path, f"must be {', '.join(others)} or {last}", value)
        return kind(value)
    accepted, name = _PLAIN[kind]
    whole = kind is int and isinstance(value, float) and value.is_integer()
    if not whole and (not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool)):
        raise _wrong(path, f"must be {name}", value)
    if kind is str and _UNSTORABLE.search(value):
        raise _wrong(path, "must be text without NUL and halves of surrogate pairs", value)
    try:
        plain = kind(value)
        if kind is int and abs(plain) >= 1 << 63:
            raise OverflowError
        return plain
    except OverflowError:
        raise _wrong(path, "must be a finite number, an integer of 64 bits", value) from None


def _read_dataclass(kind: Any, document: Mapping[str, Any], path: str) -> Any:
    values, problems = {}, list[Problem]()
    known = {field.name: field for field in fields(kind)}
    for name, field in known.items():
        at = f"{path}.{name}" if path else name
        try:
            if name in document:
                values[name] = _read(_type_hints(kind)[name], document[name], at)
            elif field.default is MISSING and field.default_factory is MISSING:
                problems.append(Problem(at, "is missing"))
        except InvalidValue as error:
            problems += error.problems
    if getattr(kind, "__pydantic_config__", {}).get("extra") == "forbid":
        for key in filter(lambda key: key not in known, document):
            hint = did_you_mean(key, list(known))
            problems.append(Problem(f"{path}.{key}" if path else key, f"is not a known key; {hint}"))
    if problems:
        raise InvalidValue(problems)
    try:
        return kind(**values)
    except InvalidValue as error:
        raise InvalidValue([problem.under(path) for problem in error.problems]) from None
    except ValueError as error:
        raise InvalidValue([Problem(path, str(error))]) from None


_type_hints = cache(get_type_hints)


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(path, "must be a mapping of keys", value)
    return value


def shown(value: object) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(path: str, message: str, value: object) -> InvalidValue:
    return InvalidValue([Problem(path, f"{message}, not {shown(value)}")])


def encode_job(spec: JobSpec) -> dict[str, Any]:
    """Everything but the files, which are in the job's directory by then."""
    return {**asdict(spec), "directory": str(spec.directory), "files": {}, "env": dict(spec.env)}


def write_new(folder: Path, name: str, text: str, mode: int = 0o644) -> bool:
    """Write a file, whole at once and on the disk, unless there is one: of all that try, on any machine, one does; no
    link is followed out of the folder. Raises OSError."""
    draft = f".{name}.{secrets.token_hex(8)}"
    with opened_folder(folder) as place:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=place)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, name, src_dir_fd=place, dst_dir_fd=place)
        except FileExistsError:
            return False
        finally:
            os.unlink(draft, dir_fd=place)
    return True


def write_whole(path: Path, text: str, *, synced: bool = False) -> None:
    """Write a file by rename, so that a reader sees all of it or what was there before. synced: on the disk before it
    has its name. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_files(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each of the texts whole, by its name in the directory; return their paths. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(directory / name, text)
    return [directory / name for name in texts]
