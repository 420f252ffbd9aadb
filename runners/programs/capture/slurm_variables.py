"""The variables that Slurm would set for a batch script, by its `#SBATCH` lines."""

from __future__ import annotations

from meshtune.runners.programs.dialects.job_script import devices_per_node, slurm_options
from meshtune.runners.untrusted_text import UnreadableText


def slurm_variables(script: str) -> dict[str, str]:
    """By name; empty where the script has no such line. What no line says and Slurm does not default is left out."""
    try:
        asked = slurm_options(script)
    except UnreadableText:
        asked = {}
    if not asked:
        return {}

    def number(name: str) -> int | None:
        value = asked.get(name, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else None

    nodes = number("nodes") or 1
    per_node = number("ntasks-per-node")
    # Set where somebody said how many: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    tasks = number("ntasks") or (nodes * per_node if per_node else None)
    gpus = devices_per_node(asked)
    names = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_CPUS_PER_TASK": number("cpus-per-task"),
        "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_JOB_ID": 1,
        "SLURM_JOBID": 1,
        "SLURM_PROCID": 0,
        "SLURM_NODEID": 0,
        "SLURM_LOCALID": 0,
        "SLURM_JOB_NAME": asked.get("job-name") or "job",
        "SLURM_JOB_NODELIST": "node0" if nodes == 1 else f"node[0-{nodes - 1}]",
        "SLURM_NODELIST": "node0" if nodes == 1 else f"node[0-{nodes - 1}]",
    }
    return {name: str(value) for name, value in names.items() if value is not None}
