"""A real Ray cluster on this machine, in a process of its own: Ray's threads and warnings stay out of the tests.

    with RayLab(cpus=4) as cluster:               # or the session's own: the fixture `ray_cluster`
        cluster.add_node("n1", cpus=2); cluster.remove_node("n1")
    with RayLab(cpus=0, growing=2) as cluster:    # Ray's autoscaler adds nodes of 2 CPUs where jobs wait for them

A node is one set of Ray's processes; CPUs are only counted. All nodes have this machine's address, so those that are
added have names. The head is named by the address. Everything ends with the process that reads our commands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from meshtune.runners.schedulers.ray.runner import RayOptions, RayRunner

# Another cluster's token, which this user may have, is no use here; and nothing may be written to the home folder.
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
STOP_LIMIT_S = 60.0
PRIORITY, STARTS = -15, 3


class RayLab:
    """One Ray cluster, of one node until more are added."""

    def __init__(self, *, cpus: int = 4, growing: int = 0) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(cpus), str(growing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        self._folder = Path(tempfile.mkdtemp(prefix="mt-ray-"))
        try:
            self.address = self._heard()
        except BaseException:
            self._end()
            raise
        # The driver ends with the last runner that uses it, and another takes a second to start.
        self._first = self.runner(self._folder)

    def runner(self, root: Path, *, devices: str = "CPU", **options: Any) -> RayRunner:
        """A runner on this cluster."""
        return RayRunner(root, RayOptions(**{"address": self.address, **options}), devices=devices)

    def __enter__(self) -> RayLab:
        self._first.find("")
        return self

    def __exit__(self, *_: object) -> None:
        self._first.close()
        self._end()

    def _end(self) -> None:
        shutil.rmtree(self._folder)
        started = {pid: _command_line(pid) for pid in self.processes("")}
        self._server.stdin.close()
        self._server.wait(STOP_LIMIT_S)
        # What an autoscaler started outlives it, and has another parent then.
        for pid, line in started.items():
            if line and _command_line(pid) == line:
                os.kill(pid, signal.SIGKILL)
        self._server.stdout.close()

    def add_node(self, name: str, *, cpus: int, gpus: int = 0) -> None:
        """gpus: only counted, like CPUs."""
        self._do(f"add {name} {cpus} {gpus}")

    def remove_node(self, name: str) -> None:
        """Kill it as a failing machine would, without a word to anybody."""
        self._do(f"remove {name}")

    def processes(self, title: str) -> list[int]:
        """The living processes of the cluster whose command line begins so; Ray's workers are named after actors."""
        mine, grew = {self._server.pid}, True
        parents = {pid: parent for pid, parent in _parents()}
        while grew:
            more = {pid for pid, parent in parents.items() if parent in mine} - mine
            mine, grew = mine | more, bool(more)
        return [pid for pid in mine if _command_line(pid).startswith(title.encode())]

    def _do(self, command: str) -> None:
        self._server.stdin.write(f"{command}\n")
        self._server.stdin.flush()
        assert self._heard() == "done", command

    def _heard(self) -> str:
        line = self._server.stdout.readline()
        assert line, "the Ray cluster has died"
        return line.strip()


def _parents() -> Iterator[tuple[int, int]]:
    """Every process and its parent."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal():
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def prefer(session: int) -> None:
    """Let the kernel prefer the processes of a session to all others, where we are root.

    Ray aborts where its agents take 15 s to import (ray-project/ray#65983), which is 10 s of processor time, and the
    kernel may give each session the same share: beside the eight ranks of one of the trainer's jobs Ray gets a ninth.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, session, PRIORITY)
    with suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(PRIORITY), encoding="ascii")


Started = TypeVar("Started")


def patiently(start: Callable[[], Started]) -> Started:
    """Start a node; again where Ray gave it up."""
    for _ in range(STARTS - 1):
        with suppress(Exception):
            return start()
    return start()


def autoscaler(folder: Path, cpus: int) -> dict[str, Any]:
    """What makes a head's autoscaler add nodes of so many CPUs, which are processes of this machine.

    `ray.cluster_utils.AutoscalingCluster` does the same, and begins and ends with `ray stop`, which would end every
    Ray process of this machine."""
    from ray._private.services import get_node_ip_address

    head = "f" * 51 + "00000"
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    provider = {
        "type": "fake_multinode",
        "gcs_address": f"{get_node_ip_address()}:{port}",
        "head_node_id": head,
        **dict.fromkeys(("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check"), True),
    }
    worker = {"resources": {"CPU": cpus, "object_store_memory": 80 * 2**20}, "max_workers": 4}
    texts = ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
    lists = (*texts, "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files")
    config = {
        "cluster_name": "fake",
        "max_workers": 4,
        "upscaling_speed": 4.0,
        "idle_timeout_minutes": 5,
        "provider": provider,
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {**worker, "node_config": {}, "min_workers": 0},
        },
        **{name: {} for name in ("auth", "head_node", "worker_nodes", "file_mounts", "docker")},
        **{name: [] for name in (*lists, "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
    }
    (folder / "autoscaler.json").write_text(json.dumps(config))
    own = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": head, "RAY_NODE_TYPE_NAME": "ray.head.default"}
    return {"autoscaling_config": str(folder / "autoscaler.json"), "gcs_server_port": port, "env_vars": own}


def serve(cpus: int, growing: int) -> None:
    """Hold a cluster until the end of our input."""
    prefer(os.getpid())  # before it imports Ray
    os.environ |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    with tempfile.TemporaryDirectory(prefix="mt-ray-") as folder:
        more = autoscaler(Path(folder), growing) if growing else {}
        cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, **small, **more}))
        nodes = {}
        answers.write(f"{cluster.address}\n")
        for line in sys.stdin:
            verb, name, *count = line.split()
            if verb == "add":
                devices = {"num_cpus": int(count[0]), "num_gpus": int(count[1])}
                nodes[name] = patiently(lambda: cluster.add_node(node_name=name, **devices, **small))  # noqa: B023
            else:
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
            answers.write("done\n")
        cluster.shutdown()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
