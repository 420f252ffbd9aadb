"""Imports of configuration files, taken through a spec to the files of a trial."""

from __future__ import annotations

from pathlib import Path

import yaml

from meshtune.runners.programs.dialects.base import Imported, Launch
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.import_script import render_spec, spec_document
from meshtune.tuner.specs.read import read_spec

CLUSTER = {"preset": "dgx-h100", "nodes": 2}


def launch(script: str, *words: str, files: dict[str, str] | None = None, nodes=2, per_node=8, **more) -> Launch:
    given = {"directory": "/opt/code", **more}
    return Launch(
        script=script,
        words=words,
        place="line 3",
        nodes=nodes,
        devices_per_node=per_node,
        files=files or {},
        **given,
    )


def questions(imported: Imported) -> list[str]:
    return [str(question) for question in imported.questions]


class Trials:
    """The spec that an import makes, with answers in place of its questions, and the files that its trials get."""

    def __init__(self, imported: Imported, **answers) -> None:
        document = spec_document(imported, name="x", cluster="dgx-h100", here=Path("/here"))
        text = render_spec(document, "here", [])
        document = parse_yaml(text)
        document.pop("open_questions", None)
        document["cluster"] = CLUSTER
        for key, value in answers.items():
            section, _, name = key.partition("__")
            if name:
                document[section][name] = value
            else:
                document[section] = value
        document["space"] = {**(document.get("space") or {})}
        self.spec, self.space = read_spec(document, None)
        self.baseline: Plan = self.spec.baseline

    def job(self, plan: Plan | None = None):
        workload = workload_of(self.spec)
        spec = self.spec
        where = Path("/jobs/x")
        return workload.materialize(
            JobRequest("x-t1-a1", spec.model, plan or self.baseline, spec.cluster, where, seed=1, time_limit_s=60)
        )

    def config(self, name: str, plan: Plan | None = None) -> dict:
        return yaml.safe_load(self.job(plan).files[name])


def changed(before: dict, after: dict, path: str = "") -> dict:
    """What differs, by dotted key; a key that is not there is `...`."""
    found = {}
    for key in {**before, **after}:
        old, new = before.get(key, ...), after.get(key, ...)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= changed(old, new, f"{path}{key}.")
        elif old != new or type(old) is not type(new):
            found[f"{path}{key}"] = (old, new)
    return found
