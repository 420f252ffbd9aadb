"""Makes a campaign spec of a launch script that people have: its plan becomes the baseline. Starts nothing.

What the script does not say is left empty and told; the text is YAML, with every note as a comment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from meshtune.runners.documents import plain, read_value
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Question
from meshtune.runners.programs.dialects.programs import is_file
from meshtune.runners.programs.dialects.sources import read_source
from meshtune.runners.registry import WORKLOADS
from meshtune.runners.untrusted_text import READABLE, UnreadableText, read_json
from meshtune.runners.yaml_blocks import BlockDumper
from meshtune.search_spaces.checks import Checks, Closed, Count, InvalidValue, Problem, did_you_mean, raising
from meshtune.search_spaces.plan import PLAN_FIELDS
from meshtune.search_spaces.presets import cluster_presets
from meshtune.search_spaces.space import Bounds

# Follow from the cluster and the global batch; see tuner.specs.read.
_DERIVED = ("dp", "grad_accum_steps")
# Programs that may be told no shapes (Workload.told_shapes).
WITHOUT_MODEL = ("command", "deepspeed")
_REQUIRED_SHAPES = ("layers", "hidden", "heads", "ffn", "vocab", "seq_len")
_WIDTH = 110
# Characters of a note.
_MAX_NOTE = 500
_MAX_NOTES = 100
# In what is answered to others, the folder of the script that they sent.
FOLDER = "/launch-folder"
_MAX_FILES = 100
_FILE = re.compile(r"\w[\w.+ -]*(/\w[\w.+ -]*){0,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentScript(Closed):
    """What POST /v1/imports is told. script: a launch script, a command line, or a configuration or log of a program.
    name: of its file; the spec is named after it. files: texts of those that the script reads, by its names for them.
    cluster: a preset. set: variables that the script finds. start: which of several, from 1; 0: the only one. Raises
    InvalidValue."""

    script: str
    name: str = "launch"
    files: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    set: Mapping[str, str] = field(default_factory=dict)
    start: Count = 0

    def _check(self, checks: Checks) -> None:
        checks.require(bool(self.script.strip()), "script", "is empty: paste what starts the training")
        told = f"no cluster preset is called {self.cluster!r}; {did_you_mean(self.cluster, cluster_presets())}"
        checks.require(self.cluster in ("", *cluster_presets()), "cluster", told)
        plain = all(map(_FILE.fullmatch, self.files)) and len(self.files) <= _MAX_FILES and self.name not in self.files
        checks.require(plain, "files", f"must be at most {_MAX_FILES}, named as in its own folder: configs/ds.json")
        checks.require(bool(_FILE.fullmatch(self.name)) and "/" not in self.name, "name", "is no name of a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSpec:
    """spec: in YAML, with the questions as `open_questions`, which people delete. program: what its jobs run, in words.
    missing: paths that a spec needs and that nobody said. notes: what to look at."""

    spec: str
    program: str
    questions: tuple[Question, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def import_spec(imported: Imported, *, name: str, origin: str, cluster: str, here: Path) -> ImportedSpec:
    """origin: what it was imported from; else as `spec_document`."""
    document, notes = spec_document(imported, name=name, cluster=cluster, here=here), import_notes(imported, cluster)
    return ImportedSpec(
        spec=render_spec(document, origin, notes),
        program=WORKLOADS[document["workload"]["kind"]].words,
        questions=imported.questions[:_MAX_NOTES],
        missing=tuple(missing(document)),
        notes=tuple(notes),
    )


def import_sent(sent: SentScript, folder: str) -> ImportedSpec:
    """Of a script that somebody else sent, for which no file of this machine is read but those in `folder`, an empty
    one, and no variable of it. Alone in its process. Raises InvalidValue."""
    variables = dict(os.environ)
    os.environ.clear()
    token = READABLE.set(folder)
    # A text without a file's name may be a configuration all the same.
    end = next((end for end in ("", ".yaml", ".toml") if is_file(f"{sent.name}{end}", sent.script)), "")
    script = Path(folder, f"{sent.name}{end}")
    try:
        with chdir(folder), raising(CannotRead, "", UnreadableText, OSError):
            for name, text in {**sent.files, script.name: sent.script}.items():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text, encoding="utf-8", errors="replace")
            imported = read_source(script, given=sent.set, number=sent.start)
            given = {key: imported.workload.get(key) for key in ("directory", "working_directory")}
            folders = [f"workload.{key}" for key, at in given.items() if at and Path(folder, at).is_relative_to(folder)]
            if folders or folder in str(imported):
                told = f"{FOLDER} stands for the folder that the script is started in: write its path there"
                question = Question("".join(folders), told, guessed=bool(folders))
                imported = replace(imported, questions=(question, *imported.questions))
            made = import_spec(imported, name=script.stem, origin=script.name, cluster=sent.cluster, here=Path(FOLDER))
            return read_value(ImportedSpec, read_json(json.dumps(plain(made)).replace(folder, FOLDER)))
    except CannotRead as error:
        raise InvalidValue([Problem("script", str(error).replace(folder, FOLDER))]) from None
    finally:
        READABLE.reset(token)
        os.environ.update(variables)


def spec_document(imported: Imported, *, name: str, cluster: str, here: Path) -> dict[str, Any]:
    """The spec that an import amounts to, keys in the order of docs/reference/spec.md; None where something is missing.

    cluster: a preset's name, "" for none. here: the folder that a relative folder of the script counts from.
    """
    shapes = {shape: imported.model.get(shape) for shape in _REQUIRED_SHAPES}
    workload = dict(imported.workload)
    for folder in workload.keys() & {"directory", "working_directory"}:
        workload[folder] = str(here / workload[folder])
    baseline = {field: value for field, value in imported.plan.items() if field not in _DERIVED}
    questions = {"open_questions": [str(question) for question in imported.questions[:_MAX_NOTES]]}
    asked = any(question.path.startswith("model.") for question in imported.questions)
    with_model = imported.model or asked or workload.get("kind") not in WITHOUT_MODEL
    document: dict[str, Any] = {
        "name": name,
        **(questions if imported.questions else {}),
        **({"model": {**shapes, **imported.model}} if with_model else {}),
        **({"training": dict(imported.training)} if imported.training else {}),
        "cluster": {"preset": cluster, "nodes": imported.nodes} if cluster and imported.nodes else cluster or None,
        "global_batch_size": imported.global_batch_size,
        "space": {**_space(baseline), **imported.space},
        "workload": workload,
        **({"runner": dict(imported.runner)} if imported.runner else {}),
        "baseline": {field: baseline[field] for field in PLAN_FIELDS if field in baseline},
        "budget": {"trials": 20},
        **({"trial": dict(imported.trial)} if imported.trial else {}),
    }
    for question in imported.questions:
        if not question.guessed:
            _leave_empty(document, question.path)
    return document


def _leave_empty(document: dict[str, Any], path: str) -> None:
    """The key of a question's path stands there without a value."""
    *sections, key = path.split(".")
    inner = document
    for section in sections:
        below = inner.get(section, {})
        if not isinstance(below, dict):
            return
        inner[section] = inner = dict(below)
    if sections:
        inner[key] = None


def missing(document: Mapping[str, Any]) -> list[str]:
    """What people must fill in before the spec is one."""
    shapes = [f"model.{shape}" for shape, value in document.get("model", {}).items() if value is None]
    return [*shapes, *(key for key in ("cluster", "global_batch_size") if document[key] is None)]


def import_notes(imported: Imported, cluster: str) -> list[str]:
    """What people should look at, what the cluster's preset says otherwise among it."""
    notes = list(imported.notes[:_MAX_NOTES])
    if len(imported.notes) > _MAX_NOTES:
        notes.append(f"and {len(imported.notes) - _MAX_NOTES} more notes of this kind")
    if not cluster and (imported.nodes or imported.devices_per_node):
        nodes, per_node = (number or "an unknown number of" for number in (imported.nodes, imported.devices_per_node))
        notes.append(f"the script starts on {nodes} nodes with {per_node} devices each: name such a cluster")
    if cluster and imported.devices_per_node not in (None, cluster_presets()[cluster]["devices_per_node"]):
        has = cluster_presets()[cluster]["devices_per_node"]
        notes.append(f"the script starts {imported.devices_per_node} ranks per node, but {cluster} has {has} devices")
    return notes


def render_spec(document: Mapping[str, Any], source: str, notes: Sequence[str]) -> str:
    """The spec's text, with what is missing and the notes at its head."""
    gaps = [f"fill in: {', '.join(missing(document))}"] if missing(document) else []
    head = [f"Imported from {source}. `meshtune spaces` checks it and shows what would be tried.", *gaps]
    # textwrap is quadratic in the length of a word.
    short = [note if len(note) <= _MAX_NOTE else f"{note[:_MAX_NOTE]} ..." for note in notes]
    lines = [line for note in short for line in wrap(note, _WIDTH - 4, initial_indent="- ", subsequent_indent="  ")]
    comments = "".join(f"# {line}\n" for line in [*head, *lines])
    # No line is folded, so that each argument stands in one.
    text = yaml.dump(
        dict(document), Dumper=BlockDumper, sort_keys=False, default_flow_style=False, width=inf, allow_unicode=True
    )
    return comments + re.sub(r": null$", ":", text, flags=re.MULTILINE)


def _space(baseline: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Bounds that hold the baseline: the defaults, and its value of each dimension that is not tried by itself."""
    defaults = {bound.name: getattr(Bounds(), bound.name) for bound in fields(Bounds)}
    bounds = {}
    for name, value in baseline.items():
        tried = defaults.get(name)
        if isinstance(tried, tuple) and value is not None and value not in tried:
            bounds[name] = [*(str(one) if isinstance(one, str) else one for one in tried), value]
    return bounds
