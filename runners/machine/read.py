"""Gathers all facts of this machine; takes seconds, changes nothing, and never fails: what does not answer is noted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from meshtune.runners.base import RunnerError
from meshtune.runners.machine.facts import Machine
from meshtune.runners.machine.host import read_host
from meshtune.runners.machine.schedulers import broken_schedulers, read_schedulers
from meshtune.runners.machine.vendor_tools import read_accelerators
from meshtune.runners.registry import MissingExtra
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
        broken_schedulers=broken_schedulers(),
        visible={name: environment[name] for name in VISIBILITY if name in environment},
        unread=unread,
    )
