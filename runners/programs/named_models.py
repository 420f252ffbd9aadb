"""A model's shapes by the keys of a program's settings, or by the name that they give the model.

[shapes]          names: the keys that name the model, by a path of the Hub, a folder of its name there, or a preset
[shapes.keys]     by field of ModelSpec: the key that says it; all of them where one is said
[shapes.plain]    what all models have that the program makes of keys; ffn_factor: the width inside, of `hidden`
[shapes.presets]  by pattern of the name's last part, in small letters: the preset, `\\1` for a group"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshtune.runners.programs.dialects.config_import import flat
from meshtune.runners.programs.reading import Reading
from meshtune.runners.programs.transformers.config_json import DECODERS, OTHERS, read_config
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, is_there, read_file, read_json
from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean, problems_as, raising
from meshtune.search_spaces.presets import described, model_presets, preset_on_hub


def read_shapes(reading: Reading, shapes: Mapping[str, Any]) -> None:
    """Put the fields of the model into the reading, or ask for them."""
    keys: Mapping[str, str] = shapes.get("keys", {})
    named = reading.first(shapes["names"])
    if reading.first(keys.values()):
        plain = shapes["plain"]
        for field, key in keys.items():
            if (value := reading.whole(key, f"model.{field}")) is not None:
                reading.put(f"model.{field}", value, key)
        fields = reading.fields
        if "model.ffn" not in fields and plain.get("ffn_factor") and "model.hidden" in fields:
            fields["model.ffn"] = plain["ffn_factor"] * fields["model.hidden"]
        reading.fields |= {f"model.{name}": value for name, value in plain.items() if name != "ffn_factor"}
        for field in ("layers", "hidden", "heads", "ffn", "vocab"):
            if f"model.{field}" not in fields and not reading.is_asked(f"model.{field}"):
                reading.ask(f"model.{field}", f"{keys[field]} is not said; fill in what training uses")
        return
    name = reading.text(named, "model.layers") if named else None
    if named and name is None:
        return
    if preset := _preset(name or "", shapes.get("presets", {})):
        reading.note(f"{named} {name}: the shapes are those of meshtune's preset {preset}")
        reading.fields |= flat({"model": preset_shapes(preset)})
    elif named:
        ask_shapes(reading, f"{named} {name} is no model that meshtune knows by its name")
    else:
        ask_shapes(reading, f"no {' or '.join(shapes['names'][:2])} names the model")


def preset_shapes(preset: str) -> dict[str, Any]:
    """Fields of ModelSpec but for seq_len."""
    return {key: size for key, size in described(model_presets()[preset]).items() if key != "seq_len"}


def model_named(name: str, files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fields of ModelSpec but for seq_len: of a folder with a config.json, of such a file, of a model of the Hub in
    this machine's cache, else of a preset by its name or the Hub's. files: by path, for those of this machine.
    Raises InvalidValue."""
    with problems_as(InvalidValue, name), raising(_refused, "", UnreadableText, OSError):
        if text := config_named(name, files):
            return {**read_config(read_json(text)), "name": _last(name)}
    return preset_named(name)


def preset_named(name: str) -> dict[str, Any]:
    """As `model_named`, of presets alone: no file of this machine is read for it."""
    last = _last(name)
    if preset := _preset(name, {}):
        return {**preset_shapes(preset), "name": last}
    if others := OTHERS & set(last.lower().split("-")):
        raise _refused(f"{name} is a model of {min(others)}; {DECODERS}")
    hint = did_you_mean(last.lower(), model_presets())
    raise _refused(f"{name} is no folder with a config.json, no model in Hugging Face's cache and no preset; {hint}")


def _last(name: str) -> str:
    return name.rstrip("/").removesuffix("/config.json").rpartition("/")[2]


def _refused(told: str) -> InvalidValue:
    return InvalidValue([Problem("", told)])


def config_named(name: str, files: Mapping[str, str] | None = None, folder: Path = Path()) -> str:
    """The config.json of a folder, of its own path or of a model of the Hub in this machine's cache; "" where none is.
    files: by path, for those of this machine, which are relative to `folder`. Raises OSError, UnreadableText."""
    name = name.rstrip("/")
    if files is not None:
        text = files.get(f"{name}/config.json", files.get(name if name.endswith(".json") else ""))
    else:
        there = (path for path in (folder / name / "config.json", folder / name) if is_there(path))
        text = next((read_file(path, SLOW_LIMITS.max_bytes) for path in there), None)
    if text or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return text or ""
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    found = sorted(cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"))
    with suppress(OSError, UnreadableText):
        return read_file(found[-1], SLOW_LIMITS.max_bytes) if found else ""
    return ""


def ask_shapes(reading: Reading, told: str) -> None:
    shape = "write layers, hidden, heads, kv_heads, ffn and vocab (its config.json has them)"
    reading.ask("model.layers", f"{told}: {shape}")


def _preset(name: str, patterns: Mapping[str, str]) -> str:
    last = name.rstrip("/").rpartition("/")[2].lower()
    for pattern, preset in patterns.items():
        if (found := re.fullmatch(pattern, last)) and (made := found.expand(preset)) in model_presets():
            return made
    # Of two models of one name the shapes may differ: mosaicml/mpt-30b is not llm-foundry's of that name.
    return preset_on_hub(name) or (name.lower() if name.lower() in model_presets() else "")
