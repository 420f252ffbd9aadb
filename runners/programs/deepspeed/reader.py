"""Reads DeepSpeed's settings (ds_config.json), and starts of programs that name such a file.

`auto` stands for what the program that starts DeepSpeed fills in: Hugging Face's Trainer and Accelerate know it, and
whoever reads the file alone asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.batch import solve
from meshtune.runners.programs.deepspeed.options import TABLE, laid_over, read_config
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch, read_arguments, render_lines
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import at, literal
from meshtune.runners.programs.reading import Reading, path_of
from meshtune.search_spaces.checks import raising

_SETTINGS = TABLE.variant("script")
_FILE = TABLE.lists["program"]["file"]
_SHAPES = "DeepSpeed's settings do not say the model's shapes: write layers, hidden, heads, ffn, vocab and seq_len"


def is_file(name: str, text: str) -> bool:
    try:
        return name.endswith(".json") and len(TABLE.words("program.keys") & read_config(text).keys()) >= 2
    except ValueError:
        return False


def read_file_text(name: str, text: str) -> Imported:
    """What a ds_config says; the program that it is for is asked for. Raises CannotRead."""
    config = _config_in(text)
    reading = _read(config, {})
    solve(reading, {"pp": 1})
    told = "a ds_config says no more: write the script's path here, and its arguments under workload.arguments"
    reading.ask("workload.script", told)
    reading.ask("model.layers", f"{name}: {_SHAPES}")
    return _imported(reading, config)


def is_program(launch: Launch) -> bool:
    """Whether a start names a ds_config as programs of DeepSpeed's own do; Megatron's and the Trainer's are others."""
    names = {word.partition("=")[0] for word in launch.words}
    return _FILE in names and not names & TABLE.words("program.not_flags")


def read_launch(launch: Launch) -> Imported:
    """What a start of a script with --deepspeed_config says. Raises CannotRead."""
    arguments, loose = read_arguments(launch.words)
    named, script = (arguments.get(_FILE) or ("",))[0], as_written(launch.script)
    if named not in launch.files:
        raise CannotRead(
            f"{launch.place}: {script} runs under DeepSpeed, whose settings, {as_written(named)}, "
            f"are not there. Next: make the file, and import again; or meshtune import ds_config.json"
        )
    config = _config_in(launch.files[named])
    reading = _read(config, {}, launch.place)
    if launch.devices_per_node:
        reading.devices = (launch.nodes or 1) * launch.devices_per_node
        if launch.nodes is None:
            # deepspeed/launcher/runner.py, 0.19.8: without a hostfile it takes this machine.
            reading.note("the batch is counted for one node; DeepSpeed takes more by a hostfile")
    # deepspeed/runtime/config.py, _set_batch_related_parameters.
    solve(reading, {"pp": 1, **({"grad_accum_steps": 1} if reading.devices else {})})
    if (stages := reading.fields.get("pp", 1)) > 1:
        told = f"{reading.devices} devices and the batch leave pp({stages}): with a PipelineModule of so many stages "
        reading.ask("baseline.pp", f"{told}write it, `pipeline_module: true` and an argument with {{pp}}")
    if "micro_batch_size" not in reading.fields:
        told = f"{as_written(named)} and the number of devices do not say a micro-batch: write it"
        reading.ask("baseline.micro_batch_size", told)
    reading.ask("model.layers", _SHAPES)
    others = {name: values for name, values in arguments.items() if name not in TABLE.words("program.switches")}
    texts = [literal(as_written(line)) for line in render_lines(others)]
    if unknown := [name for name, values in others.items() if not all(map(is_known, values))]:
        reading.ask("", f"what {', '.join(unknown)} hold is not known here: write it in workload.arguments")
    reading.note(
        "a trial ends once its steps are measured; write {micro_batch_size} where an argument says DeepSpeed's batch "
        "again"
    )
    module = launch.script.removeprefix("-m ")
    program = {"module": module} if module != launch.script else {"script": script}
    folder = {"directory": launch.directory or ".", **({"env": dict(launch.env)} if launch.env else {})}
    own = {**program, **folder, "watch": True, "arguments": [*loose, f"{_FILE} {{config}}", *texts]}
    # Of how many nodes is left open where nobody says it.
    return replace(_imported(reading, config, own), nodes=launch.nodes, devices_per_node=launch.devices_per_node)


def read_settings(config: Mapping[str, Any], filled: Mapping[str, Any]) -> tuple[Imported, int | None]:
    """What a ds_config says of a plan, and the ranks of MiCS' groups, which the devices decide on. filled: what its
    starter writes for `auto`, by dotted key; None where the starter asks for it itself. Raises CannotRead."""
    reading = _read(config, filled)
    ranks = reading.fields.pop("zero_ranks", None)
    solve(reading, {"pp": 1})
    return _imported(reading, config), ranks


def _config_in(text: str) -> dict[str, Any]:
    with raising(CannotRead, "", ValueError):
        return read_config(text)


def _read(config: Mapping[str, Any], filled: Mapping[str, Any], place: str = "") -> Reading:
    """What the table reads, with a question for each `auto` that nobody fills in."""
    reading = Reading(given=config, place=place)
    settings: dict[str, Any] = {}
    for row in _SETTINGS.rows:
        for name in row.every_name:
            section = name.rpartition(".")[0]
            if not isinstance(at(config, section) if section else {}, Mapping | None):
                raise CannotRead(f"{section}: must be an object, not {shown(at(config, section))}")
            value = at(config, name)
            # 0 is DeepSpeed's word for off.
            if value == "auto" or (value == 0 and row.least and not isinstance(value, bool)):
                settings[name] = filled.get(name)
            if value == "auto" and name not in filled and row.field != "dtype":
                told = "'auto' is filled in by the program that starts DeepSpeed; fill in the value"
                reading.ask(path_of(row.field), f"{name}: {told}")
    reading.given = laid_over(config, settings)
    _SETTINGS.read(reading)
    _SETTINGS.remark(reading)
    if not (filled or reading.is_asked("workload.dtype") or "dtype" in reading.fields):
        if "auto" in (at(config, "bf16.enabled"), at(config, "fp16.enabled")):
            told = "neither bf16.enabled nor fp16.enabled is true: in which format does the script compute?"
            reading.ask("workload.dtype", told)
        else:
            reading.guess("dtype", "float32", "dtype float32, as neither bf16.enabled nor fp16.enabled is true")
    return reading


def _imported(reading: Reading, config: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> Imported:
    """own: the workload's options beside the config, which keeps what the plan does not say."""
    names = _SETTINGS.names_of("plan", "other")
    sections = {name.partition(".")[0] for name in names}
    left = laid_over(config, dict.fromkeys(names))
    kept = {key: value for key, value in left.items() if value != {} or key not in sections}
    workload = {"kind": "deepspeed", "dtype": reading.fields.get("dtype"), **({"config": kept} if kept else {})}
    catalogs = tuple(TABLE.words("program.catalogs"))
    return replace(reading.imported({}), workload={**workload, **(own or {})}, catalogs=catalogs)
