"""Runs a user's own launcher with stand-ins for the programs that start a training, and reads what it called:
the one training that it starts, by the dialect of the program."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from getpass import getuser
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.command import call
from meshtune.runners.processes.gang import JOB_MARK, kill_marked
from meshtune.runners.programs.capture import sandbox, stand_in
from meshtune.runners.programs.capture.stand_in import (
    BARRED,
    CONTAINERS,
    DEVICE_COUNTS,
    NAMES,
    NOT_DONE,
    PYTHONS,
    SUBMITTING,
)
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Question
from meshtune.runners.programs.dialects.bash.launch import choose, find_call
from meshtune.runners.programs.dialects.call import Call, call_of, launch_of, starts_a_program, trains
from meshtune.runners.programs.dialects.job_script import with_devices, with_job
from meshtune.runners.programs.dialects.job_variables import head_variables, job_variables
from meshtune.runners.programs.dialects.launcher_options import spelled_out
from meshtune.runners.programs.dialects.programs import read_start
from meshtune.runners.programs.dialects.sources import read_source
from meshtune.runners.untrusted_text import SLOW_LIMITS, Limits, UnreadableText, read_file, read_json

# Environments of modules take seconds to load.
TIME_LIMIT_S = 120.0
# Of a loop over many trainings no more are read.
_MAX_RECORDS = 200
_RECORD = Limits(max_bytes=10_000_000)
# A binary by its path passes by the stand-ins; a Python program does not.
_BY_PATH = re.compile(r"(?<![\w.~])[\w.~${}-]*/[\w./${}-]*\b(srun|mpirun|mpiexec|sbatch|salloc|qsub)(?=[\s\"']|$)")
_PATH = re.compile(r"/[\w.+@-]+(?:/[\w.+@-]+)*")
_COMMENT = re.compile(r"(?m)^\s*#.*$")
# A quoted text, a here-document that bash does not expand, and what a command within writes: traced itself.
_INNER = re.compile(r"\$\((?:[^()'\"\\]|\\.|'[^']*'|\"(?:\\.|[^\"\\])*\")*\)|`[^`]*`")
_LITERAL = re.compile(r"\\.|'[^']*'|\"((?:\\.|[^\"\\])*)\"")
_READ = r"\$(?:\{{[#!]?{0}(?!\w|:?[-+?=])|{0}(?!\w))"
# Of the ranks of other launchers, for which a script looks too.
_OF_RANKS = re.compile(r"(OMPI|PMI|PMIX|MV2|PALS|MPI|PRTE)_")
_MISSING = re.compile(r"(cd|pushd|source|\.|module|ml|conda)\s")
_LAST_CHARACTERS = 300
# A command that failed by itself, such as a `cd` or `source` that finds nothing here.
_BASH_ERROR = re.compile(r"(?m)^(\S{1,200}: line [0-9]+: .{1,300})$")
# A line of `set -x`.
_SHOWN = re.compile(r"(?m)^\++ .*\n?")
_MAX_ERRORS = 10
_MAX_TOLD = 20
# Read by scripts that start on as many nodes as their job has.
_NODES_OF_A_JOB = re.compile(r"SLURM_(?:JOB_)?(?:NNODES|NUM_NODES|NODELIST|NTASKS)\b")
_ANSWER = "capture where the training would run, or write it into the spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """script: the path of the script that the command runs, "" unknown; text: of it. calls: in order. unset: variables
    that the script reads and nothing sets, which are empty words to bash; broken: those whose own line bash failed at.
    notes: what people should look at. failed: what bash complained of. end: how the launcher ended, in one line."""

    script: str
    text: str
    calls: tuple[Call, ...]
    unset: tuple[str, ...]
    broken: tuple[str, ...]
    notes: tuple[str, ...]
    failed: tuple[str, ...]
    end: str


def capture(
    command: Sequence[str], given: Mapping[str, str], time_limit_s: float = TIME_LIMIT_S, devices: int | None = None
) -> Captured:
    """Run a launcher here. given: variables for it, before those of its `#SBATCH` lines. devices: of a node, where its
    job does not say. Raises CannotRead."""
    path, text = _script(command)
    if found := _BY_PATH.search(_COMMENT.sub("", text)):
        raise CannotRead(
            f"{path} starts {found[0]}, which a stand-in for {found[1]} cannot answer; nothing was run. "
            f"Write {found[1]} without its folder in a copy of the script, and capture that"
        )
    with TemporaryDirectory(prefix="meshtune-capture-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        for inner in ("bin", "records", "layers", "memory"):
            (folder / inner).mkdir()
        asked = "CUDA_VISIBLE_DEVICES" in given and str(len(given["CUDA_VISIBLE_DEVICES"].split(",")))
        user = dict.fromkeys(("USER", "LOGNAME"), getuser())
        job = {stand_in.DEVICES: asked or str(devices or ""), **user, **os.environ, **job_variables(text, folder)}
        environment, code = _prepared(folder, {**job, **given}), 0
        if "nvidia-smi" in text:  # a script that looks for both takes the one that is there
            (folder / "bin" / "rocm-smi").unlink()
            del environment["BASH_FUNC_rocm-smi%%"]
        environment[f"{stand_in.FOLDER}_PATHS"] = ":".join(_PATH.findall(text))
        environment[stand_in.SCRIPTS] = os.path.realpath(path)
        try:
            started = (sys.executable, "-SE", sandbox.__file__, str(folder), *command)
            answer = call(started, time_limit_s=time_limit_s, environment=environment, stdin="")
            code, last = answer.code, " ".join((_SHOWN.sub("", answer.err) or answer.out).split())[-_LAST_CHARACTERS:]
            end = f"ended with status {answer.code}" + (f": {last}" if answer.code and last else "")
            notes = [f"the launcher {end}"] if answer.code else []
            # One of each kind, such as of the lines that write to a log that is not there.
            errors = _BASH_ERROR.findall(answer.err.replace(f"{folder}/records/", ""))
            failed = list({re.sub(r"line \d+", "", line): line for line in reversed(errors)}.values())[::-1]
            # What is added to a file that is not there is a log.
            logs = [error for error in failed if any(">>" in line for line in _lines([error]))]
            failed = [error for error in failed if error not in logs]
            notes += [f"bash told: {error}" for error in logs]
        except RunnerUnavailable as error:
            end = str(error).replace(sys.executable, " ".join(command)[:_LAST_CHARACTERS])
            notes, failed = [f"the launcher was ended: {end}"], []
        finally:
            kill_marked(environment[JOB_MARK])
        if (folder / "unsealed").exists():
            raise CannotRead(
                f"this kernel makes no sandbox ({(folder / 'unsealed').read_text()}), and without one a launcher could "
                f"remove or send what it likes; nothing was run. Next: {_read_step(path)}; or the same on a machine "
                f"that allows user namespaces with overlays (docs/how-to/import.md)"
            )
        calls, traced = tuple(_calls(folder, job)), list(_traced(folder))
    if not_done := dict.fromkeys(found.written for found in calls if found.tool in NOT_DONE):
        notes.append(f"not done, as it reaches beyond the launcher: {'; '.join(list(not_done)[:_MAX_TOLD])}")
    if answered := dict.fromkeys(shlex.join(found.words) for found in calls if found.tool == "answered"):
        notes.append(
            f"answered by the devices of the job, without their kind: {'; '.join(answered)[:_LAST_CHARACTERS]}"
        )
    # A file of a site, such as /etc/profile.d/modules.sh, may read what it likes.
    places = (Path.cwd(), Path(path).absolute().parent, folder)
    own = [found for found in traced if any(Path(found[2]).absolute().is_relative_to(place) for place in places)]
    unset = {name for kind, names, *_, depth, line in own if kind == "unset" for name in _unset(names, depth, line)}
    broken = {name for name in unset if any(re.search(rf"\b{name}=", line) for line in _lines(failed))}
    stopped, failure = "", ("", "")
    for kind, status, source, number, options, line in traced:
        if source == "environment":  # a function of ours
            continue
        place = f"{source}: line {number}: " if number else f"{source}: "
        told = f"{place}{line[:_LAST_CHARACTERS]}: status {status}" + ", command not found" * (status == "127")
        if kind == "failed":
            failure, stopped = (line, told), told if "e" in options else stopped
            if (status == "127" or _MISSING.match(line)) and not any(place in one for one in failed):
                failed.append(told)
        elif kind == "ended" and status != "0":
            stopped = failure[1] if failure[0] == line else told
    return Captured(
        script=path,
        text=text,
        calls=calls,
        unset=tuple(sorted(unset - broken)),
        broken=tuple(sorted(broken)),
        notes=tuple(notes),
        failed=tuple(failed[:_MAX_ERRORS]),
        end=f"{end}; it stopped at {stopped}" if code and stopped else end,
    )


def _script(command: Sequence[str]) -> tuple[str, str]:
    """The path and text of the first file that the command names; a program that is no text is left out."""
    for word in filter(os.path.isfile, command):
        with suppress(UnreadableText, OSError):
            return word, read_file(Path(word), SLOW_LIMITS.max_bytes)
    return "", ""


def _prepared(folder: Path, before: Mapping[str, str]) -> dict[str, str]:
    """The stand-ins in the folder, and the launcher's environment that leads to them."""
    program = folder / "sitecustomize.py"
    shutil.copyfile(stand_in.__file__, program)
    for shim in (folder / "bin" / tool for tool in stand_in.TOOLS):
        # -E: our own Python asks nobody.
        shim.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -SE {quote(str(program))} {shim.name} "$@"\n')
        shim.chmod(0o755)
    (folder / "options.json").write_text(json.dumps(stand_in.TABLE))
    trace = Path(__file__).with_name("trace.sh").read_text("utf-8")  # our own
    (folder / "trace.sh").write_text(trace.replace("FOLDER", str(folder)))
    return {
        **before,
        **{f"BASH_FUNC_{tool}%%": stand_in.bash_function(str(folder / "bin"), tool) for tool in stand_in.TOOLS},
        "PATH": os.pathsep.join((str(folder / "bin"), before.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join((str(folder), *filter(None, (before.get("PYTHONPATH"),)))),
        "BASH_ENV": str(folder / "trace.sh"),
        f"{stand_in.FOLDER}_ENV": before.get("BASH_ENV", ""),
        stand_in.FOLDER: str(folder),
        stand_in.MODULES: os.pathsep.join(filter(None, sys.path)),
        JOB_MARK: folder.name,
    }


def _calls(folder: Path, job: Mapping[str, str]) -> list[Call]:
    """job: the variables that the launcher would have by itself."""
    found = []
    for path in sorted((folder / "records").glob("*.json"))[:_MAX_RECORDS]:
        record: Any = read_json(path.read_text(encoding="utf-8", errors="replace"), _RECORD)
        environment = {
            name: _clean(value, folder)
            for name, value in record["environment"].items()
            if not name.startswith(("BASH_FUNC_", stand_in.FOLDER)) and name not in ("_", "BASH_ENV", JOB_MARK)
        }
        # A launcher that leads nowhere else has the variable that we made.
        if not environment.get("PYTHONPATH"):
            environment.pop("PYTHONPATH", None)
        tool, *words = spelled_out((record["tool"], *record["words"]), environment)
        found.append(
            Call(
                tool=tool,
                words=tuple(words),
                cwd=record["cwd"],
                environment=environment,
                changed={
                    name: value
                    for name, value in environment.items()
                    if job.get(name) != value and name not in ("PWD", "OLDPWD", "SHLVL")
                },
                under=tuple((tool, tuple(options)) for tool, options in record["under"]),
                files=record["files"],
                head=record["head"],
            )
        )
    return found


def _clean(value: str, folder: Path) -> str:
    """A value without our folders."""
    if str(folder) not in value:
        return value
    return os.pathsep.join(part for part in value.split(os.pathsep) if Path(part) not in (folder, folder / "bin"))


def _traced(folder: Path) -> Iterator[tuple[str, ...]]:
    """What bash was asked: (kind, names or status, script, line, depth of subshells or options, command)."""
    for path in sorted((folder / "records").glob("*.trace"), key=lambda path: path.stat().st_mtime_ns):
        with suppress(UnreadableText, OSError):
            yield from zip(*[iter(read_file(path, SLOW_LIMITS.max_bytes).split("\0"))] * 6, strict=False)


def _lines(failed: Sequence[str]) -> Iterator[str]:
    """The lines of scripts that bash complained of."""
    for path, line in re.findall(r"(?m)^(.+?): line (\d+): ", "\n".join(failed)):
        with suppress(UnreadableText, OSError, IndexError):
            yield read_file(Path(path), SLOW_LIMITS.max_bytes).splitlines()[int(line) - 1]


def _unset(names: str, depth: str, command: str) -> Iterator[str]:
    """The variables that a command reads to go on with, of those that are not set."""
    text, mark, document = command.partition("<<")
    while (shorter := _INNER.sub("", text)) != text:
        text = shorter
    text = _LITERAL.sub(lambda found: re.sub(r"\\.", "", found[1] or ""), text)
    text += mark + ("" if document.startswith("'") else re.sub(r"\\.", "", document))
    for name in dict.fromkeys(names.split()):
        read = re.search(_READ.format(name), text)
        shown = depth == "0" and re.match(r"(echo|printf) [^>]*$", command)
        # `[ -z "$X" ]` asks whether it is set, and `PATH=$X:...` adds to it.
        tested = re.search(rf"-[znv] +\"?\$?\{{?{name}\b", command)
        added = re.search(rf"(?<![\w$]){name}\+?=(?![\"']?\$\{{?{name}\}}?[\"']?(\s|$))", command)
        if read and not shown and not tested and not added and not _OF_RANKS.match(name):
            yield name


def read_captured(captured: Captured, number: int = 0, dialect: str = "") -> Imported:
    """What the start says. number: which of several different ones, from 1; 0 where there is one. Raises CannotRead."""
    calls = [_inside(found) for found in captured.calls]
    starts = [found for found in calls if starts_a_program(found)]
    # In a container a small program of Python stands beside the training.
    starts = [found for found in starts if trains(found)] or starts
    if uncounted := [found.written for found in calls if found.tool in DEVICE_COUNTS]:
        raise CannotRead(
            f"the script counts the devices of a node by `{uncounted[0]}`, and neither this machine nor the job's "
            f"lines have them. Next: the same command with --set SLURM_GPUS_ON_NODE=DEVICES"
        )
    if captured.broken:
        raise CannotRead(
            f"the script works out {', '.join(captured.broken)} itself, which failed here: bash told: "
            f"{'; '.join(captured.failed)}. Next: {_read_step(captured.script)}"
        )
    told = "" if starts else _nothing(captured)
    if captured.unset:
        asked = " ".join(f"--set {name}=VALUE" for name in captured.unset)
        besides = f". Besides, {told}" if told else ""
        raise CannotRead(
            f"the script reads {', '.join(captured.unset)}, which nothing sets, and bash takes as empty. Next: the "
            f"same command with {asked} (nothing after the `=` where it is to be empty){besides}"
        )
    if told:
        raise CannotRead(told)
    chosen, place = choose(starts, number)
    launch = launch_of(chosen, place)
    head = head_variables(launch.head or captured.text)
    unsaid = "SLURM_JOB_NAME" in head and "SLURM_NNODES" not in head
    if launch.nodes == 1 and unsaid and _NODES_OF_A_JOB.search(captured.text):
        told = "the script's head has no --nodes, and was captured as of one node: say how many"
        launch = replace(launch, nodes=None, questions=(*launch.questions, Question("cluster.nodes", told)))
    launch = with_devices(launch, captured.text)
    imported = with_job(read_start(launch, dialect), captured.text, launch)
    failed = [
        # Where a `cd` led nowhere, the folder that the start was met in is not the program's.
        Question(
            "workload.directory" * (": cd: " in line),
            f"bash told: {line}. What it would have done is missing: {_ANSWER}",
        )
        for line in captured.failed
    ]
    if not Path(chosen.cwd).is_dir():
        failed.append(Question("workload.directory", f"the script makes {chosen.cwd} itself, and capture left it out"))
    return replace(imported, notes=(*captured.notes, *imported.notes), questions=(*failed, *imported.questions))


def _inside(found: Call) -> Call:
    """The call that the words of a container or a submitter hold; any other call as it is."""
    words, inner = (found.tool, *found.words), None
    if found.tool in CONTAINERS:
        inner = find_call(words)
    elif found.tool in PYTHONS and "--" in words:
        inner = call_of(words)
    if inner is None:
        return found
    around = replace(inner, cwd=found.cwd, environment=found.environment, changed=found.changed, files=found.files)
    return replace(around, under=(*found.under, *inner.under))


def _read_step(script: str) -> str:
    """The next command where capture does not come to a training."""
    try:
        read_source(Path(script), given={})
    except (CannotRead, UnreadableText, OSError):
        return "meshtune import --command 'torchrun ...', with the command that starts the training"
    return f"meshtune import {quote(script)}, which reads the script without running it"


def _nothing(captured: Captured) -> str:
    """Why nothing was captured, and the next command."""
    for found in captured.calls:
        # `enroot import` and the like start nothing.
        if found.tool in BARRED or (found.tool in CONTAINERS and not {"import", "pull", "build"} & {*found.words[:2]}):
            given = f"`{found.written}` was met and not run"
            script = next((word for word in found.words if word.endswith(NAMES["scripts"])), "")
            if found.tool in SUBMITTING and script:
                return f"{given}: {script} is not there. Next: make the file, and the same command"
            return f"{given}. Next: meshtune import --command 'torchrun ...', with the command that it would run there"
    seen = "".join(f"; met: {found.written}" for found in captured.calls[:_MAX_TOLD])
    causes = "".join(f"; bash told: {line}" for line in captured.failed if line not in captured.end)
    return (
        f"the launcher started no training by torchrun, deepspeed, accelerate, composer, srun, mpirun or python{seen}; "
        f"it {captured.end}{causes}. Programs called by their whole path (/opt/conda/bin/torchrun) are met only where "
        f"they are there: write `torchrun` in a copy of the script. Next: {_read_step(captured.script)}; or capture "
        f"where the training would run"
    )
