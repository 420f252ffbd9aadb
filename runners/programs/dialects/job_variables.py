"""What Slurm, PBS or Grid Engine would set for a batch script, by its head; hosts are `node0`, `node1` ..."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from meshtune.runners.programs.capture.stand_in import DEVICES, NAMES, TABLE
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.job_script import devices_per_node, read_job, slurm_nodes, slurm_options
from meshtune.runners.programs.dialects.launcher_options import whole
from meshtune.runners.untrusted_text import UnreadableText

_MAX_HOSTS, _MAX_RANKS = 10_000, 256


def head_variables(script: str) -> dict[str, str]:
    """What the lines of the head alone say of its job's variables."""
    found = {**pbs_variables(script)[0], **slurm_variables(script)}
    with suppress(CannotRead):
        job = read_job(script)
        found |= {"NHOSTS": str(job.nodes)} if job and job.nodes and not found else {}
    return {name: value for name, value in found.items() if name not in NAMES["of_one_job"]}


def job_variables(script: str, folder: Path) -> dict[str, str]:
    """What the scheduler would set for the script, of one node where no line says how many, and what its stand-ins
    answer by. folder: for the file of hosts."""
    variables, hosts = pbs_variables(script)
    if hosts:
        path = folder / "records" / f"hosts-{os.getpid()}"
        path.write_text("".join(f"{host}\n" for host in hosts))
        variables["PBS_NODEFILE"] = str(path)
    with suppress(CannotRead):
        job = read_job(script)
        variables |= {DEVICES: str(job.devices_per_node)} if job and job.devices_per_node else {}
    return {**head_variables(script), **variables, **slurm_variables(script, nodes=1)}


def slurm_variables(script: str, nodes: int | None = None) -> dict[str, str]:
    """What Slurm would set for the script, by name; empty where it has no `#SBATCH` line. What no line says and Slurm
    does not default is left out. nodes: of the job where no line says them."""
    try:
        asked = slurm_options(script)
    except UnreadableText:
        asked = {}
    if not asked:
        return {}

    nodes = slurm_nodes(asked) or nodes
    per_node = whole(asked.get("ntasks-per-node", asked.get("tasks-per-node", "")))
    # Set where somebody said how many: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    tasks = whole(asked.get("ntasks", "")) or (nodes * per_node if nodes and per_node else None)
    each, devices, hosts = whole(asked.get("cpus-per-task", "")), devices_per_node(asked), _hosts(nodes or 1)
    on_node = per_node or (tasks // nodes if tasks and nodes and tasks % nodes == 0 else 1)
    cpus = each * on_node if each else None
    known = {
        "job-name": "job",
        "partition": "partition",
        **{name: text for name, text in asked.items() if text},
        "nodes": nodes,
        "tasks": tasks,
        "per_node": per_node,
        "each": each,
        "cpus": cpus,
        "devices": devices,
        "tasks_of_nodes": nodes and _repeated(on_node, nodes),
        "cpus_of_nodes": cpus and nodes and _repeated(cpus, nodes),
        "visible": devices and ",".join(map(str, range(devices))),
        "first_of_array": re.split(r"\D", asked.get("array", ""))[0] or None,
        "hosts": f"node[0-{len(hosts) - 1}]" if len(hosts) > 1 else hosts[0],
        "folder": os.getcwd(),
    }
    return _variables("slurm", known)


def _variables(scheduler: str, known: Mapping[str, object]) -> dict[str, str]:
    """The scheduler's variables, but for those of which nothing is known (None)."""
    found, known = dict[str, str](), {name: value for name, value in known.items() if value is not None}
    for names, form in TABLE["variables"][scheduler].items():
        with suppress(KeyError):
            found |= dict.fromkeys(names.split(), form.format_map(known))
    return found


def _repeated(number: int, nodes: int) -> str:
    """As Slurm writes a number of each of several nodes: `8(x4)`."""
    return str(number) if nodes == 1 else f"{number}(x{nodes})"


def _hosts(nodes: int) -> list[str]:
    return [f"node{index}" for index in range(min(nodes, _MAX_HOSTS))]


def pbs_variables(script: str) -> tuple[dict[str, str], list[str]]:
    """What PBS would set for the script, and the lines of the file that PBS_NODEFILE names; empty where it has no
    `#PBS` line. qsub(1B), ENVIRONMENT VARIABLES, of PBS Pro, and of Torque for `-l nodes=4:ppn=8`."""
    text = " ".join(re.findall(r"(?m)^#PBS\s+(\S.*)", script))
    if not text:
        return {}, []
    chunk = re.search(r"\b(?:select|nodes)=(\d+)([^\s,+]*)", text)
    nodes = whole(chunk[1]) if chunk else 1
    name, queue = (re.search(rf"(?<!\S)-{option} *(\S+)", text) for option in "Nq")
    # A line for each rank: of PBS Pro one for a chunk that says nothing, of Torque one for each processor.
    ranks = re.search(r":(?:mpiprocs|ppn)=(\d+)", chunk[2]) if chunk else None
    cpus = re.search(r":(?:ncpus|ppn)=(\d+)", chunk[2]) if chunk else None
    each = int(ranks[1]) if ranks else 1
    hosts = [host for host in _hosts(nodes or 1) for _ in range(min(each, _MAX_RANKS))]
    known = {
        **{name: os.environ[name] for name in ("HOME", "LOGNAME", "PATH", "SHELL") if name in os.environ},
        "name": name[1] if name else "job",
        "queue": queue[1] if queue else "queue",
        "folder": os.getcwd(),
        "nodes": nodes or 1,
        "each": each,
        "ranks": len(hosts),
        "cpus": cpus[1] if cpus else None,
    }
    return _variables("pbs", known), hosts


if __name__ == "__main__":
    print(json.dumps(job_variables(sys.stdin.read(), Path(sys.argv[1]))))  # noqa: T201
