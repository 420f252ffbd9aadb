"""Any script as a workload: a command line, environment and files with placeholders, which a trial's values fill.

The script reports by `result.json` (`runners.report` writes it), or its log is read by named patterns. What it can run
follows from what its command tells it: a dimension without a placeholder has one value."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Start
from meshtune.runners.documents import read_value
from meshtune.runners.log_lines import read_tail
from meshtune.runners.outcome import RESULT_FILE, Outcome
from meshtune.runners.processes.gang import log_path
from meshtune.runners.processes.shell_modules import CALLS_MODULE
from meshtune.runners.programs.capture.stand_in import AROUND, LAUNCH_MODULES, LAUNCHERS, PYTHONS
from meshtune.runners.programs.launch_words import Changes, laid_over, shell_words
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.runners.programs.log_reader import outcome_from_log, outcome_of_failure, rank_logs
from meshtune.runners.programs.reading import DERIVED
from meshtune.runners.programs.rows import derived
from meshtune.runners.programs.table import WHOLE_CONTEXTS, capabilities, lines, table_of
from meshtune.runners.programs.workloads.base import (
    CONTEXT_FILE,
    SHAPES,
    JobRequest,
    Workload,
    context_file,
    failed,
    in_directory,
    outcome_without_result,
)
from meshtune.runners.programs.workloads.config_file import (
    Choice,
    ConfigFile,
    Format,
    Template,
    code_of,
    parse_choice,
    parse_template,
    unknown_placeholder,
)
from meshtune.runners.programs.workloads.knobs import (
    Telling,
    arguments,
    find_file,
    keys,
    overlap,
    placeholders,
    problems,
    variables,
)
from meshtune.runners.report import DIRECTORY, STEPS
from meshtune.runners.untrusted_text import UnreadableText, read_words
from meshtune.search_spaces.checks import Checks, Closed, InvalidValue, Natural, Problem, did_you_mean, problems_as
from meshtune.search_spaces.columns import (
    EVEN_ALONE,
    BoolColumn,
    Capabilities,
    Columns,
    Constraint,
    code,
    expert_replicas,
    expert_tp,
    sharding_ranks,
)
from meshtune.search_spaces.knob_values import KNOB_NAME, word
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.physics.framework_profiles import FEWER_BITS, FRAMEWORKS, FrameworkProfile
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS, ContextParallel, Plan, Recompute, Schedule

PROFILES = table_of("meshtune.runners.programs.profiles")
_TRIAL = ("world_size", "global_batch_size", "nodes", "devices_per_node", "steps", "warmup_steps", "seed", "dtype")
_PLACES = ("name", "directory", "python")
# A letter or digit first: names with a dot before them, and those of logs and notes of ranks, are meshtune's.
_FILE_NAME = re.compile(r"(?!rank-)[A-Za-z0-9][A-Za-z0-9._-]*")
PLACEHOLDERS = (*PLAN_FIELDS, *DERIVED, *SHAPES, *_TRIAL, *_PLACES)
# A shell's text whose last word is one of these, or ends in a sign, ends with no program's arguments.
_CLOSING = ("}", "fi", "done", "esac")
_SIGNS = (";", "&", "|")
_SCRIPT = re.compile(r".*\.(?:py|sh|bash)")
# They start or wrap the program that is meant: meshtune's own reporter, gpt-neox's launcher.
_WRAPPERS = frozenset({*LAUNCH_MODULES, "meshtune.runners.report", "deepy.py"} - {"torchtitan.train"})
_REPORTER = ("-m", "meshtune.runners.report")
_ALONE = "and trials alone would be told: write it into the command, or under `set`"
_AXES = frozenset(axis.name for axis in AXES)
_STARTERS = frozenset({*LAUNCHERS, *PYTHONS, *AROUND, "sh", "bash", "exec", "env", "{python}"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions(Closed):
    """command: arguments and choices, as `parse_choice` has them, or a text for `sh -c`; it, `env`, `files` and what
    `configs` set have placeholders. Without one nothing can be run: a plan of the framework is predicted alone.

    trial_arguments: options that the command has in trials alone, in place of its own of these names; true: the name
    alone, null: none. working_directory: where it starts, from where meshtune runs; by default the job's own folder.
    start: how many processes of it. files, configs: texts and configurations by name, put into the job's folder. fixed:
    fields of the plan that the script has built in. log: named patterns; without any the script reports by itself.
    steps: how many it is to take, warmup_steps of them not timed. watch: it runs until its output, by `log` or by usual
    patterns, has told enough steps (`runners.watch`). framework: whose physics is the most like it; dtype: what it
    computes in, by default that framework's."""

    command: tuple[str | dict[str, Any], ...] | str = ""
    trial_arguments: dict[str, Any] = field(default_factory=dict)
    working_directory: str | None = None
    start: Start = Start.DEVICE
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    configs: dict[str, ConfigFile] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    log: dict[str, str] = field(default_factory=dict)
    steps: int = 15
    warmup_steps: Natural = 5
    watch: bool = False
    framework: str = "trainer-bfloat16"
    dtype: str | None = None

    def _check(self, checks: Checks) -> None:
        checks.require(self.command != (), "command", "must name a program")
        needed = f"steps({self.steps}) must be more than warmup_steps({self.warmup_steps})"
        checks.require(self.steps > self.warmup_steps, "steps", needed)
        known = f"is not known; {did_you_mean(self.framework, FRAMEWORKS)}"
        checks.require(self.framework in FRAMEWORKS, "framework", f"{self.framework!r} {known}")
        if self.trial_arguments and isinstance(self.command, str):
            told = "need a list as the command, or a text whose last line has words alone"
            checks.require(shell_words(_last_line(self.command)[1]) is not None, "trial_arguments", told)
        for name, value in self.trial_arguments.items():
            checks.require(not isinstance(value, Mapping | list), f"trial_arguments.{name}", "must be a text")
        for path, names in (("files", self.files), ("configs", self.configs)):
            for name in names:
                plain = _FILE_NAME.fullmatch(name) is not None
                checks.require(plain, f"{path}.{name}", "must be the plain name of a file in the job's folder")
                free = name not in (CONTEXT_FILE, RESULT_FILE) and (path == "files" or name not in self.files)
                checks.require(free, f"{path}.{name}", "is the name of another file there")


class CommandWorkload(Workload):
    """Profiles a user's own script. Raises InvalidValue for wrong options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if not {"command", "framework"} & {*options}:
            raise InvalidValue([Problem("command", "is missing")])
        self._options = read_value(CommandOptions, _worded(options))
        self._knows_dtype = "dtype" in options or "framework" in options
        self._templates = _parse(self._options)
        # Every placeholder that the script is told by.
        configs = self._options.configs.items()
        named = [config.choices(f"configs.{name}") for name, config in configs]
        self._in_command = _choices(self._options.command)
        self._choices = tuple(choice for choices in (*named, self._in_command) for choice in choices.values())
        places = {name for template in self._templates.values() for name in template.names}
        axes = {DERIVED[name] for name in places & DERIVED.keys()}
        told = places | axes | {choice.axis for choice in self._choices}
        self._told = frozenset(told if self._options.command else _AXES - {*self._options.fixed})
        self._trial = _trial_texts(self._options)
        self._require_told()
        self.told_shapes = self._told.intersection(SHAPES)
        self._fixed = fixed_plan(self._options.fixed, self._told)
        with problems_as(InvalidValue, "log"):
            timed = not self._options.watch
            self._patterns = Patterns(self._options.log, timed=timed) if self._options.log else None
        # Of knobs: which ones there are is not known here.
        self._named = {name: path for path, each in self._templates.items() for name in each.names - {*PLACEHOLDERS}}

    def _require_told(self) -> None:
        """Raises InvalidValue for an axis that trials alone are told, or the real launch alone."""
        options, told = self._options, {choice.axis for choice in self._choices}
        own = [path for path in self._templates if path not in self._trial]
        told |= {name for path in own for name in self._templates[path].names}
        checks = Checks()
        for path in self._trial:
            for name in self._templates[path].names & _AXES - told:
                checks.require(False, path, f"{{{name}}} stands here and nowhere else, {_ALONE}")
        words = list(map(str, words_of(options.command)))
        left = " ".join(laid_over(words, _trial_changes(options, self._trial.__getitem__)))
        gone = {name for name in _AXES if f"{{{name}}}" in " ".join(words) and f"{{{name}}}" not in left}
        for config in options.configs.values():
            set_here = [key for key in config.set if any(overlap(key, other) for other in config.trial)]
            gone |= _AXES & {name for key in set_here for name in re.findall(r"{(\w+)}", str(config.set[key]))}
        for name in sorted(gone):
            checks.require(False, "trial_arguments", f"takes {{{name}}} away, which trials are to be told")
        checks.done()

    @property
    def capabilities(self) -> Capabilities:
        names = PROFILES.lists["able"] if not self._options.command else ()
        for name in (name for name in names if self._options.framework.startswith(name)):
            return capabilities(PROFILES, name, (_rule(axis, value) for axis, value in self._fixed.items()))
        able = capabilities_of(self._fixed, self._told)
        pads = self.framework.vocab_multiple > 1
        axes = sorted({choice.axis for choice in self._choices})
        rules = (*able.rules, *(_worded_rule(axis, self._choices) for axis in axes))
        # Megatron-Core takes the ranks of experts out of all of a stage's (core/parallel_state.py), and its a2a asserts
        # that the context ranks divide key/value heads (Transformer Engine, AttnFuncWithCPAndQKVOA2A). Which values
        # other programs take is for the spec's `space` to say.
        megatron = self._options.framework.startswith("megatron")
        return replace(
            able,
            uneven_vocab=pads,
            expert_folding=able.expert_folding or megatron,
            kv_repeated_in_ulysses=not megatron,
            recompute_of_script="recompute" not in axes,
            rules=rules,
        )

    @property
    def framework(self) -> FrameworkProfile:
        framework, dtype = FRAMEWORKS[self._options.framework], self._options.dtype
        if dtype in FEWER_BITS:
            return replace(framework, name=f"{framework.name}, {dtype} products", product_dtype=dtype)
        return framework if dtype is None else replace(framework, dtype=dtype)

    @property
    def dtype(self) -> str:
        return self._options.dtype or self.framework.dtype

    @property
    def knows_dtype(self) -> bool:
        return self._knows_dtype

    @property
    def program(self) -> str:
        return program_of(self._options.command)

    @property
    def steps(self) -> int | None:
        return self._options.steps if self._knows_dtype and self.watched is None else None

    @property
    def watched(self) -> Mapping[str, str] | None:
        return self._options.log if self._options.watch else None

    def problems_with_names(self, knobs: KnobSet) -> list[Problem]:
        known, read = {*PLACEHOLDERS, *knobs.names}, self._patterns.knobs if self._patterns else ()
        unknown = [Problem(f"log.knob_{name}", "is of no knob of the spec") for name in read if name not in knobs.names]
        named = self._named.items()
        return unknown + [unknown_placeholder(name, known, path) for name, path in named if name not in knobs.names]

    def problems_with_knobs(self, knobs: KnobSet) -> list[Problem]:
        options, where = self._options, "workload.command"
        standing = {part.partition("=")[0]: where for part in words_of(options.command)}
        standing |= dict.fromkeys(options.trial_arguments, "workload.trial_arguments")
        files = {
            name: dict.fromkeys(config.trial, f"workload.configs.{name}.trial")
            | dict.fromkeys(config.set, f"workload.configs.{name}.set")
            for name, config in options.configs.items()
        }
        telling = Telling(
            workload="command",
            variables={name: "workload.env" for name in options.env},
            arguments=standing,
            files=files,
            placeholders={*self._named, *PLACEHOLDERS},
        )
        return [*problems(knobs, telling), *self._more_problems(knobs)]

    def _more_problems(self, knobs: KnobSet) -> Iterator[Problem]:
        """What is wrong with knobs for a reason of this workload's own."""
        text = self._options.command
        last = text.split()[-1] if isinstance(text, str) and text.split() else ""
        for knob in knobs:
            if knob.way == "placeholder" and knob.name in PLACEHOLDERS:
                yield Problem(knob.name, f"{{{knob.name}}} stands for something else: choose another name")
            if knob.way == "placeholder" and self._named.get(knob.name) in self._trial:
                yield Problem(knob.name, f"{{{knob.name}}} stands in workload.{self._named[knob.name]}, {_ALONE}")
            closed = last in _CLOSING or last.endswith(_SIGNS) or last.count(")") > last.count("(")
            if knob.way == "argument" and closed:
                told = f"cannot be appended to a command that ends in {last!r}: write {{{knob.name}}} where it belongs"
                yield Problem(f"{knob.name}.argument", told)
            if knob.way == "config" and (found := find_file(str(knob.config), self._options.configs)) is not None:
                flat = self._options.configs[found[0]].format is not Format.ARGS or "." not in found[1]
                told = f"{found[0]} has arguments, and no keys below others as {found[1]}"
                if not flat:
                    yield Problem(f"{knob.name}.config", told)

    def job(self, request: JobRequest) -> JobSpec:
        """The job that runs the script. incumbent_step_time_s changes nothing: a script decides nothing by itself.
        Raises InvalidValue where the base of a configuration file cannot be read."""
        options = self._options
        values: dict[str, Any] = {
            **placeholders(request),
            **request.plan.axes_as_dict(),
            **derived(request.plan),
            **{field: getattr(request.model, field) for field in SHAPES},
            **{field: getattr(request.plan, field) for field in ("world_size", "global_batch_size")},
            **{field: getattr(request.cluster, field) for field in ("nodes", "devices_per_node")},
            **{field: getattr(options, field) for field in ("steps", "warmup_steps")},
            **{field: getattr(request, field) for field in ("seed", "name", "directory")},
            # Plans keep it true where there is nothing to split; programs on Megatron-Core refuse it there.
            "sequence_parallel": request.plan.sequence_parallel and request.plan.tp > 1,
            "dtype": self.dtype,
            "python": sys.executable,
        }
        command, added = self._command(values, request.real), arguments(request.knobs, request.plan)
        own = command if not isinstance(options.command, str) else words_of(command[-1])
        context = context_file(request, dtype=self.dtype, warmup_steps=options.warmup_steps, command=own)
        env = {key: self._templates[f"env.{key}"].fill(values) for key in options.env}
        of_trial = {DIRECTORY: str(request.directory), STEPS: str(options.steps)}
        files = self._files(values, keys(request.knobs, request.plan), request.real)
        return request.job(
            self._started(command, added),
            files if request.real else {**context, **files},
            {**env, **variables(request.knobs, request.plan), **({} if request.real else of_trial)},
            start=options.start,
        )

    def read_without_result(self, directory: Path, status: JobStatus) -> Outcome:
        if self._patterns is not None and self.watched is None:
            return outcome_from_log(directory, status, self._patterns, steps=self._options.steps)
        tail = read_tail(log_path(directory, 0))
        if status.state in (JobState.CANCELLED, JobState.LOST):
            return outcome_without_result(status, tail)
        if status.state is JobState.SUCCEEDED:
            told = (
                "the command ended without an error, but wrote no result.json: "
                "see meshtune.runners.report, or the option log"
            )
            return failed(Cause.USER_BUG, told, log_tail=tail)
        return outcome_of_failure(status, rank_logs(directory), None, tail)

    def _command(self, values: Mapping[str, Any], real: bool) -> tuple[str, ...]:
        options, before = self._options, ""
        if not isinstance(options.command, str):
            parts = (f"command.{index}" for index in range(len(options.command)))
            words = [each for path in parts for each in self._words(path, values)]
            quote: Callable[[str], str] = str
        else:
            text, quote = self._templates["command"].fill(values, shlex.quote), shlex.quote
            before, last = _last_line(text) if real or options.trial_arguments else ("", text)
            words = (shell_words(last) if real or options.trial_arguments else None) or [last]
        if real:
            # What starts the script in trials, and reports its steps.
            at = next((at for at, pair in enumerate(pairwise(words)) if pair == _REPORTER), len(words))
            words = [*words[:at], *words[at + 2 :]]
        elif options.trial_arguments:
            words = laid_over(words, _trial_changes(options, lambda path: quote(self._templates[path].fill(values))))
        if not isinstance(options.command, str):
            return tuple(words)
        text = before + " ".join(words)
        return ("bash" if CALLS_MODULE.search(text) else "sh", "-c", text)

    def _words(self, path: str, values: Mapping[str, Any]) -> list[str]:
        """Those of one element of the command: a template is one, a choice as many as the value has."""
        if (choice := self._in_command.get(path)) is None:
            return [self._templates[path].fill(values)]
        return list(map(word, _chosen(choice.words_for(values, path))))

    def _started(self, command: tuple[str, ...], added: Sequence[str]) -> tuple[str, ...]:
        """The command with the arguments that knobs add, started where it is to start."""
        if added and isinstance(self._options.command, str):
            command = (*command[:-1], f"{command[-1].rstrip()} {shlex.join(added)}")
        elif added:
            command = (*command, *added)
        folder = self._options.working_directory
        return command if folder is None else in_directory(str(Path(folder).resolve()), command)

    def _files(self, values: Mapping[str, Any], told: Mapping[str, Any], real: bool) -> dict[str, str]:
        configs = self._options.configs
        told_here: dict[str, dict[str, Any]] = {}
        for key, value in told.items():
            if place := find_file(key, configs):
                told_here.setdefault(place[0], {})[place[1]] = value
        return {name: self._templates[f"files.{name}"].fill(values) for name in self._options.files} | {
            name: config.render(self._templates, values, f"configs.{name}", told_here.get(name, {}), real)
            for name, config in configs.items()
        }


def _worded(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with numbers and truth values among arguments and variables as the words that they are to be. Raises
    InvalidValue."""
    checks = Checks()
    command, env = options.get("command", ""), options.get("env", {})
    listed = isinstance(command, list | tuple)
    told = f"must be a text or a list of arguments, not {command!r}"
    checks.require(listed or isinstance(command, str), "command", told)
    elements = {f"command.{index}": part for index, part in enumerate(command)} if listed else {}
    parts = {path: part for path, part in elements.items() if not isinstance(part, Mapping)}
    parts |= {f"env.{key}": value for key, value in env.items()} if isinstance(env, Mapping) else {}
    for path, part in parts.items():
        checks.require(isinstance(part, str | int | float), path, f"must be a text or a number, not {part!r}")
    checks.done()
    worded = dict(options)
    if listed:
        worded["command"] = tuple(part if isinstance(part, Mapping) else word(part) for part in command)
    if isinstance(env, Mapping):
        worded["env"] = {key: word(value) for key, value in env.items()}
    return worded


def _parse(options: CommandOptions) -> dict[str, Template]:
    """The template of each text, by its path in the options. Raises InvalidValue with the problems of all of them."""
    texts = (
        {"command": options.command}
        if isinstance(options.command, str)
        else {f"command.{index}": text for index, text in enumerate(options.command) if isinstance(text, str)}
    )
    texts |= {f"env.{key}": text for key, text in options.env.items()}
    texts |= {f"files.{name}": text for name, text in options.files.items()}
    for name, config in options.configs.items():
        texts |= {f"configs.{name}.set.{key}": text for key, text in config.set.items() if isinstance(text, str)}
    templates: dict[str, Template] = {}
    problems: list[Problem] = []
    # Of a name that stands in a trial's and in another text, the other's path counts.
    for path, text in {**_trial_texts(options), **texts}.items():
        try:
            templates[path] = parse_template(text, PLACEHOLDERS, path, others=KNOB_NAME)
        except InvalidValue as error:
            problems += error.problems
    if problems:
        raise InvalidValue(problems)
    return templates


def _choices(command: Sequence[str | Mapping[str, Any]] | str) -> dict[str, Choice]:
    """The choices among the elements of a command, by path. Raises InvalidValue."""
    parts = {f"command.{index}": part for index, part in enumerate(command) if isinstance(part, Mapping)}
    found, checks = {path: parse_choice(part, path) for path, part in parts.items()}, Checks()
    for path, choice in found.items():
        told = 'must be a text, a number or a choice such as {"{recompute}": {none: null, full: --checkpoint}}'
        checks.require(choice is not None, path, f"{told}, not {parts[path]!r}")
        for value, words in choice.words.items() if choice else ():
            fit = all(isinstance(each, str | int | float) for each in _chosen(words))
            checks.require(fit, f"{path}.{value}", f"must be null, a word or a list of words, not {words!r}")
    checks.done()
    return {path: choice for path, choice in found.items() if choice is not None}


def _chosen(words: Any) -> list[Any]:
    """The words that a choice has for a value: null, one, or a list of them."""
    return words if isinstance(words, list) else [] if words is None else [words]


def _trial_texts(options: CommandOptions) -> dict[str, str]:
    """The texts that trials alone have, by path."""
    found = {f"trial_arguments.{name}": word(value) for name, value in options.trial_arguments.items()}
    for name, config in options.configs.items():
        found |= {f"configs.{name}.trial.{key}": text for key, text in config.trial.items() if isinstance(text, str)}
    return found


def _trial_changes(options: CommandOptions, text: Callable[[str], str]) -> Changes:
    """What trials change in the command. text: of a path in the options."""
    own = options.trial_arguments
    said = {name: tuple(text(f"trial_arguments.{name}") for _ in words) for name, words in lines(own)}
    return {**dict.fromkeys(own), **said}


def _last_line(text: str) -> tuple[str, str]:
    """A shell's text up to its last line, and that, which may go over several."""
    before, end, last = text.rstrip().replace("\\\n", " ").rpartition("\n")
    return before + end, last


def program_of(command: Sequence[str | Mapping[str, Any]] | str) -> str:
    """The program of a command, or of a text for a shell: the first script, else the module after the first `-m`, else
    the first word that is neither an option, a setting of a variable nor a program that starts others. Of its name
    alone: two scripts of one name in different folders count as one, since people copy a script for each run."""
    words = words_of(command)
    for index, part in enumerate(words):
        name = PurePath(part).name
        if part in ("-m", "--module") and words[index + 1 : index + 2] and words[index + 1] not in _WRAPPERS:
            return words[index + 1]
        if _SCRIPT.fullmatch(name) and name not in _WRAPPERS:
            return name
    names = (PurePath(part).name for part in words if not part.startswith("-") and "=" not in part)
    return next((name for name in names if name not in _STARTERS), "")


def words_of(command: Sequence[str | Mapping[str, Any]] | str) -> Sequence[str]:
    """The words of a command, those of its choices among them, or of a text for a shell, as far as they can be told
    apart."""
    if not isinstance(command, str):
        return list(_texts(command))
    try:
        return read_words(command, comments=True)
    except UnreadableText:  # an open quote is the shell's to refuse
        return command.split()


def _texts(part: Any) -> Iterator[str]:
    """The words in elements of a command, those for each value of a choice."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping | list | tuple):
        for each in part.values() if isinstance(part, Mapping) else part:
            yield from _texts(each)


# dp follows from the devices and the other degrees, which a script learns from its world size.
_FIXABLE = tuple(name for name in PLAN_FIELDS if name != "dp")
# Of these a script needs two to know the third.
_BATCH = ("micro_batch_size", "grad_accum_steps", "global_batch_size")


def fixed_plan(fixed: Mapping[str, Any], told: Collection[str]) -> Mapping[str, Any]:
    """The fields of the plan that the script is not told, with the values that it has built in, by default Plan's.
    told: its placeholders. Raises InvalidValue."""
    checks = Checks()
    for name in fixed:
        if checks.require(name in _FIXABLE, f"fixed.{name}", f"is nothing to fix; {did_you_mean(name, _FIXABLE)}"):
            checks.require(name not in told, f"fixed.{name}", f"cannot be fixed: the command is told it as {{{name}}}")
    checks.done()
    with problems_as(InvalidValue, "fixed"):
        plan = Plan(**fixed)
    known = set(told)
    if len(known.intersection(_BATCH)) >= 2:
        known.update(_BATCH)
    return {name: getattr(plan, name) for name in _FIXABLE if name not in known or name in fixed}


def capabilities_of(fixed: Mapping[str, Any], told: Collection[str]) -> Capabilities:
    """What the script can run: everything in the dimensions that it is told, one value in the others. Which values of
    those it takes is for the spec's `space` to say."""
    # Stage 0 is what every stage is where there is nothing to shard over.
    stages = {0, 1, 2, 3} if "zero_stage" not in fixed else {0, fixed["zero_stage"]}
    rules = [_rule(name, value) for name, value in fixed.items()]
    ends = fixed.get("first_stage_less_layers"), fixed.get("last_stage_less_layers")
    return Capabilities(
        schedules=frozenset({fixed["schedule"]} if "schedule" in fixed else Schedule),
        recompute=frozenset({fixed["recompute"]} if "recompute" in fixed else Recompute),
        zero_stages=frozenset(stages),
        zero_stages_with_pp=frozenset(stages if "zero_stage" in fixed else {0, 1}),
        zero_groups=frozenset(stages - {0} if fixed.get("zero_group", 1) else ()),
        contexts=frozenset({fixed["context"]} if "context" in fixed else ContextParallel)
        if "cp" in told or fixed.get("cp", 1) > 1
        else frozenset(),
        recompute_intervals="recompute_interval" in told,
        choice_of_sequence_parallel="sequence_parallel" not in fixed or not fixed["sequence_parallel"],
        expert_parallel="ep" in told or fixed.get("ep", 1) > 1,
        expert_folding=fixed.get("etp", 1) > 0,
        experts=True,
        stage_splits=None if ends[0] is None or ends[1] is None else EVEN_ALONE | {(ends[0], ends[1])},
        shapes=frozenset(Shape),
        rules=(*rules, *([WHOLE_CONTEXTS] if "zero_shards" in told else [])),
    )


# Where a dimension changes nothing; the rules of identity keep one value of it there, whatever the script has.
_IDLE: Mapping[str, Callable[[Columns], BoolColumn]] = {
    "zero_stage": lambda c: np.maximum(c["dp"] * c["cp"], expert_replicas(c)) <= 1,
    "zero_group": lambda c: c["zero_stage"] == 0,
    "sequence_parallel": lambda c: c["tp"] == 1,
    "schedule": lambda c: c["pp"] == 1,
    "vpp": lambda c: c["pp"] == 1,
    "first_stage_less_layers": lambda c: c["pp"] == 1,
    "last_stage_less_layers": lambda c: c["pp"] == 1,
    "context": lambda c: c["cp"] == 1,
    "recompute_interval": lambda c: c["recompute"] == code("recompute", Recompute.NONE),
}


def _rule(name: str, value: Any) -> Constraint:
    """The rule that a dimension keeps the one value that the script has for it, wherever it means anything."""
    needed, idle = code(name, value), _IDLE.get(name)
    # Where the value is as usual, plans have 0 for it.
    usual = {"zero_group": sharding_ranks, "etp": expert_tp}.get(name) if value else None
    return Constraint(
        f"command-lacks-{name}",
        f"the command has no {{{name}}}, so the script cannot be told another value than {value}",
        lambda c, s: ((usual(c) if usual else c[name]) == needed) | (c["tp"] < 0 if idle is None else idle(c)),
        lambda p, s: f"{name}({getattr(p, name)}), but the command has no {{{name}}} and so always runs {value}",
    )


def _worded_rule(axis: str, choices: Collection[Choice]) -> Constraint:
    """The rule that a plan has a value of the axis that all choices have words for."""
    worded = [choice.words for choice in choices if choice.axis == axis]
    values = [value for value in worded[0] if all(value in others for others in worded)]
    codes = [code_of(axis, value) for value in values]
    return Constraint(
        f"command-words-{axis}",
        f"the configuration has words for {axis} {', '.join(values)} alone",
        lambda c, s: np.isin(c[axis], codes),
        lambda p, s: f"{axis}({getattr(p, axis)})",
    )
