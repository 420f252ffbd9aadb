"""The variables that Slurm would set for a batch script, by its `#SBATCH` lines."""

from __future__ import annotations

import re

_DIRECTIVE = re.compile(r"^#SBATCH\s+(-[A-Za-z]|--[a-z-]+)[=\s]*(\S+)", re.MULTILINE)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-J": "--job-name"}
_WHOLE = re.compile(r"[1-9][0-9]{0,6}")


def slurm_variables(script: str) -> dict[str, str]:
    """By name; empty where the script has no such line. What no line says and Slurm does not default is left out."""
    asked = {_SHORT.get(name, name): value for name, value in _DIRECTIVE.findall(script)}
    if not asked:
        return {}

    def number(*names: str) -> int | None:
        # --gres=gpu:a100:8, --gpus-per-node=a100:8
        values = (asked[name].rpartition(":")[2] for name in names if name in asked)
        return next((int(value) for value in values if _WHOLE.fullmatch(value)), None)

    nodes = number("--nodes") or 1
    per_node = number("--ntasks-per-node")
    tasks = number("--ntasks") or nodes * (per_node or 1)
    gres = number("--gres") if asked.get("--gres", "").startswith("gpu") else None
    gpus = number("--gpus-per-node") or gres
    if gpus is None and (total := number("--gpus")) is not None and total % nodes == 0:
        gpus = total // nodes
    if gpus is None and per_node and (each := number("--gpus-per-task")):
        gpus = per_node * each
    names = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_CPUS_PER_TASK": number("--cpus-per-task"),
        "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_JOB_ID": 1,
        "SLURM_JOBID": 1,
        "SLURM_PROCID": 0,
        "SLURM_NODEID": 0,
        "SLURM_LOCALID": 0,
        "SLURM_JOB_NAME": asked.get("--job-name", "job"),
        "SLURM_JOB_NODELIST": "node0" if nodes == 1 else f"node[0-{nodes - 1}]",
        "SLURM_NODELIST": "node0" if nodes == 1 else f"node[0-{nodes - 1}]",
    }
    return {name: str(value) for name, value in names.items() if value is not None}
