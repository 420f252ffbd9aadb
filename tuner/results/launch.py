"""The real launch of a plan: the user's own start with the plan's values, and nothing that trials alone have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.measuring import WATCH_FILE
from meshtune.runners.programs.dialects.config_import import flat, read_mapping
from meshtune.runners.programs.launch_words import at_program, differences, groups, laid_over
from meshtune.runners.programs.workloads.base import CONTEXT_FILE, started_in
from meshtune.runners.untrusted_text import read_words
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import CampaignSpec, job_of

LAUNCH_FILE = "launch.sh"
# As a reader of scripts of the Trainer writes what is chosen by the plan's values.
_CASE = re.compile(r"case (\S+) in (.*) esac")
_BRANCH = re.compile(r" ?(\S+)\) (?:(\w+)=|set -- ?)('[^']*'|[^;]*);;")
# Files of a job that are no configuration of its program.
_OURS = (CONTEXT_FILE, WATCH_FILE)
_CONFIGS = (".json", ".yaml", ".yml")
_PYTHON = re.compile(r"(?:\S*/)?python[\d.]* ")


def launch_line(spec: CampaignSpec, plan: Plan, own: Sequence[str] | None = None) -> list[str]:
    """The words of a plan's launch. own: those that the user typed, or that a script comes to, which the baseline's are
    then; by default those of the spec's command. Raises as `job_of`, UnreadableText."""
    new = _words(spec, plan)
    if own is None or spec.baseline is None:
        return new
    line = list[str]()
    # The launcher has options of its own.
    for mine, before, after in zip(*map(at_program, (own, _words(spec, spec.baseline), new)), strict=True):
        changes = differences(before, after)
        if "" in changes:
            return new
        spelled = {name.replace("-", "_"): name for name, _ in groups(mine)}
        line += laid_over(mine, {spelled.get(name.replace("-", "_"), name): each for name, each in changes.items()})
    return line


def changed_settings(spec: CampaignSpec, old: Plan, new: Plan) -> list[str]:
    """What another plan changes in configuration files and variables of the launch, as `FILE: KEY VALUE`."""
    before, after = _real(spec, old), _real(spec, new)
    changed = [f"{name}={value}" for name, value in after.env.items() if before.env.get(name) != value]
    for name, text in _changed(before, after).items():
        was, own = (flat(read_mapping(name, each)) for each in (before.files[name], text))
        changed += [f"{name}: {key} {value}" for key, value in own.items() if was.get(key) != value]
    return changed


def changed_files(spec: CampaignSpec, old: Plan, new: Plan) -> dict[str, str]:
    """The texts of the configuration files that differ under another plan, by name."""
    return _changed(_real(spec, old), _real(spec, new))


def _changed(before: JobSpec, after: JobSpec) -> dict[str, str]:
    configs = {name: text for name, text in after.files.items() if name.endswith(_CONFIGS) and name not in _OURS}
    return {name: text for name, text in configs.items() if before.files[name] != text}


def _real(spec: CampaignSpec, plan: Plan) -> JobSpec:
    return job_of(spec, plan, "launch", Path(), real=True)


def launch_script(job: JobSpec) -> str:
    """A real launch (`Workload.materialize`) as a text for bash, with torchrun where a rank starts per device. Of
    several nodes each runs it, with NODE_RANK and MASTER_ADDR."""
    folder, command = started_in(job.command)
    text = _text(command)
    *before, last = (text if text is not None else shlex.join(command)).splitlines()
    line = last.removeprefix("exec ")
    if job.start is Start.DEVICE and job.processes > 1:
        start = torchrun(job.nodes, job.processes_per_node)
        if python := _PYTHON.match(line):
            line = f"{start} {line[python.end() :]}"
        else:
            # Each rank runs the whole text.
            before, line = [], f"{start} --no-python {shlex.join(command)}"
    there = shlex.quote(folder) if folder else '"$(dirname "$0")"'
    variables = [f"export {name}={shlex.quote(value)}" for name, value in job.env.items()]
    return "\n".join(["#!/bin/bash", f"cd {there} || exit", *variables, *before, line, ""])


def torchrun(nodes: int, processes_per_node: int) -> str:
    peers = " --node_rank $NODE_RANK --master_addr $MASTER_ADDR" if nodes > 1 else ""
    return f"torchrun --nnodes {nodes} --nproc_per_node {processes_per_node}{peers}"


def _words(spec: CampaignSpec, plan: Plan) -> list[str]:
    """Of a text for a shell those of its last line."""
    _, command = started_in(_real(spec, plan).command)
    text = _text(command)
    return list(command) if text is None else read_words(text.splitlines()[-1].removeprefix("exec "))


def _text(command: Sequence[str]) -> str | None:
    """The text of a shell's command, in which `case VALUE in` of words or a variable is decided; None for another."""
    if len(command) != 3 or command[0] not in ("sh", "bash") or command[1] != "-c":
        return None
    lines = list[str]()
    chosen: dict[str, str] = {}
    for line in command[2].replace("\\\n", " ").splitlines():
        case = _CASE.fullmatch(line)
        branches = {value: (name, words) for value, name, words in _BRANCH.findall(case[2])} if case else {}
        if case and case[1] in branches:
            name, words = branches[case[1]]
            chosen |= {f"${name}": words[1:-1]} if name else {'"$@"': words}
        else:
            lines.append(line)
    for name, words in chosen.items():
        lines[-1] = lines[-1].replace(f" {name}", f" {words}".rstrip())
    return "\n".join(lines)
