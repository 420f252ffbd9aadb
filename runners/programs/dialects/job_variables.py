"""What Slurm, PBS or Grid Engine would set for a batch script, by its head; hosts are `node0`, `node1` ..."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from meshtune.runners.programs.capture.stand_in import DEVICES
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.job_script import devices_per_node, read_job, slurm_nodes, slurm_options
from meshtune.runners.programs.dialects.launcher_options import whole
from meshtune.runners.untrusted_text import UnreadableText

_MAX_HOSTS, _MAX_RANKS = 10_000, 256
# New for each job, and said by no line.
_OF_A_JOB = (
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_JOBID", "PBS_O_PATH"),
    *("PBS_O_HOST", "PBS_SERVER", "PBS_JOBDIR"),
)


def head_variables(script: str) -> dict[str, str]:
    """What the lines of the head alone say of its job's variables."""
    found = {**pbs_variables(script)[0], **slurm_variables(script)}
    with suppress(CannotRead):
        job = read_job(script)
        found |= {"NHOSTS": str(job.nodes)} if job and job.nodes and not found else {}
    return {name: value for name, value in found.items() if name not in _OF_A_JOB}


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
    names = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), tasks),
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_TASKS_PER_NODE": nodes and _repeated(on_node, nodes),
        "SLURM_CPUS_PER_TASK": each,
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus and nodes and _repeated(cpus, nodes),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), devices),
        **dict.fromkeys(("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"), devices and ",".join(map(str, range(devices)))),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), 1),
        **dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"), 0),
        "SLURM_ARRAY_TASK_ID": re.split(r"\D", asked.get("array", ""))[0] or None,
        **{f"SLURM_JOB_{name.upper()}": asked.get(name) for name in ("account", "qos", "reservation")},
        **dict.fromkeys(
            ("SLURM_JOB_NODELIST", "SLURM_NODELIST"), f"node[0-{len(hosts) - 1}]" if len(hosts) > 1 else hosts[0]
        ),
        "SLURMD_NODENAME": hosts[0],
        "SLURM_SUBMIT_HOST": hosts[0],
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_CLUSTER_NAME": "cluster",
        "SLURM_JOB_NAME": asked.get("job-name") or "job",
        "SLURM_JOB_PARTITION": asked.get("partition") or "partition",
    }
    return {name: str(value) for name, value in names.items() if value is not None}


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
    return {
        "PBS_JOBID": "1.server",
        "PBS_JOBNAME": name[1] if name else "job",
        "PBS_QUEUE": queue[1] if queue else "queue",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        **dict.fromkeys(("PBS_O_WORKDIR", "PBS_JOBDIR"), os.getcwd()),
        **{f"PBS_O_{name}": os.environ[name] for name in ("HOME", "LOGNAME", "PATH", "SHELL") if name in os.environ},
        **dict.fromkeys(("PBS_O_HOST", "PBS_SERVER"), "server"),
        **dict.fromkeys(("PBS_TASKNUM", "PBS_NODENUM", "PBS_VNODENUM"), "0"),
        "PBS_NUM_NODES": str(nodes or 1),
        "PBS_NUM_PPN": str(each),
        "PBS_NP": str(len(hosts)),
        **({"NCPUS": cpus[1]} if cpus else {}),
    }, hosts


if __name__ == "__main__":
    print(json.dumps(job_variables(sys.stdin.read(), Path(sys.argv[1]))))  # noqa: T201
