"""Reads the configuration that torchtitan prints at its start: "Running with args" (a Python dict, to 0.2.0) or
"Running with configs" (JSON), where --job.print_args, --job.print_config or --debug.print_config asks for it.

Beside it, of every release (torchtitan/train.py, trainer.py, distributed/parallel_dims.py): the mesh that was built,
which says how many devices there were, and to 0.2.2 the model's own arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Question
from meshtune.runners.programs.dialects.torchtitan.config import flat, nested
from meshtune.runners.programs.dialects.torchtitan.keys import Key
from meshtune.runners.programs.dialects.torchtitan.options import Release
from meshtune.runners.programs.dialects.torchtitan.reading import Reading
from meshtune.runners.untrusted_text import read_json, read_literal

# torchrun's --tee writes the rank before each line; torchtitan's logger its own head before each message.
_RANK = re.compile(r"^\[(?:rank|default)?(\d+)\]:", re.MULTILINE)
_DUMP = re.compile(r"Running with (?:args|configs): *(?=\{)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]" to 0.2.0, then "parallelism: pp=1, dp_replicate=1, ...".
_DIMS = re.compile(r"Building \d-D device mesh with (\[[^\]]*\]), (\[[\d, ]*\])")
_DEGREES = re.compile(r"Building device mesh with parallelism: ((?:\w+=\d+(?:, )?)+)")
_MESH = ("pp", "dp", "dp_replicate", "dp_shard", "dp_shard_mod_ep", "dp_shard_in_ep", "cp", "tp")
_TITAN = re.compile(r"\[titan\]|torchtitan|Building \S+ \S+ ?with (?:\{|\w+Args\()")
_MODEL_ARGUMENT = re.compile(
    r"[\"']?(dim|n_layers|n_heads|n_kv_heads|vocab_size|multiple_of|ffn_dim_multiplier)[\"']?[=:] ?([\d.]+)"
)
_MODEL = re.compile(r"Building (\S+) (\S+?) ?with (?=\{|\w*Args\()")
_MAX_DUMP = 200_000
# Sections that a trial keeps; the others it sets itself, or they say nothing of speed and memory.
_KEPT = (
    "model",
    "training",
    "optimizer",
    "lr_scheduler",
    "activation_checkpoint",
    "compile",
    "experimental",
    "parallelism",
)


# Of what says no folder.
FROM_WHERE = "set workload.directory to the folder that torchtitan is started in: its relative paths count from there"


def is_log(text: str) -> bool:
    return bool(
        _DUMP.search(text) and ("'parallelism'" in text or '"parallelism"' in text or "'experimental'" in text)
    ) or (bool(_TITAN.search(text)) and "Building" in text and "step:" in text)


def read_log(text: str) -> Imported:
    """What the run was that wrote this log. Raises CannotRead."""
    text = _COLOUR.sub("", _of_one_rank(text))
    dump = _DUMP.search(text)
    if dump is None:
        raise CannotRead(
            "a log of torchtitan without its configuration. Next: run it for a step with --job.print_config (0.2), "
            "--job.print_args (before) or --debug.print_config (0.3), and import that log; or import its .toml file"
        )
    document = _document(text[dump.end() : dump.end() + _MAX_DUMP])
    devices = _devices(text)
    spec = document.pop("model_spec", None)
    config = {key: value for key, value in flat(document).items() if value not in (None, "", [])}
    if isinstance(spec, Mapping):
        return _of_0_3(config, spec, _policy(document.get("activation_checkpoint")), devices)
    reading = Reading(config, release=Release.TOML, devices=devices, shapes=_shapes(text))
    imported = reading.imported()
    kept = nested({key: value for key, value in reading.config.items() if _is_kept(key)})
    return _on(replace(imported, workload={**imported.workload, "config": kept}), devices)


def _of_0_3(config: dict[Key, Any], spec: Mapping[str, Any], policy: str, devices: int | None) -> Imported:
    config = {key: value for key, value in config.items() if key[0] != "activation_checkpoint"}
    config |= {("model", key): str(spec.get(key, "")) for key in ("name", "flavor")}
    config["activation_checkpoint", "mode"] = policy
    imported = Reading(config, release=Release.FLAGS, devices=devices).imported()
    asked = Question(
        "workload.arguments", "the log does not say --module and --config, nor which flags stood beside them"
    )
    return _on(replace(imported, questions=(*imported.questions, asked)), devices)


def _policy(fields: Any) -> str:
    """Which recomputation has these fields (distributed/activation_checkpoint.py at 0.3.0); the dump has no name."""
    if not isinstance(fields, Mapping):
        return "none"
    if "memory_budget" in fields:
        return "memory-budget"
    return "selective" if "force_recompute_mm_shapes_by_fqns" in fields else "full"


def _on(imported: Imported, devices: int | None) -> Imported:
    told = () if devices is None else (f"the log is of a run on {devices} devices; of how many nodes it does not say",)
    return replace(imported, notes=(*told, FROM_WHERE, *imported.notes))


def _of_one_rank(text: str) -> str:
    """The lines of the rank that says the configuration first, without the rank before them."""
    dump = _DUMP.search(text)
    head = _RANK.match(text, text.rfind("\n", 0, dump.start()) + 1) if dump else None
    if head is None:
        return text
    return "\n".join(line[head.end() - head.start() :] for line in text.splitlines() if line.startswith(head[0]))


def _document(text: str) -> dict[str, Any]:
    """The mapping that a text begins with. Raises CannotRead."""
    try:
        if text[1:].lstrip().startswith("'"):
            found = read_literal(text.partition("\n")[0])
        else:
            _, end = json.JSONDecoder().raw_decode(text)
            found = read_json(text[:end])
    except (ValueError, RecursionError) as error:
        raise CannotRead(f"the configuration in the log cannot be read: {shown(str(error))}") from None
    if not isinstance(found, dict):
        raise CannotRead("the configuration in the log is no mapping")
    return found


def _devices(text: str) -> int | None:
    """Ranks of the mesh that the log says, None where it says none."""
    if found := _DEGREES.search(text):
        degrees = dict(part.split("=") for part in found[1].rstrip(", ").split(", "))
        return prod(int(degrees.get(name, 1)) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    if found := _DIMS.search(text):
        names, sizes = re.findall(r"\w+", found[1]), re.findall(r"\d+", found[2])
        return prod(int(size) for name, size in zip(names, sizes, strict=False) if name in _MESH)
    return None


def _shapes(text: str) -> dict[str, Any] | None:
    """Fields of ModelSpec from the model's arguments that the log says; None for other models than Llama 2 and 3, and
    where the log says none."""
    found = _MODEL.search(text)
    if found is None or not found[1].startswith("llama") or found[1].startswith("llama4"):
        return None
    values: dict[str, float] = {}
    for name, value in _MODEL_ARGUMENT.findall(text[found.end() : found.end() + 2000]):
        values.setdefault(name, float(value))
    if not {"dim", "n_layers", "n_heads", "vocab_size"} <= values.keys():
        return None
    # FeedForward of torchtitan/models/llama3/model/model.py at v0.2.2: two thirds of four times the width, rounded up.
    width = int(2 * 4 * values["dim"] / 3)
    width = int(values.get("ffn_dim_multiplier", 1) * width)
    multiple = int(values.get("multiple_of", 256))
    return {
        "name": f"{found[1]}-{found[2]}".lower(),
        "layers": int(values["n_layers"]),
        "hidden": int(values["dim"]),
        "heads": int(values["n_heads"]),
        "kv_heads": int(values.get("n_kv_heads", 0)),
        "ffn": multiple * -(-width // multiple),
        "vocab": int(values["vocab_size"]),
    }


def _is_kept(key: Key) -> bool:
    section = key[0].partition(".")[0]
    return section in _KEPT or (section == "quantize") or key == ("job", "custom_config_module")
