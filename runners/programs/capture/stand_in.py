"""Stands in for the programs that start a training: records the call, and starts nothing. Any Python from 3.10 on.

Runs as `stand_in.py TOOL WORDS...`, and as the `sitecustomize` of every Python that the launcher starts. A record is a
JSON file {tool, words, cwd, environment, under, files}. under: the [tool, words] of each srun or mpirun around it,
outermost first. files: the text of each configuration that a word names, which may be rewritten or gone later."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from itertools import pairwise

FOLDER = "MESHTUNE_CAPTURE"
UNDER = "MESHTUNE_CAPTURE_UNDER"
# With console scripts of programs, which start one of the others.
LAUNCHERS = (
    "torchrun",
    "deepspeed",
    "accelerate",
    "composer",
    "trl",
    "swift",
    "megatron",
    "llamafactory-cli",
    "lmf",
    "axolotl",
    "litgpt",
    "tune",
)
PYTHONS = ("python", "python3")
AROUND = ("srun", "mpirun", "mpiexec")
CONTAINERS = ("docker", "podman", "singularity", "apptainer", "enroot", "shifter")
# Start a training where no stand-in is: recorded, and refused by who reads the record.
BARRED = ("sbatch", "salloc", "qsub", "bsub", "ssh", "pdsh", "clush")
# Reach beyond the folder that the launcher runs in, by whatever words, or with one of these words: recorded, not done.
NOT_DONE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("scp", "sftp", "rsync", "curl", "wget", "aws", "gsutil", "pkill", "killall", "dd", "sudo"), ()),
    **dict.fromkeys(("mount", "umount", "systemctl", "shutdown", "reboot", "apt", "apt-get", "yum", "dnf"), ()),
    **dict.fromkeys(("pip", "pip3"), ("install", "uninstall", "download")),
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("install", "create", "update", "remove", "env", "clean")),
    "git": ("clone", "fetch", "pull", "push", "submodule", "lfs", "ls-remote"),
    **dict.fromkeys(("hf", "huggingface-cli"), ("download", "upload", "login")),
}
TOOLS = (*LAUNCHERS, *PYTHONS, *AROUND, *BARRED, *CONTAINERS, *NOT_DONE, "scontrol", "sh")
# Where the kernel makes no sandbox they work in our folder alone, and the first nowhere.
GUARDED = (
    *("kill", "rm", "rmdir", "mv", "cp", "ln", "mkdir", "touch", "tee", "chmod", "chown", "chgrp"),
    *("install", "truncate", "sed"),
)
LAUNCH_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher"),
    *("deepspeed", "deepspeed.launcher.runner", "accelerate.commands.launch", "composer.cli.launcher"),
    "torchtitan.train",
)
# gpt-neox's own launcher.
_LAUNCH_PROGRAMS = ("deepy.py",)
# Programs that are modules and start their ranks, or their own Ray, themselves.
_MODULES = ("litgpt", "verl.trainer", "maxtext", "MaxText", "openrlhf.cli")
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
# What an srun or mpirun sets for its step by its own options: srun(1), OUTPUT ENVIRONMENT VARIABLES.
_OF_A_STEP = {
    **dict.fromkeys(("-N", "--nodes"), ("SLURM_NNODES", "SLURM_STEP_NUM_NODES")),
    **dict.fromkeys(("-n", "--ntasks"), ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS")),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    **dict.fromkeys(("-c", "--cpus-per-task"), ("SLURM_CPUS_PER_TASK",)),
}
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_IMAGES = (".sif", ".simg", ".sqsh", ".squashfs", ".img")
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
    own = module and any(program == name or program.startswith(f"{name}.") for name in _MODULES)
    if own or (module and program in LAUNCH_MODULES) or os.path.basename(program) in _LAUNCH_PROGRAMS:
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
    own = [os.path.realpath(os.path.join(os.environ[FOLDER], name)) for name in ("bin", "guard")]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, tool)
        if folder and os.path.realpath(folder) not in own and os.access(path, os.X_OK):
            return path
    return ""


def _run_once(tool: str, words: list[str], end: int) -> int:
    """Run the command of an srun, mpirun or container, which begins at `end`, as rank 0."""
    options, command = words[:end], words[end:]
    if not command:
        _record(tool, words)
        return 0
    around = json.loads(os.environ.get(UNDER, "[]"))  # noqa: TID251 our own
    os.environ[UNDER] = json.dumps([*around, [tool, options]])
    if tool in AROUND:
        os.environ.update(_of_a_rank(tool, options))
    own = os.path.join(os.environ[FOLDER], "bin")
    os.environ["PATH"] = own + os.pathsep + os.environ.get("PATH", "")
    for name in TOOLS:  # a shell between may have dropped them
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


def _of_a_rank(tool: str, options: list[str]) -> dict[str, str]:
    """The variables of rank 0 by the options of its srun or mpirun."""
    said = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    if tool != "srun":
        said = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMI_RANK": "0"}
    for option, following in pairwise([*options, ""]):
        name, joined, value = option.partition("=")
        if tool == "srun" and option[:1] == "-" != option[1:2]:
            name, joined, value = option[:2], option[2:], option[2:]
        value = value if joined else following
        if tool == "srun" and value.isdecimal():
            said.update(dict.fromkeys(_OF_A_STEP.get(name, ()), value))
        elif option in ("-np", "-n", "--np") and value.isdecimal():
            said.update(dict.fromkeys(_RANKS, value))
        elif option == "-x" and "=" in following:
            name, _, said[name] = following.partition("=")
    return said


def _own_script(words: list[str]) -> int:
    """Where a container's words name a script of the current folder, such as ./wrap.sh; 0 for nowhere."""
    for index, word in enumerate(words):
        shell = word in ("bash", "sh") and os.path.isfile("".join(words[index + 1 : index + 2]))
        own = "/" in word and os.path.isfile(word) and os.access(word, os.X_OK) and not word.endswith(_IMAGES)
        if index and (shell or (own and not os.path.isabs(word))):
            return index
    return 0


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
    if tool == "sh":  # bash says what it does
        os.execvp("bash", ["bash", *words])
    if tool in AROUND:
        return _run_once(tool, words, options_end(tool, words))
    if tool in CONTAINERS and (at := _own_script(words)):
        return _run_once(tool, words, at)
    if (tool in PYTHONS and not is_training(words, UNDER in os.environ)) or _is_harmless(tool, words):
        real = _real(tool) or (_real("python3") if tool in PYTHONS else "")
        if not real:
            sys.stderr.write(f"{tool}: command not found\n")
            return 127
        os.execv(real, [real, *words])
    _record(tool, words)
    return 0


def _is_harmless(tool: str, words: list[str]) -> bool:
    """Whether a tool that might reach beyond our folder does not, with these words."""
    if tool in NOT_DONE:
        return bool(NOT_DONE[tool]) and not any(word in NOT_DONE[tool] for word in words[:4])
    if tool not in GUARDED[1:]:
        return False
    reached = words[-1:] if tool in ("cp", "ln", "install") else [word for word in words if not word.startswith("-")]
    ours = os.path.realpath(os.environ[FOLDER]) + os.sep
    reads = tool == "sed" and not any(word.startswith(("-i", "--in-place")) for word in words)
    return reads or all(os.path.realpath(word).startswith(ours) for word in reached)


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
