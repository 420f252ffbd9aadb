"""Makes a whole spec of an imported launch for the machine that is here: its devices or the scheduler's are the
cluster; what was left open is answered, guessed or asked; a model that nobody names is done without."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshtune.runners.devices.facts import Accelerator, Vendor
from meshtune.runners.devices.host import read_host
from meshtune.runners.devices.vendor_tools import read_accelerators
from meshtune.runners.programs.dialects.base import NOT_KEPT, SECRET, Imported, Question
from meshtune.runners.programs.dialects.config_import import literal, placed
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.presets import MIXED_CARDS, cluster_of, cluster_presets
from meshtune.tuner.specs.document import changed_document
from meshtune.tuner.specs.import_script import WITHOUT_MODEL, missing, spec_document
from meshtune.tuner.specs.knobs import with_open_knobs

# Variables that a script reads, and those of libraries that it may use.
_READ = re.compile(r"""(?:environ(?:\.get)?\s*[\[(]|getenv\()\s*["'](\w+)["']""")
_OF_LIBRARIES = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "DS_", "WANDB_MODE")
_KINDS = {Vendor.NVIDIA: DeviceKind.CUDA, Vendor.AMD: DeviceKind.CUDA, Vendor.INTEL: DeviceKind.XPU}


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What this machine has. memory_bytes: of all of it."""

    accelerators: tuple[Accelerator, ...]
    memory_bytes: int


def devices_here(folder: Path) -> Devices:
    return Devices(accelerators=read_accelerators()[0], memory_bytes=read_host(folder).memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDraft:
    """document: the spec, in which what is `open` has no value. guesses: values in it that people confirm. notes: what
    they may want to know."""

    document: Mapping[str, Any]
    guesses: tuple[str, ...]
    open: tuple[Question, ...]
    notes: tuple[str, ...]


def draft_launch(
    imported: Imported,
    *,
    name: str,
    here: Path,
    devices: Devices,
    answers: Mapping[str, Any],
    cluster: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> LaunchDraft:
    """answers: values by dotted path, which count more than what was read. cluster: the section, in place of what the
    launch and this machine say; each device has as many rows there. environment: of who launches. Raises
    InvalidSpec."""
    document = spec_document(imported, name=name, cluster="", here=here)
    document.pop("open_questions", None)
    guesses = [question.text for question in imported.questions if question.guessed or not question.path]
    asked = [question for question in imported.questions if question.path and not question.guessed]
    unsaid = {"global_batch_size": "is not said by the launch"}
    if cluster is not None:
        document["cluster"] = dict(cluster)
        if {"micro_batch_size", "grad_accum_steps"} <= imported.plan.keys():
            document["global_batch_size"] = None
            _count_batch(document, imported)
            asked = [question for question in asked if question.path != "global_batch_size"]
        asked = [question for question in asked if question.path.partition(".")[0] != "cluster"]
    elif not any(question.path.partition(".")[0] == "cluster" for question in asked):
        document["cluster"], unsaid["cluster"] = cluster_here(imported, devices)
        if document["cluster"]:
            guesses += filter(None, [unsaid["cluster"]])
            _count_batch(document, imported)
            counted = document["global_batch_size"] is not None
            asked = [question for question in asked if not (counted and question.path == "global_batch_size")]
    local = imported.runner.get("kind", "local") == "local"
    if local:
        # Here no shared disk and no queue delays a start.
        document.pop("trial", None)
        own = {**_variables(document["workload"], environment), **document["workload"].get("env", {})}
        document["workload"] = {**document["workload"], **({"env": own} if own else {})}
    section = answers.get("cluster", document["cluster"])
    named = section if isinstance(section, Mapping) else {"preset": section}
    if "cluster" in answers and isinstance(document["cluster"], Mapping) and "preset" in named:
        # Of another preset this machine's devices say nothing.
        document["cluster"] = document["cluster"] if document["cluster"].get("preset") == named["preset"] else None
    preset = cluster_presets().get(str(named.get("preset")), named)
    cuda = isinstance(device := preset.get("device"), Mapping) and device.get("kind") == "cuda"
    nodes, each = ({**preset, **named}.get(key) or 1 for key in ("nodes", "devices_per_node"))
    shape = document.get("model") or {}
    # A row's tokens are cut among its context ranks.
    row = (shape.get("seq_len") or 0) // imported.plan.get("cp", 1)
    counts = {"devices": nodes * each, "devices_per_node": each, "row": row, "heads": shape.get("heads") or 0}
    document = with_open_knobs(document, imported, cuda=cuda, counts=counts)
    # A first answer costs little: fewer plans run again, in fewer rounds, than `meshtune run` takes by default.
    document |= {"confirm": 2, "confirm_rounds": 6}
    changed = changed_document(document, placed({}, answers))
    assert isinstance(changed, dict)
    document = changed
    kind = document["workload"].get("kind", "")
    if kind in WITHOUT_MODEL and (
        document.get("model") is None or any(path.startswith("model.") for path in missing(document))
    ):
        document.pop("model", None)
        asked = [question for question in asked if not f"{question.path}.".startswith("model.")]
    # A program whose table says its steps ends after them.
    if kind in WITHOUT_MODEL and "{steps}" not in str(document["workload"]) and "steps" not in document["workload"]:
        document["workload"] = {**document["workload"], "watch": True}
    asked = [question for question in asked if not any(f"{question.path}.".startswith(f"{path}.") for path in answers)]
    known = {question.path for question in asked}
    asked += [
        Question(path, unsaid.get(path, "is not said by the launch"))
        for path in missing(document)
        if path not in known and not any(each.startswith(f"{path}.") for each in known)
    ]
    of_keys = ("workload.working_directory ", *(["trial."] if local else []))
    notes = [note for note in imported.notes if not note.startswith(of_keys)]
    return LaunchDraft(document=document, guesses=_placed(guesses), open=tuple(asked), notes=_placed(notes))


def _variables(workload: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of who launches that the program's script names, or that its libraries read; no secrets. Templates
    where the workload's are."""
    folder = Path(workload.get("working_directory") or workload.get("directory") or "")
    command = workload.get("command") or [workload.get("script") or ""]
    words = command.split() if isinstance(command, str) else map(str, command)
    named: set[str] = set()
    for word in words:
        if word.endswith(".py"):
            with suppress(OSError, UnreadableText):
                named |= set(_READ.findall(read_file(folder / word, SLOW_LIMITS.max_bytes)))
    kept = {
        name: value
        for name, value in environment.items()
        if (name in named or name.startswith(_OF_LIBRARIES)) and name not in NOT_KEPT and not SECRET.search(name)
    }
    return {name: literal(value) for name, value in kept.items()} if workload.get("kind") == "command" else kept


def _placed(texts: Sequence[str]) -> tuple[str, ...]:
    """Each once, without the place in a launch of one line."""
    return tuple(dict.fromkeys(re.sub(r"^line 1[:,] ", "", text) for text in texts))


def _count_batch(document: dict[str, Any], imported: Imported) -> None:
    """The global batch, of a launch that leaves its devices to the machine."""
    plan, cluster = imported.plan, document["cluster"]
    if document["global_batch_size"] is None and {"micro_batch_size", "grad_accum_steps"} <= plan.keys():
        each = plan["micro_batch_size"] * plan["grad_accum_steps"]
        devices = cluster.get("nodes", 1) * cluster["devices_per_node"]
        document["global_batch_size"] = each * devices // prod(plan.get(axis, 1) for axis in ("tp", "pp", "cp"))


def cluster_here(imported: Imported, devices: Devices) -> tuple[dict[str, Any] | None, str]:
    """The spec's section and what is guessed of it; None, and why it is to be said."""
    scheduler, nodes = imported.runner, imported.nodes or 1
    if scheduler.get("kind", "local") != "local":
        words, each = str(scheduler.get("gres", "")), imported.devices_per_node
        if each and (section := cluster_of(words, nodes, each)):
            return section, f"cluster {section['preset']} by {words}: its links are of that machine"
        return None, f"which devices the job has is not said{words and f' by {words}'}: name a preset (docs: presets)"
    here = devices.accelerators
    each = imported.devices_per_node or len(here) or 1
    if nodes > 1 or (here and each > len(here)):
        told = f"the launch starts on {nodes} x {each} devices, and this machine has {len(here) or 'its CPU alone'}"
        return None, f"{told}: launch by sbatch or qsub, or name a preset of more"
    if not here:
        share = devices.memory_bytes // each
        return {"preset": "local-cpu", "devices_per_node": each, "device": {"memory_bytes": share}}, ""
    first = here[0]
    if len({each.name for each in here}) > 1:
        return None, f"this machine has {MIXED_CARDS}"
    if section := cluster_of(first.name, 1, each, first.memory_bytes):
        return section, f"cluster {section['preset']} by the device's name, {first.name}: its links are of that machine"
    device = {"name": first.name, "kind": str(_KINDS[first.vendor]), "memory_bytes": first.memory_bytes}
    return {"name": "this machine", "nodes": 1, "devices_per_node": each, "device": device}, ""
