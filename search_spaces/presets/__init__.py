"""Named models, clusters and knobs, each with the source of its numbers: plain mappings, to be overridden and checked.

A cluster names its device; what the device has, and from where, is written once in devices.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

MODEL_FILES = (
    *("models.toml", "models_llama.toml", "models_mpt.toml", "models_qwen3.toml", "models_moe.toml"),
    "models_latent.toml",
)


@cache
def model_presets() -> Mapping[str, Mapping[str, Any]]:
    """The models by name; each mapping describes a ModelSpec, `source` apart."""
    return {key: {**entry, "name": key} for file in MODEL_FILES for key, entry in _read(file).items()}


# The part of a device's name that tells its model: h100, mi250x.
_MODEL = re.compile(r"[a-z]+[0-9]+[a-z]*")


# Names of models on the Hub (of huggyllama, meta-llama, mistralai, Qwen, openai), in small letters and not as
# trained further for chats, and the presets of their shapes.
_ON_HUB: Mapping[str, str] = {
    "llama-30b": "llama1-30b",
    "llama-65b": "llama1-65b",
    **{f"llama-2-13b{kind}": "llama2-13b" for kind in ("", "-hf", "-chat-hf")},
    **{
        f"{family}-{size}": f"llama3-{size}"
        for family in ("meta-llama-3", "meta-llama-3.1", "llama-3.1")
        for size in ("8b", "70b", "405b")
    },
    **{f"llama-3.2-{size}": f"llama3.2-{size}" for size in ("1b", "3b")},
    **{f"mixtral-{size}-v0.1": f"mixtral-{size}" for size in ("8x7b", "8x22b")},
    **{
        f"qwen3-{size}{kind}": f"qwen3-{size}"
        for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")
        for kind in ("", "-base", "-2507", "-thinking-2507")
    },
    **{f"gpt-oss-{size}": f"gpt-oss-{size}" for size in ("20b", "120b")},
}


def preset_on_hub(name: str) -> str | None:
    """The preset with the shapes of a model of the Hub, None where there is none. name: with or without its
    owner, who may be one of a copy, or of a folder that is called like it."""
    return _ON_HUB.get(name.lower().rstrip("/").rpartition("/")[2].replace("-instruct", ""))


@cache
def cluster_presets() -> Mapping[str, Mapping[str, Any]]:
    """The clusters by name; each mapping describes a ClusterSpec, `source` (node's and device's) apart."""
    clusters = {}
    for key, entry in _read("clusters.toml").items():
        device = dict(device_presets()[entry["device"]])
        source = f"{entry['source']}. Device: {device.pop('source')}"
        clusters[key] = {**entry, "name": key, "device": device, "source": source}
    return clusters


@cache
def device_presets() -> Mapping[str, Mapping[str, Any]]:
    """The devices by name; each mapping describes a DeviceSpec, `source` apart."""
    return {key: {**entry, "name": key} for key, entry in _read("devices.toml").items()}


def cluster_of(words: str, nodes: int, devices_per_node: int, memory_bytes: int | None = None) -> dict[str, Any] | None:
    """A spec's `cluster` section for devices by the words of their driver or scheduler ("NVIDIA H100 80GB HBM3",
    "gpu:h100"): a preset with such devices, first of such nodes; None where the words name no known device.
    memory_bytes: of one, which tells devices of one name apart."""
    named = set(_MODEL.findall(words.lower()))
    devices = {name: each for name, each in device_presets().items() if name.split("-")[0].lower() in named}
    known = [(key, each) for key, each in cluster_presets().items() if each["device"]["name"] in devices]
    if not known:
        return None

    def distance(entry: tuple[str, Mapping[str, Any]]) -> tuple[int, bool, bool]:
        own = entry[1]["device"]["memory_bytes"]
        # The larger memory where nothing is said; the vendor's own node before a site's.
        away = abs(own - (memory_bytes or 2**60))
        return away, entry[1]["devices_per_node"] != devices_per_node, not entry[0].startswith("dgx-")

    return {"preset": min(known, key=distance)[0], "nodes": nodes, "devices_per_node": devices_per_node}


# Sections of a catalog that are no knobs.
_OPENING = ("ready", "needs")


@cache
def knob_catalogs() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """The catalogs of knobs by name, each with its knobs by their names in a plan: CATALOG_KEY. A mapping describes a
    Knob, its name apart."""
    names = sorted(each.name for each in files(__package__).joinpath("knobs").iterdir() if each.name.endswith(".toml"))
    return {
        catalog: {f"{catalog}_{key}": own for key, own in _read(f"knobs/{catalog}.toml").items() if key not in _OPENING}
        for catalog in (name.removesuffix(".toml") for name in names)
    }


def opening(catalog: str) -> list[Mapping[str, Any]]:
    """Of its knobs that may be opened unasked, by key: the values that leave what is computed as it is, up to rounding,
    and can do no harm; and what must be there for that, modules or `cuda`, as words."""
    return [_read(f"knobs/{catalog}.toml").get(name, {}) for name in _OPENING]


def described(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset says of its subject, the source apart."""
    return {key: value for key, value in entry.items() if key != "source"}


def _read(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))  # noqa: TID251  # our own
