"""The parts that run the tuner, which needs Python 3.11: the doctor, and campaigns on one device."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from part import Work

from meshtune.runners.documents import read_value
from meshtune.runners.trainer_answers import Probed
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.tuner.access.home_folder import prepare_home
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.cli.commands.cluster import cluster_section
from meshtune.tuner.prediction.predict import Prediction, foresee, training_of
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

# Of a trial: out of memory comes at once, and a step of the largest model takes about a second.
TRIAL_LIMIT_S = 90.0
TRIALS = 16
SELF_TEST_S = 50.0
# No trial is begun where the longest one so far would not end in time.
CAUTION = 1.3


def doctor(work: Work) -> dict[str, Any]:
    command = [sys.executable, "-m", "meshtune.tuner.cli", "doctor", "--json", "--home", str(work.folder / "home")]
    # Its self-test takes up to a minute, and mostly half of one.
    command += ["--skip-self-test"] * (work.left_s < SELF_TEST_S)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=work.left_s)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"meshtune doctor: exit status {done.returncode}")
    return json.loads(done.stdout)


def campaign(work: Work) -> dict[str, Any]:
    """A campaign of one model in one precision; the next run resumes it."""
    probed = work.folder.parent / "probe" / "result.json"
    section = cluster_section(read_value(Probed, json.loads(probed.read_text())["result"]), "one device", None)
    home = Home(work.folder / "home")
    prepare_home(home, 0o700)
    with Store.open(home.database_url) as store:
        service = Service(store, home)
        try:
            known = store.campaigns(limit=1)
            chosen = known[0] if known else service.create(document(work, section), drives=True)
            if chosen.state.resting:
                service.resume(chosen.id)
            drive(service, chosen, work)
            ended = service.campaign(chosen.id)
            if not ended.state.final:
                work.partial = f"{len(service.trials(ended.id))} trials in the time; the next run goes on"
            return result(work, service, ended, section)
        finally:
            service.close()


def document(work: Work, section: dict[str, Any]) -> dict[str, Any]:
    """The spec. The global batch is fixed, so that a micro-batch size sets the accumulation."""
    return {
        "name": work.name.replace(".", "-"),
        "model": work.model(),
        "cluster": section,
        "global_batch_size": 32 if work.cuda else 16,
        "space": {
            "micro_batch_size": [1, 2, 4, 8, 16, 32] if work.cuda else [1, 2, 4, 8, 16],
            "recompute": ["none", "selective", "full"],
            "zero_stage": [0],
        },
        "workload": {
            "kind": "torch",
            **settings(work),
            "measuring": {"max_steps": 12, "max_seconds": 6},
        },
        "runner": {"kind": "local", "idle_s": 20},
        "baseline": {"micro_batch_size": 1},
        "budget": {"trials": TRIALS},
        "trial": {"time_limit_s": TRIAL_LIMIT_S},
        "confirm": 1,
        "warm_start": False,
        "seed": 1,
    }


def settings(work: Work) -> dict[str, Any]:
    """What the part's name says of the number format, and whether layers are compiled: on a CPU compiling takes longer
    than the part."""
    kind = work.name.split("-")[2]
    return {"dtype": "float32" if kind == "float32" else "bfloat16", "compile": kind == "compiled" and work.cuda}


def drive(service: Service, chosen: Campaign, work: Work) -> None:
    """Until the campaign is over, or a trial more would not end in time: then it is paused."""

    def watch() -> None:
        trials = service.trials(chosen.id)
        longest_s = max((trial.last.running_s for trial in trials), default=0.0)
        late = work.left_s < CAUTION * longest_s + 2
        if late and service.campaign(chosen.id).state is CampaignState.RUNNING:
            service.pause(chosen.id)
        time.sleep(0.02)

    drive_one(Driver(service), service, chosen.id, watch)


def result(work: Work, service: Service, ended: Campaign, section: dict[str, Any]) -> dict[str, Any]:
    trials = service.trials(ended.id)
    rows = [row(service, ended, trial) for trial in trials]
    ranking = rank(ended, trials)
    best = next((each for each in rows if ranking and each["number"] == ranking[0].trial.number), None)
    return {
        "model": work.model(),
        "parameters": ended.spec.model.parameters,
        **settings(work),
        "device": section["device"],
        "campaign": str(ended.state),
        "reason": ended.reason,
        "plans": ended.legal,
        "best": best,
        "figures": figures(rows),
        "trials": rows,
    }


def row(service: Service, ended: Campaign, trial: Trial) -> dict[str, Any]:
    """One trial: what was measured, what the search expected when it chose it, and what the physics predicts that
    has seen no measurement at all. wall_s: from the plan to the known result; overhead_s: of it, all but the steps."""
    measured, last, expected = trial.measurement, trial.last, trial.expectation
    predicted = physics(ended, trial)
    wall_s = None if last.finished_at is None else last.finished_at - last.planned_at
    steps_s = seconds_of_steps(service.home.job(ended.id, last.job_name))
    return {
        "number": trial.number,
        "plan": trial.plan.key,
        "origin": str(trial.origin),
        "verdict": None if trial.verdict is None else str(trial.verdict),
        "reason": "" if trial.outcome is None else trial.outcome.reason,
        "step_time_s": None if measured is None else measured.step_time_s,
        "step_time_interval_s": None
        if measured is None
        else [measured.step_time_interval_s.low, measured.step_time_interval_s.high],
        "tokens_per_s": None if measured is None else measured.tokens_per_s,
        "mfu": None if measured is None else measured.mfu,
        "peak_memory_bytes": None if measured is None else measured.max_memory_bytes,
        "peak_held_bytes": None if measured is None else measured.summary.max_held_bytes,
        "first_losses": [] if measured is None else list(measured.first_losses),
        "expected_step_time_s": None if expected is None else expected.step_time_s,
        "expected_step_time_interval_s": None
        if expected is None
        else [expected.step_time_low_s, expected.step_time_high_s],
        "expected_peak_bytes": None if expected is None else expected.peak_bytes,
        "physics_step_time_s": predicted.speed.step_s.value if predicted and predicted.speed else None,
        "physics_peak_bytes": None if predicted is None else predicted.peak_bytes.value,
        "wall_s": wall_s,
        "steps_s": steps_s,
        "overhead_s": None if wall_s is None or steps_s is None else wall_s - steps_s,
    }


def physics(ended: Campaign, trial: Trial) -> Prediction | None:
    outlook = foresee(training_of(ended.spec), columns_of([trial.plan]), UNCALIBRATED)
    return outlook.of(0, trial.plan)


def seconds_of_steps(directory: Path) -> float | None:
    """From the begin of the first step, counted and warm-up ones included, to the end of the last."""
    try:
        told = json.loads((directory / "result.json").read_text(encoding="utf-8"))["steps_at"]
    except (OSError, KeyError):
        return None
    return told["last_s"] - told["first_s"]


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the trials that were measured: the median error of predictions, as a share (0.1: 10 % off either way), and
    the median overhead, without the first trial, which starts cold."""

    def error(predicted: str, measured: str) -> float | None:
        pairs = [(each[predicted], each[measured]) for each in rows if each[predicted] and each[measured]]
        return median(exp(abs(log(one / other))) - 1 for one, other in pairs) if pairs else None

    warm = [each["overhead_s"] for each in rows[1:] if each["overhead_s"] is not None]
    verdicts = [each["verdict"] for each in rows]
    return {
        "measured": sum(each["step_time_s"] is not None for each in rows),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts) if verdict},
        "step_time_error_of_search": error("expected_step_time_s", "step_time_s"),
        "step_time_error_of_physics": error("physics_step_time_s", "step_time_s"),
        "memory_error_of_search": error("expected_peak_bytes", "peak_held_bytes"),
        "memory_error_of_physics": error("physics_peak_bytes", "peak_held_bytes"),
        "overhead_s": median(warm) if warm else None,
    }
