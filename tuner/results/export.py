"""Exports a measured setting: as JSON for programs, as the files that run it again by hand, in the words of other
people's training codes, and as the job script of a scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec
from meshtune.runners.batch.notes import GANG_FILE, render_gang
from meshtune.runners.registry import (
    DIALECTS,
    RUNNERS,
    SCHEDULERS,
    SCRIPTS,
    UnknownBackend,
    render_dialect,
    render_script,
)
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.space import workload_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.step_parts import time_by_part
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.ranking import Confirmation, Ranked, rank
from meshtune.tuner.results.recommendation import Recommendation, front_of, recommend

# What a setting can be written as; by default json and job together.
FORMATS = ("json", "job", *DIALECTS, *SCRIPTS)
# The scheduler's file, beside those that its job reads.
SCRIPT_FILES: Mapping[str, str] = {name: SCHEDULERS[name].script_file for name in SCRIPTS}


class NothingToExport(LookupError):
    """The campaign has no such measured trial."""


def choose(campaign: Campaign, trials: Sequence[Trial], selector: str) -> Ranked:
    """The measured trial that "recommended", "best", "worst" or a trial's number names. Raises NothingToExport."""
    ranking = rank(campaign, trials)
    if not ranking:
        raise NothingToExport(f"campaign {campaign.id} has no measured trial yet")
    if selector == "recommended":
        chosen = recommend(campaign, trials).choice
        return chosen or ranking[0]
    if selector in ("best", "worst"):
        return ranking[0] if selector == "best" else ranking[-1]
    for entry in ranking:
        if selector in (str(entry.trial.number), str(entry.measured_by.number)):
            return entry
    known = ", ".join(str(entry.trial.number) for entry in ranking)
    raise NothingToExport(f"campaign {campaign.id} has no measured trial {selector!r}; measured: {known}")


def ranked_document(campaign: Campaign, entry: Ranked) -> dict[str, Any]:
    """One measured setting as plain JSON values."""
    profile = entry.measurement.profile
    straggler = None if profile is None else profile.straggler
    return {
        "rank": entry.rank,
        "trial": entry.trial.number,
        "origin": str(entry.trial.origin),
        "plan": entry.trial.plan.as_dict(),
        "plan_key": entry.trial.plan.key,
        "objective": objective_document(campaign.spec, entry.objective),
        "tokens_per_s": asdict(entry.tokens_per_s),
        "step_time_s": entry.measurement.step_time_s,
        "timed_steps": len(entry.measurement.step_times_s),
        "peak_memory_bytes": entry.memory_bytes,
        "headroom_bytes": entry.headroom_bytes,
        "tflops_per_device": entry.tflops_per_device,
        "mfu": entry.mfu,
        "time_by_part": [asdict(part) for part in time_by_part(profile)],
        "straggler": None if straggler is None else asdict(straggler),
        "first_losses": list(entry.measurement.first_losses),
        "gain_over_baseline": None if entry.gain is None else asdict(entry.gain),
        "trains_as_baseline": entry.trains_as_baseline,
        "measured_again": None if entry.confirmation is None else _confirmation(entry.confirmation),
    }


def objective_document(spec: CampaignSpec, reached: Estimate) -> dict[str, Any]:
    """A value of the campaign's objective, with how to read it."""
    objective = spec.objective
    reading = {"unit": yardstick_of(spec).unit, "smaller_is_better": objective.smaller_is_better}
    return {"name": str(objective), **asdict(reached), **reading}


def best_document(campaign: Campaign, trials: Sequence[Trial], top: int) -> dict[str, Any]:
    """The recommendation, the best settings, and the whole front of speed and memory left over."""
    ranking = rank(campaign, trials)
    return {
        "campaign": campaign.id,
        "recommendation": recommendation_document(campaign, recommend(campaign, trials)),
        "best": [ranked_document(campaign, entry) for entry in ranking[:top]],
        "front": [ranked_document(campaign, entry) for entry in front_of(ranking)],
    }


def recommendation_document(campaign: Campaign, recommendation: Recommendation) -> dict[str, Any]:
    choice = recommendation.choice
    return {
        "reason": recommendation.reason,
        "better_than_baseline": recommendation.better,
        "setting": None if choice is None else ranked_document(campaign, choice),
    }


def job_of(spec: CampaignSpec, plan: Plan, name: str, directory: Path) -> JobSpec:
    """The job that measures a plan in this folder, as pure text."""
    return workload_of(spec).materialize(
        name, spec.model, plan, spec.cluster, directory, seed=spec.seed, time_limit_s=spec.trial.time_limit_s
    )


def job_script(spec: CampaignSpec, kind: str, job: JobSpec, options: Mapping[str, Any]) -> Mapping[str, str]:
    """What a scheduler would be given to run a job, by file name: its script, and what that reads beside the job's own
    files. options: on top of those of the spec's runner where that is of the same kind. Raises InvalidValue.
    """
    own = spec.runner.options if spec.runner.kind == kind else {}
    # As the runner of that kind does: a script alone does not know what a device is.
    devices = {"gres": "gpu"} if kind == "slurm" and spec.cluster.device.kind is DeviceKind.CUDA else {}
    gang = {GANG_FILE: render_gang(job)} if kind in RUNNERS else {}
    return {**gang, SCRIPT_FILES[kind]: render_script(kind, job, {**devices, **own, **options})}


def export_files(
    campaign: Campaign, entry: Ranked, directory: Path, format: str = "", options: Mapping[str, Any] | None = None
) -> Mapping[str, str]:
    """The texts of a setting by file name, of a job that would run in `directory`. format: one of FORMATS. options: of
    the scheduler or the training code that the format is for.

    Raises UnknownBackend for a format that is none, NothingToExport for a simulated job's script, CannotExpress for a
    plan that a training code has no words for.
    """
    spec, trial, options = campaign.spec, entry.trial, options or {}
    if format in DIALECTS:
        extra = {**(spec.workload.options if spec.workload.kind == format else {}), **options}
        return render_dialect(format, spec.model, trial.plan, spec.cluster, extra)
    document = {"campaign": campaign.id, **ranked_document(campaign, entry)}
    setting = {"setting.json": json.dumps(document, indent=1) + "\n"}
    job = job_of(spec, trial.plan, trial.last.job_name, directory)
    if format in SCRIPTS:
        if campaign.simulated:
            raise NothingToExport(f"campaign {campaign.label} has no job that a scheduler could run")
        return {**job.files, **job_script(spec, format, job, options)}
    match format:
        case "":
            return {**setting, **job.files}
        case "json":
            return setting
        case "job":
            return job.files
    raise UnknownBackend(f"no export format is called {format!r}; {did_you_mean(format, FORMATS)}")


def write_export(
    campaign: Campaign, entry: Ranked, directory: Path, format: str = "", options: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write the files of `export_files` into `directory`; return their paths. Raises OSError, and what that raises."""
    texts = export_files(campaign, entry, directory.resolve(), format, options)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in texts]


def _confirmation(known: Confirmation) -> dict[str, Any]:
    return {
        "trial": known.trial.number,
        "verdict": str(known.trial.verdict),
        "first": known.first,
        "change": known.change,
    }
