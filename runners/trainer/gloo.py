"""torch's gloo backend with one worker thread per group, in place of its two.

In torch 2.13 every worker notes the name of the collective that it finished, in one string of its group and without a
lock (`ProcessGroupGloo::runLoop`, `lastCompletedWorkName`). Two workers that do so at once corrupt the heap as soon as
one of the names does not fit into the string object: the rank dies by SIGABRT, at any later time. One worker runs a
group's collectives in the order in which they were called, as NCCL does.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

BACKEND = "gloo_in_order"


@cache
def register_gloo() -> str:
    """Make the backend known to torch; return its name, for `init_process_group`. Groups made later inherit it."""
    dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])
    return BACKEND


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._threads = 1
    options._timeout = timeout
    # As torch's own: the interfaces that the environment names, else the one of this host's name.
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    options._devices = [kind.create_device(interface=name) for name in names] or [kind.create_default_device()]
    group: dist.ProcessGroupGloo = kind(store, rank, size, options)
    return group
