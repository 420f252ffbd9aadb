"""The files that a spec names beside itself: a model's config.json, a site's profile. Whoever has the spec's file reads
them into the document, which then stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file, read_json
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.tuner.specs.read import HF_CONFIG
from meshtune.tuner.specs.site import SITE, with_site_file


def with_local_files(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The document with the content of every file that it names, relative to `folder`; the same object where it names
    none. Raises InvalidValue."""
    document = with_model_file(document, folder)
    try:
        return with_site_file(document, folder)
    except InvalidValue as error:
        raise InvalidValue([problem.under(f"runner.{SITE}") for problem in error.problems]) from None


def with_model_file(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The document with the content of its model's config.json, where `model` names one: `model: PATH.json` or `model:
    {hf_config: PATH, ...}`, relative to `folder`. Raises InvalidValue."""
    model = document.get("model")
    if isinstance(model, str) and model.endswith(".json"):
        model = {HF_CONFIG: model}
    path = model.get(HF_CONFIG) if isinstance(model, dict) else None
    if not isinstance(path, str):
        return document
    try:
        config = read_json(read_file(folder / path, SLOW_LIMITS.max_bytes, regular=False))
    except (OSError, UnreadableText) as error:
        raise InvalidValue([Problem(f"model.{HF_CONFIG}", f"{path}: {error}")]) from None
    shapes: dict[str, Any] = model if isinstance(model, dict) else {}
    return {**document, "model": {**shapes, HF_CONFIG: config}}
