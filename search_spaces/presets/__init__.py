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

from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean

# "8 x H100", "8 H100", "H100 x8", "h100:8".
_COUNTED = re.compile(
    r"(?:([1-9]\d*)(?: ?[x*\u00d7] ?|(?<!\d{4}) (?=[a-z])))?(.*?)(?:(?: x ?|(?<=\d)x| ?[*:\u00d7] ?)([1-9]\d*))?"
)
MIXED_CARDS = (
    "cards of several kinds: leave the small card out (CUDA_VISIBLE_DEVICES=...), or count all as the smallest"
)


@cache
def model_presets() -> Mapping[str, Mapping[str, Any]]:
    """The models by name; each mapping describes a ModelSpec, `source` apart."""
    return {key: {**entry, "name": key} for key, entry in _read("models").items()}


# What a name on the Hub has behind its model's, which changes no shape: further training, and formats of the weights.
_FURTHER = re.compile(r"-(?:instruct|chat|it|pt|base|hf|thinking|bnb-4bit|unsloth|gptq|awq|int4|fp8|bf16)(?=-|$)")


def preset_on_hub(name: str) -> str | None:
    """The preset with the shapes of a model of the Hub, None where there is none. name: with or without its
    owner, who may be one of a copy, or of a folder that is called like it."""
    return _on_hub().get(_FURTHER.sub("", name.lower().rstrip("/").rpartition("/")[2]))


@cache
def _on_hub() -> Mapping[str, str]:
    return {
        _FURTHER.sub("", name.lower().rpartition("/")[2]): key
        for key, entry in model_presets().items()
        for name in entry.get("hub", ())
    }


@cache
def cluster_presets() -> Mapping[str, Mapping[str, Any]]:
    """The clusters by name; each mapping describes a ClusterSpec, `source` (node's and device's) apart."""
    clusters = {}
    for key, entry in _read("clusters").items():
        device = described(device_presets()[entry["device"]])
        source = f"{entry['source']}. Device: {device_presets()[entry['device']]['source']}"
        names = {**entry.get("names", {}), key: entry["devices_per_node"]}
        clusters[key] = {**entry, "name": key, "device": device, "source": source, "names": names}
    return clusters


@cache
def device_presets() -> Mapping[str, Mapping[str, Any]]:
    """The devices by name; each mapping describes a DeviceSpec, `source` apart."""
    return {
        key: {"called": [key.lower().partition("-")[0]], **entry, "name": key}
        for key, entry in _read("devices").items()
    }


def devices_called(words: str) -> list[str]:
    """The devices that words of people, drivers and schedulers name, as `called` in devices.toml has it: those of which
    the most words are there, and of the memory that is said, if any."""
    said = set(re.findall(r"rtx|[a-z0-9]+", words.lower()))
    met = {
        name: max((len(set(each.split())) for each in entry["called"] if set(each.split()) <= said), default=0)
        for name, entry in device_presets().items()
    }
    others = {"laptop", "ti", "super"} & said
    best = [name for name, count in met.items() if count == max(met.values()) > 0 and not others]
    return [name for name in best if name.rpartition("-")[2].lower() in said] or best


def cluster_of(words: str, nodes: int, devices_per_node: int, memory_bytes: int | None = None) -> dict[str, Any] | None:
    """A spec's `cluster` section for devices by the words of their driver or scheduler ("NVIDIA H100 80GB HBM3",
    "gpu:h100"): a preset with such devices, first of such nodes; None where the words name no known device.
    memory_bytes: of one, which tells devices of one name apart."""
    devices = devices_called(words)
    known = [(key, each) for key, each in cluster_presets().items() if each["device"]["name"] in devices]
    if not known:
        return None

    def distance(entry: tuple[str, Mapping[str, Any]]) -> tuple[int, bool, bool]:
        own = entry[1]["device"]["memory_bytes"]
        # The larger memory where nothing is said; the vendor's own node and plain cards before a site's.
        away = abs(own - (memory_bytes or 2**60))
        return away, entry[1]["devices_per_node"] != devices_per_node, not entry[0].startswith(("dgx-", "pcie-"))

    return _section(min(known, key=distance)[0], nodes, devices_per_node)


def _section(preset: str, nodes: int, devices_per_node: int) -> dict[str, Any]:
    # Without the preset's modules where such a node has half of one.
    halved = devices_per_node % cluster_presets()[preset].get("devices_per_module", 1) != 0
    single = {"devices_per_module": 1, "module_link": None} if halved else {}
    return {"preset": preset, "nodes": nodes, "devices_per_node": devices_per_node, **single}


def cluster_on(words: str) -> dict[str, Any]:
    """A spec's `cluster` section for what people say: "8xH100", "RTX 4090", "2 x p4d.24xlarge", "dgx-h100". A count is
    of nodes before the name of a cluster, else of devices. Raises InvalidValue."""
    text = " ".join(words.lower().split())
    said = _COUNTED.fullmatch(text)
    before, name, behind = said.groups() if said else ("", text, "")
    count, devices = int(before or behind or 1), device_presets().values()
    called = [each for entry in devices for each in entry["called"]]
    named = {other: (key, each) for key, entry in cluster_presets().items() for other, each in entry["names"].items()}
    known = next((each for each in (name.removeprefix("standard_"), name.replace(" ", "-")) if each in named), name)
    if known in named and name not in called:
        return _section(named[known][0], count, named[known][1])
    if re.search(r"[+,;&/]| and ", name):
        told = MIXED_CARDS
    elif section := cluster_of(name, 1, 8):
        each = min(count, cluster_presets()[section["preset"]]["devices_per_node"])
        if count % each == 0:
            return _section(section["preset"], count // each, each)
        told = f"{section['preset']} has nodes of {each}, of which {count} is no multiple"
    elif left_out := re.search("gaudi|tpu|trainium|inferentia", name):
        told = f"{left_out[0]} is left out: meshtune knows devices of NVIDIA, AMD and Intel's Max series"
    else:
        told = f"is no device or cluster that meshtune knows; {did_you_mean(name, {*named, *called})}"
    raise InvalidValue([Problem("", f"{words!r}: {told}")])


# Sections of a catalog that are no knobs.
_OPENING = ("ready", "needs", "divides", "least")


@cache
def knob_catalogs() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """The catalogs of knobs by name, each with its knobs by their names in a plan: CATALOG_KEY. A mapping describes a
    Knob, its name apart."""
    names = sorted(each.name for each in files(__package__).joinpath("knobs").iterdir() if each.name.endswith(".toml"))
    return {
        catalog: {
            f"{catalog}_{key}": own for key, own in _read(f"{catalog}.toml", "knobs").items() if key not in _OPENING
        }
        for catalog in (name.removesuffix(".toml") for name in names)
    }


def opening(catalog: str) -> list[Mapping[str, Any]]:
    """Of its knobs that may be opened unasked, by key: the values that leave what is computed as it is, up to rounding,
    and can do no harm; what must be there for that, modules or `cuda`, as words; the numbers that the values divide, as
    words: `devices` and `devices_per_node` of the cluster, `heads` of the model; and the one that they reach, `row`, a
    device's tokens of the longest."""
    return [_read(f"{catalog}.toml", "knobs").get(name, {}) for name in _OPENING]


def described(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset says of its subject, the source and how people call it apart."""
    return {key: value for key, value in entry.items() if key not in ("source", "hub", "called", "names")}


def _read(start: str, folder: str = ".") -> dict[str, dict[str, Any]]:
    """The entries of the files whose names start so, in their order."""
    found = sorted(files(__package__).joinpath(folder).iterdir(), key=lambda each: each.name)
    texts = (each.read_text(encoding="utf-8") for each in found if each.name.startswith(start) and each.is_file())
    return {key: entry for text in texts for key, entry in tomllib.loads(text).items()}  # noqa: TID251  # our own
