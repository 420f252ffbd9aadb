"""Reads NeMo 2 recipes, NeMo 1 and Megatron-Bridge configurations in YAML, and starts and logs that name them.

A trial runs one by a file, in which the plan's keys stand for the user's. Recipes in Python are not read: each program
prints its own as YAML."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch
from meshtune.runners.programs.dialects.bash.expansion import is_known
from meshtune.runners.programs.dialects.config_import import (
    ConfigReading,
    command_options,
    holds,
    literal,
    mapping_in,
    program_words,
    read_mapping,
    settled,
    text_of,
)
from meshtune.runners.programs.dialects.nemo.layouts import BRIDGE, NEMO_1, NEMO_1_KEYS, Layout, layout_of
from meshtune.runners.programs.dialects.nemo.model import model_of
from meshtune.runners.programs.dialects.nemo.plan import read_plan
from meshtune.runners.programs.dialects.omegaconf import overridden, resolved
from meshtune.runners.untrusted_text import option_value

CONFIG_FILE = "nemo.yaml"
# Of NeMo 1's scripts, and their configuration unless another is named (@hydra_runner in each).
_HYDRA = {
    "megatron_gpt_pretraining.py": "megatron_gpt_config",
    "megatron_gpt_continue_training.py": "megatron_gpt_config",
}
_HYDRA_OPTIONS = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name"}
_NAMED = ("--yaml", "-y", "--config-file", "--config_file")
_RECIPES = ("--recipe", "--factory", "--model_recipe_name", "--recipe_name")
_START = re.compile(r"_target_: megatron\.bridge\.[\w.]*ConfigContainer\s*$")
# A line of the printed document: indented, an item, or a key of the first level.
_LINE = re.compile(r"\s|- |[A-Za-z_]\w*:(?:\s|$)")
_INSTEAD = ", or the file: `meshtune import FILE.yaml`"


def is_program(launch: Launch) -> bool:
    """A start of NeMo 1's script, or of a script with a recipe or a YAML file of one of the others."""
    if PurePosixPath(launch.script).name in _HYDRA:
        return True
    if any(word in _RECIPES for word in launch.words) and "run_recipe" in launch.script:
        return True
    named = option_value(launch.words, *_NAMED) or ""
    return named in launch.files and is_file(named, launch.files[named])


def is_file(name: str, text: str) -> bool:
    return layout_of(mapping_in(name, text)) is not None


def is_log(text: str) -> bool:
    """Megatron-Bridge prints its whole configuration as YAML (training/config.py, print_yaml)."""
    return any(_START.match(line) for line in text.splitlines())


def read_file_text(name: str, text: str) -> Imported:
    """Raises CannotRead."""
    return _imported(read_mapping(name, text), None, name, [])


def read_log(text: str) -> Imported:
    """The last configuration that the log has. Raises CannotRead."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if _START.match(line)]
    if not starts:
        raise CannotRead("a log of Megatron-Bridge without its configuration; import the YAML file instead")
    taken = lines[starts[-1] :]
    end = next((index for index, line in enumerate(taken) if line and not _LINE.match(line)), len(taken))
    return _imported(read_mapping("the log", "\n".join(taken[:end]) + "\n"), None, "the log", [])


def read_launch(launch: Launch) -> Imported:
    """Raises CannotRead."""
    script = PurePosixPath(launch.script).name
    if script in _HYDRA:
        return _hydra(launch, _HYDRA[script])
    named = option_value(launch.words, *_NAMED)
    if not named:
        told = f"{launch.place}: {script} starts a recipe in Python, which is not read"
        raise CannotRead(
            f"{told}; print it as YAML and import that: `nemo llm pretrain ... --to-yaml FILE.yaml` with NeMo 2, "
            f"`config.to_yaml('FILE.yaml')` or run_recipe.py's --dryrun with Megatron-Bridge"
        )
    config = read_mapping(named, text_of(launch, named, "the start reads", _INSTEAD))
    before = [word for word in launch.words if word != named]
    words = [*program_words(launch), *_replaced(launch, named)]
    values = [word for word in before if "=" in word and not word.startswith("-")]
    own, unknown = overridden(config, values, launch.place)
    return _imported(own, launch, launch.place, [*words, *unknown])


def _replaced(launch: Launch, named: str) -> list[str]:
    """The words with our file for the user's, and without those that are laid over it."""
    kept = []
    for word in launch.words:
        if word.endswith(named):
            kept.append(word.removesuffix(named) + f"{{directory}}/{CONFIG_FILE}")
        elif word.startswith("-") or "=" not in word:
            kept.append(literal(word))
    return kept


def _hydra(launch: Launch, default: str) -> Imported:
    """NeMo 1: a configuration by folder and name, and words that hydra lays over it. Raises CannotRead."""
    said = {"path": "conf", "name": default}
    values = []
    words = iter(launch.words)
    for word in words:
        name, joined, value = word.partition("=")
        if name in _HYDRA_OPTIONS:
            said[_HYDRA_OPTIONS[name]] = value if joined else next(words, "")
        else:
            values.append(word)
    # hydra counts a relative folder from the script's.
    folder = PurePosixPath(launch.script).parent / said["path"]
    file = str(folder / (said["name"] if said["name"].endswith((".yaml", ".yml")) else f"{said['name']}.yaml"))
    if not is_known(file):
        told = f"{launch.place}: the name of NeMo's configuration is not known here"
        raise CannotRead(f"{told}; run the script with `meshtune import --capture -- bash SCRIPT`")
    own = read_mapping(file, text_of(launch, file, "the start reads", _INSTEAD))
    config, unknown = overridden(own, values, launch.place)
    stem = CONFIG_FILE.removesuffix(".yaml")
    start = [*program_words(launch), "--config-path", "{directory}", "--config-name", stem]
    return _imported(config, launch, launch.place, [*start, *unknown])


def _imported(own: dict[str, Any], launch: Launch | None, place: str, words: list[str]) -> Imported:
    layout = layout_of(own)
    if layout is None:
        told = f"{place}: no configuration of NeMo 2, NeMo 1 or Megatron-Bridge"
        raise CannotRead(f"{told}: neither a recipe's _target_ nor model.micro_batch_size or train.global_batch_size")
    reading = ConfigReading(resolved(own), place=place)
    _refuse_parts(reading, layout)
    if layout is NEMO_1:
        reading.ask_unknown([f"model.{key}" for key in own["model"] if key not in NEMO_1_KEYS], layout.name)
    model = model_of(reading, layout)
    nodes, per_node = _devices(reading, layout, launch)
    devices = nodes * per_node if nodes and per_node else None
    read = read_plan(reading, layout, devices, model.get("layers"))
    removed = [key for key in layout.removed if holds(own, key)]
    reading.note("trials keep no checkpoints, load none and do not evaluate")
    if layout is not BRIDGE and "TimingCallback" not in str(own.get("trainer")) and layout is not NEMO_1:
        reading.ask("", "trainer.callbacks has no TimingCallback, which prints step times; add it, or a pattern")
    workload: dict[str, Any] = {
        **command_options(reading, launch, words, layout.example),
        "configs": {CONFIG_FILE: {"format": "yaml", "base": own, "set": read.set | dict.fromkeys(removed)}},
        "fixed": read.fixed,
        "log": dict(layout.log),
        "framework": f"megatron-core-{read.dtype or 'bfloat16'}",
        "dtype": read.dtype,
    }
    found = Imported(
        model=model,
        plan=read.plan,
        workload=workload,
        global_batch_size=read.batch,
        nodes=nodes,
        devices_per_node=per_node,
    )
    return settled(found, reading, launch)


def _refuse_parts(reading: ConfigReading, layout: Layout) -> None:
    """Raises CannotRead for what is only a part of a configuration, and for strategies without Megatron-Core."""
    strategy = str(reading.get("trainer.strategy._target_") or "").rpartition(".")[2]
    if strategy and strategy != "MegatronStrategy":
        told = f"{reading.place}: NeMo 2 with {strategy}, of which only MegatronStrategy is read"
        raise CannotRead(f"{told}: write a spec with the workload command (docs/how-to/workloads.md)")
    if layout is BRIDGE and reading.get("model._target_") is None:
        told = f"{reading.place}: an override of a Megatron-Bridge recipe, which says only what differs"
        raise CannotRead(f"{told}; print the whole with config.to_yaml('FILE.yaml') and import that")
    if layout is NEMO_1 and reading.get("defaults") is not None:
        others = [
            entry for entry in reading.get("defaults") or [] if entry != "_self_" and "optional" not in str(entry)
        ]
        if others:
            reading.ask("", f"defaults names other files ({others}), which are not read; trials have this file alone")


def _devices(reading: ConfigReading, layout: Layout, launch: Launch | None) -> tuple[int | None, int | None]:
    """Nodes and devices per node, of the configuration, else of the start."""
    said: list[int | None] = []
    for key in (layout.nodes, layout.devices):
        value = reading.get(key) if key else None
        plain = isinstance(value, int) and not isinstance(value, bool) and value > 0
        said.append(value if plain else None)
    nodes, per_node = said
    if launch and launch.devices_per_node and per_node not in (None, launch.devices_per_node):
        told = f"{layout.devices} is {per_node}, but the start has {launch.devices_per_node} ranks per node"
        reading.ask("", f"{told}; the baseline counts {per_node}")
    return nodes or (launch.nodes if launch else None), per_node or (launch.devices_per_node if launch else None)
