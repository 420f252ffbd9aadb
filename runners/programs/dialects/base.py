"""The seam to other programs' own words: a Plan written as their arguments or files, and read back from them.

A dialect module has `render(model, plan, cluster, extra) -> Files` and, where its program's scripts can be read,
`parse(text) -> Imported`, which gives the plan of one of render's texts back."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshtune.runners.untrusted_text import SLOW_LIMITS, read_file, read_words
from meshtune.search_spaces.checks import Checks, Closed, Count, InvalidValue, Problem, UserError, Whole, names_in
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import Capabilities, SpaceContext, Violation, columns_of
from meshtune.search_spaces.constraints import CONSTRAINTS
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

# Texts by file name.
Files = Mapping[str, str]


class CannotExpress(UserError, ValueError):
    """The program has no words for this plan; `problems` says which parts, each with what it could do instead."""

    def __init__(self, program: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{program} cannot run this plan: " + "; ".join(map(str, problems)))


class CannotRead(ValueError):
    """A launch script or configuration that is not understood; the message names the line or key."""


@dataclass(frozen=True, slots=True)
class Question:
    """What was not understood and changes what is trained or measured. path: the key of the spec where the answer goes,
    which is left empty there; "" where the user has only to look. text: what was read, and what to answer. guessed: the
    spec has a likely value there, which the user has to confirm."""

    path: str
    text: str
    guessed: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@dataclass(slots=True, kw_only=True)
class Remarks:
    """What a reader asks and notes as it goes. place: of what it reads, which each text begins with."""

    place: str = ""
    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ask(self, path: str, text: str) -> None:
        """path: the key of the spec where the answer goes; "" where there is only something to look at."""
        question = Question(path, self._placed(text))
        if question not in self.questions:
            self.questions.append(question)

    def note(self, text: str) -> None:
        self.notes.append(self._placed(text))

    def _placed(self, text: str) -> str:
        return f"{self.place}: {text}" if self.place else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a launch script or configuration says, as parts of a campaign spec; what it does not say is left out.

    model, training, plan: fields of ModelSpec, Recipe and Plan. workload, runner, trial: the spec's sections, the
    user's other arguments in the first. space: the values that the program takes, where they are fewer or others than
    what is tried by default. questions: no value is written that was not read. notes: what was read and leaves nothing
    open, such as a setting that predictions do not know. catalogs: of knobs that the program has; given: what the
    launch says, by the names that it has for them."""

    workload: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    global_batch_size: int | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    runner: Mapping[str, Any] = field(default_factory=dict)
    trial: Mapping[str, Any] = field(default_factory=dict)
    catalogs: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()
    notes: tuple[str, ...] = ()


# Who is who is the launcher's word; the others are ours to set for each plan.
NOT_KEPT = names_in("""
    RANK WORLD_SIZE LOCAL_RANK NODE_RANK NNODES NPROC_PER_NODE MASTER_ADDR MASTER_PORT CUDA_DEVICE_MAX_CONNECTIONS
    CUDA_VISIBLE_DEVICES
""")
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """script: the program. words: its arguments, see `expansion.is_known`. place: where it was read, for notes. ranks:
    in all, as the launcher says them. directory: where it starts, "" unknown. files: texts by the name that the words
    have for them. launcher: the words before the program, of the one that starts the processes: `accelerate launch
    --config_file x.yaml`; empty where it is not known. under: what stands around it, as `call.Call` has it. head: the
    batch script that it is in, where that is not the source itself. questions: what the source itself leaves open,
    beside what a dialect asks."""

    script: str
    words: tuple[str, ...]
    place: str
    nodes: int | None = None
    devices_per_node: int | None = None
    ranks: int | None = None
    directory: str = ""
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    under: tuple[tuple[str, tuple[str, ...]], ...] = ()
    head: str = ""
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions(Closed):
    """What a spec says of a run of any other program. directory: where it is started, for relative paths; empty: the
    trial's own. env: its variables. steps: how many it is to take, warmup_steps of them not timed. watch: it runs until
    its output has told enough of them (`runners.watch`)."""

    directory: str = ""
    python: str = "python3"
    env: Mapping[str, str] = field(default_factory=dict)
    steps: Whole = 25
    warmup_steps: Count = 5
    watch: bool = False

    def _check(self, checks: Checks) -> None:
        needed = f"steps({self.steps}) must be more than warmup_steps({self.warmup_steps})"
        checks.require(self.steps > self.warmup_steps, "steps", needed)
        checks.require(bool(self.python), "python", "must not be empty")
        for name in self.env:
            checks.require(name.isidentifier() and name.isascii(), f"env.{name}", "is no name of a variable")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagOptions(ProgramOptions):
    """arguments: the user's own, as texts such as `--lr 1e-4`."""

    arguments: tuple[str, ...] = ()

    @property
    def given(self) -> Arguments:
        """The user's own arguments by name."""
        return read_lines(self.arguments)[0]

    def _check_arguments(self, checks: Checks, example: str) -> Arguments:
        """The arguments; none where they cannot be read."""
        try:
            given, loose = read_lines(self.arguments)
        except ValueError as error:
            checks.require(False, "arguments", str(error))
            return {}
        told = f"{' '.join(loose)} stands before the first name, such as {example}"
        checks.require(not loose, "arguments", told)
        return given


def require_words(program: str, model: ModelSpec, plan: Plan, cluster: ClusterSpec, able: Capabilities) -> None:
    """Whether the plan fits model and cluster is not asked. Raises CannotExpress for what the program has no words
    for."""
    setting = SpaceContext(model=model, cluster=cluster, global_batch_size=None, capabilities=able)
    asked = [rule for rule in CONSTRAINTS if rule.name == "zero" or rule.name.startswith("trainer-")]
    columns = columns_of([plan])
    broken = [rule for rule in (*asked, *able.rules) if not rule.holds(columns, setting).all()]
    if broken:
        problems = [Violation(rule.name, rule.numbers(plan, setting), rule.reason) for rule in broken]
        raise CannotExpress(program, [Problem("plan", str(problem)) for problem in problems])


# name -> its values, in order; none for a switch. Of a name that stands twice the last counts, as in argparse.
Arguments = Mapping[str, tuple[str, ...]]
_NAME = re.compile(r"(--[A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)


def read_arguments(words: Sequence[str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments that words name, and the words before the first name."""
    found: dict[str, list[str]] = {}
    loose: list[str] = []
    current: str | None = None
    for word in words:
        if name := _NAME.fullmatch(word):
            current, value = name[1], name[2]
            found[current] = [] if value is None else [value]
        elif current is None:
            loose.append(word)
        else:
            found[current].append(word)
    return {name: tuple(values) for name, values in found.items()}, tuple(loose)


def read_lines(lines: Iterable[str]) -> tuple[Arguments, tuple[str, ...]]:
    """The arguments in texts such as `--lr 1e-4`, quoted as for a shell. Raises UnreadableText."""
    return read_arguments([word for line in lines for word in read_words(line)])


def render_lines(arguments: Arguments) -> list[str]:
    """One text per argument, which `read_lines` gives back."""
    return [shlex.join((name, *values)) for name, values in arguments.items()]


def value_of(words: Sequence[str]) -> Any:
    """An argument's words as one value: true for a switch, a list for several."""
    return True if not words else words[0] if len(words) == 1 else list(words)


def without(arguments: Arguments, names: Collection[str]) -> Arguments:
    """The arguments but for these. A name that ends in `*` stands for all that begin like it."""
    starts = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: values
        for name, values in arguments.items()
        if name not in names and not (starts and name.startswith(starts))
    }


def overlaid(base: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `words` laid over it, section by section. None takes the key of the base away."""
    result = dict(base)
    for key, value in words.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            section = overlaid(below if isinstance(below, Mapping) else {}, value)
            # Keys that are only taken away make no section.
            if section or key in result or not value:
                result[key] = section
        else:
            result[key] = value
    return result


def read_base(config: Mapping[str, Any] | str, parse: Callable[[str], Mapping[str, Any]]) -> Mapping[str, Any]:
    """The user's configuration: as it stands in the spec, or in the file of that path. Raises InvalidValue."""
    if not isinstance(config, str):
        return config
    try:
        return parse(read_file(Path(config), SLOW_LIMITS.max_bytes))
    except OSError as error:
        raise InvalidValue([Problem("config", f"{config} cannot be read: {error.strerror}")]) from error
    except ValueError as error:
        raise InvalidValue([Problem("config", f"{config}: {error}")]) from error


def render_toml(document: Mapping[str, Any]) -> str:
    """The text of a document; `tomllib.loads` gives it back. Raises TypeError for a value that TOML has no word for."""
    return "\n".join(_table(document, ())).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    inner = [(key, value) for key, value in table.items() if isinstance(value, Mapping)]
    head = ["", f"[{'.'.join(map(_key, path))}]"] if path and (plain or not inner) else []
    return [*head, *plain, *(line for key, value in inner for line in _table(value, (*path, key)))]


def _key(key: str) -> str:
    bare = key and all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in key)
    return key if bare else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no word for {value!r}")


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for pairs of surrogates, and for DEL, which JSON leaves.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
