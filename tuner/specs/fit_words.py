"""What people say of a training in words (model, devices, method), as a spec and as a question of whether it fits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from meshtune.runners.documents import merged, read_value
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.sources import read_source
from meshtune.runners.programs.named_models import model_named
from meshtune.runners.programs.recipes import MODULES
from meshtune.runners.programs.table import table_of
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file, read_json
from meshtune.search_spaces.bounds import DEFAULT_MICRO_BATCHES
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
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import cluster_on, described, model_presets
from meshtune.search_spaces.recipe import LINEAR, Optimizer, Target
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.spec import CampaignSpec, space_of, workload_of
from meshtune.tuner.prediction.fit import FitAnswer, FitQuestion, LargestModel, fit, largest_model
from meshtune.tuner.specs.launch_draft import cluster_here, devices_here, draft_launch
from meshtune.tuner.specs.read import read_spec

PROGRAMS: Mapping[str, Mapping[str, Any]] = table_of("meshtune.runners.programs.profiles").lists["fit"]
SEQ_LEN = 4096
# Rows of a step, where nobody says how many: a usual number, and at least one for each device.
BATCH = 64
EXPERT_PARALLEL = (1, 2, 4, 8, 16, 32, 64)
MAX_LENGTHS = 1_000_000
# Some seconds of a core.
MAX_PLANS = 50_000
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
    # Of an hour of one device, in any currency.
    price: Annotated[float, Limit(above=0, high=1e30)] | None = None

    def _check(self, checks: Checks) -> None:
        known = f"no program is called {self.program!r}; {did_you_mean(self.program, PROGRAMS)}"
        checks.require(self.program in PROGRAMS, "program", known)
        for name, kind in (("method", Method), ("optimizer", Optimizer)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, checks.member(kind, name, value))
        for name in ("model", "on"):
            checks.require(len(getattr(self, name)) <= MAX_NAME, name, f"has more than {MAX_NAME} letters")
        checks.require(len(self.lengths) <= MAX_LENGTHS, "lengths", f"has more than {MAX_LENGTHS} rows")


def said(words: FitWords | None = None, **given: Any) -> FitWords:
    """The words with those that are given, which is not null and not empty. Raises InvalidValue."""
    told = {name: value for name, value in given.items() if value not in (None, "")}
    return read_value(FitWords, told) if words is None else replace(words, **told)


def spec_document(words: FitWords, here: bool = False) -> dict[str, Any]:
    """The spec of a model on some devices, without a command. here: names may be of folders of this machine, and its
    devices are meant where none are named. Raises InvalidValue."""
    training: dict[str, Any] = {}
    if here and (Path(words.model) / "adapter_config.json").is_file():
        words, training = _of_adapter(words)
    with problems_as(InvalidValue, "model"):
        model = model_named(words.model, None if here else {})
    return _document(words, model, training, here=here)


def _document(words: FitWords, model: Mapping[str, Any], training: dict[str, Any], *, here: bool) -> dict[str, Any]:
    program, cluster = PROGRAMS[words.program], _cluster(words, here=here)
    devices, nodes, experts = _devices(cluster), cluster.get("nodes", 1), model.get("experts") or 1
    return {
        "name": "fit",
        "model": {**model, "seq_len": words.seq or max(words.lengths, default=SEQ_LEN)},
        "training": merged(training, _training(words)),
        "cluster": cluster,
        "global_batch_size": words.batch or devices * -(-BATCH // devices),
        "space": {
            **program["space"],
            # Sharded over all devices, or over those of a node.
            "zero_group": [0, *[devices // nodes] * (nodes > 1)],
            "ep": [degree for degree in EXPERT_PARALLEL if experts % degree == 0],
        },
        "workload": {"kind": "command", "framework": program["framework"]},
    }


def _devices(cluster: Mapping[str, Any]) -> int:
    return int(cluster.get("nodes", 1) * cluster.get("devices_per_node", 1))


def _said(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value is not None}


def _training(words: FitWords) -> dict[str, Any]:
    """The section `training`, as far as the words say it."""
    section: dict[str, Any] = {}
    if words.method in (Method.LORA, Method.QLORA) or words.rank is not None:
        section["adapter"] = {} if words.rank is None else {"rank": words.rank}
    if words.method is Method.QLORA:
        section["base_bits"] = 4
    if words.optimizer is not None:
        section["optimizer"] = str(words.optimizer)
    if words.lengths:
        section["mean_tokens"] = max(1, round(float(np.minimum(words.lengths, words.seq or np.inf).mean())))
    return section


def _cluster(words: FitWords, *, here: bool) -> dict[str, Any]:
    """The section `cluster`. Raises InvalidValue."""
    price = {} if words.price is None else {"device_hour_price": words.price}
    if words.on:
        with problems_as(InvalidValue, "on"):
            return {**cluster_on(words.on), **price}
    if here:
        devices = devices_here(Path())
        kinds = sorted({one.name for one in devices.accelerators})
        if len(kinds) > 1:
            told = f"this machine has {' and '.join(kinds)}: leave the smaller card out, and name the others by --on"
            raise InvalidValue([Problem("on", told)])
        if devices.accelerators and (section := cluster_here(Imported(workload={}), devices)[0]):
            return {**section, **price}
    told = "names no devices, such as 8xH100" + ", and this machine has no accelerator: give --on" * here
    raise InvalidValue([Problem("on", told)])


def _of_adapter(words: FitWords) -> tuple[FitWords, dict[str, Any]]:
    """The words with the base model of a checkpoint of PEFT, and the section `training`. Raises InvalidValue."""
    folder = Path(words.model)
    with problems_as(InvalidValue, str(folder / "adapter_config.json")):
        with raising(lambda told: InvalidValue([Problem("", told)]), "", UnreadableText):
            config = read_json(read_file(folder / "adapter_config.json", SLOW_LIMITS.max_bytes))
        if not isinstance(config, Mapping):
            raise InvalidValue([Problem("", "must be a mapping")])
        adapter = {"rank": config.get("r", 8), "targets": targets_of(config.get("target_modules"))}
        adapter |= {"dora": True} if config.get("use_dora") else {}
    base = str(folder) if (folder / "config.json").is_file() else str(config.get("base_model_name_or_path") or "")
    return replace(words, model=base), {"adapter": adapter}


def targets_of(modules: object) -> list[str]:
    """PEFT's target_modules as the products that have an adapter; all linear ones where it is a pattern."""
    last = [str(name).rpartition(".")[2] for name in modules] if isinstance(modules, list) else []
    named = {word for name in last for word in str(MODULES.get(name, "")).split()} & {*Target}
    return [str(target) for target in Target if target in named] or [str(one) for one in LINEAR]


def launch_document(file: Path, words: FitWords) -> tuple[dict[str, Any], list[str]]:
    """The spec of a launch script or a configuration here, which is read and not run; and what of it is a guess. Raises
    InvalidValue."""
    with raising(lambda told: InvalidValue([Problem(str(file), told)]), "", CannotRead):
        imported = read_source(file, given=os.environ)
    answers = {"model.seq_len": words.seq or max(words.lengths, default=None), "global_batch_size": words.batch}
    answers = {path: value for path, value in answers.items() if value is not None}
    # Devices that no option names are those of a scheduler's job, else of this machine.
    own = not words.on and imported.runner.get("kind", "local") != "local"
    draft = draft_launch(
        imported,
        name="fit",
        here=file.parent,
        devices=devices_here(Path()),
        answers=answers,
        cluster=None if own else _cluster(words, here=True),
    )
    document, baseline = dict(draft.document), _said(draft.document.get("baseline", {}))
    # Of the setting what is not said is taken as by default.
    open_ = [one for one in draft.open if not one.path.startswith(("baseline.", "workload.fixed."))]
    notes = [*draft.guesses, *(f"taken as by default: {one}" for one in draft.open if one not in open_)]
    if document.get("cluster") and _devices(document["cluster"]) == prod(
        baseline.get(axis, 1) for axis in ("tp", "pp")
    ):
        baseline["zero_stage"] = 0  # no other device has the same weights
    document |= {"baseline": baseline, "workload": {**document["workload"]}}
    if "fixed" in document["workload"]:
        document["workload"]["fixed"] = _said(document["workload"]["fixed"])
    unsaid = [one for one in imported.questions if one.path.startswith("model.") and "model" not in document]
    if asked := [*open_, *(one for one in unsaid if one.path not in answers)]:
        option = {"model.seq_len": " (--seq)", "global_batch_size": " (--batch)", "cluster": " (--on)"}
        raise InvalidValue([Problem(f"{file.name}: {one.path}{option.get(one.path, '')}", one.text) for one in asked])
    return merged(document, {"training": training} if (training := _training(words)) else {}), notes


def answer(words: FitWords) -> FitAnswer:
    """Without this machine's folders and devices. Raises InvalidSpec, InvalidValue."""
    if not words.model:
        return FitAnswer(largest=largest_models(words))
    return FitAnswer(fit=fit(question_of(spec_document(words), words)))


def question_of(document: Mapping[str, Any], words: FitWords) -> FitQuestion:
    """The user's setting is a launch's, or the program's plain one of the micro-batch that is said. Raises InvalidSpec,
    InvalidValue."""
    size = words.micro_batch
    if size is not None:
        tried = document.get("space", {}).get("micro_batch_size", DEFAULT_MICRO_BATCHES)
        document = merged(document, {"space": {"micro_batch_size": sorted({*tried, size})}})
    spec, space = read_spec(document, None)
    if len(space) > MAX_PLANS:
        raise InvalidValue([Problem("", f"{len(space)} plans are legal, more than the {MAX_PLANS} that are judged")])
    start = spec.baseline
    if size is not None:
        c = space.columns
        order = np.lexsort((c["zero_group"], -c["zero_stage"], c["tp"] * c["pp"] * c["cp"], c["recompute"]))
        plain = next((row for row in order if c["micro_batch_size"][row] == size), None)
        if plain is None:
            told = f"is {size}, which no legal plan of global batch {spec.global_batch_size} has: see --batch"
            raise InvalidValue([Problem("micro_batch", told)])
        start = space.plan(int(plain))
    return _question(spec, space, words, start)


def _question(spec: CampaignSpec, space: Space, words: FitWords, start: Plan | None = None) -> FitQuestion:
    framework = workload_of(spec).framework
    return FitQuestion(space=space, framework=framework, recipe=spec.training, start=start, lengths=words.lengths)


def largest_models(words: FitWords, here: bool = False) -> tuple[LargestModel, ...]:
    """Of the presets, by method. Raises InvalidSpec, InvalidValue."""
    # Those that people find on the Hub, and no shapes of papers.
    on_hub = (entry for entry in model_presets().values() if entry.get("hub"))
    models = sorted((read_value(ModelSpec, described(entry)) for entry in on_hub), key=lambda model: -model.parameters)
    found = []
    for method in Method:
        document = _document(replace(words, method=method), described(model_presets()[models[-1].name]), {}, here=here)
        spec, _ = read_spec(document, None)
        spaces = _spaces(spec, models)
        found.append(largest_model(str(method), (_question(own, space, words) for own, space in spaces)))
    return tuple(found)


def _spaces(spec: CampaignSpec, models: Sequence[ModelSpec]) -> Iterator[tuple[CampaignSpec, Space]]:
    """Of models whose weights alone have room on all devices together, in as few bits as the recipe has them."""
    room, bits = spec.cluster.devices * spec.cluster.device.memory_bytes, spec.training.base_bits or 16
    for model in models:
        if model.parameters * bits / 8 < room:
            own = replace(spec, model=replace(model, seq_len=spec.model.seq_len))
            if len(space := space_of(own)):
                yield own, space
