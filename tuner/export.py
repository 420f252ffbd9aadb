"""Exports a measured setting: as JSON for programs, and as the files that run it again by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.breakdown import time_by_part
from tuner.campaign import Campaign
from tuner.pareto import front_of
from tuner.ranking import Confirmation, Ranked, rank
from tuner.recommend import Recommendation, recommend
from tuner.service import Service
from tuner.space import workload_of
from tuner.trial import Trial


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
        "objective": {"name": str(campaign.spec.objective), **entry.objective.document()},
        "tokens_per_s": entry.tokens_per_s.document(),
        "step_time_s": entry.measurement.step_time_s,
        "timed_steps": len(entry.measurement.step_times_s),
        "peak_memory_bytes": entry.memory_bytes,
        "headroom_bytes": entry.headroom_bytes,
        "tflops_per_device": entry.tflops_per_device,
        "mfu": entry.mfu,
        "time_by_part": [asdict(part) for part in time_by_part(profile)],
        "straggler": None if straggler is None else asdict(straggler),
        "first_losses": list(entry.measurement.first_losses),
        "gain_over_baseline": None if entry.gain is None else entry.gain.document(),
        "trains_as_baseline": entry.trains_as_baseline,
        "measured_again": None if entry.confirmation is None else _confirmation(entry.confirmation),
    }


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


def job_files(service: Service, campaign: Campaign, trial: Trial) -> Mapping[str, str]:
    """The workload's own files that measure the trial's plan again, by name."""
    workload = workload_of(campaign.spec)
    return service.job(campaign, trial.plan, trial.last.job_name, workload).files


def write_export(service: Service, campaign: Campaign, entry: Ranked, directory: Path) -> list[Path]:
    """Write `setting.json` and the workload's files into `directory`; return their paths. Raises OSError."""
    document = {"campaign": campaign.id, **ranked_document(campaign, entry)}
    texts = {"setting.json": json.dumps(document, indent=1) + "\n", **job_files(service, campaign, entry.trial)}
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
