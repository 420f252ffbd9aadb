"""What is trained, where no row of a table can say it: by the words of Hugging Face's programs and their like, which
`[recipe]` in the Trainer's table lists. Rows have the rest, with fields of Recipe behind `training.`, and two facts:
method (full, lora, freeze) and stage, what is made of a sample (`stages` in `rows`)."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.runners.programs.named_models import model_named
from meshtune.runners.programs.reading import Reading, truth
from meshtune.runners.programs.table import PROGRAMS, table_of
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.recipe import LINEAR, Target

_WORDS = table_of(f"{PROGRAMS}.transformers").lists["recipe"]
# The targets of a name of PEFT.
MODULES: dict[str, str] = _WORDS["modules"]
_ADAPTER = "training.adapter"
# A name of modules, a pattern of none.
_NAME = re.compile(r"[\w.-]+")


def _modules(reading: Reading, kind: str) -> tuple[str, list[str]]:
    """The name that is said of a kind, and the modules behind it: a list, or a text of them."""
    name = reading.first(_WORDS[kind].split())
    value = reading.get(name) if name else []
    texts = map(str, value if isinstance(value, list) else [value])
    words = (word.strip("[]'\" ") for text in texts for word in re.split(r"[,\s]+", text))
    return name, [word for word in words if word not in ("", "None")]


def stage(reading: Reading) -> None:
    """By the script's name, which is only likely of a script of one's own."""
    own = re.compile(r"(?:^|[/._ -])(?:" + "|".join(_WORDS["scripts"]) + r")(?=[/._ -]|$)")
    match = own.search(reading.script)
    found = next((kind for word, kind in _WORDS["scripts"].items() if match and re.search(word, match[0])), "sft")
    other = reading.first(_WORDS["reference"].split())
    if (match and other) or not (match or other) or re.fullmatch(_WORDS["sure"], reading.script):
        reading.fields["stage"] = found
    else:
        found, by = (found, reading.script) if match else ("dpo", reading.written(other))
        reading.guess("stage", found, f"{by}: taken for {found}, with the sequences and the other model of it; is it?")


def targets(reading: Reading) -> None:
    """Of PEFT's target_modules."""
    name, words = _modules(reading, "targets")
    if not words:
        if not re.fullmatch(_WORDS["sure"], reading.script):
            likely = [str(target) for target in LINEAR] if reading.first(_WORDS["linear_by"].split()) else ["q", "v"]
            reading.guess(f"{_ADAPTER}.targets", likely, f"adapters of {' '.join(likely)}: no word names others")
        return
    modules = {word: MODULES.get(word.rpartition(".")[2]) for word in words}
    unknown = [word for word, known in modules.items() if known is None or not _NAME.fullmatch(word)]
    if unknown:
        told = f"write those of {', '.join(Target)} that have an adapter"
        which = ", ".join(unknown)[:80]
        reading.ask(f"{_ADAPTER}.targets", f"{name}: {which} is no name of modules known here; {told}")
        return
    named = {part for known in modules.values() for part in str(known).split()}
    switches = _WORDS["switches"].items()
    named |= {part for switch, parts in switches if truth(reading.get(switch)) for part in parts.split()}
    if reading.fields.get("model.experts") and named & {"gate", "up", "down"}:
        # PEFT takes the names for the experts' weights as well; as one array each, they are no linear modules.
        if "all" in named:
            reading.note(f"{reading.written(name)}: adapters of experts too before transformers 5; counted are none")
        else:
            named.add("experts")
    reading.put(f"{_ADAPTER}.targets", [str(target) for target in Target if target in named], name)
    if rest := [word for word, known in modules.items() if not known]:
        reading.note(f"{', '.join(rest)}: an adapter too, which predictions leave out")


def row(reading: Reading) -> None:
    """A prompt and its answer."""
    parts = [reading.fields.get(f"training.rollout.{part}_tokens") for part in ("prompt", "answer")]
    if all(parts):
        reading.fields["model.seq_len"] = sum(map(int, filter(None, parts)))


def updates(reading: Reading) -> None:
    """Of a step, whose rows are the answers to its prompts."""
    prompts, answers, epochs = (reading.fields.get(name) or 1 for name in ("prompts", "answers", "epochs"))
    each = reading.fields.get("global_batch_size") or prompts * answers
    reading.fields["training.rollout.updates"] = max(1, prompts * answers // each) * epochs


def packed(reading: Reading, tokens: int) -> None:
    """Passes of so many tokens, which a micro-batch counts in rows of full length: as many as share out a device's."""
    fields, degrees = reading.fields, ("tp", "pp", "cp")
    ranks = (fields.get("nodes") or 1) * (fields.get("devices_per_node") or 1)
    whole = max(1, (fields.get("global_batch_size") or 1) * prod(fields.get(name) or 1 for name in degrees) // ranks)
    most = max(1, min(whole, tokens // (fields.get("model.seq_len") or tokens)))
    rows = next(rows for rows in range(most, 0, -1) if whole % rows == 0)
    fields["micro_batch_size"] = reading.kept["micro_batch_size"] = rows
    reading.note(f"a pass takes {tokens} tokens, however many rows: {rows} of full length count")


def ends(reading: Reading) -> None:
    """Embedding and head among PEFT's modules_to_save."""
    name, words = _modules(reading, "saved")
    if {word.rpartition(".")[2] for word in words} & set(_WORDS["ends"].split()):
        reading.put("training.trained_ends", True, name)


def optimizer(reading: Reading) -> None:
    """By its name, or that of its class."""
    name = reading.first(_WORDS["optimizer"].split())
    if name and (said := reading.text(name, "training.optimizer")) is not None:
        known = _WORDS["optimizers"].get(said.lower().rpartition(".")[2])
        if known is None:
            reading.note(f"{reading.written(name)}: an optimizer whose states predictions count as AdamW's")
        elif known != "adamw":
            reading.put("training.optimizer", known, name)


def frozen(reading: Reading) -> None:
    """LLaMA-Factory's freeze (model/adapter.py): the last layers are trained, two unless told otherwise."""
    name, path = "--freeze_trainable_layers", "training.frozen_layers"
    count, layers = reading.whole(name, path) if reading.has(name) else 2, reading.fields.get("model.layers")
    if count and layers:
        reading.put(path, max(0, layers - count), name)
    elif not reading.is_asked(path):
        reading.ask(path, f"all layers but the last {count}")
    extra = _modules(reading, "thawed")[1]
    for part, modules in (("embedding", "embed_tokens wte"), ("head", "lm_head norm")):
        reading.fields[f"training.frozen_{part}"] = not set(extra) & set(modules.split())


def beside(reading: Reading) -> None:
    """Reference and teacher; those that the training generates samples for are asked about."""
    fields, found = reading.fields, list[dict[str, Any]]()
    if fields.get("stage") in ("dpo", "kto"):
        stored = any(truth(reading.get(name)) for name in _WORDS["stored"].split())
        other = reading.first(_WORDS["reference"].split())
        # With an adapter it is the base without it, unless another is named.
        base = fields.get("method") == "lora" and not (other and truth(reading.get(other)) is not False)
        found.append(_companion(reading, "reference", "" if base or stored else other))
        found[-1] |= {"bits": 0} if base or stored else {}
        found[-1] |= {"runs": False} if stored else {}
    if fields.get("stage") == "reward":
        reading.note("a head of one output in place of the vocabulary's, which predictions count")
    if fields.get("stage") == "generated" and "training.rollout.answer_tokens" not in fields:
        told = "samples are generated in the training, with a reward beside; predictions count one pass of one model"
        reading.ask("", f"{told}: compare memory and speed with a run")
    elif fields.get("stage") == "generated":
        reward, remote, value = (reading.first(_WORDS[kind].split()) for kind in ("reward", "remote", "value"))
        if fields.get("compared"):
            bits = 0 if fields.get("method") == "lora" else fields.get("reference_bits")
            found.append({"role": "reference", **({} if bits is None else {"bits": bits})})
        if reward and truth(reading.get(reward)) is not False and not remote:
            found.append(_companion(reading, "reward", reward))
        if fields.get("valued"):
            found.append(_companion(reading, "value", value or ("" if remote else reward)))
    if teacher := reading.first(_WORDS["teacher"].split()):
        found.append(_companion(reading, "teacher", teacher))
    if found:
        fields["training.beside"] = found


def _companion(reading: Reading, role: str, name: str) -> dict[str, Any]:
    """name: of the setting that names another model; "" for none."""
    said = str(reading.get(name)) if name else ""
    bits = reading.fields.get("loaded", 16)
    plain = {"role": role, "bits": bits} if bits != 16 else {"role": role}
    if truth(said) is not None or not said or said in map(str, map(reading.get, _WORDS["models"].split())):
        return plain
    try:
        model = read_value(ModelSpec, {**model_named(said, {}), "seq_len": 1})
    except InvalidValue:
        told = f"a {role} of unknown size, counted as large as the model; write its parameters in training.beside"
        reading.ask("", f"{reading.written(name)}: {told}")
        return plain
    return {**plain, "parameters": round(model.parameters)}
