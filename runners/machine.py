"""Gathers all facts of this machine; takes seconds, changes nothing, and never fails: what does not answer is noted."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshtune.runners.base import RunnerError, RunnerUnavailable
from meshtune.runners.command import call
from meshtune.runners.devices.facts import Machine, SchedulerFact
from meshtune.runners.devices.host import read_host
from meshtune.runners.devices.vendor_tools import read_accelerators
from meshtune.runners.extras import MissingExtra
from meshtune.runners.registry import schedulers
from meshtune.runners.trainer_client import torch_build

# The variables that hide devices from a process.
VISIBILITY = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
)


def read_machine(folder: Path, environment: Mapping[str, str]) -> Machine:
    """folder: the home of campaigns, whose disk is looked at."""
    accelerators, driver, links, unread = read_accelerators()
    build = None
    try:
        build = torch_build()
    except MissingExtra:
        pass
    except RunnerError as error:
        unread = (*unread, str(error))
    return Machine(
        host=read_host(folder),
        accelerators=accelerators,
        driver=driver,
        links=links,
        torch=build,
        schedulers=read_schedulers(environment),
        broken_schedulers=tuple(each.trouble for each in schedulers().values() if each.trouble),
        visible={name: environment[name] for name in VISIBILITY if name in environment},
        unread=unread,
    )


ANSWER_LIMIT_S = 15.0
# Written by `ray start`: the address of the cluster that this machine belongs to.
RAY_CLUSTER = Path("/tmp/ray/ray_current_cluster")


def read_schedulers(environment: Mapping[str, str]) -> tuple[SchedulerFact, ...]:
    facts = []
    for name, scheduler in schedulers().items():
        if not scheduler.question:
            continue
        # Ray's command is installed beside the interpreter, which need not be on the PATH.
        places = f"{environment.get('PATH', '')}:{Path(sys.executable).parent}"
        program = shutil.which(scheduler.question[0], path=places)
        allocation = environment.get(scheduler.allocation, "")
        if program is None and not allocation:
            continue
        answers, line = (
            (None, "its command is not here")
            if program is None
            else _ask(name, program, scheduler.question, environment)
        )
        facts.append(
            SchedulerFact(name=name, command=scheduler.question[0], answers=answers, told=line, allocation=allocation)
        )
    return tuple(facts)


def _ask(name: str, program: str, question: Sequence[str], environment: Mapping[str, str]) -> tuple[bool | None, str]:
    # Asking starts an interpreter with all of Ray, and no cluster is the usual case.
    if name == "ray" and "RAY_ADDRESS" not in environment and not RAY_CLUSTER.exists():
        return None, "no cluster runs on this machine, and RAY_ADDRESS names none"
    try:
        answer = call([program, *question[1:]], time_limit_s=ANSWER_LIMIT_S)
    except RunnerUnavailable as error:
        return False, str(error)
    if answer.code:
        return False, answer.complaint
    # Ray underlines its headings.
    lines = [line.strip() for line in answer.out.splitlines() if line.strip(" =-")]
    return True, lines[0].strip("= ") if lines else "no output"
