"""Stands in for the programs that start a training: records the call, and starts nothing. Any Python from 3.10 on.

Runs as `stand_in.py TOOL WORDS...`, and as the `sitecustomize` of every Python that the launcher starts. A record is a
JSON file {tool, words, cwd, environment, under, files}. under: the [tool, words] of each srun or mpirun around it,
outermost first. files: the text of each configuration that a word names, which may be rewritten or gone later."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from itertools import pairwise

FOLDER = "MESHTUNE_CAPTURE"
UNDER = "MESHTUNE_CAPTURE_UNDER"
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "composer")
PYTHONS = ("python", "python3")
AROUND = ("srun", "mpirun", "mpiexec")
CONTAINERS = ("docker", "podman", "singularity", "apptainer", "enroot", "shifter")
# Start a training where no stand-in is: recorded, and refused by who reads the record.
BARRED = ("sbatch", "salloc", "qsub", "bsub", "ssh", "pdsh", "clush")
TOOLS = (*LAUNCHERS, *PYTHONS, *AROUND, *BARRED, *CONTAINERS, "scontrol")
LAUNCH_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher"),
    *("deepspeed", "deepspeed.launcher.runner", "accelerate.commands.launch", "composer.cli.launcher"),
    "torchtitan.train",
)
# gpt-neox's own launcher.
_LAUNCH_PROGRAMS = ("deepy.py",)
_HELPER_MODULES = ("pip", "venv", "ensurepip", "json", "site", "sysconfig", "platform", "http", "torch.utils")
# Only trainers have one of these.
_TRAINER_FLAGS = frozenset(
    {
        *("--num-layers", "--hidden-size", "--micro-batch-size", "--global-batch-size"),
        *("--tensor-model-parallel-size", "--pipeline-model-parallel-size"),
        *("--deepspeed", "--deepspeed_config", "--job.config_file", "--job.config-file", "--train_config"),
        *("--per_device_train_batch_size", "--per-device-train-batch-size", "--gradient_accumulation_steps"),
    }
)
# Characters of a configuration, and how many of them.
_MAX_FILE, _MAX_FILES = 100_000, 16
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")
# Options that stand alone; any other takes the word after it, unless that is joined by "=".
_ALONE = {
    "srun": frozenset(
        {
            *("-l", "--label", "-u", "--unbuffered", "--overlap", "-k", "--no-kill", "-O", "--overcommit", "--pty"),
            *("-q", "--quiet", "-Q", "-v", "-vv", "--verbose", "-K", "--kill-on-bad-exit", "--exclusive", "-s"),
            *("--oversubscribe", "--exact", "--whole", "--contiguous", "--spread-job", "-E", "--preserve-env"),
            *("--disable-status", "-X", "-Z", "--no-allocate", "--container-mount-home", "--no-container-mount-home"),
            *("--no-container-entrypoint", "--container-writable", "--container-remap-root"),
        }
    ),
    "mpirun": frozenset(
        {
            *("--allow-run-as-root", "-allow-run-as-root", "--oversubscribe", "-oversubscribe", "--tag-output"),
            *("-tag-output", "-v", "--verbose", "-q", "--quiet", "--display-map", "--report-bindings", "-genvall"),
            *("-envall", "--envall", "--genvall", "--nooversubscribe", "--bynode", "--byslot", "-l", "-pernode"),
            *("--do-not-launch", "--display-allocation", "--label", "--line-buffer"),
        }
    ),
}
_TWO_VALUES = ("--mca", "-mca", "-env", "-genv", "--gmca", "--prtemca")


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
        index += 2 if word in _PYTHON_VALUES else 1
    if index >= len(words):
        return False
    program, rest = words[index], words[index + 1 :]
    if (module and program in LAUNCH_MODULES) or os.path.basename(program) in _LAUNCH_PROGRAMS:
        return True
    if any(word.partition("=")[0] in _TRAINER_FLAGS for word in rest):
        return True
    helper = any(program == name or program.startswith(f"{name}.") for name in _HELPER_MODULES)
    return under and (not helper if module else program.endswith(".py"))


def options_end(tool: str, words: list[str]) -> int:
    """Where the command of an srun or mpirun begins."""
    alone = _ALONE["srun" if tool == "srun" else "mpirun"]
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word == "--":
            return index + 1
        # -N2 and --nodes=2 hold their value; Open MPI and MPICH have long options with one dash.
        joined = "=" in word or (tool == "srun" and not word.startswith("--") and len(word) > 2)
        joined = joined or "".join(words[index + 1 : index + 2]) in TOOLS
        index += 1 if word in alone or joined else 3 if word in _TWO_VALUES else 2
    return min(index, len(words))


def named_files(words: list[str], folder: str = "") -> dict[str, str]:
    """The texts of the configurations that words name, and of those that these name, by the name there. Names without a
    folder count from `folder`, and from each folder that a word is (`-d configs 125M.yml`, a model's config.json)."""
    found: dict[str, str] = {}
    values = [word.partition("=")[2] if word.startswith("-") else word for word in words]
    folders = ["", *(value for value in values if value and os.path.isdir(os.path.join(folder, value)))]
    names = [*values, *(os.path.join(inner, "config.json") for inner in folders[1:])]
    for name in names:
        for place in (os.path.join(folder, inner, name) for inner in folders if name):
            # gpt-neox names its files without the end as well.
            paths = (path for path in (place, f"{place}.yml") if path.endswith((".json", ".toml", ".yaml", ".yml")))
            path = next(filter(os.path.isfile, paths), "")
            if path and name not in found and len(found) < _MAX_FILES:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read(_MAX_FILE + 1)
                if len(text) <= _MAX_FILE:
                    found[name] = text
                    names += re.findall(r"[\w./-]+\.(?:json|ya?ml|toml)\b", text)[:_MAX_FILES]
    return found


def _record(tool: str, words: list[str]) -> None:
    """In whole or not at all."""
    folder = os.environ[FOLDER]
    found = {
        "tool": tool,
        "words": words,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "under": json.loads(os.environ.get(UNDER, "[]")),  # noqa: TID251 our own
        "files": named_files(words),
    }
    name = f"{time.time_ns():020d}-{os.getpid()}"
    draft = os.path.join(folder, "records", f"{name}.draft")
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(found, file)
    os.replace(draft, os.path.join(folder, "records", f"{name}.json"))


def _real(tool: str) -> str:
    """The program behind a stand-in, "" where there is none."""
    own = os.path.join(os.environ[FOLDER], "bin")
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, tool)
        if folder and os.path.realpath(folder) != os.path.realpath(own) and os.access(path, os.X_OK):
            return path
    return ""


def _run_once(tool: str, words: list[str]) -> int:
    """Run the command of an srun or mpirun as rank 0."""
    end = options_end(tool, words)
    options, command = words[:end], words[end:]
    if not command:
        _record(tool, words)
        return 0
    around = json.loads(os.environ.get(UNDER, "[]"))  # noqa: TID251 our own
    os.environ[UNDER] = json.dumps([*around, [tool, options]])
    if tool == "srun":
        os.environ.update(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    else:
        ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMI_RANK": "0"}
        os.environ.update(ranks)
        for option, value in pairwise(options):
            if option == "-x" and "=" in value:
                name, _, text = value.partition("=")
                os.environ[name] = text
    own = os.path.join(os.environ[FOLDER], "bin")
    os.environ["PATH"] = own + os.pathsep + os.environ.get("PATH", "")
    for name in TOOLS:  # a shell between may have dropped them
        os.environ[f"BASH_FUNC_{name}%%"] = bash_function(own, name)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{tool}: {command[0]}: {error.strerror}\n")
        return 127


def bash_function(folder: str, name: str) -> str:
    """As bash reads it from the environment. folder: has no quote."""
    return f"() {{ '{folder}/{name}' \"$@\"; }}"


def _nodes() -> str:
    """What `scontrol show hostnames` prints."""
    count = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
    return "".join(f"node{index}\n" for index in range(min(int(count), 100_000) if count.isdecimal() else 1))


def main(tool: str, words: list[str]) -> int:
    if tool == "scontrol":
        if words[:1] == ["show"] and len(words) > 1 and words[1].startswith("hostname"):
            sys.stdout.write(_nodes())
        return 0
    if tool in AROUND:
        return _run_once(tool, words)
    if tool in PYTHONS and not is_training(words, UNDER in os.environ):
        real = _real(tool) or _real("python3")
        if not real:
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
    elif is_training(words, UNDER in os.environ):
        _record("python", words)
    else:
        return
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
elif __name__ == "sitecustomize" and FOLDER in os.environ:
    _ask()
