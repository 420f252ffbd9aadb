"""A call of a launcher as the launch that dialects read: its program, arguments, devices and environment.

A call comes from a script's text, from a stand-in that was run, or from a live process."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from meshtune.runners.programs.capture.stand_in import (
    AROUND,
    BARRED,
    CONTAINERS,
    LAUNCH_MODULES,
    LAUNCHERS,
    PYTHONS,
    is_training,
    options_end,
)
from meshtune.runners.programs.dialects.base import (
    NOT_KEPT,
    SECRET,
    CannotRead,
    Imported,
    Launch,
    Question,
    Remarks,
)
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known, is_placeholder
from meshtune.runners.programs.dialects.launcher_options import CONSOLES, exported, options_of, spelled_out, tell
from meshtune.runners.programs.recognised import starts_ranks
from meshtune.runners.untrusted_text import option_value

_WHOLE = re.compile(r"[1-9][0-9]{0,8}")
_PYTHON = re.compile(r"python[0-9.]*")
# A variable that nothing sets, such as $PYTHON or ${TORCHRUN}.
_UNSET_TOOL = re.compile(r"\$\{?(PYTHON|TORCHRUN|DEEPSPEED|ACCELERATE)[A-Z_]*(?::?-[^}]*)?\}?")
_PER_NODE: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("--nproc_per_node", "--nproc-per-node"),
    "deepspeed": ("--num_gpus",),
    "composer": ("--nproc", "-n"),
    "srun": ("--ntasks-per-node",),
    "mpirun": ("-ppn", "--ppn", "-npernode", "--npernode", "-N"),
}
_NODES: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("--nnodes",),
    "deepspeed": ("--num_nodes",),
    "accelerate": ("--num_machines",),
    "srun": ("--nodes", "-N"),
    "mpirun": (),
}
_RANKS = {
    "srun": ("--ntasks", "-n"),
    "mpirun": ("-np", "-n", "--np"),
    "accelerate": ("--num_processes",),
    "composer": ("--world_size",),
}
# Set by a launcher or a scheduler for each process: torch/distributed/elastic/agent/server/local_elastic_agent.py.
_OF_A_RANK = ("SLURM_", "SLURMD_", "OMPI_", "PMI_", "PMIX_", "PRTE_", "PALS_", "PBS_", "TORCHELASTIC_", "SBATCH_")
_RANK_NAMES = frozenset(
    {"GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE"}
)
# They start what follows them, as it is; and their own words, beside variables that are set for it alone.
_PASSING = frozenset({"env", "time", "timeout", "stdbuf", "nohup", "exec", "eval", "command", "bash", "sh", "!"})
_OWN = re.compile(r"-.*|[0-9.]+[smhd]?|[A-Za-z_]\w*=.*", re.DOTALL)
# They take the options of a job, and start what is behind them.
_OF_A_JOB = ("salloc", "sbatch", "qsub")
_BEFORE = frozenset({*AROUND, *_OF_A_JOB, *CONTAINERS})
# Trials run without them: they submit, reach other machines or slow what they measure.
_NOT_IN_TRIALS = frozenset({*BARRED, "nsys", "ncu", "rocprof", "rocprofv3"})
_BINDING = frozenset({"numactl", "taskset", "chrt", "nice", "ionice"})
# Words that say how large the job of a submitter is.
_SUBMITTED_NODES = ("--nodes", "--num-nodes", "--num_nodes", "--nnodes", "--num-machines", "--num_machines", "-N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that would have started something. tool: of `stand_in.TOOLS`, "" where it is not known. changed: the
    variables that the launcher set or changed, for the program. under: (tool, options) of each srun or mpirun around
    it, outermost first, of each container, and of all else that stands before it. files: the texts of the
    configurations that its words name."""

    tool: str
    words: tuple[str, ...]
    cwd: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    under: tuple[tuple[str, tuple[str, ...]], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

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
        if name in (*AROUND, *_OF_A_JOB):
            end += options_end("srun" if name in _OF_A_JOB else name, rest)
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
        elif name in _PASSING or _OWN.fullmatch(words[index]):
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
                if is_known(" ".join(before)) and not is_training(list(map(as_written, words[at:])), under=False):
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
    return tool in (*_BEFORE, *_PASSING, *_BINDING)


def starts_a_program(found: Call) -> bool:
    """Whether a call would have started a training; `accelerate config`, `torchrun --help` and a console script that
    stands for no start would not."""
    return found.tool not in CONSOLES and found.tool in (*LAUNCHERS, *PYTHONS, "") and _program(found.words) is not None


def launcher_of(found: Call) -> str:
    """The tool that starts the processes, by its stand-in's name: of torch.distributed.run, torchrun."""
    module = next((after for word, after in pairwise(found.words) if word == "-m"), "")
    if found.tool in PYTHONS and module in LAUNCH_MODULES:
        return {"torch": "torchrun", "deepspeed": "deepspeed", "accelerate": "accelerate", "composer": "composer"}.get(
            module.partition(".")[0], found.tool
        )
    return found.tool


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


def launch_of(found: Call, place: str) -> Launch:
    """Raises CannotRead."""
    program = _program(found.words)
    if program is None:
        raise CannotRead(f"{place}: {' '.join(found.command)[:300]} names no Python program")
    at, script = program
    before, words = found.words[:at], found.words[at + 1 :]
    remarks, launcher = Remarks(place=place), launcher_of(found)
    _surrounding(found, remarks)
    nodes, per_node = _devices(launcher, before, found)
    said: tuple[str, ...] = ()
    if submitter := next((options for tool, options in found.under if _is_submitter(tool, options)), ()):
        nodes, per_node, said = _of_submitter(submitter, launcher, before, nodes, per_node)
    if launcher != "accelerate":
        own = next((at + 1 for at, word in enumerate(before) if word in LAUNCH_MODULES), 0)
        tell(remarks, launcher, options_of(before[own:]))
    if found.cwd and not script.startswith("-m ") and not (Path(found.cwd) / script).is_file():
        remarks.note(f"{script} is not in {found.cwd} on this machine; check workload.directory")
    return Launch(
        script=as_written(script),
        words=words,
        place=place,
        nodes=nodes,
        devices_per_node=per_node,
        directory=found.cwd,
        env=_environment(found, remarks),
        files=found.files,
        notes=tuple(remarks.notes),
        launcher=(found.tool, *before, *said),
        under=found.under,
        questions=tuple(remarks.questions),
    )


def _program(words: Sequence[str]) -> tuple[int, str] | None:
    """The place and name of the program in a launcher's words."""
    for index, word in enumerate(words):
        if as_written(word).endswith(".py"):
            return index, word
        if word in ("-m", "--module") and index + 1 < len(words) and words[index + 1] not in LAUNCH_MODULES[:-1]:
            return index + 1, f"-m {words[index + 1]}"
    return None


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
        elif _is_submitter(tool, options):
            remarks.ask("", f"`{written}` submits the job, and trials run without it: nodes and devices are its to say")


def _is_submitter(tool: str, options: Sequence[str]) -> bool:
    """Whether a word before the launcher hands over all that is behind `--`, and is no environment or binding."""
    return options[-1:] == ("--",) and options[0] != "run" and PurePath(tool).name not in (*_BEFORE, *_BINDING)


def with_prefix(imported: Imported, launch: Launch) -> Imported:
    """With what stands before the launcher in the workload's command, which also starts each trial; what no command
    has a place for is asked."""
    place, questions, kept = launch.place, list[Question](), list[str]()
    command: Any = imported.workload.get("command")
    for tool, options in launch.under:
        words = (tool, *options)
        written = as_written(" ".join(words))[:300]
        if tool in _BEFORE or _is_submitter(tool, options):
            continue
        if command and all(map(is_known, words)) and PurePath(tool).name not in _NOT_IN_TRIALS:
            kept += words
        else:
            told = f"{place}: `{written}` stands before the launcher, and trials run without it"
            python = f'; if it chooses the Python, workload.python is a file: #!/bin/sh, exec {written} python3 "$@"'
            questions.append(Question("", told + python * (options[:1] == ("run",))))
    workload = dict(imported.workload)
    if kept:
        # A template, whose braces are doubled.
        kept = [word.replace("{", "{{").replace("}", "}}") for word in kept]
        if isinstance(command, str):
            head, end, line = command.rpartition("\n")
            workload["command"] = f"{head}{end}exec {shlex.join(kept)} {line.removeprefix('exec ')}"
        else:
            at = next((at for at, word in enumerate(command) if _tool(word)), 0)
            workload["command"] = [*command[:at], *kept, *command[at:]]
    return replace(imported, workload=workload, questions=(*imported.questions, *questions))


def with_placeholders(imported: Imported, launch: Launch) -> Imported:
    """With a question for each placeholder that stays in the workload and that no reader has asked about."""
    workload, asked = imported.workload, " ".join(question.text for question in imported.questions)
    stays = str(workload)
    texts = [("workload.script" if "script" in workload else "", launch.script)]
    texts += [(f"workload.env.{name}", value) for name, value in launch.env.items()]
    texts += [("", text) for text in (*launch.words, *launch.setup)]
    questions = [
        Question(path, f"{launch.place}: `{text}` is a placeholder: write there what it is to be")
        for path, text in texts
        if is_known(text) and is_placeholder(text) and text in stays and text.rpartition("=")[2] not in asked
    ]
    return replace(imported, questions=(*imported.questions, *dict.fromkeys(questions)))


def _devices(launcher: str, before: Sequence[str], found: Call) -> tuple[int | None, int | None]:
    """Nodes and ranks per node. torchrun's own defaults are one each; the other launchers take what they find."""
    environment = found.environment
    # The ranks of a live process know it best.
    world, local = whole(environment.get("WORLD_SIZE", "")), whole(environment.get("LOCAL_WORLD_SIZE", ""))
    if world and local and world % local == 0:
        return world // local, local
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    per_gpu = len(visible.split(",")) if visible and is_known(visible) else None
    per_gpu = per_gpu or whole(environment.get("SLURM_GPUS_ON_NODE", ""))
    nodes, said = option_value(before, *_NODES.get(launcher, ())), option_value(before, *_PER_NODE.get(launcher, ()))
    if launcher == "torchrun":
        return (
            1 if nodes is None else whole(nodes),
            1 if said is None else per_gpu if said in ("gpu", "auto") else whole(said),
        )
    if launcher == "deepspeed":
        return whole(nodes or ""), whole(said or "")
    if launcher in ("accelerate", "composer"):
        ranks = whole(option_value(before, *_RANKS[launcher]) or "")
        if launcher == "composer":
            # composer/cli/launcher.py, _parse_args at 006ea7ac: the flags, else the environment, else one node.
            each = whole(said or environment.get("LOCAL_WORLD_SIZE", ""))
            ranks = ranks or world or each
            return (ranks // each if each and ranks and ranks % each == 0 else None), each
        machines = whole(nodes or "") or (1 if nodes is None and ranks else None)
        return machines, (ranks // machines if machines and ranks and ranks % machines == 0 else None)
    around = [(tool, options) for tool, options in found.under if tool in AROUND]
    if not around:
        # gpt-neox's deepy.py is a launcher itself.
        program = _program(found.words)
        starts_more = program is not None and (PurePath(program[1]).name == "deepy.py" or starts_ranks(program[1]))
        # Of one process that sees several devices.
        several = "," in environment.get("CUDA_VISIBLE_DEVICES", "")
        return (1, None if several else 1) if launcher in PYTHONS and not starts_more else (None, None)
    tool, options = around[-1]
    kind = "srun" if tool == "srun" else "mpirun"
    here = environment if kind == "srun" else {}
    nodes_said = whole(option_value(options, *_NODES[kind]) or here.get("SLURM_NNODES", ""))
    ranks = whole(option_value(options, *_RANKS[kind]) or "")
    per_node = whole(option_value(options, *_PER_NODE[kind]) or "")
    if kind == "mpirun" and per_node and ranks and ranks % per_node == 0:
        return ranks // per_node, per_node
    if per_node is None and ranks is None:
        per_node, ranks = whole(here.get("SLURM_NTASKS_PER_NODE", "")), whole(here.get("SLURM_NTASKS", ""))
    if per_node is None and ranks is not None and nodes_said is not None and ranks % nodes_said == 0:
        per_node = ranks // nodes_said
    return nodes_said, per_node


def _of_submitter(
    submitter: Sequence[str], launcher: str, before: Sequence[str], nodes: int | None, per_node: int | None
) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Nodes, ranks of a node, and words of the launcher that say them, of a job whose launcher does not say its nodes:
    as the submitter has them where the ranks agree, else unknown."""
    if option_value(before, *_NODES.get(launcher, ())) is not None:
        return nodes, per_node, ()
    said = whole(option_value(submitter, *_SUBMITTED_NODES) or "")
    ranks = whole(option_value(before, *_RANKS.get(launcher, ())) or "")
    if launcher == "accelerate" and said and ranks and ranks % said == 0:
        return said, ranks // said, ("--num_machines", str(said))
    return None, per_node, ()


def whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _environment(found: Call, remarks: Remarks) -> dict[str, str]:
    """What the launcher set for the program, and mpirun's words, but for what a launcher or meshtune sets anew for each
    start."""
    kept, said = {}, dict(found.changed)
    for tool, options in found.under:
        said |= exported(options) if tool in ("mpirun", "mpiexec") else {}
    for name, value in said.items():
        if name in NOT_KEPT or name in _RANK_NAMES or not name.isidentifier() or name.startswith(_OF_A_RANK):
            continue
        if SECRET.search(name):
            remarks.note(f"the value of {name} is not copied: it may be a secret")
        elif not is_known(value):
            remarks.note(f"the value of {name} is not known here; fill it in under workload.env")
        else:
            kept[name] = value
    return kept
