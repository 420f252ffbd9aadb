"""How many processes of jobs this machine may run at once, so that a spec's numbers cannot bring it down."""

from __future__ import annotations

import os

# More than any emulation of a cluster by processes needs, and no load that keeps a service from answering.
PROCESSES_PER_CORE = 16
# What an interpreter with its libraries takes before it does anything: torch without CUDA, mostly.
LEAST_BYTES = 128 * 2**20
# Sets the first limit, in processes.
MOST_PROCESSES = "MESHTUNE_LOCAL_PROCESSES"


def why_too_many(processes: int) -> str:
    """Why this machine does not run so many at once, with the numbers; empty where it does."""
    cores = len(os.sched_getaffinity(0))
    set_to = os.environ.get(MOST_PROCESSES, "")
    most = int(set_to) if set_to.isdecimal() else PROCESSES_PER_CORE * cores
    if processes > most:
        source = MOST_PROCESSES if set_to.isdecimal() else f"{PROCESSES_PER_CORE} for each of its {cores} cores"
        return f"{processes} processes at once are more than the {most} that this machine runs ({source})"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if processes * LEAST_BYTES > memory:
        needs = f"{processes} processes take {LEAST_BYTES >> 20} MiB each before they do anything"
        return f"{needs}, and this machine has {memory >> 20} MiB"
    return ""
