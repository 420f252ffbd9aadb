"""Reads `accelerate launch`: its words, over the YAML file that they name; and what shards the model in trials. Writes
a plan as that file, for Accelerate 1.15.0."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from meshtune.runners.documents import read_value
from meshtune.runners.json_files import shown
from meshtune.runners.programs.deepspeed.options import read_config
from meshtune.runners.programs.deepspeed.options import render as render_deepspeed
from meshtune.runners.programs.dialects.base import Arguments, CannotRead, Files, read_arguments, require_words
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known
from meshtune.runners.programs.dialects.config_import import elsewhere, literal, mapping_in, read_mapping
from meshtune.runners.programs.dialects.launcher_options import OF_ACCELERATE, tell
from meshtune.runners.programs.reading import Reading, truth
from meshtune.runners.programs.table import WHOLE_CONTEXTS, capabilities, facts_of, table_of
from meshtune.runners.trainer.job import Dtype
from meshtune.runners.untrusted_text import is_there
from meshtune.search_spaces.checks import Closed, raising
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

TABLE = table_of("meshtune.runners.programs.accelerate")
YAML_FILE = "accelerate.yaml"
_LISTS = TABLE.lists
_STAGE = "baseline.zero_stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateOptions(Closed):
    """script: the program, from `directory`: what starts it names them."""

    script: str = ""
    directory: str = ""
    dtype: Dtype = Dtype.BFLOAT16


def render(model: ModelSpec, plan: Plan, cluster: ClusterSpec, extra: Mapping[str, Any] | None = None) -> Files:
    """The YAML file, and a ds_config.json where it names one. extra: options. Raises as DeepSpeed's."""
    dtype = str(read_value(AccelerateOptions, dict(extra or {})).dtype)
    require_words("Accelerate", model, plan, cluster, capabilities(TABLE, "FSDP", [WHOLE_CONTEXTS]))
    files = render_deepspeed(model, plan, cluster, {"dtype": dtype}) if plan.zero_stage == 1 else {}
    facts = {**facts_of(model, plan), "dtype": dtype, "nodes": cluster.nodes, "processes": plan.world_size}
    facts["use_cpu"] = True if cluster.device.kind is DeviceKind.CPU else None
    facts["alone"] = True if plan.world_size == 1 and plan.zero_stage == 0 else None
    document: dict[str, Any] = {}
    for name, value in TABLE.variant("FSDP").write(facts).items():
        section = next((section for start, section in _LISTS["sections"].items() if name.startswith(start)), "")
        (document.setdefault(section, {}) if section else document)[name] = value
    head: str = _LISTS["program"]["head"] + ("" if files else _LISTS["program"]["own"])
    return {YAML_FILE: head.format_map(facts) + yaml.safe_dump(document, sort_keys=False), **files}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """framework: whose physics it is, a name of FRAMEWORKS. stages: for each ZeRO stage that trials may take, the words
    that ask for it, before the script or, `of_script`, after it; empty: by a file, or one stage alone. head:
    Accelerate's launcher and its words. script: words for the script. settings: DeepSpeed's. fixed: the stage cannot
    change. recomputes: it recomputes, whatever the script is told. decides: no word of the script changes it."""

    framework: str = "fsdp"
    stages: Mapping[int, Sequence[str]] = dataclasses.field(default_factory=dict)
    of_script: bool = False
    head: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    fixed: bool = True
    recomputes: bool = False
    decides: bool = False


def is_file(name: str, text: str) -> bool:
    """Whether a text is a configuration that `accelerate config` writes."""
    return "distributed_type" in mapping_in(name, text, (".yaml", ".yml", ".json"))


def words_of(launcher: Sequence[str]) -> Arguments:
    """The launcher's own words, by name without dashes in front."""
    starts = (at + 1 for at, word in enumerate(launcher) if PurePath(word).name.endswith("launch"))
    given, _ = read_arguments(launcher[next(starts, len(launcher)) :])
    return {name[2:].replace("-", "_"): values for name, values in given.items()}


def _text_of(reading: Reading, whose: str, name: str, files: Mapping[str, str], unknown: str) -> str:
    """Of a file that the words name; where it is not at its place, of the one of its name below the present folder,
    which is asked. Raises CannotRead."""
    if name in files:
        return files[name]
    if not is_known(name):
        told = f"{reading.place}: {whose} settings are in {as_written(name)}, which is not known here"
        raise CannotRead(
            f"{told}. Next: meshtune import --capture -- bash SCRIPT ARGUMENTS, with those of a real start"
        )
    if (found := elsewhere(name)) is None:
        told = f"{reading.place}: {whose} settings, {name}, are not there; without them {unknown} not known"
        raise CannotRead(f"{told}. Next: make the file, and import again")
    text, told = found
    reading.ask("", told)
    return text


def settings_of(reading: Reading, name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """DeepSpeed's settings in a file that the words name. Raises CannotRead."""
    text = _text_of(reading, "DeepSpeed's", name, files, "ZeRO stage and number format are")
    with raising(CannotRead, name, ValueError):
        return read_config(text)


def keeps_stage(settings: Mapping[str, Any]) -> bool:
    """Whether they have what goes with their stage: weights or optimizer on the host or on disks, groups of MiCS."""
    said = settings.get("zero_optimization")
    zero = said if isinstance(said, dict) else {}
    parts = [zero.get(part) for part in ("offload_optimizer", "offload_param")]
    grouped = zero.get("mics_shard_size", -1) not in (-1, 0)
    return grouped or any(isinstance(part, dict) and part.get("device", "none") != "none" for part in parts)


def put_stage(reading: Reading, said: Any, *names: str) -> None:
    """The ZeRO stage that a sharding strategy is, by name or number; or whether FSDP 2 gives gathered weights back."""
    strategies: Mapping[str, int] = _LISTS["strategies"]
    word, listed = str(said).lower(), list(strategies)
    if word.isdecimal() and 1 <= int(word) <= len(listed):
        word = listed[int(word) - 1]
    stage = strategies.get(word, {True: 3, False: 2, None: None}[truth(said)])
    if stage is None:
        reading.ask(_STAGE, f"sharding strategy {shown(said)} is not known: write 2 or 3, and compare")
    else:
        reading.put("zero_stage", stage, *names)
    if word in _LISTS["in_node"].values():
        reading.fields["zero_nodes"] = 1
    if any(truth(reading.get(name)) for name in ("use_cpu", "cpu", "--use_cpu")):
        # accelerate/state.py, AcceleratorState: FSDP is for other kinds of devices, and nothing is said.
        told = "on CPUs Accelerate runs DDP in place of FSDP, whatever it is told: write 0, or take the CPU's words out"
        reading.ask(_STAGE, told)


def fsdp_stage(reading: Reading) -> None:
    older = str(reading.get("fsdp_version")) != "2"
    names = (*(("fsdp_sharding_strategy",) if older else ()), "fsdp_reshard_after_forward")
    name = reading.first(names)
    put_stage(reading, reading.get(name) if name else "full_shard", *names)


def read_launcher(
    reading: Reading, words: Arguments, files: Mapping[str, str], known: Mapping[str, Any] | None = None
) -> Sharding:
    """What the launcher's words and its file say together; words come first. known: what the file says, where it is not
    among `files`; trials have it as their own. Raises CannotRead."""
    file = _flat(_document(reading, words, files) if known is None else known)
    if str(file.get("distributed_type")) == "NO" and "num_processes" not in words:
        # commands/launch.py, simple_launcher.
        file["num_processes"] = 1
    reading.given = {**reading.given, **file, **words}
    chosen = next((kind for word, kind in _LISTS["words"].items() if word in words), "")
    kind = chosen or str(file.get("distributed_type", "NO"))
    if kind == "DEEPSPEED" and reading.has("deepspeed_config_file"):
        kind = "DEEPSPEED_FILE"
    start = _LISTS["kinds"].get(kind) or (kind in TABLE.words("trial.as_gpus") and _LISTS["kinds"]["NO"])
    if not start:
        raise CannotRead(f"{reading.place}: distributed_type {shown(kind)} is none that meshtune has words for")
    table = TABLE.variant(kind)
    # The launcher is known, whatever the script is.
    more, reading.more = reading.more, ""
    table.read(reading)
    table.remark(reading)
    reading.more = more
    fields, drop, add = reading.fields, set(start["drop"].split()), start.get("add", "").split()
    add = add if known is None else ["--config_file", f"{{directory}}/{YAML_FILE}", *add]
    mesh = [_LISTS["mesh"][name].split() for name in ("tp", "cp") if kind == "FSDP" and fields.get(name, 1) > 1]
    mesh += [_LISTS["mesh"][name].split() for name in ("dp", "on") if mesh or fields.get("zero_groups", 1) > 1]
    offloaded = truth(reading.get("fsdp_offload_params")) or False
    devices = (reading.get(f"offload_{part}_device") for part in ("optimizer", "param"))
    fixed = any(device and str(device).lower() not in ("none", "null") for device in devices)
    if fixed and kind == "DEEPSPEED":
        add = [word.replace("{zero_stage}", str(fields.get("zero_stage"))) for word in add]
    settings = None
    if kind == "DEEPSPEED_FILE":
        # The file's own format counts; the launcher's is what its `auto` stands for.
        settings = settings_of(reading, str(reading.get("deepspeed_config_file")), files)
        fixed = keeps_stage(settings)
    version = "node" if "zero_nodes" in fields else "2" if str(reading.get("fsdp_version")) == "2" else "1"
    stages = {int(stage): text.split() for stage, text in start.get("stages", {}).get(version, {}).items()}
    recomputes = "recompute" in fields
    whole = {0: ["--multi_gpu"]} if stages and not (offloaded or recomputes or mesh) else {}
    drop |= {word.removeprefix("--") for each in mesh for word in each[::2]}
    return Sharding(
        framework=start["framework"],
        stages={**whole, **stages},
        head=_head(reading, words, drop, [*add, *(word for each in mesh for word in each)]),
        settings=settings,
        fixed=fixed or kind == "MEGATRON_LM" or (start["framework"] == "fsdp" and not stages),
        recomputes=recomputes,
        decides=bool(stages) or start["framework"] != "fsdp",
    )


def _document(reading: Reading, words: Arguments, files: Mapping[str, str]) -> Mapping[str, Any]:
    named = words.get("config_file")
    if not named:
        if not words.keys() & _LISTS["words"].keys():
            file = _LISTS["program"]["default_file"]
            if is_there(Path(file).expanduser()):
                reading.ask(_STAGE, f"no --config_file: Accelerate reads {file}; name it, and import again")
            else:
                told = f"zero_stage 0, as no --config_file is named and {file} is not here"
                reading.guess("zero_stage", 0, told)
        return {}
    unknown = "what shards the model and its number format are"
    return read_mapping(named[0], _text_of(reading, "Accelerate's", named[0], files, unknown))


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the file and of its sections, side by side, as the launcher has them."""
    flat = {key: value for key, value in document.items() if not isinstance(value, dict) and value is not None}
    for section, values in document.items():
        for key, value in (values if isinstance(values, dict) else {}).items():
            flat[f"fsdp_{key}" if section == "fsdp_config" and not key.startswith("fsdp") else key] = value
    return flat


def quoted(word: str) -> str:
    """A user's word as it stands in a text for `sh -c` that has placeholders."""
    return literal(shlex.quote(as_written(word)))


def _head(reading: Reading, words: Arguments, drop: set[str], add: Sequence[str]) -> tuple[str, ...]:
    """The launcher's words for a trial; each is a word of the shell, with placeholders."""
    # Who starts where is told to each trial anew.
    anew = {name: plain for name in words if (plain := name.replace("_", "-")) in OF_ACCELERATE}
    tell(reading, "accelerate", [(plain, (f"--{name}", *words[name])) for name, plain in anew.items()])
    others = {name: values for name, values in words.items() if name not in anew.keys() | drop}
    kept = [quoted(word) for name, values in others.items() for word in (f"--{name}", *values)]
    return ("accelerate", "launch", *kept, *add, *_LISTS["trial"]["peers"].split())
