"""Finds the training program that a launch script, or one command line, starts: by torchrun, srun, deepspeed ...

The script is read and not run. What is not followed and reaches the start becomes a question."""

from __future__ import annotations

import os
import re
import shlex
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os.path import join, normpath
from pathlib import Path, PurePath

from meshtune.runners.programs.capture.stand_in import BARRED, CONTAINERS, NAMES, named_files
from meshtune.runners.programs.dialects.base import NOT_KEPT, SECRET, CannotRead, Launch, Question
from meshtune.runners.programs.dialects.bash.effects import Command, Script
from meshtune.runners.programs.dialects.bash.expansion import Budget, as_written, is_known, unknown_parts
from meshtune.runners.programs.dialects.bash.lexer import NotBash
from meshtune.runners.programs.dialects.bash.script import read_script
from meshtune.runners.programs.dialects.call import Call, call_of, launch_of, starts_a_program, starts_scripts, trains
from meshtune.runners.programs.dialects.job_script import submitted_head, with_devices
from meshtune.runners.programs.dialects.job_variables import head_variables
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, is_there, option_value, read_file
from meshtune.search_spaces.checks import raising

# A value that each job has its own of: the scheduler sets these for trials, too.
_JOB_ID = re.compile(r"(?:[\w./:@%+=,-]|\$\{?(?:SLURM_JOB_?ID|PBS_JOBID)\b\}?)*")
# Variables that hold further arguments by their names, or by bash's.
_ARGUMENTS = ("ARG", "OPT", "FLAG", "EXTRA", "PARAM", "$@", "$*", "${@", "${*")
# Start the script that they are given; sbatch and qsub as a job of its own.
_SUBMITTING = ("sbatch", "qsub")
_SHELLS = ("bash", "sh")
# Hand over to a job, a host or a container that trials do not enter.
_HANDING = (*BARRED, "docker", "podman")
_SCRIPTS = NAMES["scripts"]
# Scripts that start scripts, from the one that is read.
_MAX_DEPTH = 3
# Of one script, which are looked at.
_MAX_STARTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A start of a training. chain: the scripts that lead to it, each by its name and with its command there, from the
    one that is read. head: the batch script that it is in."""

    call: Call
    chain: tuple[tuple[str, Script, Command], ...]
    head: str

    @property
    def place(self) -> str:
        return ", ".join(f"{name} line {command.line}".strip() for name, _, command in self.chain)

    @property
    def doubt(self) -> str:
        """Why it is not known whether it comes to run, "" where it does."""
        return next((command.doubt for _, _, command in self.chain if command.doubt), "")


def find_launch(
    text: str, *, path: Path | None = None, given: Mapping[str, str] | None = None, number: int = 0
) -> Launch:
    """The program that a script starts. path: where it lies; the files that its words name are read beside it and in
    the present folder; None for a text alone. given: variables that it finds. number: which of several different
    starts, from 1. Raises CannotRead."""
    return _launch_of(_starts(text, path, given), path, number)


def find_launches(text: str, *, path: Path | None = None, given: Mapping[str, str] | None = None) -> list[Launch]:
    """Every start of a script, as `find_launch` has it. Raises CannotRead where there is none."""
    trainings = _starts(text, path, given)
    found = [_launch_of(trainings, path, 1)]
    with suppress(CannotRead):
        while len(found) < _MAX_STARTS:
            found.append(_launch_of(trainings, path, len(found) + 1))
    return found


def _starts(text: str, path: Path | None, given: Mapping[str, str] | None) -> list[_Start]:
    present = {"PWD": os.getcwd(), "0": str(path.absolute()), "SLURM_SUBMIT_DIR": os.getcwd()} if path else {}
    if path:
        present |= {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    slurm = head_variables(text)
    with raising(CannotRead, "", NotBash):
        search = _Search(Budget(), path, {**present, **(given or {})})
        script = read_script(text, search.budget, {**present, **slurm, **(given or {})})
        found = list(search.starts(script, slurm, head=text))
    trainings = _trainings(found, script)
    if not trainings:
        raise CannotRead(_nothing(script, search))
    return trainings


def _launch_of(trainings: Sequence[_Start], path: Path | None, number: int) -> Launch:
    starts = [start for start in trainings if not start.doubt] or trainings
    looped = not number and len({start.place for start in starts}) == 1
    chosen, _ = choose([start.call for start in starts], number or int(looped))
    start = next(start for start in starts if start.call.command == chosen.command)
    place = start.place
    bare = Launch(script="", words=chosen.words, place=place)
    launch = bare if chosen.tool == "-" else replace(launch_of(chosen, place), head=start.head)
    launch = with_devices(launch, start.head)
    setup, env, questions, notes = list[str](), dict[str, str](), list[Question](), list[str]()
    if looped and (turns := len({start.call.command for start in starts})) > 1:
        told = f"a loop starts {turns} trainings here, and the first is read: --start N takes another"
        questions.append(Question("", f"{place}: {told}"))
    if start.doubt and not number:
        questions.append(Question("", f"{place} may not be what is started: {start.doubt}. {_CAPTURE}"))
    maybe = (one for one in trainings if one.doubt and one.call.command != chosen.command)
    if not (start.doubt or number) and (other := next(maybe, None)):
        told = f"{other.place} may be started in its place, or too: `{other.call.written}` ({other.doubt})"
        questions.append(Question("", f"{place}: {told}"))
    contained = False
    for name, inner, command in start.chain:
        lines = {at.line for one in starts for _, other, at in one.chain if other is inner}
        own_setup, own_env, asked_here, noted_here = _surroundings(inner, command, lines)
        before = f"{name} " * bool(name)
        if contained and own_setup:
            told = "sets up inside of the container, and is left to the Python there"
            notes.append(f"{before}{told}: {'; '.join(own_setup)}")
        setup = [line for line in setup if _exported(line) not in own_env] + ([] if contained else own_setup)
        contained = contained or any(PurePath(word).name in CONTAINERS for word in command.words)
        # What an inner script sets holds, whatever it was outside.
        left = {one.path for one in asked_here} | {f"workload.env.{_exported(line)}" for line in own_setup}
        questions = [one for one in questions if one.path.removeprefix("workload.env.") not in own_env]
        env = {name: value for name, value in {**env, **own_env}.items() if f"workload.env.{name}" not in left}
        questions += [replace(question, text=before + question.text) for question in asked_here]
        notes += [before + note for note in (*inner.notes, *noted_here)]
    commands = [command for _, _, command in start.chain]
    command = next((command for command in reversed(commands) if command.directory), commands[-1])
    directory = command.directory
    if not is_known(directory):
        told = f"where `cd {as_written(directory)}` leads is not known here"
        questions.append(Question("workload.directory", f"line {command.line}: {told}"))
        directory = ""
    files, asked = _files(start.chain, launch, command, path, place)
    return replace(
        launch,
        directory=directory or _beside(launch.script, path, notes),
        setup=tuple(setup),
        env={**env, **launch.env},
        files=files,
        notes=(*notes, *launch.notes),
        questions=(
            *launch.questions,
            *questions,
            *asked,
            *_open_words([script for _, script, _ in start.chain], launch, place),
        ),
    )


def script_words(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The words, each with its place, that may name a script which the command starts: `sbatch job`, `bash -x job`."""
    tools = [PurePath(word).name for word in words]
    if not (starts_scripts(tools[0]) or tools[0].endswith(_SCRIPTS)):
        return
    before = ""
    for at, (word, tool) in enumerate(zip(words, tools, strict=True)):
        if word.endswith(_SCRIPTS) or before in _SHELLS or (at and tools[0] in _SUBMITTING):
            yield at, word
        before = before if before in _SHELLS and word.startswith("-") else tool


def choose(calls: Sequence[Call], number: int) -> tuple[Call, str]:
    """The one training that is started, and its place in words. number: which of several different ones, from 1; 0
    where there is one. Raises CannotRead with the list."""
    starts = list({(found.command, found.cwd): found for found in calls}.values())
    if number > len(starts) or (number == 0 and len(starts) > 1):
        listed = "".join(f"\n  {at}  {found.written}" for at, found in enumerate(starts[:20], 1))
        more = f"\n  and {len(starts) - 20} more" if len(starts) > 20 else ""
        asked = f"there is no start {number}" if number else "several trainings are started"
        raise CannotRead(f"{asked}; choose one by --start N:{listed}{more}")
    chosen = number or 1
    return starts[chosen - 1], f"start {chosen}"


def find_call(words: Sequence[str]) -> Call | None:
    """The training that one command's words start, in a word that is a script too (`bash -c ...`); None for none."""
    try:
        script = Script(Budget(), commands=[Command(tuple(words), 1)])
        return next((start.call for start in _Search(Budget(), None).starts(script, {}, head="")), None)
    except NotBash:
        return None


def _trainings(found: Sequence[_Start], script: Script) -> list[_Start]:
    """The starts of trainings; of a text that is arguments alone, a call of the tool `-`. Where no start looks like a
    training, every start of a Python program with arguments, or the only start."""
    if trainings := [start for start in found if trains(start.call)]:
        return trainings
    commands = script.commands
    if commands and all(command.words[0].startswith("--") for command in commands):
        bare = Call(tool="-", words=tuple(word for command in commands for word in command.words))
        return [_Start(call=bare, chain=(("", script, commands[0]),), head="")]
    own = [start for start in found if not any(part in start.call.words[0] for part in NAMES["helpers"])]
    with_arguments = [start for start in own if any(word.startswith("-") for word in start.call.words[1:])]
    return with_arguments or (own if len(found) == 1 else [])


@dataclass(frozen=True, slots=True)
class _Search:
    """path: of the script that is read, beside which others are looked for; None where none are. given: variables that
    each of them finds. reached: the commands that come or may come to run, each with the script's name."""

    budget: Budget
    path: Path | None
    given: Mapping[str, str] = field(default_factory=dict)
    reached: list[tuple[str, Command]] = field(default_factory=list)

    def starts(
        self,
        script: Script,
        slurm: Mapping[str, str],
        *,
        head: str,
        name: str = "",
        chain: tuple[tuple[str, Script, Command], ...] = (),
    ) -> Iterator[_Start]:
        """Those of a script, and of the scripts that it starts. slurm: variables of its job. name: the script's, in
        places. chain: the commands that lead to it. Raises NotBash."""
        around = {**self.given, **{name: value for name, (value, _) in script.exported.items()}}
        for command in (*script.commands, *script.doubtful):
            self.reached.append((name, command))
            # Copied where a start is found alone: there may be many commands, and many variables.
            environment = ChainMap(dict(slurm), dict(command.env), around)
            call, links = call_of(command.words, environment), (*chain, (name, script, command))
            own = call is not None and starts_a_program(call)
            inner = [] if (own and call and call.tool) or len(chain) >= _MAX_DEPTH else self._inner(links, slurm, head)
            yield from inner
            if own and call and not inner:
                yield _Start(call=replace(call, environment=dict(environment)), chain=links, head=head)

    def _inner(
        self, chain: tuple[tuple[str, Script, Command], ...], slurm: Mapping[str, str], head: str
    ) -> list[_Start]:
        """The starts in the scripts that the last command of the chain starts."""
        _, script, command = chain[-1]
        tools = [PurePath(word).name for word in command.words]
        submits = tools[0] in _SUBMITTING
        found: list[_Start] = []
        for at, name, text in self._scripts(script, command, tools):
            words = [word for word in command.words[:at] if word != "--wrap"]
            around = None if submits else call_of((*words, "python", "x.py"))
            under, changed = (around.under, around.changed) if around else ((), {})
            options = tuple(words[1:]) if submits else ()
            under = ((tools[0], options),) if submits else under
            if submits:
                head, slurm = text, {}
            if tools[0] == "sbatch" and all(map(is_known, options)):
                with raising(NotBash, "its lines for the scheduler", UnreadableText):
                    slurm = head_variables(submitted_head(text, options))
            exported = {name: value for name, (value, _) in script.exported.items()}
            parts = (option_value(options, "--export", "-v") or "").split(",")
            passed = dict(part.split("=", 1) for part in parts if "=" in part)
            # sbatch has a place in the runner for its own.
            changed = passed if tools[0] == "qsub" else changed
            given = {**self.given, **exported, **command.env, **passed, **changed, **slurm}
            given |= {"PWD": command.directory or os.getcwd(), **({"0": name} if name else {})} if self.path else {}
            inner = read_script(text, self.budget, given, command.words[at + 1 :] if name else None)
            shown = PurePath(name).name or "its text"
            for start in self.starts(inner, slurm, head=head, name=shown, chain=chain):
                call = start.call
                call = replace(call, under=(*under, *call.under), changed={**changed, **call.changed})
                found.append(replace(start, call=call))
        return found

    def _scripts(self, script: Script, command: Command, tools: Sequence[str]) -> Iterator[tuple[int, str, str]]:
        """Of each script that a command starts its place among the words, the name of its file, and its text: in a
        word (`bash -c "torchrun ..."`), in a here-document, or in a file."""
        for at, word in enumerate(command.words):
            handed = word.startswith("--wrap=") or (at and tools[at - 1] in ("-c", "-lc", "--wrap", *_SHELLS))
            program = handed or ".py" in word or " -m " in word or "torchrun " in word
            if program and any(blank in word for blank in " \n"):
                yield at, "", as_written(word).removeprefix("--wrap=")
        if command.body and any(tool in (*_SUBMITTING, *_SHELLS) for tool in tools):
            yield len(tools), "", as_written(command.body)
        for at, word in script_words(command.words) if self.path else ():
            if is_known(word) and (text := self._text(script, command, word)):
                yield at, word, text
                return

    def _text(self, script: Script, command: Command, name: str) -> str:
        """Of a file as the script writes it, else as it lies there; "" for none."""
        if name in script.files or name.removeprefix("./") in script.files:
            return as_written(script.files.get(name) or script.files[name.removeprefix("./")])
        for folder in (command.directory, os.getcwd(), str(self.path.absolute().parent) if self.path else ""):
            with suppress(OSError, UnreadableText):
                path = Path(folder, name).absolute()
                if name not in script.changed and is_known(folder) and self.path and path != self.path.absolute():
                    return read_file(path, SLOW_LIMITS.max_bytes)
        return ""


def _nothing(script: Script, search: _Search) -> str:
    """Why no start was found, and the next command: one that runs the script only where that comes to a training."""
    unfollowed = "".join(f"; {note}" for note in script.notes[:5])
    for name, command in search.reached:
        tool = PurePath(command.words[0]).name
        if tool not in _HANDING:
            continue
        line = f"{name} line {command.line}".strip()
        if tool not in (*_SUBMITTING, "salloc", "bsub"):
            told = f"{line}: `{tool}` starts what trials do not enter{unfollowed}"
            return f"{told}. Next: meshtune import --command 'torchrun ...', with the command that runs there"
        named = next((word for word in command.words[1:] if word.endswith(_SCRIPTS)), "")
        if search.path is not None and PurePath(named).name == search.path.name:
            continue
        told = f"{line}: `{command.written[:200]}` submits a script that is not known here{unfollowed}"
        if open_ := [name for part in unknown_parts(named) if (name := part.strip("${}")).isidentifier()]:
            return f"{told}. Next: meshtune import SCRIPT --set {open_[0]}=VALUE"
        if named:
            again = (
                "meshtune import this script again" if tool in _SUBMITTING else f"meshtune import {as_written(named)}"
            )
            return f"{told}. Next: make the file {as_written(named)}, and {again}"
        return f"{told}. Next: meshtune import JOB_SCRIPT, with the script as it is submitted"
    read_again = "the command that it comes to: meshtune import --command 'torchrun ...'"
    of_a_file = search.path is not None and search.path.is_file()
    instead = read_again if of_a_file else "a spec with `kind: command` (docs/how-to/workloads.md)"
    return (
        f"no line starts a Python program with arguments such as --num-layers 32, by torchrun, deepspeed, "
        f"accelerate, composer, srun, mpirun or python{unfollowed}. Next: meshtune import --capture -- bash SCRIPT "
        f"ARGUMENTS, which runs the script with stand-ins that start no training; or {instead}"
    )


def _surroundings(
    script: Script, start: Command, starts: Collection[int]
) -> tuple[list[str], dict[str, str], list[Question], list[str]]:
    """What sets the environment up before the start, what the program finds in it, and what is left out of these."""
    setup, env, questions, notes = list[str](), dict[str, str](), list[Question](), list[str]()
    for command in script.commands:
        first = command.words[0]
        if command.line > start.line and first.startswith("--"):
            told = f"`{first}` is a command of its own: a comment or a missing backslash ends the one before it"
            questions.append(Question("", f"line {command.line}: {told}. Are its arguments meant? Mend the script"))
        if command.line >= start.line or command.line in starts or first in ("cd", "pushd", "popd"):
            continue
        if first not in NAMES["setup"]:
            notes.append(f"line {command.line}: `{first}` is not run by trials")
        elif not all(map(is_known, command.words)):
            told = f"`{command.written}` holds what is not known here, and is left out"
            questions.append(Question("", f"line {command.line}: {told}; write it into the setup if trials need it"))
        else:
            # A home folder, which quotes would keep from bash.
            setup.append(re.sub(r" '~/([\w./+-]*)'", r" ~/\1", shlex.join(command.words)))
            if first in ("source", ".") and not "".join(command.words[1:2]).endswith(NAMES["sourced"]):
                told = f"what `{command.written}` sets is not followed here"
                questions.append(Question("", f"line {command.line}: {told}. {_CAPTURE}"))
    own = {name: (value, start.line) for name, value in start.env.items()}
    for name, (value, at) in {**script.exported, **own}.items():
        if name in NOT_KEPT:
            continue
        if SECRET.search(name):
            notes.append(f"line {at}: the value of {name} is not copied: it may be a secret")
        elif is_known(value):
            env[name] = value
        elif name.startswith(NAMES["libraries"]) and _JOB_ID.fullmatch(as_written(value)):
            setup.append(f'export {name}="{as_written(value)}"')
        elif name.startswith(NAMES["libraries"]):
            told = f"the value of {name} is not known here (`{as_written(value)}`)"
            questions.append(Question(f"workload.env.{name}", f"line {at}: {told}"))
        else:
            notes.append(f"line {at}: the value of {name} is not known here; fill it in under workload.env")
    return setup, env, questions, notes


def _exported(line: str) -> str:
    """The variable that a line of the setup exports; of another line no variable's name."""
    return line.removeprefix("export ").partition("=")[0]


_CAPTURE = "To have bash itself follow it: meshtune import --capture -- bash SCRIPT ARGUMENTS"


def _beside(program: str, path: Path | None, notes: list[str]) -> str:
    """The folder of a script beside which the program lies, and not in the present folder; "" else."""
    folder = str(path.absolute().parent if path else Path.cwd())
    # A name may be longer than any file's.
    if not is_known(program) or is_there(program) or not is_there(join(folder, program)):
        return ""
    notes.append(f"{program} lies beside the script, in whose folder trials start")
    return folder


def _files(
    chain: Sequence[tuple[str, Script, Command]], launch: Launch, command: Command, path: Path | None, place: str
) -> tuple[dict[str, str], list[Question]]:
    """The files that the start's words name: as the scripts of the chain write them, else as they lie there."""
    words = [word for word in (*launch.launcher, *launch.words) if is_known(word)]
    found: dict[str, str] = {}
    if path is not None:
        for folder in (str(path.absolute().parent), os.getcwd(), command.directory):
            if folder and is_known(folder):
                found |= named_files(words, folder, is_there)
    asked = []
    for _, script, at in chain:
        found |= script.files
        # `${PWD}/configs/x.json`, where the script writes configs/x.json.
        places = {normpath(join(at.directory or os.getcwd(), name)): text for name, text in script.files.items()}
        found |= {word: places[word] for word in (word.rpartition("=")[2] for word in words) if word in places}
    for name, reason in (pair for _, script, _ in chain for pair in script.changed.items()):
        if name in words or any(word.endswith(f"={name}") for word in words):
            found.pop(name, None)
            asked.append(Question("", f"{place}: what {name} holds is not known here ({reason}). {_CAPTURE}"))
    return found, asked


def _open_words(scripts: Sequence[Script], launch: Launch, place: str) -> Iterator[Question]:
    """A question for each unknown word that may stand for further arguments, and for each placeholder."""
    unknown = {name: reason for script in scripts for name, reason in script.unknown.items()}
    causes = {name: names for script in scripts for name, names in script.causes.items()}
    value_of_a_flag = False
    for word in launch.words:
        for written in dict.fromkeys(unknown_parts(word)):
            name = written.strip('${}"').partition(":")[0].partition("[")[0]
            further = written.startswith(_ARGUMENTS) or any(part in name.upper() for part in _ARGUMENTS[:5])
            if written.startswith(("<", "{")):
                yield Question("", f"{place}: `{written}` is a placeholder: write there what it is to be")
            elif as_written(word) == written and (further or not value_of_a_flag):
                reason = f" ({unknown[name]})" if name in unknown else ""
                named = next(iter(causes.get(name, (name,))), "")
                answer = f"--set {named}=VALUE (nothing after the `=` where it is empty), or " * named.isidentifier()
                told = f"`{written}` may stand for further arguments, which are not known here{reason}"
                yield Question("", f"{place}: {told}. Next: {answer}meshtune import --capture -- bash SCRIPT ARGUMENTS")
        value_of_a_flag = word.startswith("-") and "=" not in word
