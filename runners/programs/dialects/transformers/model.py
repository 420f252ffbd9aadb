"""The model that a script of transformers names: by its config.json, or as a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.transformers.arguments import SEQUENCE, Words
from meshtune.runners.programs.dialects.transformers.config_json import FAMILIES, SHAPE_OF, read_config
from meshtune.runners.untrusted_text import UnreadableText, read_json
from meshtune.search_spaces.checks import InvalidValue, raising
from meshtune.search_spaces.presets import model_presets

# What they are called on the Hub, in small letters, and the presets with their shapes.
_HUB: Mapping[str, str] = {
    "huggyllama/llama-30b": "llama1-30b",
    "huggyllama/llama-65b": "llama1-65b",
    "meta-llama/llama-2-13b": "llama2-13b",
    "meta-llama/llama-2-13b-hf": "llama2-13b",
    "meta-llama/llama-2-13b-chat-hf": "llama2-13b",
    **{f"meta-llama/llama-3.2-{size}{kind}": f"llama3.2-{size}" for size in ("1b", "3b") for kind in ("", "-instruct")},
    **{
        f"meta-llama/{family}-{size}{kind}": f"llama3-{size}"
        for family, sizes in (("meta-llama-3", ("8b", "70b")), ("llama-3.1", ("8b", "70b", "405b")))
        for size in sizes
        for kind in ("", "-instruct")
    },
    "mistralai/mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mistralai/mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
    "mistralai/mixtral-8x22b-v0.1": "mixtral-8x22b",
}
_OTHERS = ("bert", "t5", "bart", "vit", "whisper", "clip", "llava", "wav2vec2", "mamba", "deberta", "electra")


def read_model(words: Words, files: Mapping[str, str]) -> dict[str, Any]:
    """Fields of ModelSpec, by the file of the model that the arguments name, or a preset; what is not known is asked
    for. Raises CannotRead for a model that is no decoder-only transformer."""
    found = _shapes(words, files)
    lengths = [name for name in SEQUENCE if words.has(name)]
    seq_len = words.number(lengths[0], "model.seq_len") if lengths else None
    if seq_len is not None:
        found["seq_len"] = seq_len
        words.note(f"seq_len is {lengths[0]}; where sequences are not packed or padded to it, steps are faster")
    elif not lengths:
        words.ask("model.seq_len", f"none of {', '.join(SEQUENCE)} is there: how many tokens has a sequence?")
    return found


def _shapes(words: Words, files: Mapping[str, str]) -> dict[str, Any]:
    named = next((name for name in ("--config_name", "--model_name_or_path", "--model_name") if words.has(name)), "")
    value = words.text(named, "model.layers") if named else None
    if value is None:
        told = "no --model_name_or_path or --config_name names the model" if not named else f"{named} is not known here"
        _ask_shapes(words, told)
        return {}
    folder = value.rstrip("/")
    text = files.get(f"{folder}/config.json", files.get(value if value.endswith(".json") else ""))
    if text is not None:
        return _of_file(words, text, f"{folder}/config.json")
    if preset := _HUB.get(folder.lower(), folder.lower() if folder.lower() in model_presets() else ""):
        shapes = {key: size for key, size in model_presets()[preset].items() if key not in ("source", "seq_len")}
        words.note(f"{named} {value}: the shapes are those of meshtune's preset {preset}")
        return shapes
    if kind := next((kind for kind in _OTHERS if kind in folder.lower().rpartition("/")[2].split("-")), ""):
        raise CannotRead(f"{words.place}: {value} is a model of {kind}; meshtune knows decoder-only transformers alone")
    _ask_shapes(words, f"{named} {value}: no config.json of it is here, and it is no preset")
    return {}


def _ask_shapes(words: Words, told: str) -> None:
    words.ask(
        "model.layers", f"{told}: write layers, hidden, heads, kv_heads, ffn and vocab (its config.json has them)"
    )


def _of_file(words: Words, text: str, name: str) -> dict[str, Any]:
    with raising(CannotRead, name, UnreadableText):
        config = read_json(text)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in FAMILIES:
        if any(other in str(kind).lower() for other in _OTHERS):
            raise CannotRead(f"{name} is a model of {kind}; meshtune knows decoder-only transformers alone")
        _ask_shapes(words, f"{name} has model_type {shown(kind)}; known are {', '.join(FAMILIES)}")
        return {}
    try:
        found = read_config(config)
    except InvalidValue as error:
        for problem in error.problems:
            words.ask(f"model.{SHAPE_OF.get(problem.path, 'layers')}", f"{name}: {problem}")
        return {}
    if words.has("--config_overrides"):
        words.ask("", "--config_overrides changes the model of config.json: correct the shapes by it")
    return found
