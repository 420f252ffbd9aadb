"""Physics beside the runs of a record, as a table in Markdown: `python benchmarks/gpu_kit/recorded.py [RECORD.json]`.

A record holds the cluster as it was probed, and of each run the kit's model, the plan, the trainer's options, the step
times in seconds, and the memory held in bytes. Nothing is calibrated; `preset` leaves the probe's rates out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from part import MODELS
from trainer_jobs import preset

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.plan import Plan, Recompute
from meshtune.tuner.prediction.predict import Prediction, foresee, training_of
from meshtune.tuner.specs.read import read_spec

RECORD = Path(__file__).with_name("records") / "h100.json"


@dataclass(frozen=True, slots=True)
class Beside:
    """One run: its median step in seconds, and bytes held; both as predicted from the probe, the step from the preset
    as well."""

    name: str
    step_s: float
    held_bytes: int
    probed: Prediction
    preset: Prediction

    @property
    def errors(self) -> tuple[float, float, float]:
        """Predicted over measured, minus 1: the step from the probe and from the preset, and the memory."""
        steps = [each.speed.step_s.value / self.step_s - 1 for each in (self.probed, self.preset) if each.speed]
        return steps[0], steps[1], self.probed.peak_bytes.value / self.held_bytes - 1


def beside(record: Mapping[str, Any]) -> list[Beside]:
    sheet = {"preset": preset(record["cluster"]["device"]["name"]), "nodes": 1, "devices_per_node": 1}
    found = []
    for run in record["runs"]:
        size, batch = run["micro_batch_size"], run["global_batch_size"]
        plan = Plan(micro_batch_size=size, grad_accum_steps=batch // size, recompute=Recompute(run["recompute"]))
        how = "compiled" if run["compile"] else "eager"
        name = f"{run['model']} {how}, {size} x {batch // size}, recompute {run['recompute']}, {run['attention']}"
        both = [predicted(run, plan, cluster) for cluster in (record["cluster"], sheet)]
        found.append(Beside(name, median(run["step_times_s"]), run["held_bytes"], *both))
    return found


def predicted(run: Mapping[str, Any], plan: Plan, cluster: Mapping[str, Any]) -> Prediction:
    spec, _ = read_spec(
        {
            "name": "recorded",
            "model": {"name": run["model"], **MODELS[run["model"]]},
            "cluster": cluster,
            "global_batch_size": run["global_batch_size"],
            "workload": {"kind": "torch", "dtype": "bfloat16", "compile": run["compile"]},
        },
        None,
    )
    return foresee(training_of(spec), columns_of([plan]), UNCALIBRATED).of(0, plan)


def table(rows: list[Beside]) -> str:
    lines = ["| run | step, ms | probe | preset | held, GiB | physics |", "|---|---|---|---|---|---|"]
    for row in rows:
        probe, sheet, memory = (f"{error:+.0%}" for error in row.errors)
        held = f"{row.held_bytes / 2**30:.1f}"
        lines.append(f"| {row.name} | {1e3 * row.step_s:.0f} | {probe} | {sheet} | {held} | {memory} |")
    middle = [f"{median(map(abs, errors)):.1%}" for errors in zip(*(row.errors for row in rows), strict=True)]
    lines.append(f"| median of the errors' sizes | | {middle[0]} | {middle[1]} | | {middle[2]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1]) if sys.argv[1:] else RECORD
    sys.stdout.write(table(beside(json.loads(path.read_text(encoding="utf-8")))))
