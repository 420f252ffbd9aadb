"""A call of a launcher as the launch that dialects read: its program, arguments, devices and environment.

A call comes from a script's text, from a stand-in that was run, or from a live process."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from meshtune.runners.programs.capture.stand_in import (
    AROUND,
    BARRED,
    CONTAINERS,
    LAUNCH_MODULES,
    LAUNCHERS,
    NAMES,
    PYTHONS,
    TABLE,
    is_training,
    options_end,
)
from meshtune.runners.programs.dialects.base import NOT_KEPT, SECRET, CannotRead, Imported, Launch, Question, Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import literal, mapping_in
from meshtune.runners.programs.dialects.launcher_options import (
    BINDING,
    CONSOLES,
    SUBMITTERS,
    Counts,
    around_of,
    counts_of,
    exported,
    open_words,
    options_of,
    spelled_out,
    tell,
    whole,
)
from meshtune.runners.programs.table import starts_ranks
from meshtune.runners.untrusted_text import is_there, option_value

_PYTHON = re.compile(r"python[0-9.]*")
# A variable that nothing sets, such as $PYTHON or ${TORCHRUN}.
_UNSET_TOOL = re.compile(r"\$\{?(PYTHON|TORCHRUN|DEEPSPEED|ACCELERATE)[A-Z_]*(?::?-[^}]*)?\}?")
_OWN = re.compile(r"-.*|[0-9.]+[smhd]?|[A-Za-z_]\w*=.*", re.DOTALL)
_BEFORE = frozenset({*AROUND, *NAMES["of_a_job"], *CONTAINERS})
# Trials run without them: they submit, reach other machines or slow what they measure.
_NOT_IN_TRIALS = (*BARRED, *NAMES["profilers"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that would have started something. tool: of `stand_in.TOOLS`, "" where it is not known. changed: the
    variables that the launcher set or changed, for the program. under: (tool, options) of each srun or mpirun around
    it, outermost first, of each container, and of all else that stands before it. files: the texts of the
    configurations that its words name. head: see `Launch`."""

    tool: str
    words: tuple[str, ...]
    cwd: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    under: tuple[tuple[str, tuple[str, ...]], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    head: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """As it was given, with what stood around it."""
        return (*(word for tool, options in self.under for word in (tool, *options)), self.tool, *self.words)

    @property
    def written(self) -> str:
        """As people would write it, cut."""
        text = as_written(shlex.join(self.command) if all(map(is_known, self.command)) else " ".join(self.command))
        return text if len(text) <= 200 else f"{text[:200]} ..."


def call_of(words: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> Call | None:
    """The call that a command's words are, with what stands around it; None where they call no launcher. environment:
    the variables that it finds."""
    words = spelled_out(words, environment)
    under, changed, index = list[tuple[str, tuple[str, ...]]](), dict[str, str](), 0
    submitter: Call | None = None
    while index < len(words):
        name, rest = PurePath(words[index]).name, list(words[index + 1 :])
        end = index + 1
        if name in (*AROUND, *NAMES["of_a_job"]):
            end += options_end("srun" if name in NAMES["of_a_job"] else name, rest)
            under.append((name, tuple(words[index + 1 : end])))
        elif tool := _tool(words[index], rest):
            # `python /venv/bin/torchrun ...`, as a process has it.
            if tool in PYTHONS and rest and (inner := PurePath(rest[0]).name) in LAUNCHERS:
                tool, rest = inner, rest[1:]
            submitter = submitter or Call(tool=tool, words=tuple(rest), under=tuple(under), changed=changed)
            # `python submit.py --nodes 4 -- torchrun ...`: the words of a job.
            at = rest.index("--") + 1 if "--" in rest else 0
            if submitter.words != tuple(rest) or not (at and _program(rest[at:]) and any(map(_tool, rest[at:]))):
                return Call(tool=tool, words=tuple(rest), under=tuple(under), changed=changed)
            end = len(words) - len(rest) + at
            under.append((words[index], tuple(words[index + 1 : end])))
        elif name in NAMES["passing"] or _OWN.fullmatch(words[index]):
            while end < len(words) and (_OWN.fullmatch(words[end]) or words[end - 1] == "-u"):
                end += 1
            own = words[index:end]
            changed |= dict(word.split("=", 1) for word in own if "=" in word and not word.startswith("-"))
            if name == "env" and (options := [word for word in own[1:] if "=" not in word]):
                under.append((name, tuple(options)))
        else:
            while end < len(words) and PurePath(words[end]).name not in _BEFORE and not _tool(words[end], words[end:]):
                end += 1
            # `./wrapper pretrain_gpt.py --num-layers 2`, and `$LAUNCHER x.py`, of which nobody knows what it is.
            at = next((at for at in range(index + 1, end) if words[at].endswith(".py")), 0)
            if end == len(words) and at:
                before = tuple(words[index:at])
                starts = _is_environment(name, before[1:])
                starts = starts or is_training(list(map(as_written, words[at:])), under=False)
                if is_known(" ".join(before)) and not starts:
                    return submitter
                around = (*under, (name if name in _BEFORE else before[0], before[1:]))
                return Call(tool="", words=tuple(words[at:]), under=around, changed=changed)
            under.append((name if name in _BEFORE else words[index], tuple(words[index + 1 : end])))
        index = end
    return submitter


def _tool(word: str, rest: Sequence[str] = ("",)) -> str:
    """The stand-in's name of a launcher; "" of any other word."""
    name = PurePath(word).name
    if name in LAUNCHERS:
        return name
    if _PYTHON.fullmatch(name):
        return "python"
    if not is_known(word) and (unset := _UNSET_TOOL.fullmatch(as_written(word))) and rest:
        return unset[1].lower()
    return ""


def starts_scripts(tool: str) -> bool:
    """Whether a command of that name may start a script among its words; `cp` and `source` would not."""
    return tool in (*_BEFORE, *NAMES["passing"], *NAMES["binding"])


def starts_a_program(found: Call) -> bool:
    """Whether a call would have started a training; `accelerate config`, `torchrun --help` and a console script that
    stands for no start would not."""
    known = found.tool not in CONSOLES and found.tool in (*LAUNCHERS, *PYTHONS, "")
    return known and _program(found.words, launcher_of((found.tool, *found.words))) is not None


def trains(found: Call) -> bool:
    """Whether a start is that of a training, and of no small program of Python beside it."""
    under = any(tool in AROUND for tool, _ in found.under)
    return found.tool not in (*PYTHONS, "") or is_training(list(map(as_written, found.words)), under)


def launcher_of(words: Sequence[str]) -> str:
    """The tool that starts the processes, by its stand-in's name: of torch.distributed.run, torchrun. words: from the
    tool on, as `Launch.launcher` has them."""
    tool = PurePath(words[0]).name.removesuffix("-launch") if words else ""
    module = next((after for word, after in pairwise(words[1:]) if word == "-m"), "")
    if tool in PYTHONS and module in LAUNCH_MODULES:
        return {"torch": "torchrun", "deepspeed": "deepspeed", "accelerate": "accelerate", "composer": "composer"}.get(
            module.partition(".")[0], tool
        )
    return tool


def launch_of(found: Call, place: str) -> Launch:
    """Raises CannotRead."""
    program = _program(found.words, launcher_of((found.tool, *found.words)))
    if program is None:
        raise CannotRead(f"{place}: {' '.join(found.command)[:300]} names no Python program")
    at, script = program
    words = found.words[at + 1 :]
    before: Sequence[str] = found.words[:at]
    remarks, launcher = Remarks(place=place), launcher_of((found.tool, *found.words))
    _surrounding(found, remarks)
    counts = _counts(launcher, before, found).settled()
    if counts.unknown:
        known = {"nodes": counts.nodes, "ranks per node": counts.each}
        told = "".join(f"; {number} {what} are known" for what, number in known.items() if number)
        told = ", ".join(counts.unknown) + told
        remarks.ask("cluster.nodes", f"{told}: say nodes and devices per node; dp follows from them")
    for tool, options in found.under:
        if _is_submitter(tool, options):
            counts, before = _of_submitter(tool, options, launcher, before, counts, remarks)
    if launcher != "accelerate":
        own = next((at + 1 for at, word in enumerate(before) if word in LAUNCH_MODULES), 0)
        tell(remarks, launcher, options_of(before[own:]))
    if found.cwd and not script.startswith("-m ") and not is_there(os.path.join(found.cwd, script)):
        remarks.note(f"{script} is not in {found.cwd} on this machine; check workload.directory")
    return Launch(
        script=as_written(script),
        words=words,
        place=place,
        nodes=counts.nodes,
        devices_per_node=counts.each,
        ranks=counts.ranks,
        directory=found.cwd,
        env=_environment(found, remarks),
        files=found.files,
        notes=tuple(remarks.notes),
        launcher=(found.tool, *before),
        under=found.under,
        head=found.head,
        questions=tuple(remarks.questions),
    )


def _program(words: Sequence[str], launcher: str = "") -> tuple[int, str] | None:
    """The place and name of the program in a launcher's words."""
    for index, word in enumerate(words):
        if as_written(word).endswith(".py"):
            return index, word
        if word in ("-m", "--module") and index + 1 < len(words) and words[index + 1] not in LAUNCH_MODULES[:-1]:
            at = index + 1 + options_end("torchrun", list(words[index + 1 :]))
            return (at, f"-m {words[at]}") if at < len(words) else None
    if launcher != "torchrun" or any(word in ("--no-python", "--no_python") for word in words):
        return None
    start = next((at + 1 for at, word in enumerate(words) if word in LAUNCH_MODULES), 0)
    at = start + options_end("torchrun", list(words[start:]))
    return (at, words[at]) if at < len(words) and is_known(words[at]) else None


def _surrounding(found: Call, remarks: Remarks) -> None:
    """Ask about containers and submitters around the launcher. Raises CannotRead."""
    for tool, options in found.under:
        written = as_written(" ".join((tool, *options)))[:300]
        if tool in ("docker", "podman"):
            raise CannotRead(
                f"{remarks.place}: `{written}` starts the program in a container with paths of its own, which trials "
                f"do not enter. Next, inside of it: meshtune import --command 'torchrun ...', with the command that "
                f"runs there"
            )
        image = option_value(options, "--container-image") if tool in AROUND else None
        if tool in CONTAINERS or image:
            remarks.ask(
                "workload.python",
                f"the program runs in a container (`{written}`), and trials start `python` as it is. Name a Python "
                f"inside of it: an executable file of two lines, `#!/bin/sh` and "
                f'`exec apptainer exec --nv IMAGE python3 "$@"`, on a file system that all nodes see',
            )


def _is_environment(tool: str, options: Sequence[str]) -> bool:
    return PurePath(tool).name in NAMES["environments"] and "run" in options


def _is_submitter(tool: str, options: Sequence[str]) -> bool:
    """Whether a word before the launcher hands over all that is behind `--`, and is no environment or binding."""
    known = PurePath(tool).name in (*_BEFORE, *NAMES["binding"]) or _is_environment(tool, options)
    return options[-1:] == ("--",) and not known


def with_prefix(imported: Imported, launch: Launch) -> Imported:
    """With what stands before the launcher in the workload's command, which also starts each trial; what no command
    has a place for is asked."""
    place, questions, notes, kept = launch.place, list[Question](), list[str](), list[str]()
    command: Any = imported.workload.get("command")
    for tool, options in launch.under:
        words = (tool, *options)
        written = as_written(" ".join(words))[:300]
        if tool in _BEFORE or _is_submitter(tool, options):
            continue
        if command and all(map(is_known, words)) and PurePath(tool).name not in _NOT_IN_TRIALS:
            kept += words
        elif PurePath(tool).name in NAMES["binding"]:
            notes.append(f"{place}: `{written}` stands before the launcher, left out: {BINDING}")
        else:
            told = f"{place}: `{written}` stands before the launcher, and trials run without it"
            python = f'; if it chooses the Python, workload.python is a file: #!/bin/sh, exec {written} python3 "$@"'
            questions.append(Question("", told + python * (options[:1] == ("run",))))
    workload = dict(imported.workload)
    if kept:
        # A template, whose braces are doubled.
        kept = list(map(literal, kept))
        if isinstance(command, str):
            head, end, line = command.rpartition("\n")
            workload["command"] = f"{head}{end}exec {shlex.join(kept)} {line.removeprefix('exec ')}"
        else:
            at = next((at for at, word in enumerate(command) if _tool(word)), 0)
            workload["command"] = [*command[:at], *kept, *command[at:]]
    questions, notes = [*imported.questions, *questions], [*imported.notes, *notes]
    return replace(imported, workload=workload, questions=tuple(questions), notes=tuple(notes))


def _counts(launcher: str, before: Sequence[str], found: Call) -> Counts:
    """What is said of nodes and ranks. torchrun's own defaults are one each; the other launchers take what they find;
    what an unknown word before Python starts is not known."""
    environment = found.environment
    # The ranks of a live process know it best.
    world, local = whole(environment.get("WORLD_SIZE", "")), whole(environment.get("LOCAL_WORLD_SIZE", ""))
    if world and local and world % local == 0:
        return Counts(world // local, local)
    own = counts_of(launcher, before)
    if launcher == "torchrun":
        seen = environment.get("CUDA_VISIBLE_DEVICES", "")
        per_gpu = len(seen.split(",")) if seen and is_known(seen) else whole(environment.get("SLURM_GPUS_ON_NODE", ""))
        default = None if open_words(before) else 1
        said = option_value(before, "--nproc_per_node", "--nproc-per-node")
        each = default if said is None else per_gpu if said in ("gpu", "auto") else own.each
        return replace(own, nodes=own.nodes if option_value(before, "--nnodes") else default, each=each)
    if launcher == "composer":
        # composer/cli/launcher.py, _parse_args at 006ea7ac: the flags, else the environment, else one node.
        each = own.each or local
        return replace(own, each=each, ranks=own.ranks or world or each)
    if launcher == "accelerate" and own.ranks and not own.unknown:
        return replace(own, nodes=own.nodes or 1)
    if launcher == "deepspeed" and own.each and not (own.unknown or found.under or open_words(before)):
        # deepspeed/launcher/runner.py, main: without a file of hosts, this node alone.
        return own if option_value(before, "--hostfile", "-H") else replace(own, nodes=own.nodes or 1)
    around = [(kind, options) for tool, options in found.under if (kind := around_of(tool))]
    if launcher not in (*PYTHONS, "") or not around:
        # gpt-neox's deepy.py is a launcher itself.
        program = _program(found.words)
        more = program is not None and (PurePath(program[1]).name == "deepy.py" or starts_ranks(program[1]))
        more = more or bool(open_words(before))
        one = (
            launcher in PYTHONS
            and not more
            and all(
                starts_scripts(PurePath(tool).name)
                or PurePath(tool).name in _NOT_IN_TRIALS
                or _is_environment(tool, options)
                for tool, options in found.under
            )
        )
        visible = "" if "SLURM_GPUS_ON_NODE" in environment else environment.get("CUDA_VISIBLE_DEVICES", "")
        if one and "," in visible:
            return Counts(1, unknown=(f"one {launcher} sees several devices (CUDA_VISIBLE_DEVICES={visible})",))
        return Counts(1, 1) if one else own
    kind, options = around[-1]
    own = counts_of(kind, options)
    if kind != "srun":
        return own
    nodes, each, ranks = own.nodes or whole(environment.get("SLURM_NNODES", "")), own.each, own.ranks
    if each is None and ranks is None:
        each = whole(environment.get("SLURM_NTASKS_PER_NODE", ""))
        ranks = whole(environment.get("SLURM_NTASKS", ""))
    return replace(own, nodes=nodes, each=each, ranks=ranks)


def _of_submitter(
    tool: str, options: Sequence[str], launcher: str, before: Sequence[str], counts: Counts, remarks: Remarks
) -> tuple[Counts, Sequence[str]]:
    """Nodes and ranks of a job that a submitter starts, and the words of its launcher, which say the same: as the table
    has the submitter, or as its words and the launcher's fit together; else they are asked."""
    written = as_written(" ".join((tool, *options)))[:300]
    names = (PurePath(word).name for word in (tool, *options))
    known: Mapping[str, Any] = next((SUBMITTERS[name] for name in names if name in SUBMITTERS), {})
    nodes, devices = (
        whole(option_value(options, *(known or TABLE["submitted"]).get(name, "").split()) or "")
        for name in TABLE["submitted"]
    )
    if "here" in known:
        remarks.note(f"`{written}` hands the start to a cluster: {known['here']}")
        return counts, before
    own, ranks = counts_of(launcher, before), counts.ranks
    if ranks is None or not known.get("multiplied"):
        each = ranks // nodes if ranks and nodes and ranks % nodes == 0 else own.each
    else:
        each = ranks
    nodes = own.nodes or nodes or (1 if known else None)
    if nodes and each and (known or own.nodes or each == devices):
        remarks.note(f"`{written}` submits the job, and trials run without it: {nodes} nodes of {each} devices")
        said = ("--num_machines", str(nodes), "--num_processes", str(nodes * each)) if launcher == "accelerate" else ()
        return Counts(nodes, each), (*before, *said)
    told = f"`{written}` submits the job, and trials run without it: on how many nodes and devices is its to say"
    remarks.ask("cluster.nodes", f"{told}; write both into cluster")
    at = next((at for at, word in enumerate(before) if word.startswith("--num_processes")), None)
    rest = before if at is None else (*before[:at], *before[at + (1 if "=" in before[at] else 2) :])
    return Counts(own.nodes, own.each), rest


def _environment(found: Call, remarks: Remarks) -> dict[str, str]:
    """What the launcher set for the program, and mpirun's words, but for what a launcher or meshtune sets anew for each
    start."""
    kept, said = {}, dict(found.changed)
    for tool, options in found.under:
        said |= exported(around_of(tool), options)
        own = mapping_in("env.json", option_value(options, "--runtime-env-json") or "", (".json",)).get("env_vars")
        said |= {name: str(value) for name, value in own.items()} if isinstance(own, Mapping) else {}
    for name, value in said.items():
        if (
            name in NOT_KEPT
            or name in NAMES["rank_names"]
            or not name.isidentifier()
            or name.startswith(NAMES["of_a_rank"])
        ):
            continue
        if SECRET.search(name):
            remarks.note(f"the value of {name} is not copied: it may be a secret")
        elif not is_known(value):
            remarks.note(f"the value of {name} is not known here; fill it in under workload.env")
        else:
            kept[name] = value
    return kept
