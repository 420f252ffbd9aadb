"""A Ray cluster on this machine for whoever names no other: its host outlives the service that started it.

root/server.lock     locked by the living host
root/users.lock      locked, shared, by every driver; whole, by a host that is about to end
root/address         where the cluster listens
root/server.log      what the host and Ray had to say"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import ray
from ray.exceptions import RayError

from meshtune.runners.json_files import write_whole
from meshtune.runners.local.spool import Spool

# Of the job manager, an actor on the head node, in each namespace.
ACTOR_NAME = "job_manager"
START_LIMIT_S = 110.0
PERIOD_S = 0.2
CALL_LIMIT_S = 10.0


def local_address(root: Path, devices: int, idle_s: float) -> str:
    """Where the cluster under `root` listens, started where none does; it lives at least as long as this process.
    Raises OSError, TimeoutError."""
    root.mkdir(parents=True, exist_ok=True)
    users = os.open(root / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.lockf(users, fcntl.LOCK_SH)  # waits for a host that is about to end
    spool, host = Spool(root), None
    shown = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    options = ("--devices", str(devices), "--idle-s", str(idle_s))
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        # Ray aborts where its agents take 15 s to import, which a busy machine exceeds (ray-project/ray#65983): a host
        # that has died is followed by another.
        lock = spool.take_lock() if host is None or host.poll() is not None else None
        if lock is not None:
            (root / "address").unlink(missing_ok=True)
            os.close(lock)
            host = spool.start_server("meshtune.runners.ray.host", *options, **shown)
        with suppress(FileNotFoundError):
            return (root / "address").read_text(encoding="utf-8")
        time.sleep(PERIOD_S)
    raise TimeoutError(f"it was not there after {START_LIMIT_S:g} s; see {root / 'server.log'}")


def _wait(users: int, idle_s: float) -> None:
    """Return when there has been nothing to do for so long; from then on nobody can connect."""
    idle_since = time.monotonic()
    while True:
        time.sleep(PERIOD_S)
        now = time.monotonic()
        try:
            fcntl.lockf(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            idle_since = now
            continue
        if _busy():
            idle_since = now
        if now - idle_since >= idle_s:
            return
        fcntl.lockf(users, fcntl.LOCK_UN)


def _busy() -> bool:
    """True while a job manager has a job that has not ended, or does not say."""
    try:
        named = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if actor["name"] == ACTOR_NAME]
        managers = [ray.get_actor(ACTOR_NAME, namespace=actor["namespace"]) for actor in named]
        return any(ray.get([manager.busy.remote() for manager in managers], timeout=CALL_LIMIT_S))
    except (RayError, ValueError):
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="meshtune.runners.ray.host")
    parser.add_argument("root", type=Path)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--idle-s", type=float, required=True)
    options = parser.parse_args(arguments)
    if Spool(options.root).take_lock() is None:
        return 0
    users = os.open(options.root / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    ray.init(
        "local", num_cpus=options.devices, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    write_whole(options.root / "address", ray.get_runtime_context().gcs_address)
    _wait(users, options.idle_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
