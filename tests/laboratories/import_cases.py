"""One case of the corpus of imports: `meshtune import` runs in a copy of its folder, and is held against expectations.

A case is a folder with the files of a user, written for this test in the manner of public ones, and `expected.yaml`:

    about:    what it is, and of which program and version the facts are
    family:   the kind of file, for the table
    source:   the arguments of `meshtune import`
    baseline, model:   values that a careful engineer reads off the files, by key; see below
    global_batch_size, nodes, devices_per_node, dtype, workload (its kind):   likewise
    training: what is trained, the whole section
    runner:   options of the scheduler, by key
    questions:  what must be asked: a key of the spec, or a part of the question's text
    may_ask:  parts of further questions that are in order
    mentions: parts of what the terminal or the spec must say (a note is enough)
    absent:   texts that no value of the spec may have in it, as trials have it
    refused:  parts of the refusal; the case is not importable
    may_refuse: likewise, where a spec and a refusal are both in order

A list stands for any of its members, among values null for "left open". Keys that are not named are not looked at. An
axis of the plan that the spec leaves out has its default there, and is judged by it: that is what a campaign would run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from command_lab import Result, run_meshtune

from meshtune.runners.programs.launch_words import laid_over, shell_words
from meshtune.runners.programs.table import lines
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml
from meshtune.tuner.specs.read import read_spec

CASES = Path(__file__).parents[1] / "import_corpus" / "cases"
_KEYS = {
    *("about", "family", "source", "baseline", "model", "global_batch_size", "nodes", "devices_per_node", "dtype"),
    *("workload", "training", "runner", "questions", "may_ask", "mentions", "absent", "refused", "may_refuse"),
}
# What a refusal tells people to do next: a command of ours, an option of one, or the workload that takes any program.
_NEXT = re.compile(
    r"meshtune [a-z]+|(?<!\w)--(capture|set|start|command|pid|format|cluster)\b|kind: command"
    r"|docs/[\w/-]+\.md|import that"
)
_DEVICES = re.compile(r"starts on (\d+) nodes? with (\d+|an unknown number of) devices")
# A question that says where its answer goes.
# Number format of the workloads where the spec names none; see docs/how-to.
_DEFAULT_DTYPE = "bfloat16"
# Of a model whose spec leaves them out; see docs/reference/spec.md.
_MODEL_DEFAULTS = {"norm": "rmsnorm", "activation": "swiglu", "position": "rope", "tied_head": False, "experts": 0}
_ABSENT = object()


class Verdict(StrEnum):
    FULL = "full"  # every expected value is there, and nothing is open that the files determine
    ASKED = "asked"  # what the files leave open is asked, and nothing is wrong
    REFUSED = "refused"  # not importable, and said so with the next step
    SHORT = "short"  # nothing wrong, but more is open, refused or untold than need be
    VAGUE = "vague"  # a refusal that does not help
    WRONG = "SILENTLY WRONG"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    folder: Path
    expected: Mapping[str, Any]

    @property
    def wanted(self) -> Verdict:
        """The best verdict that the case can have."""
        if "refused" in self.expected:
            return Verdict.REFUSED
        return Verdict.ASKED if self.expected.keys() & {"questions", "may_refuse"} else Verdict.FULL


@dataclass(frozen=True, slots=True)
class Judged:
    """What an import came to. faults: what was not as expected, in words."""

    case: Case
    verdict: Verdict
    faults: tuple[str, ...]
    result: Result

    @property
    def as_expected(self) -> bool:
        return self.verdict in (Verdict.FULL, Verdict.ASKED, Verdict.REFUSED)

    @property
    def document(self) -> Mapping[str, Any] | None:
        """The spec that was printed, if one was."""
        return parse_yaml(self.result.out) if self.result.code == 0 else None


@dataclass(frozen=True, slots=True)
class _Spec:
    """A printed spec. comments: its notes, as one line."""

    document: Mapping[str, Any]
    comments: str

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(self.document.get("open_questions") or ())

    def asked(self, part: str) -> bool:
        return any(part.casefold() in question.casefold() for question in self.questions)

    def value(self, path: str) -> Any:
        """The value by its path; None: it is open; _ABSENT: nothing is written, and nothing holds by itself."""
        if any(question.startswith(f"{path}:") for question in self.questions):
            return None
        section, _, key = path.partition(".")
        if path in ("nodes", "devices_per_node"):
            return self._of_cluster(path)
        if path == "workload.dtype":
            return self._section("workload").get("dtype", _DEFAULT_DTYPE)
        if not key:
            return self.document.get(path, _ABSENT)
        missing = getattr(Plan(), key, _ABSENT) if section == "baseline" else _ABSENT
        value = self._section(section).get(key, missing)
        if path == "model.kv_heads" and value is _ABSENT:
            return self.value("model.heads")
        return _MODEL_DEFAULTS.get(key, value) if section == "model" and value is _ABSENT else value

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self.document.get(name)
        return section if isinstance(section, Mapping) else {}

    def _of_cluster(self, key: str) -> Any:
        if key in self._section("cluster"):
            return self._section("cluster")[key]
        told = _DEVICES.search(self.comments)
        if not told:
            return _ABSENT
        number = told[1 if key == "nodes" else 2]
        return int(number) if number.isdecimal() else None


def cases(root: Path = CASES) -> list[Case]:
    """All cases below a folder, by name."""
    found = []
    for path in sorted(root.glob("*/expected.yaml")):
        expected = yaml.safe_load(path.read_text())
        assert not expected.keys() - _KEYS, f"{path}: {expected.keys() - _KEYS} mean nothing"
        assert {"about", "family", "source"} <= expected.keys(), path
        found.append(Case(path.parent.name, path.parent, expected))
    return found


def judge(case: Case, folder: Path) -> Judged:
    """Import the case in a copy of it below `folder`."""
    copy = folder / case.name
    shutil.copytree(case.folder, copy, ignore=shutil.ignore_patterns("expected.yaml"))
    try:
        result = run_meshtune(copy, "import", *case.expected["source"])
    except Exception as error:  # a traceback is a fault of one case
        return Judged(case, Verdict.SHORT, (f"ended with {type(error).__name__}: {error}",), Result(1, "", ""))
    verdict, faults = _refusal(case, result) if result.code else _import(case, result)
    return Judged(case, verdict, tuple(faults), result)


def _refusal(case: Case, result: Result) -> tuple[Verdict, list[str]]:
    said = result.err.strip()
    parts = case.expected.get("refused", case.expected.get("may_refuse"))
    faults = [f"the refusal does not say {part!r}" for part in _unsaid(parts or (), said)]
    if not _NEXT.search(said):
        faults.append("the refusal names no next step")
    if parts is None:
        faults.insert(0, "refused, though it can be imported")
    if faults:
        return Verdict.VAGUE if parts is not None else Verdict.SHORT, [*faults, f"it says: {said}"]
    return case.wanted, []


def _import(case: Case, result: Result) -> tuple[Verdict, list[str]]:
    try:
        document = parse_yaml(result.out)
    except ValueError as error:
        return Verdict.SHORT, [f"prints no spec: {error}"]
    comments = " ".join(line.lstrip("# ") for line in result.out.splitlines() if line.startswith("#"))
    spec = _Spec(document, comments)
    if "refused" in case.expected:
        return Verdict.WRONG, [f"imported as {document.get('workload')}, though it must be refused"]
    wrong, short = [], []
    for path, wanted in _values(case.expected):
        allowed = wanted if isinstance(wanted, list) else [wanted]
        value = spec.value(path)
        if value is _ABSENT and None not in allowed:
            short.append(f"{path} is not told; it is {wanted}")
        elif value is None and None not in allowed:
            short.append(f"{path} is left open; it is {wanted}")
        elif value is not _ABSENT and value not in allowed:
            wrong.append(f"{path} is {value}; it must be {'left open' if wanted is None else wanted}")
    for wanted in case.expected.get("questions", ()):
        parts = wanted if isinstance(wanted, list) else [wanted]
        if not any(spec.asked(part) or spec.value(part) is None for part in parts):
            wrong.append(f"nothing is asked about {' or '.join(parts)}")
    started = _of_trials(document)
    said = f"{result.out} {comments} {result.err} {' '.join(_texts(started))}"
    wrong += [f"nothing is said of {part!r}" for part in _unsaid(case.expected.get("mentions", ()), said)]
    texts = list(_texts({key: value for key, value in started.items() if key != "open_questions"}))
    wrong += [
        f"{part!r} stands in the spec: {text}"
        for part in case.expected.get("absent", ())
        for text in texts
        if part in text
    ]
    known = [part for wanted in case.expected.get("questions", ()) for part in _listed(wanted)]
    known += case.expected.get("may_ask", ())
    for question in spec.questions:
        # A question with a key that the case names is judged as that key's value; others are the importer's to ask.
        has_key = re.match(
            r"(baseline|model|workload|runner|trial|cluster)\.\w+:|global_batch_size:|cluster:", question
        )
        if not has_key and not any(part.casefold() in question.casefold() for part in known):
            short.append(f"asks, though the files say it: {question}")
    if not (wrong or short or spec.questions):
        short += _mistakes(spec)
    if wrong:
        return Verdict.WRONG, [*wrong, *short]
    return (Verdict.SHORT, short) if short else (case.wanted, [])


def _of_trials(document: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the words and keys of trials in place of the user's own."""
    workload = dict(document.get("workload") or {})
    if alone := workload.pop("trial_arguments", None):
        changes = {**dict.fromkeys(alone), **dict(lines(alone))}
        command = workload["command"]
        if isinstance(command, str):
            before, end, last = command.rpartition("\n")
            words = shell_words(last)
            assert words is not None
            workload["command"] = f"{before}{end}{' '.join(laid_over(words, changes))}"
        else:
            workload["command"] = laid_over(command, changes)
    configs = {}
    for name, config in (workload.get("configs") or {}).items():
        trial = config.get("trial", {})
        base = config.get("base")
        if isinstance(base, Mapping):
            base = {key: value for key, value in base.items() if trial.get(key, value) is not None}
        configs[name] = {**config, "base": base, "set": {**config.get("set", {}), **trial}}
    return {**document, "workload": {**workload, **({"configs": configs} if configs else {})}}


def _mistakes(spec: _Spec) -> list[str]:
    """What `meshtune run` would say once people have filled in the cluster and the vocabulary."""
    nodes, devices = spec.value("nodes"), spec.value("devices_per_node")
    model = spec.document.get("model") or {}
    shapes = {"vocab": 51200} | {key: value for key, value in model.items() if value is not None}
    if not (isinstance(nodes, int) and isinstance(devices, int)) or len(shapes) < len(model):
        return []
    cluster = {"preset": "dgx-h100", "nodes": nodes, "devices_per_node": devices}
    try:
        read_spec({**spec.document, **({"model": shapes} if model else {}), "cluster": cluster}, None)
    except InvalidSpec as error:
        return [f"the spec has mistakes with {nodes} nodes of {devices} devices: {error}"]
    return []


def _values(expected: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Paths in the spec, and what must stand there."""
    for section in ("baseline", "model", "runner"):
        yield from ((f"{section}.{key}", value) for key, value in expected.get(section, {}).items())
    for key in ("global_batch_size", "nodes", "devices_per_node"):
        if key in expected:
            yield key, expected[key]
    for key, path in (("dtype", "workload.dtype"), ("workload", "workload.kind")):
        if key in expected:
            yield path, expected[key]


def _unsaid(parts: Any, said: str) -> list[Any]:
    folded = " ".join(said.split()).casefold()
    return [part for part in parts if not any(one.casefold() in folded for one in _listed(part))]


def _listed(one_or_more: Any) -> list[str]:
    return one_or_more if isinstance(one_or_more, list) else [one_or_more]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value
