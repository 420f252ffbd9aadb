"""The options of export formats, for people who fill in a form: what each means, and what holds where it is left out.

Options that make no difference to a file that is only written, such as how often jobs are looked at, are left out here
and read all the same. Formats of other packages have options that only they know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Any

from meshtune.runners.registry import load


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOption:
    """One option of a format. default: as text, YAML as `--option name=value` takes it; empty where the option then
    says nothing, or the campaign's own value holds. choices: all values, where they are few."""

    name: str
    meaning: str
    required: bool
    default: str
    choices: tuple[str, ...]


_SCRIPTS = {
    "setup": "shell lines before the ranks start: [module load cuda]",
    "environment": "variables of the ranks: {NCCL_DEBUG: INFO}",
    "prefix": "beginning of every rank's command line, such as apptainer exec --nv $SIF",
    "python": "path of the interpreter, with meshtune, that starts the ranks; by default this service's own",
    "extra_lines": "further lines for the scheduler, as they stand in a script",
}
_DTYPE = {"dtype": "number format; by default the one that was measured"}
_PROGRAM = {
    "directory": "folder that relative paths are from, and where it starts",
    "python": "the interpreter",
    "env": "variables: {NCCL_DEBUG: INFO}",
}
# By format: the class of the options, and their meanings in the order of a form.
_MEANINGS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "megatron": (
        "meshtune.runners.programs.dialects.megatron.arguments:MegatronOptions",
        {
            "script": "the program",
            "flavour": "whose arguments: Megatron-LM's or Megatron-DeepSpeed's",
            **_DTYPE,
            "arguments": "further arguments of the program: [--lr 1e-4]",
            "setup": "lines of bash that come first: [module load cuda]",
            **_PROGRAM,
        },
    ),
    "deepspeed": (
        "meshtune.runners.programs.dialects.deepspeed:DeepSpeedOptions",
        {
            "script": "the program, in place of a module",
            "module": "the program, in place of a script",
            **_DTYPE,
            "arguments": "arguments of the program, with placeholders such as {config}",
            "pipeline_module": "the program builds a PipelineModule",
            **_PROGRAM,
        },
    ),
    "torchtitan": (
        "meshtune.runners.programs.dialects.torchtitan.options:TorchtitanOptions",
        {
            "release": "v0.3 has flags; v0.2 and v0.2.0 a TOML file",
            **_DTYPE,
            "arguments": "further flags: [--training.dataset c4]",
        },
    ),
    "accelerate": (
        "meshtune.runners.programs.dialects.accelerate:AccelerateOptions",
        {"script": "the program", "directory": "folder of the program", **_DTYPE},
    ),
    "slurm": (
        "meshtune.runners.schedulers.slurm.script:SlurmOptions",
        {
            **{name: f"as sbatch's --{name}" for name in ("partition", "account", "qos", "constraint", "reservation")},
            "gres": "name of one device, such as gpu:h100; a job asks for as many per node as the plan uses",
            "cpus_per_device": "CPUs of each device's process",
            "memory_mib_per_device": "host memory asked for with each device, in MiB",
            "container_image": "pyxis: the image",
            **_SCRIPTS,
        },
    ),
    "pbs": (
        "meshtune.runners.schedulers.pbs.runner:PbsOptions",
        {
            "queue": "as qsub's -q",
            "project": "as qsub's -A",
            "filesystems": "those that the job needs: home:flare",
            "select": "what each node must have: ncpus=208:ngpus=6",
            "place": "how nodes are shared",
            "mpiexec": "how processes are started",
            "binding": "further arguments of the launcher, where each device has a process",
            **_SCRIPTS,
        },
    ),
}
_MANIFEST = {
    "image": "image of the pods, with the training program in it",
    "namespace": "namespace of the object",
    "queue": "a LocalQueue of Kueue",
    "device": "resource of a device, such as amd.com/gpu; '' for none",
}
_OPTIONS = "meshtune.runners.schedulers.kubernetes.export:ManifestOptions"
_KUBERNETES = {
    "jobset": (_OPTIONS, {**_MANIFEST, "claims": "volume claims by the path where pods see them: {/data: team-data}"}),
    "trainjob": (_OPTIONS, {**_MANIFEST, "runtime": "its ClusterTrainingRuntime, which defines the volumes"}),
}


@cache
def options_of(format: str) -> tuple[ExportOption, ...]:
    """Of one format; none where it takes none, or is another package's."""
    if (known := {**_MEANINGS, **_KUBERNETES}.get(format)) is None:
        return ()
    where, meanings = known
    found = {each.name: each for each in fields(load(where))}
    return tuple(_option(found[name], meaning) for name, meaning in meanings.items())


def _option(field: Field[Any], meaning: str) -> ExportOption:
    value = field.default
    return ExportOption(
        name=field.name,
        meaning=meaning,
        required=value is MISSING and field.default_factory is MISSING,
        default="" if field.name == "dtype" else _text(value),
        choices=tuple(map(str, type(value))) if isinstance(value, StrEnum) else (),
    )


def _text(value: object) -> str:
    if value in (MISSING, None, (), ""):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, tuple) else str(value)
