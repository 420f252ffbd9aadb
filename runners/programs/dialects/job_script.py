"""What the head of a batch script asks of Slurm or PBS, as the spec's runner: `#SBATCH` and `#PBS` lines.

What the runner has no option for goes to its `extra_lines`; what belongs to one job alone (name, output, mail) is left
out. Other schedulers are told in a question."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from meshtune.runners.programs.capture.stand_in import NAMES, PYTHONS
from meshtune.runners.programs.dialects.base import SECRET, CannotRead, Imported, Launch, Question, Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known, is_placeholder
from meshtune.runners.programs.dialects.launcher_options import (
    HEADS,
    OF_SBATCH,
    OF_SRUN,
    Counts,
    around_of,
    binding_of,
    open_words,
    options_of,
    tell,
    whole,
)
from meshtune.runners.schedulers.batch.script import BACKSTOP_S, directives, duration_s
from meshtune.runners.untrusted_text import UnreadableText
from meshtune.search_spaces.checks import raising

# Of sbatch and srun.
_SHORT = dict(word.split("=") for word in NAMES["short"])
# The runner's options of the same name.
_NAMED = ("partition", "account", "qos", "constraint", "reservation")
_OF_SRUN = ("mpi", "cpu-bind", "gpu-bind")
_LOGIN = re.compile(r"#!.*sh\b.*[ \t](?:--login|-[a-z]*l[a-z]*)(?:\s|$)")
_VALUE = re.compile(r"[A-Za-z0-9_.,:/@+&|*()\[\]=-]+")
# The name of an option for its value: `--account=my_account`.
_OWN_NAME = re.compile(r"(?:(?:my|your|the)[_-]?)?(?:account|partition|project|queue|qos)(?:[_-]?(?:name|id))?", re.I)
_OPEN = re.compile(r"[$`]")
# Variables that srun reads instead of options; a rank has no use for them.
_OF_A_STEP = re.compile(r"SRUN_|SLURM_(?:(?:CPU|GPU|MEM)_BIND|MPI_TYPE|DISTRIBUTION|HINT|NETWORK)")


@dataclass(slots=True, kw_only=True)
class Job(Remarks):
    """runner: the spec's section, with its kind. time_limit_s: of the script's job, None where it says none."""

    runner: dict[str, Any]
    time_limit_s: int | None = None
    nodes: int | None = None
    devices_per_node: int | None = None

    def take(self, key: str, name: str, value: str) -> None:
        """An option of the runner by its directive's value; a placeholder is a question."""
        if is_placeholder(value) or _OWN_NAME.fullmatch(value) or not _VALUE.fullmatch(value):
            self.ask(f"runner.{key}", f"the batch script has {name} {value!r}: name the real one")
        else:
            self.runner[key] = value

    def add(self, key: str, line: str) -> None:
        """One more of an option of the runner that is a list."""
        self.runner.setdefault(key, []).append(line)


def with_job(imported: Imported, script: str, launch: Launch) -> Imported:
    """With the scheduler of a script's head, and the options of srun by which the script starts the launch. A workload
    that has lines of a shell has the setup there. Raises CannotRead."""
    job, workload = read_job(launch.head or script, launch.under), imported.workload
    remarks, runner, trial = Remarks(place=launch.place), imported.runner, dict(imported.trial)
    # What stands around the launcher and trials do without.
    for tool, words in launch.under:
        if tool == "srun":
            step = _options([as_written(word) for word in words]).items()
            tell(remarks, tool, [(name, [_line(name, value)]) for name, value in step if _is_left(name, value)])
        elif kind := around_of(tool):
            kept = binding_of(words) if kind == "mpirun" and job and job.runner.get("kind") == "pbs" else ()
            tell(remarks, kind, [each for each in options_of(words) if each[1][0] not in kept])
    own = "setup" in workload or workload.get("kind") == "command"
    ready = {"setup": list(launch.setup)} if launch.setup and not own else {}
    env = dict(workload.get("env", {}))
    of_step = {name: env.pop(name) for name in list(env) if _OF_A_STEP.match(name)}
    if of_step and (job is None or job.runner.get("kind") == "slurm"):
        workload = {**workload, "env": env}
    if job is not None:
        runner = dict(runner or {**job.runner, **ready})
        if of_step and job.runner.get("kind") == "slurm":
            runner["environment"] = {**of_step, **runner.get("environment", {})}
        remarks.questions += job.questions
        remarks.notes += job.notes
        if job.time_limit_s is not None:
            trial["time_limit_cap_s"] = longest = max(60, job.time_limit_s - int(BACKSTOP_S))
            told = f"the script's job may take {job.time_limit_s} s, start and end included"
            remarks.notes.append(f"time_limit_cap_s {longest}: {told}")
    elif of_step:
        remarks.notes.append(f"srun reads {', '.join(of_step)}, which runner slurm has as `environment`")
    if ready and job is None:
        told = f"trials do not run the script's setup ({'; '.join(launch.setup)[:200]})"
        remarks.notes.append(f"{told}: start `meshtune run` where it has run")
    questions, notes = (*imported.questions, *remarks.questions), (*imported.notes, *remarks.notes)
    return replace(imported, workload=workload, runner=runner, trial=trial, questions=questions, notes=notes)


def _is_left(name: str, value: str) -> bool:
    """Whether trials do without an option of srun; they have the variables that it sets."""
    return name in OF_SRUN and not (name == "export" and "=" in value)


def with_devices(launch: Launch, script: str) -> Launch:
    """With the nodes and devices that the script's job has, where the launcher takes what it finds; where they
    contradict what the launcher says, they are asked."""
    job = read_job(launch.head or script, launch.under)
    if job is None or any(asked.path == _CLUSTER for asked in launch.questions):
        return launch
    own, head = (launch.nodes, launch.devices_per_node, launch.ranks), (job.nodes, job.devices_per_node)
    found = Counts(own[0] or head[0], own[1] or head[1], own[2]).settled()
    total = found.nodes * found.each if found.nodes and found.each else None
    names = ("nodes", "ranks per node", "ranks")
    faults = [
        f"{said} {what}, and the script's head {other}"
        for what, said, other in zip(names, own, (*head, None if all(own[:2]) else total), strict=True)
        if said and other and said != other
    ]
    words = ", ".join(open_words(launch.launcher))
    started_by_python = launch.launcher[:1] in _PYTHONS
    if words and (total is None or (all(own[:2]) and not started_by_python)):
        return launch
    if words:
        faults = [f"what `{words}` says too, beside {found.nodes} nodes of {found.each} devices"]
    if not faults:
        return replace(launch, nodes=found.nodes, devices_per_node=found.each)
    around = [tool for tool, _ in launch.under if around_of(tool) and started_by_python]
    told = f"{launch.place}: {[*launch.launcher[:1], *around][-1]} starts {'; '.join(faults)}"
    asked = Question(_CLUSTER, f"{as_written(told)}: say which nodes and devices per node are right")
    return replace(launch, nodes=None, devices_per_node=None, questions=(*launch.questions, asked))


def read_job(script: str, under: Sequence[tuple[str, Sequence[str]]] = ()) -> Job | None:
    """What a batch script asks for; None where it asks no scheduler. under: see `Launch`. Raises CannotRead."""
    said: dict[str, dict[str, str]] = {"srun": {}, "salloc": {}, "sbatch": {}}
    for tool, words in under:
        said.get(tool, {}).update(_options([as_written(word) for word in words]))
    step = said["srun"]
    with raising(CannotRead, "its lines for the scheduler", UnreadableText):
        if options := slurm_options(script) | said["salloc"] | said["sbatch"]:
            return _slurm(options, step, login=bool(_LOGIN.match(script)))
        submitted = [word for tool, options in under if tool == "qsub" for word in options]
        if words := [*directives(script, "PBS"), *submitted]:
            return _pbs(words, under)
    told = ""
    if kept := [_line(*one) for one in step.items() if one[0] in _NAMED or not _is_left(*one)]:
        told = f"srun starts the program with {' '.join(kept)}: say where trials run; runner slurm has srun_arguments"
    counts = Counts()
    for name, head in HEADS.items():
        if lines := "\n".join(re.findall(rf"(?m)^{head['mark']}.*", script)):
            told = f"the script is one of {name}, which has no runner: say where trials run (slurm, pbs, local)"
            counts = _others(head, lines)
    asked = [Question("runner.kind", told)]
    return Job(runner={}, nodes=counts.nodes, devices_per_node=counts.each, questions=asked) if told else None


def _others(head: Mapping[str, Any], lines: str) -> Counts:
    """The nodes, and the devices of each, that lines for another scheduler ask for."""
    number = {
        name: int(found[1]) if name in head and (found := re.search(head[name], lines)) else None
        for name in ("nodes", "ranks", "each", "devices")
    }
    for resource, devices in head.get("full_nodes", {}).items():
        if found := re.search(rf"\b{resource}=(\d+)", lines):
            return Counts(int(found[1]), devices)
    return Counts(Counts(number["nodes"], number["each"], number["ranks"]).settled().nodes, number["devices"])


def _line(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def slurm_options(script: str) -> dict[str, str]:
    """The `#SBATCH` options by their long names; "" for one without a value. Raises UnreadableText."""
    return _options(directives(script, "SBATCH"))


def submitted_head(script: str, options: Sequence[str]) -> str:
    """A script's head, and after it the options that sbatch was given. Raises UnreadableText."""
    return f"#SBATCH {shlex.join((*directives(script, 'SBATCH'), *options))}\n"


def _options(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word, following in pairwise([*words, "-"]):
        if word.startswith("--"):
            name, joined, value = word[2:].partition("=")
            found[name] = value if joined else "" if following.startswith("-") else following
        elif word.startswith("-") and (name := _SHORT.get(word[:2], "")):
            found[name] = word[2:].removeprefix("=") or ("" if following.startswith("-") else following)
        elif word == "hetjob" or word == "packjob":
            found["hetjob"] = ""
    return found


def slurm_nodes(options: Mapping[str, str]) -> int | None:
    """The nodes that a Slurm script asks for; None where its lines leave them open to the command line of sbatch."""
    if "nodes" in options:
        return whole(options["nodes"].rpartition("-")[2])
    gpus = (options.get(name, "").rpartition(":")[2] for name in ("gpus-per-node", "gpus"))
    for each, total in ((_tasks_per_node(options), options.get("ntasks", "")), tuple(gpus)):
        if whole(total) == 1:
            return 1
        if nodes := Counts(None, whole(each), whole(total)).settled().nodes:
            return nodes
    return None


def devices_per_node(options: Mapping[str, str]) -> int | None:
    """The GPUs of a node that a Slurm script asks for."""
    gres = options.get("gres", "")
    for value in (options.get("gpus-per-node", ""), gres if gres.startswith("gpu") else ""):
        if number := whole(value.partition("(")[0].rpartition(":")[2]):
            return number
    nodes, tasks = slurm_nodes(options), whole(_tasks_per_node(options))
    total, each = (whole(options.get(name, "").rpartition(":")[2]) for name in ("gpus", "gpus-per-task"))
    if total and nodes and total % nodes == 0:
        return total // nodes
    return tasks * each if tasks and each else None


def _slurm(options: Mapping[str, str], step: Mapping[str, str], *, login: bool) -> Job:
    reading = Job(runner={"kind": "slurm"})
    reading.runner |= {"login_shell": True} if login or "get-user-env" in options else {}
    options = {**{name: step[name] for name in NAMES["sizes"] if "$" not in step.get(name, "$")}, **options}
    for name in _NAMED:
        if name in options:
            reading.take(name, f"--{name}", options[name])
    gres = options.get("gres") or "gpu:" + options.get("gpus-per-node", options.get("gpus", ""))
    kind = gres.split("(")[0].split(":")
    if kind[0] == "gpu" and len(kind) > 1 and kind[1] and not whole(kind[1]):
        reading.take("gres", "--gres", f"gpu:{kind[1]}")
    elif "gres" in options and kind[0] != "gpu":
        reading.add("extra_lines", f"#SBATCH --gres={options['gres']}")
    if excluded := options.get("exclude"):
        reading.runner["exclude"] = re.findall(r"[^,\[]+(?:\[[^]]*\])?[^,\[]*", excluded)
    devices = reading.devices_per_node = devices_per_node(options)
    each, tasks = whole(options.get("cpus-per-task", "")), whole(_tasks_per_node(options)) or 1
    if cpus := whole(options.get("cpus-per-gpu", "")):
        reading.runner["cpus_per_device"] = cpus
    elif each and devices and each * tasks % devices == 0:
        reading.runner["cpus_per_device"] = each * tasks // devices
    for name, value in options.items():
        if name not in OF_SBATCH:
            reading.add("extra_lines", f"#SBATCH {_line(name, value)}")
    for name, value in step.items():
        if name in _OF_SRUN:
            reading.take(name.replace("-", "_"), f"srun --{name}", value)
        elif name not in OF_SRUN and _OPEN.search(value):
            reading.ask("runner.srun_arguments", f"srun has --{name}={value}: name the real value")
        elif name not in OF_SRUN:
            reading.add("srun_arguments", _line(name, value))
    for part in f"{options.get('export', '')},{step.get('export', '')}".split(","):
        name, joined, value = part.partition("=")
        if joined and (SECRET.search(name) or _OPEN.search(value)):
            reading.ask("", f"--export sets {name}, whose value is not copied: write it where trials need it")
        elif joined:
            reading.runner.setdefault("environment", {})[name] = value
    if "gpus-per-task" in options.keys() - step.keys():
        tell(reading, "sbatch", [("gpus-per-task", [_line("gpus-per-task", options["gpus-per-task"])])])
    if "array" in options:
        reading.ask("", f"the script is a job array (--array={options['array']}): {_WHICH}")
    if "hetjob" in options:
        reading.ask("", "the script is a heterogeneous job, of which trials take one kind of node")
    if image := options.get("container-image"):
        reading.ask(
            "workload.python",
            f"the script's job runs in the container {image}, and trials start `python` as it is. Name a Python inside "
            f'of it: an executable file with `exec srun --container-image={image} python3 "$@"` or the like',
        )
    reading.time_limit_s, reading.nodes = duration_s(options.get("time", "")) or None, slurm_nodes(options)
    return reading


_PYTHONS = [(tool,) for tool in PYTHONS]
_CLUSTER, _WHICH = "cluster.nodes", "which of its settings is the baseline?"


def _tasks_per_node(options: Mapping[str, str]) -> str:
    return options.get("ntasks-per-node", options.get("tasks-per-node", ""))


def _pbs(words: Sequence[str], under: Sequence[tuple[str, Sequence[str]]]) -> Job:
    """qsub(1B) of PBS Pro, and Torque's `nodes=4:ppn=8`."""
    reading = Job(runner={"kind": "pbs"})
    binding = [word for tool, options in under if around_of(tool) == "mpirun" for word in binding_of(options)]
    if binding and all(map(is_known, binding)):
        reading.runner["binding"] = shlex.join(binding)
    elif binding:
        written = as_written(" ".join(binding))
        reading.ask("runner.binding", f"mpiexec has `{written}`: write it with its values")
    for option, value in pairwise([*words, ""]):
        match option[:2]:
            case "-q":
                reading.take("queue", "-q", option[2:] or value)
            case "-A":
                reading.take("project", "-A", option[2:] or value)
            case "-P" | "-W" | "-p":
                reading.add("extra_lines", f"#PBS {option[:2]} {option[2:] or value}")
            case "-J":
                reading.ask("", f"the script is a job array ({value}): {_WHICH}")
            case "-l":
                for part in (option[2:] or value).split(","):
                    name, _, said = part.partition("=")
                    count, _, chunk = said.partition(":")
                    if name == "walltime":
                        reading.time_limit_s = duration_s(said) or None
                    elif name in ("filesystems", "place"):
                        reading.take(name, f"-l {name}", said)
                    elif name in ("select", "nodes"):
                        reading.nodes = whole(count)
                        found = re.search(r"\bn?gpus=(\d+)", chunk)
                        reading.devices_per_node = whole(found[1]) if found else reading.devices_per_node
                        if name == "nodes":
                            told = f"`-l nodes={said}` are Torque's words; say what a node must have in PBS Pro's"
                            reading.ask("runner.select", told)
                        elif "+" in chunk:
                            reading.ask("runner.select", f"several kinds of nodes: {said}")
                        elif chunk:
                            reading.take("select", "-l select", chunk)
                    elif name:
                        reading.add("extra_lines", f"#PBS -l {part}")
    return reading
