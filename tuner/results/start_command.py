"""The line that starts an exported setting, in the words of its format; typed in the folder that has its files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from meshtune.runners.base import JobSpec
from meshtune.runners.registry import SCHEDULERS, SCRIPTS
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.tuner.results.export import SCRIPT_FILES

# What takes a scheduler's file.
SENDERS: Mapping[str, str] = {name: SCHEDULERS[name].send for name in SCRIPTS}
# The program of somebody whose campaign does not name it.
SCRIPT = "train.py"


def start_line(
    format: str, cluster: ClusterSpec, files: Mapping[str, str], job: JobSpec, options: Mapping[str, Any]
) -> str | None:
    """None for a format that starts nothing. files: of the export. job: of the setting. options: of the workload, where
    it is the format's own program. On several nodes a launcher's line is typed on each of them, with its NODE_RANK and
    the first one's MASTER_ADDR.
    """
    program = shlex.quote(str(options.get("script") or SCRIPT))
    match format:
        case "job":
            return _job_line(job)
        case "megatron":
            return "bash launch.sh"
        case "deepspeed":
            size = f"--num_nodes {cluster.nodes} --num_gpus {cluster.devices_per_node}"
            return f"deepspeed {size} {program} --deepspeed_config ds_config.json"
        case "torchtitan":
            flags = "--job.config_file torchtitan.toml" if "torchtitan.toml" in files else files["torchtitan.args"]
            return f"{_torchrun(cluster.nodes, cluster.devices_per_node)} -m torchtitan.train {' '.join(flags.split())}"
        case "accelerate":
            peers = "--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 29500 "
            return f"accelerate launch --config_file accelerate.yaml {peers if cluster.nodes > 1 else ''}{program}"
    return f"{SENDERS[format]} {SCRIPT_FILES[format]}" if format in SENDERS else None


def _job_line(job: JobSpec) -> str:
    """The built-in trainer starts its own ranks on one machine, and takes srun's; others read torchrun's variables."""
    trainer = "meshtune.runners.trainer" in job.command
    words = ("python", *job.command[1:]) if trainer else job.command
    command = shlex.join(
        [*(["env", *(f"{name}={value}" for name, value in job.env.items())] if job.env else []), *words]
    )
    if job.processes == 1 or (trainer and job.nodes == 1):
        return command
    if trainer:
        return f"srun --nodes={job.nodes} --ntasks-per-node={job.processes_per_node} {command}"
    return f"{_torchrun(job.nodes, job.processes_per_node)} --no-python {command}"


def _torchrun(nodes: int, processes_per_node: int) -> str:
    peers = " --node_rank $NODE_RANK --master_addr $MASTER_ADDR" if nodes > 1 else ""
    return f"torchrun --nnodes {nodes} --nproc_per_node {processes_per_node}{peers}"
