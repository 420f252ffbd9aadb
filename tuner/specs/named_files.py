"""What a spec names beside itself: a model's config.json, a site's profile, folders and files of its workload.

Whoever has the spec's file reads them into the document, which then stands alone; a site is then written out, since
what is stored and run names none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from warnings import warn

from meshtune.runners.documents import plain
from meshtune.runners.programs.named_models import config_named
from meshtune.runners.sites.profiles import SUFFIX, Site, find_site, own_folder, parse_site, read_site_file, with_site
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file, read_json
from meshtune.search_spaces.checks import InvalidValue, Problem, problems_as

# Under `runner`: a site's name, or the content of its profile. The command line reads it where a path stands.
SITE = "site"
# Under `model`: the content of a config.json of transformers, likewise.
HF_CONFIG = "hf_config"
# Under `workload`, where text is a path: a job's folder, and the user's own configurations, by any name.
OWN_PATHS = (("working_directory",), ("directory",), ("config",), ("configs", "*", "base"))


def with_local_files(document: dict[str, Any], folder: Path, tell: Callable[[str], None] = warn) -> dict[str, Any]:
    """The document with the content of every file that it names and the paths of its workload made absolute, all
    relative to `folder`; the same object where it names none. tell: takes a warning. Raises InvalidValue."""
    document = with_own_paths(with_model_file(document, folder), folder, tell)
    if not is_path(named := named_site(document)):
        return document
    with problems_as(InvalidValue, f"runner.{SITE}"):
        site = read_site_file(folder / str(named))
    return {**document, "runner": {**document["runner"], SITE: plain(site)}}


def with_own_paths(document: dict[str, Any], folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """The document with OWN_PATHS made absolute. What is there from the present folder alone, from where they once
    counted, is taken from there, with a warning."""

    def placed(value: Any, steps: Sequence[str]) -> Any:
        if not steps and isinstance(value, str) and value:
            own = os.path.abspath(folder / value)
            if os.path.exists(own) or not os.path.exists(value):
                return own
            tell(f"{value} is taken from the present folder, since {own} is not there; write it relative to the spec")
            return os.path.abspath(value)
        if not steps or not isinstance(value, Mapping):
            return value
        names = value if steps[0] == "*" else {steps[0]} & value.keys()
        return {**value, **{name: placed(value[name], steps[1:]) for name in names}}

    whole = document
    for path in OWN_PATHS:
        whole = placed(whole, ("workload", *path))
    return document if whole == document else whole


def with_model_file(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The document with the content of its model's config.json, where `model` names one: `model: PATH.json` or `model:
    {hf_config: PATH, ...}`, relative to `folder`, or a model of the Hub in the cache. Raises InvalidValue."""
    model = document.get("model")
    if isinstance(model, str) and model.endswith(".json"):
        model = {HF_CONFIG: model}
    path = model.get(HF_CONFIG) if isinstance(model, dict) else None
    if not isinstance(path, str):
        return document
    try:
        text = config_named(path, folder=folder) or read_file(folder / path, SLOW_LIMITS.max_bytes, regular=False)
        config = read_json(text)
    except (OSError, UnreadableText) as error:
        raise InvalidValue([Problem(f"model.{HF_CONFIG}", f"{path}: {error}")]) from None
    shapes: dict[str, Any] = model if isinstance(model, dict) else {}
    return {**document, "model": {**shapes, HF_CONFIG: config}}


def named_site(document: Mapping[str, Any]) -> object:
    """What stands under `runner.site`, None where nothing does."""
    runner = document.get("runner")
    return runner.get(SITE) if isinstance(runner, Mapping) else None


def is_path(named: object) -> bool:
    return isinstance(named, str) and ("/" in named or named.endswith(SUFFIX))


def read_named_site(named: object) -> Site:
    """The profile that a spec names. Raises InvalidValue, of a path too."""
    if is_path(named):
        raise InvalidValue([Problem("", f"{named!r} is a path, which only the command line reads; give the content")])
    if isinstance(named, str):
        return find_site(named, own_folder())
    return parse_site(named)


def resolved(document: Mapping[str, Any], *, to_run: bool) -> Mapping[str, Any]:
    """The document with its site's options in its `runner` section, and the site's preset in a `cluster` section that
    names none. to_run: what the site needs must be there. Raises InvalidValue."""
    named = named_site(document)
    if named is None:
        return document
    with problems_as(InvalidValue, f"runner.{SITE}"):
        site = read_named_site(named)
    with problems_as(InvalidValue, "runner"):
        runner = with_site(site, document["runner"])
    lacking = [name for name in site.needs if name not in runner]
    if lacking and to_run:
        raise InvalidValue([Problem(f"runner.{name}", "is missing, and jobs of this site need it") for name in lacking])
    cluster = document.get("cluster")
    if site.cluster and (cluster is None or (isinstance(cluster, Mapping) and not {"preset", "device"} & set(cluster))):
        cluster = {"preset": site.cluster, **(cluster or {})}
    return {**document, "runner": runner, **({} if cluster is None else {"cluster": cluster})}
