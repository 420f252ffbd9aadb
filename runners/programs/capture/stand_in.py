"""Stands in for the programs that start a training: records the call, and starts nothing. Any Python from 3.10 on.

Runs as `stand_in.py TOOL WORDS...`, and as the `sitecustomize` of every Python that the launcher starts. A record is a
JSON file {tool, words, cwd, environment, under, files, head}. under: the [tool, words] of each srun, mpirun or sbatch
around it, outermost first. files: the text of each configuration that a word names, which may be rewritten or gone
later. head: the lines for the scheduler of the job that it is in, where the launcher itself submitted that."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile

FOLDER = "MESHTUNE_CAPTURE"
UNDER = "MESHTUNE_CAPTURE_UNDER"
# Of the job that it is in: devices of a node, its lines for the scheduler, and the scripts that lead to it.
DEVICES, HEAD, SCRIPTS = "MESHTUNE_CAPTURE_DEVICES", "MESHTUNE_CAPTURE_HEAD", "MESHTUNE_CAPTURE_SCRIPTS"
# Where modules of Python lie.
MODULES = "MESHTUNE_CAPTURE_MODULES"
# Names of tools and their options. A launcher's own Python may read no TOML; beside the stand-in is JSON of it.
_HERE = os.path.dirname(os.path.abspath(__file__))
try:
    with open(os.path.join(_HERE, "options.json"), "rb") as _file:
        TABLE = json.load(_file)  # noqa: TID251 our own
except FileNotFoundError:
    import tomllib

    with open(os.path.join(_HERE, "..", "dialects", "launcher_options.toml"), "rb") as _file:
        TABLE = tomllib.load(_file)  # noqa: TID251 our own
NAMES = {name: tuple(text.split()) for name, text in TABLE["names"].items()}
# With console scripts of programs, which start one of the others.
LAUNCHERS = (*NAMES["launchers"], *TABLE["console"])
PYTHONS, AROUND, CONTAINERS, SUBMITTING = (NAMES[name] for name in ("pythons", "around", "containers", "submitting"))
BARRED = (*SUBMITTING, *NAMES["barred"])
NOT_DONE = {tool: words.split() for tools, words in TABLE["not_done"].items() for tool in tools.split()}
DEVICE_COUNTS, LAUNCH_MODULES = NAMES["device_counts"], NAMES["launch_modules"]
_ANSWERED, _PREFIXES, _ALONE = NAMES["answered"], NAMES["prefixes"], TABLE["alone"]
TOOLS = (*LAUNCHERS, *PYTHONS, *AROUND, *BARRED, *CONTAINERS, *NOT_DONE, *_ANSWERED, *_PREFIXES, "sh")
_OF_SLURM = ("srun", "sbatch", "salloc")
# Characters of a configuration, and how many of them; of any other text that words name, such as `ds.conf`, fewer.
_MAX_FILE, _MAX_FILES, _MAX_OTHERS = 100_000, 16, 8
# Scripts that submit scripts.
_MAX_JOBS = 3
_PROGRAMS = (".py", ".sh", ".txt")
_COUNTS_DEVICES = re.compile(r"\s*import torch[;\s]+print\(torch\.cuda\.device_count\(\)\)\s*")
# Fields of nvidia-smi --query-gpu that say no more than how many there are.
_FIELDS = {"index": "{0}", "name": "GPU", "gpu_name": "GPU", "uuid": "GPU-{0}", "gpu_uuid": "GPU-{0}"}
_ADDRESS = "10.0.0.1"
_OF_A_STEP = {name: variables.split() for names, variables in TABLE["step"].items() for name in names.split()}


def is_training(words: list[str], under: bool) -> bool:
    """Whether `python WORDS` would start a training. under: it is called by srun or mpirun."""
    index, module = 0, False
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word == "-m":
            index, module = index + 1, True
            break
        if word.startswith("-m") and not word.startswith("--"):
            words, module = [word[2:], *words[index + 1 :]], True
            index = 0
            break
        if word in ("-", "-c", "-V", "-VV", "--version", "-h", "--help") or word.startswith("-c"):
            return False
        index += 2 if word in NAMES["python_values"] else 1
    if index >= len(words):
        return False
    program, rest = words[index], words[index + 1 :]
    own = module and any(program == name or program.startswith(f"{name}.") for name in NAMES["modules"])
    if own or (module and program in LAUNCH_MODULES) or os.path.basename(program) in NAMES["launch_programs"]:
        return True
    if any(word.partition("=")[0] in NAMES["trainer_flags"] for word in rest):
        return True
    helper = any(program == name or program.startswith(f"{name}.") for name in NAMES["helper_modules"])
    return under and (not helper if module else program.endswith(".py"))


def options_end(tool: str, words: list[str]) -> int:
    """Where the command of a launcher such as srun, mpirun or torchrun begins."""
    alone = _ALONE.get("srun" if tool == "salloc" else tool, _ALONE["mpirun"]).split()
    # `flux run`, `flux mini run`.
    index = (2 if words[:1] == ["mini"] else 1) if tool == "flux" else 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word == "--":
            return index + 1
        # -N2 and --nodes=2 hold their value; Open MPI and MPICH have long options with one dash.
        joined = "=" in word or (tool in (*_OF_SLURM, "qsub") and not word.startswith("--") and len(word) > 2)
        joined = joined or re.match(r"-[A-Za-z][0-9]", word) is not None
        joined = joined or "".join(words[index + 1 : index + 2]) in TOOLS
        index += 1 if word in alone or joined else 3 if word in NAMES["two_values"] else 2
    return min(index, len(words))


def named_files(words: list[str], folder: str = "", is_file: Callable[[str], bool] = os.path.isfile) -> dict[str, str]:
    """The texts of the configurations that words name, and of those that these name, by the name there. Names without a
    folder count from `folder`, and from each folder that a word is (`-d configs 125M.yml`, a model's config.json)."""
    found: dict[str, str] = {}
    values = [word.partition("=")[2] if word.startswith("-") else word for word in words]
    folders = ["", *(value for value in values if value and os.path.isdir(os.path.join(folder, value)))]
    names = [*values, *(os.path.join(inner, "config.json") for inner in folders[1:])]
    others = 0
    for name in names:
        for place in (os.path.join(folder, inner, name) for inner in folders if name):
            # gpt-neox names its files without the end as well.
            path = next(filter(is_file, (place, f"{place}.yml")), "")
            configuration = path.endswith(NAMES["configurations"])
            if not path or name in found or len(found) >= _MAX_FILES or path.endswith(_PROGRAMS):
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_MAX_FILE + 1)
            if len(text) > _MAX_FILE or (not configuration and ("\0" in text or others == _MAX_OTHERS)):
                continue
            found[name], others = text, others + (not configuration)
            if configuration:
                inner = re.findall(r"[\w./-]+", text)
                names += [word for word in inner if word.endswith(NAMES["configurations"])][:_MAX_FILES]
                models = (os.path.join(word, "config.json") for word in dict.fromkeys(inner) if "/" in word)
                names += [model for model in models if is_file(os.path.join(folder, model))]
    return found


def _record(tool: str, words: list[str]) -> None:
    """In whole or not at all."""
    folder = os.environ[FOLDER]
    found = {
        "tool": tool,
        "words": words,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "under": _around(),
        "files": named_files(words),
        "head": os.environ.get(HEAD, ""),
    }
    name = f"{time.time_ns():020d}-{os.getpid()}"
    draft = os.path.join(folder, "records", f"{name}.draft")
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(found, file)
    os.replace(draft, os.path.join(folder, "records", f"{name}.json"))


def _real(tool: str) -> str:
    """The program behind a stand-in, "" where there is none."""
    own = os.path.realpath(os.path.join(os.environ[FOLDER], "bin"))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, tool)
        if folder and os.path.realpath(folder) != own and os.access(path, os.X_OK):
            return path
    return ""


def _run_once(tool: str, words: list[str], end: int) -> int:
    """Run the command of an srun, mpirun, salloc or container, which begins at `end`, as rank 0."""
    options, command = words[:end], words[end:]
    if not command:
        _record(tool, words)
        return 0
    os.environ[UNDER] = json.dumps([*_around(), [tool, options]])
    if tool in AROUND:
        os.environ.update(_of_a_rank(tool, options))
    own = os.path.join(os.environ[FOLDER], "bin")
    os.environ["PATH"] = own + os.pathsep + os.environ.get("PATH", "")
    for name in os.listdir(own):  # a shell between may have dropped them
        os.environ[f"BASH_FUNC_{name}%%"] = bash_function(own, name)
    # srun(1), EXECUTABLE PATH RESOLUTION: what PATH does not have is looked for in the current folder.
    if "/" not in command[0] and command[0] not in TOOLS and not _real(command[0]) and os.path.isfile(command[0]):
        command[0] = os.path.join(os.getcwd(), command[0])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        if os.path.isfile(command[0]) and error.errno in (errno.ENOEXEC, errno.EACCES):
            os.execvp("bash", ["bash", *command])
        sys.stderr.write(f"{tool}: {command[0]}: {error.strerror}\n")
        return 127


def _pairs(tool: str, options: list[str]) -> Iterator[tuple[str, str]]:
    """Each word as an option with its value, which is joined or the word after it."""
    for option, following in pairwise([*options, ""]):
        name, joined, value = option.partition("=")
        if tool in _OF_SLURM and option[:1] == "-" != option[1:2]:
            name, joined, value = option[:2], option[2:], option[2:]
        yield name, value if joined else following


def _of_a_rank(tool: str, options: list[str]) -> dict[str, str]:
    """The variables of rank 0 by the options of its srun or mpirun."""
    said = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    if tool != "srun":
        said = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMI_RANK": "0"}
    for name, value in _pairs(tool, options):
        if tool == "srun" and value.isdecimal():
            said.update(dict.fromkeys(_OF_A_STEP.get(name, ()), value))
        elif name in ("-np", "-n", "--np") and value.isdecimal():
            said.update(dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), value))
        elif name == "-x" and "=" in value:
            name, _, said[name] = value.partition("=")
    return said


def _own_script(words: list[str]) -> int:
    """Where a container's words name a script of the current folder, such as ./wrap.sh; 0 for nowhere."""
    for index, word in enumerate(words):
        shell = word in ("bash", "sh") and os.path.isfile("".join(words[index + 1 : index + 2]))
        own = "/" in word and os.path.isfile(word) and os.access(word, os.X_OK) and not word.endswith(NAMES["images"])
        if index and (shell or (own and not os.path.isabs(word))):
            return index
    return 0


def bash_function(folder: str, name: str) -> str:
    """As bash reads it from the environment. folder: has no quote."""
    return f"() {{ '{folder}/{name}' \"$@\"; }}"


def _submit(tool: str, words: list[str]) -> int:
    """Run the command of a job, or its script from a file, --wrap or the input, with the variables that the job would
    have. A script that submits itself again, as chains of jobs do, is run once."""
    end = options_end(tool, words)
    options, command, said = words[:end], words[end:], dict(_pairs(tool, words[:end]))
    path = os.path.join(os.environ[FOLDER], "records", f"job-{os.getpid()}.sh")
    path = next(filter(os.path.isfile, command if tool == "salloc" else command[:1]), path)
    scripts = os.environ[SCRIPTS].split(os.pathsep)
    if os.path.realpath(path) in scripts:
        return 0
    text = ""
    if not command and tool != "salloc":
        text = said.get("--wrap") or sys.stdin.read(_MAX_FILE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    elif os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_FILE)
    if not (text or (command and tool == "salloc")) or len(scripts) > _MAX_JOBS:
        _record(tool, words)
        return int(bool(command))
    mark = "#PBS" if tool == "qsub" else "#SBATCH"
    head = takewhile(
        lambda line: line.startswith("#") or not line.strip(), text.splitlines() if tool != "salloc" else ()
    )
    lines = [*(line for line in head if line.startswith(mark)), f"{mark} {shlex.join(options)}"]
    os.environ[HEAD] = "\n".join((*lines, ""))
    # A Python of its own, as this one has no modules.
    asked = (sys.executable, "-m", "meshtune.runners.programs.dialects.job_variables", os.environ[FOLDER])
    modules = {"PYTHONPATH": os.environ[MODULES]}
    job = subprocess.run(asked, input=os.environ[HEAD], env=modules, capture_output=True, text=True, check=True)
    os.environ.update(json.loads(job.stdout))  # noqa: TID251 our own
    passed = said.get("--export") or said.get("-v") or ""
    os.environ.update(dict(part.split("=", 1) for part in passed.split(",") if "=" in part))
    os.environ[SCRIPTS] = os.pathsep.join((*scripts, os.path.realpath(path)))
    if tool == "salloc":
        return _run_once(tool, words, end)
    os.environ[UNDER] = json.dumps([*_around(), [tool, options]])
    subprocess.run(("bash", path, *command[1:]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    sys.stdout.write(
        "1\n" if "--parsable" in options else "Submitted batch job 1\n" if tool == "sbatch" else "1.server\n"
    )
    return 0


def _is_step() -> bool:
    return any(tool in AROUND for tool, _ in _around())


def _around() -> list[list[object]]:
    return json.loads(os.environ.get(UNDER, "[]"))  # type: ignore[no-any-return]  # noqa: TID251 our own


def _answer(tool: str, words: list[str]) -> str | None:
    """What a node of the job would print; None where only the real program knows it."""
    first, last = "".join(words[:1]), "".join(words[-1:])
    if tool in DEVICE_COUNTS:
        return _devices(tool, words)
    if tool == "scontrol":
        count = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
        nodes = range(min(int(count), 100_000) if count.isdecimal() else 1)
        return "".join(f"node{index}\n" for index in nodes) if "hostname" in " ".join(words[1:2]) else ""
    name = os.environ.get({"nproc": "SLURM_CPUS_ON_NODE", "hostname": "SLURMD_NODENAME"}.get(tool, ""))
    if name and first in ("", "-s", "-f"):
        return f"{name}\n"
    if tool == "hostname":
        return f"{_ADDRESS}\n" if first in ("-I", "-i", "--ip-address", "--all-ip-addresses") else None
    if tool == "getent":
        return f"{_ADDRESS}  {last}\n" if "hosts" in first else None
    if tool == "ifconfig" or {"a", "addr", "address"} & set(words):
        device = last if last not in ("", "a", "addr", "address", "show") else "eth0"
        return f"{device}: <UP>\n    inet {_ADDRESS} netmask 255.255.255.0 scope global {device}\n"
    return None


def _devices(tool: str, words: list[str]) -> str | None:
    """A line for each device of a node."""
    query = next((word.partition("=")[2] for word in words if word.startswith("--query-gpu=")), "")
    counts = {"-L", "--list-gpus", "-i", "--showid", "--showproductname"} & set(words)
    if not query and not counts and tool != DEVICE_COUNTS[2]:
        return ""
    count = os.environ.get("SLURM_GPUS_ON_NODE") or os.environ[DEVICES]
    if not count.isdecimal() or not set(query.split(",")) <= {"", *_FIELDS}:
        return None
    _record("answered", [tool, *words])
    if tool == DEVICE_COUNTS[2]:
        return f"{count}\n"
    form = "GPU[{0}]: ID {0}" if tool == "rocm-smi" else "GPU {0}: GPU (UUID: GPU-{0})"
    form = ", ".join(map(_FIELDS.__getitem__, query.split(","))) if query else form
    head = [query] if query and not any("noheader" in word for word in words) else []
    return "".join(f"{line}\n" for line in (*head, *(form.format(number) for number in range(int(count)))))


def main(tool: str, words: list[str]) -> int:
    if tool == "sh":  # bash says what it does
        os.execvp("bash", ["bash", *words])
    if tool in PYTHONS and words[:1] == ["-c"] and _COUNTS_DEVICES.fullmatch("".join(words[1:2])):
        tool = DEVICE_COUNTS[2]
    if tool in (*_ANSWERED, *DEVICE_COUNTS) and (answer := _answer(tool, words)) is not None:
        sys.stdout.write(answer)
        return 0
    if tool in AROUND:
        return _run_once(tool, words, options_end(tool, words))
    if tool in SUBMITTING:
        return _submit(tool, words)
    if tool in CONTAINERS and (at := _own_script(words)):
        return _run_once(tool, words, at)
    if tool in _PREFIXES or (tool in NOT_DONE and words[:1] == ["run"]):
        at = next((at for at, word in enumerate(words) if os.path.basename(word) in (*TOOLS, "bash")), 0)
        if at:
            return _run_once(tool, words, at)
    runs = tool in (*_ANSWERED, *DEVICE_COUNTS, *_PREFIXES) or (tool in PYTHONS and not is_training(words, _is_step()))
    # A tool that might reach beyond our folder, and does not with these words.
    if runs or (NOT_DONE.get(tool) and not any(word in NOT_DONE[tool] for word in words[:4])):
        real = _real(tool) or (_real("python3") if tool in PYTHONS else "")
        if not real:
            if tool in DEVICE_COUNTS:
                _record(tool, words)
            sys.stderr.write(f"{tool}: command not found\n")
            return 127
        os.execv(real, [real, *words])
    _record(tool, words)
    return 0


def _ask() -> None:
    """As sitecustomize: end this Python before it starts a training."""
    words = sys.orig_argv[1:]
    name = os.path.basename(words[0]) if words else ""
    if name in LAUNCHERS:
        _record(name, words[1:])
    elif is_training(words, _is_step()):
        _record("python", words)
    else:
        return
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
elif __name__ == "sitecustomize" and FOLDER in os.environ:
    _ask()
