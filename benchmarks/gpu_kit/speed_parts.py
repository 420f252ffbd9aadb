"""The parts that time single jobs of the trainer: beside a plain reference, in its modes, and as a mixture."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from jobs import OutOfTime, job, measuring, run, run_processes, told
from part import Skipped, Work

from meshtune.runners.trainer.job import Dtype, Job, Measuring, Router
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

REFERENCE = Path(__file__).parents[1] / "reference_trainers" / "production.py"
ROUNDS = 2
# Between first losses of two trainings alike but for rounding: bfloat16 keeps 8 bits of a number.
BFLOAT16, FLOAT32 = 0.1, 1e-4


def one(work: Work, kind: str, name: str, **more: Any) -> Job:
    """One device, 8 sequences at once."""
    return job(work, name, ModelSpec(**work.model(kind)), Plan(micro_batch_size=8), **{"compile": work.cuda, **more})


def attempt(work: Work, each: Job, folder: str) -> dict[str, Any] | None:
    """The figures of a job, kept under its name; None where the time ended it, which the part then says."""
    try:
        found: dict[str, Any] = run(each, work.folder / folder, work)
    except OutOfTime as late:
        work.partial = str(late)
        return None
    work.keep(each.name, found, told(each.name, found))
    return found


def reference(work: Work) -> None:
    """Ours and the plain script in turn, so that clocks and neighbours are the same for both; the least median of each
    counts."""
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    each = one(work, "llama-1.3b", "llama-1.3b", measuring=measuring(work.cuda, profile=0))
    for turn in range(ROUNDS):
        if turn and work.left_s < 1.2 * max(found["wall_s"] for found in (*ours, *theirs)):
            work.partial = f"{turn} of {ROUNDS} rounds"
            break
        # The parts of a step once; where the other round has a profile, its time is no step's.
        own = replace(each, name=f"ours, round {turn}", measuring=measuring(work.cuda, profile=0 if turn else 2))
        found = attempt(work, own, f"ours-{turn}")
        if found is None or "failure" in found:
            break
        ours.append(found)
        if not REFERENCE.exists():
            work.keep("without", REFERENCE.name, f"without the plain script: there is no {REFERENCE.name}")
            return
        other = plain(work, each, work.folder / f"theirs-{turn}")
        work.keep(
            f"theirs, round {turn}", other, f"plain script, round {turn}: {other.get('failure') or other['told']}"
        )
        if "failure" in other:
            return
        theirs.append(other)
    if ours and theirs:
        times = [min(median(found["step_times_s"]) for found in each) for each in (ours, theirs)]
        losses = [abs(a - b) for a, b in zip(ours[0]["first_losses"], theirs[0]["first_losses"], strict=False)]
        ratio = {"ours_s": times[0], "plain_s": times[1], "ours_over_plain": times[0] / times[1]}
        work.keep("compared", ratio | {"first_losses_apart": losses}, f"ours / plain: {times[0] / times[1]:.3f}")


def plain(work: Work, each: Job, directory: Path) -> dict[str, Any]:
    """The plain script's figures of the same shapes, or {"failure"}."""
    directory.mkdir()
    plan = {"micro_batch_size": 8, "grad_accum_steps": 1, "recompute": str(each.plan.recompute)}
    document = {
        "model": work.model("llama-1.3b"),
        "plan": plan,
        "dtype": str(each.dtype),
        "compile": each.compile,
        "warmup_steps": each.measuring.max_warmup_steps,
        "steps": each.measuring.min_steps,
    }
    document["model"].setdefault("kv_heads", document["model"]["heads"])
    (directory / "reference.json").write_text(json.dumps(document), encoding="utf-8")
    codes = run_processes([sys.executable, str(REFERENCE), "reference.json"], directory, 1, work.left_s)
    said = (directory / "rank-0.log").read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"]
    if codes != [0]:
        return {"failure": f"{'the time ended it' if codes is None else f'exit status {codes[0]}'}: {said[-1][-500:]}"}
    found: dict[str, Any] = json.loads(next(line for line in reversed(said) if line.startswith("{")))
    step_s, held = median(found["step_times_s"]), found["peak_held_bytes"] / 2**30
    return {**found, "told": f"{1e3 * step_s:.1f} ms, {held:.2f} GiB held", "wall_s": 0.0}


def shapes(work: Work) -> None:
    """Llama and GPT, compiled and eager; the compiled Llama is the reference's part."""
    modes = [("llama-1.3b", False), ("gpt-1.3b", True), ("gpt-1.3b", False)]
    for kind, compiled in modes:
        if compiled and not work.cuda:
            work.keep(
                f"{kind} compiled", None, f"{kind} compiled: not on a CPU, where compiling takes longer than the part"
            )
            continue
        name = f"{kind} {'compiled' if compiled else 'eager'}"
        if attempt(work, one(work, kind, name, compile=compiled), name.replace(" ", "-")) is None:
            return


def mixture(work: Work) -> None:
    """Experts by grouped products in bfloat16, eager and compiled, and their first losses beside float32's."""
    base = one(work, "mixture", "bfloat16 eager", dtype=Dtype.BFLOAT16, compile=False, router=Router.LEARNED)
    short = Measuring(max_warmup_steps=0, min_steps=2, max_steps=2, profile_steps=0)
    runs = [base, replace(base, name="float32 eager", dtype=Dtype.FLOAT32, measuring=short)]
    if work.cuda:
        runs.insert(1, replace(base, name="bfloat16 compiled", compile=True))
    found = {}
    for each in runs:
        measured = attempt(work, each, each.name.replace(" ", "-"))
        if measured is None:
            break
        found[each.name] = measured.get("first_losses", [])
    if not found:
        raise Skipped("no run ended in the time")
    exact = found.get("float32 eager", [])
    for name in ("bfloat16 eager", "bfloat16 compiled"):
        apart = max((abs(a - b) for a, b in zip(found.get(name, []), exact, strict=False)), default=None)
        if apart is not None:
            right = apart <= BFLOAT16
            work.keep(f"{name} apart", {"apart": apart, "right": right}, f"{name}: {apart:.3g} from float32's losses")
