"""What people say of a training in words (model, devices, method), as a spec and as a question of whether it fits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from meshtune.runners.documents import merged, read_value
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.sources import read_source
from meshtune.runners.programs.named_models import model_named, preset_named
from meshtune.runners.programs.recipes import MODULES
from meshtune.runners.programs.table import table_of
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file, read_json
from meshtune.search_spaces.checks import (
    Checks,
    Closed,
    InvalidValue,
    Limit,
    Problem,
    StrEnum,
    Whole,
    did_you_mean,
    problems_as,
    raising,
)
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.presets import cluster_on, described, model_presets
from meshtune.search_spaces.recipe import LINEAR, Optimizer, Target
from meshtune.tuner.campaign.spec import space_of, workload_of
from meshtune.tuner.prediction.fit import FitAnswer, FitQuestion, Setting, fit
from meshtune.tuner.prediction.memory_needs import sure_plans
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.specs.launch_draft import cluster_here, devices_here, draft_launch
from meshtune.tuner.specs.read import read_spec

# Of a checkpoint of PEFT.
ADAPTER = "adapter_config.json"
PROGRAMS: Mapping[str, Mapping[str, Any]] = table_of("meshtune.runners.programs.profiles").lists["fit"]
SEQ_LEN = 4096
# Rows of a step, where nobody says how many: a usual number, and at least one for each device.
BATCH = 64
EXPERT_PARALLEL = (1, 2, 4, 8, 16, 32, 64)
# Ten seconds of a core.
MAX_PLANS = 20_000
# Of a model or a folder, and of devices.
MAX_NAME = 500


class Method(StrEnum):
    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitWords(Closed):
    """What `meshtune fit` and POST /v1/fit are told. Raises InvalidValue."""

    # As the Hub or a preset names it; empty: the largest model that fits is asked.
    model: str = ""
    # Devices or a cluster, such as 8xH100, RTX 4090, p5.48xlarge.
    on: str = ""
    # Tokens of a row; by default those of a launch, or 4,096.
    seq: Whole | None = None
    method: Method | None = None
    # One of fsdp, deepspeed, megatron, torchtitan, trl, unsloth, axolotl, llama_factory, ms_swift, torchtune.
    program: str = "fsdp"
    # Rows of a step over all devices.
    batch: Whole | None = None
    # The present micro-batch, which is judged; changes start from it.
    micro_batch: Whole | None = None
    # Of adapters.
    rank: Whole | None = None
    optimizer: Optimizer | None = None
    # Tokens of each row of the data: memory is then that of its longest rows, speed that of the mean.
    lengths: tuple[Whole, ...] = ()
    # The rows are generated: tokens of the longest prompt, and of the longest answer.
    rollout: tuple[Whole, ...] = ()
    # Of an hour of one device, in any currency.
    price: Annotated[float, Limit(above=0, high=1e30)] | None = None

    def _check(self, checks: Checks) -> None:
        known = f"no program is called {self.program!r}; {did_you_mean(self.program, PROGRAMS)}"
        checks.require(self.program in PROGRAMS, "program", known)
        checks.require(len(self.rollout) in (0, 2), "rollout", "must be tokens of a prompt, and of an answer")
        for name in ("model", "on"):
            checks.require(len(getattr(self, name)) <= MAX_NAME, name, f"has more than {MAX_NAME} letters")


def said(**given: Any) -> FitWords:
    """The words that are given, which is not null and not empty. Raises InvalidValue."""
    return read_value(FitWords, _said(given))


def _said(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value not in (None, "")}


def spec_document(words: FitWords, here: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The spec of a model on some devices, without a command; and what of it is a guess. here: names may be of files of
    this machine, and its devices are meant where none are named. Raises InvalidValue."""
    program, training, name = PROGRAMS[words.program], _training(words), words.model
    notes: list[str] = []
    if here and (file := Path(name.removesuffix(ADAPTER)) / ADAPTER).is_file():
        name, own, notes = _of_adapter(file)
        training = merged(own, training)
    if "adapter" in training:
        training = merged({"adapter": program.get("adapter", {})}, training)
    with problems_as(InvalidValue, "model"):
        model = model_named(name) if here else preset_named(name)
    cluster = _cluster(words, here=here)
    devices, nodes, experts = _devices(cluster), cluster.get("nodes", 1), model.get("experts") or 1
    plain = {"micro_batch_size": words.micro_batch, "zero_stage": program["zero_stage"] if devices > 1 else 0}
    document = {
        "name": "fit",
        "model": {**model, "seq_len": words.seq or sum(words.rollout) or max(words.lengths, default=SEQ_LEN)},
        "training": {**program.get("recipe", {}), **training},
        "cluster": cluster,
        "global_batch_size": words.batch or devices * -(-BATCH // devices),
        "space": {
            **program["space"],
            # Sharded over all devices, or over those of a node.
            "zero_group": [0, *[devices // nodes] * (nodes > 1)],
            "ep": [degree for degree in EXPERT_PARALLEL if experts % degree == 0],
        },
        "baseline": plain if words.micro_batch else None,
        "workload": {"kind": "command", "framework": program["framework"]},
    }
    return document, notes


def _devices(cluster: Mapping[str, Any]) -> int:
    return int(cluster.get("nodes", 1) * cluster.get("devices_per_node", 1))


def _training(words: FitWords) -> dict[str, Any]:
    """The section `training`, as far as the words say it."""
    mean = np.minimum(words.lengths, words.seq or np.inf).mean() if words.lengths else 0
    adapts = words.rank is not None or words.method in (Method.LORA, Method.QLORA)
    section = {
        "adapter": _said({"rank": words.rank}) if adapts else None,
        "base_bits": 4 if words.method == Method.QLORA else None,
        "optimizer": words.optimizer,
        "mean_tokens": max(1, round(float(mean))) if words.lengths else None,
        "rollout": dict(zip(("prompt_tokens", "answer_tokens"), words.rollout, strict=False)) or None,
    }
    return _said(section)


def _cluster(words: FitWords, *, here: bool) -> dict[str, Any]:
    """The section `cluster`. Raises InvalidValue."""
    section, told = None, "names no devices, such as 8xH100"
    with problems_as(InvalidValue, "on"):
        if words.on:
            section = cluster_on(words.on)
        elif here and (devices := devices_here(Path())).accelerators:
            section, told = cluster_here(Imported(workload={}), devices)
        if section is None:
            raise InvalidValue([Problem("", told)])
    return {**section, **_said({"device_hour_price": words.price})}


def _of_adapter(file: Path) -> tuple[str, dict[str, Any], list[str]]:
    """The base model of a checkpoint of PEFT, the section `training`, and what of it is a guess. Raises
    InvalidValue."""
    with raising(lambda told: InvalidValue([Problem(str(file), told)]), "", UnreadableText):
        config = read_json(read_file(file, SLOW_LIMITS.max_bytes))
    with problems_as(InvalidValue, str(file)):
        if not isinstance(config, Mapping):
            raise InvalidValue([Problem("", "must be a mapping")])
        if (kind := config.get("peft_type", "LORA")) != "LORA":
            raise InvalidValue([Problem("peft_type", f"{kind} is no adapter that is known: LORA is")])
    whole = (file.parent / "config.json").is_file()
    base = str(file.parent) if whole else str(config.get("base_model_name_or_path") or "")
    named = config.get("target_modules")
    targets, unknown = targets_of(named)
    adapter = {"rank": config.get("r", 8), "targets": targets, "dora": config.get("use_dora") is True}
    saved = config.get("modules_to_save")
    whole_modules = map(str, saved) if isinstance(saved, list) else ()
    ends = {name.rpartition(".")[2] for name in whole_modules} & {"embed_tokens", "lm_head"}
    told = f"{file.name}: target_modules {unknown}: all linear products are counted"
    return base, {"adapter": adapter, "trained_ends": bool(ends)}, [told] if unknown else []


def targets_of(modules: object) -> tuple[list[str], str]:
    """PEFT's target_modules as the products that have an adapter, and what of it is no name of modules known here: then
    they are all linear ones."""
    names = modules if isinstance(modules, list) else [] if modules in (None, "all-linear") else [modules]
    known = {str(name): MODULES.get(str(name).rpartition(".")[2]) for name in names}
    named = {word for words in known.values() for word in str(words).split()} & {*Target}
    unknown = [name for name, words in known.items() if words is None]
    every = bool(unknown) or not named
    return [str(one) for one in Target if one in (LINEAR if every else named)], ", ".join(unknown)[:80]


def document_here(words: FitWords) -> tuple[dict[str, Any], list[str]]:
    """As of `spec_document`, or of the launch script or configuration that the words name as a model. Raises
    InvalidValue."""
    file = Path(words.model)
    launch = file.is_file() and file.name not in ("config.json", ADAPTER)
    return _launch_document(file, words) if launch else spec_document(words, here=True)


def _launch_document(file: Path, words: FitWords) -> tuple[dict[str, Any], list[str]]:
    """The spec of a launch script or a configuration here, which is read and not run; and what of it is a guess. Raises
    InvalidValue."""
    with raising(lambda told: InvalidValue([Problem(str(file), told)]), "", CannotRead):
        imported = read_source(file, given=os.environ)
    length, size = words.seq or max(words.lengths, default=None), words.micro_batch
    answers = {"model.seq_len": length, "global_batch_size": words.batch, "baseline.micro_batch_size": size}
    answers = _said(answers)
    # Devices that no option names are those of a scheduler's job, else of this machine.
    own = not words.on and imported.runner.get("kind", "local") != "local"
    cluster = None if own else _cluster(words, here=True)
    devices = devices_here(Path())
    draft = draft_launch(imported, name="fit", here=file.parent, devices=devices, answers=answers, cluster=cluster)
    # Of the setting what is not said is taken as by default; how it starts, and what it prints, do not matter.
    plain = [one for one in draft.open if one.path.startswith(("baseline.", "workload.fixed."))]
    asked = [one for one in draft.open if one not in plain and one.path not in ("workload.command", "workload.log")]
    if "model" not in draft.document:
        asked += [one for one in imported.questions if one.path.startswith("model.") and one.path not in answers]
    if asked:
        option = {"model.seq_len": " (--seq)", "global_batch_size": " (--batch)", "cluster": " (--on)"}
        raise InvalidValue([Problem(f"{file.name}: {one.path}{option.get(one.path, '')}", one.text) for one in asked])
    baseline, workload = _said(draft.document.get("baseline", {})), _said(draft.document["workload"])
    # The devices that have the same weights, which may be others than the launch's.
    replicas = _devices(draft.document["cluster"]) // prod(baseline.get(axis, 1) for axis in ("tp", "pp"))
    if replicas <= 1:
        baseline["zero_stage"] = 0
    if baseline.get("zero_group", 0) >= replicas:
        baseline["zero_group"] = 0
    if "fixed" in workload:
        workload["fixed"] = _said(workload["fixed"])
    training = merged(_program(workload).get("recipe", {}), draft.document.get("training", {}))
    training = merged(training, _training(words))
    notes = [*draft.guesses, *(f"taken as by default: {one}" for one in plain)]
    return {**draft.document, "baseline": baseline, "workload": workload, "training": training}, notes


def answer(words: FitWords) -> FitAnswer:
    """Without this machine's folders and devices. Raises InvalidSpec, InvalidValue."""
    if not words.model:
        return FitAnswer(largest=largest_models(words))
    return FitAnswer(fit=fit(question_of(*spec_document(words), words)))


def question_of(document: Mapping[str, Any], notes: Sequence[str], words: FitWords) -> FitQuestion:
    """notes: what of the document is a guess. Raises InvalidSpec, InvalidValue."""
    spec, space = read_spec(document, None)
    if len(space) > MAX_PLANS:
        raise InvalidValue([Problem("", f"{len(space)} plans are legal, more than the {MAX_PLANS} that are judged")])
    told, device, workload = [*notes], spec.cluster.device, spec.workload
    half = workload.kind == "command" and workload_of(spec).framework.dtype == "bfloat16" not in device.peak_flops
    if half and "float16" in device.peak_flops:
        told.append(f"{device.name} has no rate of bfloat16: float16 is taken")
        spec = replace(spec, workload=replace(workload, options={**workload.options, "dtype": "float16"}))
    if tower := spec.model.tower_parameters:
        told.append(f"the tower's {tower / 1e9:.3g}e9 weights are counted; its passes and the tokens of images are not")
    program = PROGRAMS[words.program]
    if "command" in workload.options or workload.options.get("framework") != program["framework"]:
        program = _program(document["workload"])
    return FitQuestion(spec=spec, space=space, program=program, lengths=words.lengths, notes=tuple(told))


def _program(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The program whose physics a launch has; empty where it is none of them."""
    named = str(workload.get("framework", workload["kind"]))
    return next((program for name, program in PROGRAMS.items() if named.startswith(name)), {})


def largest_models(words: FitWords) -> dict[str, Setting | None]:
    """Of the presets that people find on the Hub, and no shapes of papers, by method; of rows that are all as long.
    Raises InvalidSpec, InvalidValue."""
    on_hub = (entry for entry in model_presets().values() if entry.get("hub"))
    models = sorted((read_value(ModelSpec, described(entry)) for entry in on_hub), key=lambda model: -model.parameters)
    found: dict[str, Setting | None] = {}
    for method in Method:
        small = replace(words, model=models[-1].name, method=method, lengths=())
        spec = question_of(*spec_document(small), small).spec
        alike = (replace(spec, model=replace(model, seq_len=spec.model.seq_len)) for model in models)
        spaces = ((one, space_of(one)) for one in alike)
        sure = ((one, space) for one, space in spaces if sure_plans(space, training_of(one)))
        found[method] = next((FitQuestion(spec=one, space=space).best(space.columns) for one, space in sure), None)
    return found
