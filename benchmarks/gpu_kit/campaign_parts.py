"""The parts that run the tuner: two trials, a campaign on one device, and one of Hugging Face's Trainer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from jobs import measuring, preset
from part import Work

from meshtune.runners.documents import plain
from meshtune.runners.trainer.job import AttentionKernel
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.tuner.access.home_folder import prepare_home
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.prediction.predict import Prediction, foresee, training_of
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

BENCHMARKS = Path(__file__).parents[1]
sys.path.insert(0, str(BENCHMARKS))

import metrics  # noqa: E402

EXAMPLE = BENCHMARKS.parent / "examples" / "huggingface"
# Of a trial: out of memory comes at once, and compiling takes half a minute.
TRIAL_LIMIT_S = 90.0
# No trial is begun where the longest one so far would not end in time.
CAUTION = 1.2
# Columns of a trial that only the record has.
LOG_TAIL = 1500


def cluster(work: Work) -> dict[str, Any]:
    """The section that the probe wrote; else the preset of the device, which says so."""
    if work.cluster.exists():
        section: dict[str, Any] = yaml.safe_load(work.cluster.read_text(encoding="utf-8"))["cluster"]
        work.keep("cluster", section)
        return section
    name = preset(work.device)
    work.keep("cluster", name, f"no probe: the preset {name}, one device of it")
    return {"preset": name, "nodes": 1, "devices_per_node": 1}


def document(work: Work, name: str, space: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The spec of a campaign on one device. The global batch is fixed, so that a micro-batch size sets the
    accumulation."""
    return {
        "name": name,
        "model": work.model("llama-1.3b"),
        "cluster": cluster(work),
        "global_batch_size": 16,
        "space": {"zero_stage": [0], **space},
        "workload": {"kind": "torch", "compile": work.cuda, "measuring": plain(measuring(work.cuda))},
        "runner": {"kind": "local", "idle_s": 20},
        "trial": {"time_limit_s": TRIAL_LIMIT_S},
        "warm_start": False,
        "seed": 1,
        **more,
    }


def trials(work: Work) -> None:
    """Two trials by the local runner: a cold job server and a warm one."""
    sizes = [4, 8]
    spec = document(work, "trials", {"micro_batch_size": sizes, "recompute": ["none"]})
    run(work, spec | {"budget": {"trials": 2}, "baseline": {"micro_batch_size": 4}, "confirm": 0})


def campaign(work: Work) -> None:
    """Micro-batch x recomputation x compilation x attention kernel, then the winner and the baseline once more."""
    kernels = ["auto", "math"]
    if work.cuda:  # on an H100 auto is cudnn's; a version that cannot ask for it compares with auto
        kernels = ["cudnn" if "cudnn" in {str(each) for each in AttentionKernel} else "auto", "flash"]
    knobs = {
        "compile": {"values": [True, False] if work.cuda else [False], "option": "compile"},
        "attention": {"values": kernels, "option": "attention"},
    }
    space = {"micro_batch_size": [1, 2, 4, 8, 16], "recompute": ["none", "selective", "full"]}
    spec = document(work, "llama-1.3b", space, knobs=knobs, budget={"trials": 9}, confirm=1, confirm_rounds=1)
    run(work, spec | {"baseline": {"micro_batch_size": 2}})


def huggingface(work: Work) -> None:
    """The Trainer's script of the examples with its defaults as baseline, by `meshtune import` from its start command,
    as docs/how-to/huggingface.md has it."""
    folder = work.folder / "script"
    (folder / "model").mkdir(parents=True)
    shutil.copy(EXAMPLE / "train.py", folder)
    shape = work.model("llama-0.36b")
    config = json.loads((EXAMPLE / "model" / "config.json").read_text(encoding="utf-8")) | {
        "num_hidden_layers": shape["layers"],
        "hidden_size": shape["hidden"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"],
        "intermediate_size": shape["ffn"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": shape["seq_len"],
        "tie_word_embeddings": shape["tied_head"],
    }
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    command = f"python3 train.py --config_name model --block_size {shape['seq_len']} --gradient_accumulation_steps 4"
    command += " --logging_steps 1 --disable_tqdm true --output_dir output --bf16" + " --use_cpu" * (not work.cuda)
    options = ["--command", command, "--cluster", preset(work.device), "--output", str(folder / "campaign.yaml")]
    cli = [sys.executable, "-m", "meshtune.tuner.cli"]
    subprocess.run([*cli, "import", *options], cwd=folder, check=True, timeout=work.left_s)
    spec = yaml.safe_load((folder / "campaign.yaml").read_text(encoding="utf-8"))
    work.keep("command", command, f"imported from: {command}")
    # What a user would write into the file: what is to be tried, and how long.
    spec["cluster"] = cluster(work)
    spec["space"]["micro_batch_size"] = [8, 16, 32]
    spec["workload"] |= {"steps": 14, "warmup_steps": 5} if work.cuda else {"steps": 4, "warmup_steps": 1}
    spec["knobs"] = {
        "optim": {"values": ["adamw_torch_fused", "adamw_torch"], "argument": "--optim {value}"},
        "attention": {"values": ["sdpa", "eager"], "argument": "--attn_implementation {value}"},
    }
    if work.cuda:
        spec["knobs"]["torch_compile"] = {
            "values": [False, True],
            "argument": "--torch_compile {value}",
            "compute": "less",
        }
    spec |= {"name": "huggingface", "budget": {"trials": 5 if work.cuda else 2}, "confirm": 0, "warm_start": False}
    spec |= {"runner": {"kind": "local"}, "trial": {"time_limit_s": TRIAL_LIMIT_S}, "seed": 1}
    run(work, spec)


def run(work: Work, spec: dict[str, Any]) -> None:
    """Run a campaign within the part's time, and keep what it found, after every trial."""
    home = Home(work.folder / "home")
    prepare_home(home, 0o700)
    with Store.open(home.database_url) as store:
        service = Service(store, home)
        try:
            chosen = service.create(spec, drives=True)
            work.keep("plans", chosen.legal)
            drive(service, chosen.id, work)
            keep(work, service, chosen.id, " ")
        finally:
            service.close()


def drive(service: Service, id: str, work: Work) -> None:
    """Until the campaign is over. Where the time is short, the search is ended before its budget, so that second runs
    come; and where a job more would not end in time, the campaign is paused."""
    known = 0

    def watch() -> None:
        nonlocal known
        found, now = service.trials(id), service.campaign(id)
        ended = [trial for trial in found if trial.state.final]
        if len(ended) > known:
            known = len(ended)
            keep(work, service, id)
        longest_s = max((trial.last.running_s for trial in ended), default=0.0)
        second_runs = 2 * now.spec.confirm
        if now.state is CampaignState.RUNNING and known and len(ended) == len(found):
            if work.left_s < CAUTION * longest_s:
                service.pause(id)
                work.end("cut", f"{known} trials ended in the time")
            elif not now.search_ended and work.left_s < CAUTION * longest_s * (second_runs + 1):
                service.changing.change(id, {"budget": {"trials": known}})
                work.end("cut", f"the search was ended after {known} trials, for want of time")
        time.sleep(0.02)

    drive_one(Driver(service), service, id, watch)


def keep(work: Work, service: Service, id: str, summary: str = "") -> None:
    ended = service.campaign(id)
    found = service.trials(id)
    rows = [row(service, ended, trial) for trial in found]
    work.keep("trials", rows)
    work.keep("ended", {"state": str(ended.state), "reason": ended.reason})
    numbers = figures(rows)
    work.keep("figures", numbers)
    ranking = rank(ended, found)
    best = next((each for each in rows if ranking and each["number"] == ranking[0].trial.number), None)
    work.keep("best", best)
    if summary:
        lines = [f"{ended.state}: {ended.reason}", *(line(each) for each in rows)]
        if best is not None and rows[0]["step_time_s"]:
            lines.append(
                f"best: trial {best['number']}, {rows[0]['step_time_s'] / best['step_time_s'] - 1:+.1%} over trial 0"
            )
        lines.append(", ".join(f"{name} {value:.3g}" for name, value in numbers.items() if isinstance(value, float)))
        for each in lines:
            work.keep("best", best, each)


def row(service: Service, ended: Campaign, trial: Trial) -> dict[str, Any]:
    """One trial: what was measured, what the search expected when it chose it, and what the physics predicts that has
    seen no trial. wall_s: from the plan to the known result; overhead_s: of it, all but the steps, compilation
    among them."""
    measured, last, expected, outcome = trial.measurement, trial.last, trial.expectation, trial.outcome
    predicted = physics(ended, trial)
    wall_s = None if last.finished_at is None else last.finished_at - last.planned_at
    extra = job_result(service.home.job(ended.id, last.job_name))
    steps = extra.get("steps_at")
    steps_s = None if steps is None else steps["last_s"] - steps["first_s"]
    found = {
        "number": trial.number,
        "plan": trial.plan.key,
        "origin": str(trial.origin),
        "verdict": None if trial.verdict is None else str(trial.verdict),
        "reason": "" if outcome is None else outcome.reason,
        "log_tail": "" if outcome is None or measured is not None else outcome.log_tail[-LOG_TAIL:],
        "expected_step_time_s": None if expected is None else expected.step_time_s,
        "expected_peak_bytes": None if expected is None else expected.peak_bytes,
        "physics_step_time_s": predicted.speed.step_s.value if predicted and predicted.speed else None,
        "physics_peak_bytes": None if predicted is None else predicted.peak_bytes.value,
        "wall_s": wall_s,
        "overhead_s": None if wall_s is None or steps_s is None else wall_s - steps_s,
        "compile_s": extra.get("compile_s") or extra.get("measurement", {}).get("compile_s"),
        "step_time_s": None,
    }
    if measured is None:
        return found
    interval = measured.step_time_interval_s
    return found | {
        "step_time_s": measured.step_time_s,
        "step_time_interval_s": [interval.low, interval.high],
        "tokens_per_s": measured.tokens_per_s,
        "peak_memory_bytes": measured.max_memory_bytes,
        "peak_held_bytes": measured.fullest_rank_bytes,
        "attention_kernels": list(measured.attention_kernels),
        "first_losses": list(measured.first_losses),
    }


def physics(ended: Campaign, trial: Trial) -> Prediction | None:
    return foresee(training_of(ended.spec), columns_of([trial.plan]), UNCALIBRATED).of(0, trial.plan)


def job_result(directory: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    except OSError:
        return {}
    return found


def line(each: dict[str, Any]) -> str:
    """A trial for people: measured beside what the physics and the search said."""

    def ms(key: str) -> str:
        return f"{1e3 * each[key]:.1f}" if each.get(key) else "-"

    def gib(key: str) -> str:
        return f"{each[key] / 2**30:.2f}" if each.get(key) else "-"

    overhead = "-" if each["overhead_s"] is None else f"{each['overhead_s']:.2f}"
    compiled = f", compiled in {each['compile_s']:.1f} s" if each["compile_s"] else ""
    return (
        f"{each['number']} {each['plan']} ({each['origin']}): {each['verdict']}, {ms('step_time_s')} ms (physics "
        f"{ms('physics_step_time_s')}, search {ms('expected_step_time_s')}), {gib('peak_held_bytes')} GiB (physics "
        f"{gib('physics_peak_bytes')}), overhead {overhead} s{compiled}"
    )


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over the trials that were measured: the median error of predictions, as a share (0.1: 10 % off either way), the
    rank correlation of predicted and measured step times, how far second runs are off their first, and the median
    overhead without the first trial, which starts cold."""

    def pairs(predicted: str, measured: str) -> list[tuple[float, float]]:
        return [(each[predicted], each[measured]) for each in rows if each.get(predicted) and each.get(measured)]

    def error(predicted: str, measured: str) -> float | None:
        found = [exp(abs(log(one / other))) - 1 for one, other in pairs(predicted, measured)]
        return median(found) if found else None

    def order(predicted: str) -> float | None:
        columns = np.array(pairs(predicted, "step_time_s") or [(0.0, 0.0)]).T
        return metrics.spearman(columns[0], columns[1])

    first = {each["plan"]: each["step_time_s"] for each in rows if each["origin"] != Origin.CONFIRMATION}
    again = [each for each in rows if each["origin"] == Origin.CONFIRMATION and each["step_time_s"]]
    repeats = [each["step_time_s"] / first[each["plan"]] - 1 for each in again if first.get(each["plan"])]
    warm = [each["overhead_s"] for each in rows[1:] if each["overhead_s"] is not None]
    verdicts = [each["verdict"] for each in rows]
    return {
        "measured": sum(each["step_time_s"] is not None for each in rows),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts) if verdict},
        "step_time_error_of_physics": error("physics_step_time_s", "step_time_s"),
        "step_time_error_of_search": error("expected_step_time_s", "step_time_s"),
        "spearman_of_physics": order("physics_step_time_s"),
        "spearman_of_search": order("expected_step_time_s"),
        "memory_error_of_physics": error("physics_peak_bytes", "peak_held_bytes"),
        "second_runs_off": repeats,
        "overhead_s": median(warm) if warm else None,
    }
