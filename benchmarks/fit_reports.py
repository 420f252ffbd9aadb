"""What `meshtune fit` predicts for public reports of fine-tuning, beside what they say.

    python benchmarks/fit_reports.py [FILE ...] [--update]

The reports (benchmarks/fit_reports/*.toml) are facts of public threads in our own words, written down before anything
was predicted for them; each leaves `assumed` what it does not say, by the program's defaults. Memory is compared at the
counter that the report used; `fits` with a probability of at least one half. --update writes docs/explanation/fit.md's
table."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from meshtune.runners.documents import read_value
from meshtune.runners.programs.named_models import model_named
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.estimate import estimate_memory
from meshtune.search_spaces.physics.framework_profiles import (
    DEEPSPEED,
    FLOAT32,
    FSDP,
    FSDP_PURE_BF16,
    FrameworkProfile,
    Reports,
)
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training, usable_bytes
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import cluster_on, cluster_presets, described
from meshtune.search_spaces.recipe import Adapter, Companion, Recipe, Role

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/explanation/fit.md"
FILES, ASIDE = (sorted((HERE / "fit_reports").glob(pattern)) for pattern in ("*.toml", "aside/*.toml"))
COUNTERS = {"allocated": Reports.ALLOCATED, "reserved": Reports.RESERVED}
STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
# Their default was torch's AdamW without `fused` at the time of the reports (TrainingArguments.optim, adamw_torch). Of
# FSDP's flat parameters, which are of a type of their own, it goes through one by one (torch/optim/optimizer.py,
# _default_to_fused_or_foreach).
FOREACH = ("trl", "transformers", "ms_swift", "llama_factory", "axolotl", "peft")
# Of these, adapters share a product's input; others go through PEFT.
SHARED_INPUTS = ("torchtune", "unsloth")
GIB = 2**30
console = Console(width=None if sys.stdout.isatty() else 240, highlight=False, markup=False)


@dataclass(frozen=True, slots=True)
class Predicted:
    """peak_gib: at the report's counter. p_fits: on the report's device, as the process sees it. parts: in GiB."""

    report: Mapping[str, Any]
    peak_gib: float
    p_fits: float
    parts: Mapping[str, float]

    @property
    def error(self) -> float | None:
        """log(predicted / reported); None where no peak was reported."""
        reported = self.report.get("reported_gib")
        return None if reported is None else float(np.log(self.peak_gib / reported))

    @property
    def right(self) -> bool:
        return (self.p_fits >= 0.5) is bool(self.report["fits"])


def recipe_of(report: Mapping[str, Any]) -> Recipe:
    """The report's training in the words of a spec."""
    adapter = None
    program, lora = report["program"], report["method"] != "full"
    if lora:
        adapter = Adapter(
            rank=report["rank"],
            targets=tuple(report["targets"]),
            dora=report.get("dora", False),
            dropout=report.get("dropout", 0.0),
            bits=report.get("adapter_bits", 16 if program == "torchtune" else 32),
            copies_inputs=program not in SHARED_INPUTS,
        )
    foreach = report["optimizer"] == "adamw" and program in FOREACH and report["shard"] == "none"
    reference = {
        "model": (Companion(role=Role.REFERENCE),),
        "adapter": (Companion(role=Role.REFERENCE, bits=0),),
    }
    return Recipe(
        adapter=adapter,
        base_bits=report["base_bits"] if lora else 0,
        double_quantization=report.get("double_quantization", True),
        plain_bits=report.get("plain_bits", 0),
        trained_ends=lora and report.get("trained_ends", False),
        optimizer="adamw_foreach" if foreach else report["optimizer"],
        offload=report.get("offload", "none"),
        offload_activations=report.get("offload_activations", program == "unsloth" and report["recompute"] == "full"),
        fused_loss=report.get("fused_loss", False),
        loss_kernel=report.get("loss_kernel", program == "torchtune"),
        layer_kernels=report.get("layer_kernels", report.get("fused_loss", False) or program == "unsloth"),
        rows_per_sample=2 if report.get("pairs") else 1,
        beside=reference.get(report.get("reference", "none"), ()),
    )


def profile_of(report: Mapping[str, Any]) -> FrameworkProfile:
    if report["shard"].startswith("zero"):
        profile = DEEPSPEED
    else:
        profile = FSDP if report.get("mixed") or report["method"] != "full" else FSDP_PURE_BF16
    if report.get("attention", "fused") != "fused":
        profile = replace(profile, fused_attention=False)
    if report["dtype"] == "float32":
        return replace(profile, **FLOAT32)
    return replace(profile, dtype=report["dtype"])


def predicted(report: Mapping[str, Any]) -> Predicted:
    """Raises InvalidValue for a model or a device without a name."""
    section = cluster_on(f"{report['devices']}x{report['device']}")
    known = described(cluster_presets()[section["preset"]])
    known = {**known, **{key: value for key, value in section.items() if key != "preset"}}
    cluster = read_value(ClusterSpec, known)
    capacity = round(report["capacity_gib"] * GIB)
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=capacity))
    model = read_value(ModelSpec, {**model_named(report["model"]), "seq_len": report["seq"]})
    recipe, code = recipe_of(report), profile_of(report)
    plan = Plan(
        dp=report["devices"],
        micro_batch_size=report["micro_batch"],
        grad_accum_steps=report.get("grad_accum", 1),
        zero_stage=STAGES[report["shard"]] if report["devices"] > 1 or report["offload"] == "weights" else 0,
        recompute=report["recompute"],
    )
    columns = columns_of([plan])

    def memory(reports: Reports) -> Any:
        training = Training(model, cluster, with_recipe(replace(code, reports=reports), recipe), recipe)
        return training, estimate_memory(training, columns)

    training, process = memory(Reports.PROCESS)
    torch_says = report["program"] == "torchtune"  # its logs say what torch allocated
    counter = COUNTERS.get(report.get("counter", ""), Reports.ALLOCATED if torch_says else Reports.PROCESS)
    _, counted = memory(counter)
    return Predicted(
        report=report,
        peak_gib=float(counted.peak_bytes[0]) / GIB,
        p_fits=float(process.fits(usable_bytes(training))[0]),
        parts={str(part): float(size[0]) / GIB for part, size in counted.parts.items()},
    )


def figures(rows: Sequence[Predicted]) -> dict[str, float]:
    errors = np.abs([row.error for row in rows if row.error is not None])
    return {
        "reports": len(rows),
        "with a peak": len(errors),
        "median error of the peak, %": float(100 * np.expm1(np.median(errors))),
        "90 % of errors below, %": float(100 * np.expm1(np.quantile(errors, 0.9))),
        "fits or not right, %": 100 * float(np.mean([row.right for row in rows])),
    }


def table(rows: Sequence[Predicted]) -> str:
    lines = ["| report | training | reported, GiB | predicted, GiB | fits | P(fits) |", "|---|---|---|---|---|---|"]
    for row in rows:
        one = row.report
        what = f"{one['model'].rpartition('/')[2]}, {one['method']}, {one['devices']} x {one['device']}, "
        what += f"{one['micro_batch']} x {one['seq']}"
        fits = "yes" if one["fits"] else "no"
        reported = one.get("reported_gib")
        lines.append(
            f"| {one['id']} | {what} | {'' if reported is None else f'{reported:.1f}'} | {row.peak_gib:.1f} | {fits} | "
            f"{row.p_fits:.2f} |"
        )
    return "\n".join(lines)


def sums(rows: Sequence[Predicted]) -> str:
    each = [f"| {name} | {value:.3g} |" for name, value in figures(rows).items()]
    return "\n".join(["| figure | value |", "|---|---|", *each])


def read_reports(files: Sequence[Path]) -> tuple[list[Predicted], list[str]]:
    """The predictions, and why there is none for the others."""
    rows, left = [], []
    for report in (one for file in files for one in tomllib.loads(file.read_text(encoding="utf-8"))["report"]):
        try:
            rows.append(predicted(report))
        except InvalidValue as error:
            left.append(f"{report['id']}: {error}")
    return rows, left


def page(files: Sequence[Path]) -> str:
    rows, left = read_reports(files)
    aside, unread = read_reports(ASIDE)
    told = f"Left out, since the model, the device or the optimizer has no name here: {len(left)}."
    second = (
        f"A second set, `benchmarks/fit_reports/aside`, predicted after the formulas stood (left out: {len(unread)}):"
    )
    return "\n\n".join([table(rows), sums(rows), told, second, sums(aside)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--parts", action="store_true")
    given = parser.parse_args()
    rows, left = read_reports(given.files)
    for words in left:
        console.print(words)
    for row in sorted(rows, key=lambda row: row.error or 0.0) if given.parts else ():
        parts = " ".join(f"{name} {size:.1f}" for name, size in row.parts.items() if size >= 0.05)
        said = row.report.get("reported_gib", "")
        mark = "" if row.right else "  WRONG"
        console.print(f"{row.report['id']}: {said} / {row.peak_gib:.1f} P {row.p_fits:.2f} [{parts}]{mark}")
    console.print(f"{table(rows)}\n\n{sums(rows)}")
    if given.update:
        before, after = PAGE.read_text(encoding="utf-8").split("<!-- figures -->")
        end = after[after.index("<!-- end -->") :]
        PAGE.write_text(f"{before}<!-- figures -->\n{page(given.files)}\n{end}", encoding="utf-8")


if __name__ == "__main__":
    main()
