"""Megatron-LM and Megatron-DeepSpeed: a plan as the arguments of pretrain_gpt.py, and a launch script read back.

`launch.sh` is whole: where RANK is set it is one of the ranks that somebody started, else it starts a node's ranks.
`megatron-args.txt` has the same arguments for people, one in a line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from meshtune.runners.dialects.arguments import Arguments, render_lines, without
from meshtune.runners.dialects.base import CannotExpress, Files, unsupported
from meshtune.runners.dialects.megatron.arguments import DS_CONFIG_FILE, arguments_of, ds_config_of, environment_of
from meshtune.runners.dialects.megatron.options import MegatronOptions
from meshtune.runners.dialects.megatron.reader import parse as parse
from meshtune.runners.dialects.megatron.rules import capabilities_of
from meshtune.runners.documents import read_value
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

ARGUMENTS_FILE = "megatron-args.txt"
LAUNCH_FILE = "launch.sh"


def render(model: ModelSpec, plan: Plan, cluster: ClusterSpec, extra: Mapping[str, Any]) -> Files:
    """The files that train `model` under `plan`. extra: MegatronOptions. Raises CannotExpress, InvalidValue."""
    options = read_value(MegatronOptions, dict(extra))
    return render_files(model, plan, cluster, options, arguments_of(model, plan, options))


def render_files(
    model: ModelSpec, plan: Plan, cluster: ClusterSpec, options: MegatronOptions, arguments: Arguments
) -> Files:
    """The files of a run with these arguments. Raises CannotExpress."""
    if problems := unsupported(model, plan, cluster, capabilities_of(options.flavour)):
        raise CannotExpress(str(options.flavour), problems)
    files = {
        ARGUMENTS_FILE: "".join(f"{line}\n" for line in render_lines(arguments)),
        LAUNCH_FILE: _launch_script(plan, cluster, options, arguments),
    }
    if options.through_deepspeed:
        files[DS_CONFIG_FILE] = json.dumps(ds_config_of(plan, options), indent=1) + "\n"
    return files


def _launch_script(plan: Plan, cluster: ClusterSpec, options: MegatronOptions, arguments: Arguments) -> str:
    lines = [f"    {line}" for line in render_lines(without(arguments, {"--deepspeed_config"}))]
    if options.through_deepspeed:
        lines.append(f'    --deepspeed_config "$HERE/{DS_CONFIG_FILE}"')
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment_of(plan, options).items()]
    folder = [f"cd {shlex.quote(options.directory)}"] if options.directory else []
    python, script = shlex.quote(options.python), shlex.quote(options.script)
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {plan.key}: written by meshtune for {options.flavour}. Start it in its own folder: once per device",
            "# with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, or once per node with NODE_RANK.",
            "set -e",
            "HERE=$PWD",
            *exports,
            *options.setup,
            *folder,
            "ARGS=(",
            *lines,
            ")",
            'if [[ -n "${RANK:-}" ]]; then',
            f'    exec {python} -u {script} "${{ARGS[@]}}"',
            "fi",
            f"exec {python} -m torch.distributed.run --nproc_per_node {cluster.devices_per_node} \\",
            f'    --nnodes "${{NNODES:-{cluster.nodes}}}" --node_rank "${{NODE_RANK:-0}}" \\',
            '    --master_addr "${MASTER_ADDR:-localhost}" --master_port "${MASTER_PORT:-29500}" \\',
            f'    {script} "${{ARGS[@]}}"',
            "",
        ]
    )
