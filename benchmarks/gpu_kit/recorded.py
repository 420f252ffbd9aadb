"""Physics beside the runs of a record, as a table in Markdown: `python benchmarks/gpu_kit/recorded.py RECORD.json`.

A record holds the cluster, as it was probed or a preset, and of each run the kit's model, the plan, the trainer's
options, the step times in seconds, and the memory held in bytes. Nothing is calibrated; `preset` leaves the probe's
rates out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from part import MODELS
from trainer_jobs import preset as preset_of

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.tuner.prediction.predict import Prediction, foresee, training_of
from meshtune.tuner.specs.read import read_spec

# The trainer's options, by which runs differ.
OPTIONS = ("compile", "attention", "float8")


@dataclass(frozen=True, slots=True)
class Beside:
    """One run: its median step in seconds, and bytes held; both as predicted from the preset, the step also from the
    probe, if there was one."""

    name: str
    step_s: float
    held_bytes: int
    preset: Prediction
    probed: Prediction | None

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over measured, minus 1: of the step by where it was predicted from, and of the memory."""
        sources = {"probe": self.probed, "preset": self.preset}
        steps = {name: one.speed.step_s.value / self.step_s - 1 for name, one in sources.items() if one and one.speed}
        return {**steps, "memory": self.preset.peak_bytes.value / self.held_bytes - 1}


def beside(record: Mapping[str, Any]) -> list[Beside]:
    cluster = record["cluster"]
    probed = "preset" not in cluster
    sheet = cluster
    if probed:
        sheet = {"preset": preset_of(cluster["device"]["name"]), "nodes": 1, "devices_per_node": 1}
    found = []
    for run in record["runs"]:
        size, batch = run["micro_batch_size"], run["global_batch_size"]
        plan = Plan(micro_batch_size=size, grad_accum_steps=batch // size, recompute=Recompute(run["recompute"]))
        how = "compiled" if run["compile"] else "eager"
        how += ", float8" * run.get("float8", False)
        name = f"{run['model']} {how}, {size} x {batch // size}, recompute {run['recompute']}, {run['attention']}"
        by_probe = predicted(run, plan, cluster) if probed else None
        by_sheet = predicted(run, plan, sheet)
        found.append(Beside(name, median(run["step_times_s"]), run["held_bytes"], by_sheet, by_probe))
    return found


def predicted(run: Mapping[str, Any], plan: Plan, cluster: Mapping[str, Any]) -> Prediction:
    spec, _ = read_spec(
        {
            "name": "recorded",
            "model": {"name": run["model"], **MODELS[run["model"]]},
            "cluster": cluster,
            "global_batch_size": run["global_batch_size"],
            "workload": {"kind": "torch", "dtype": "bfloat16", **{name: run[name] for name in OPTIONS if name in run}},
        },
        None,
    )
    return foresee(training_of(spec), columns_of([plan]), UNCALIBRATED).of(0, plan)


def table(rows: list[Beside]) -> str:
    names = [*rows[0].errors]
    lines = [f"| run | step, ms | held, GiB | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for row in rows:
        errors = " | ".join(f"{row.errors[name]:+.0%}" for name in names)
        lines.append(f"| {row.name} | {1e3 * row.step_s:.0f} | {row.held_bytes / 2**30:.1f} | {errors} |")
    middle = " | ".join(f"{median(abs(row.errors[name]) for row in rows):.1%}" for name in names)
    lines.append(f"| median of the errors' sizes | | | {middle} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(beside(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
