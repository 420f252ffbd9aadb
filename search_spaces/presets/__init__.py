"""Named models and clusters, each with the source of its numbers: plain mappings, to be overridden and validated."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def model_presets() -> Mapping[str, Mapping[str, Any]]:
    """The models by name; each mapping describes a ModelSpec, `source` apart."""
    return _load("models.toml")


@cache
def cluster_presets() -> Mapping[str, Mapping[str, Any]]:
    """The clusters by name; each mapping describes a ClusterSpec, `source` apart."""
    return _load("clusters.toml")


def _load(name: str) -> dict[str, dict[str, Any]]:
    document = tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
    return {key: {**entry, "name": key} for key, entry in document.items()}
