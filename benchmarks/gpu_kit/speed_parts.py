"""The parts that time single jobs of the trainer: beside a plain reference, in its modes, and as a mixture."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from jobs import OutOfTime, job, run, told
from part import Skipped, Work

from meshtune.runners.trainer.job import Dtype, Job, Measuring, Router
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

REFERENCE = Path(__file__).parents[1] / "reference_trainers" / "production.py"
ROUNDS = 2
# Between first losses of two trainings alike but for rounding: bfloat16 keeps 8 bits of a number.
BFLOAT16 = 0.1


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
    each = one(work, "llama-1.3b", "llama-1.3b")
    for turn in range(ROUNDS):
        if turn and work.left_s < 1.2 * max(found["wall_s"] for found in (*ours, *theirs)):
            work.partial = f"{turn} of {ROUNDS} rounds"
            break
        # The parts of a step once.
        own = replace(each, name=f"ours, round {turn}")
        if turn:
            own = replace(own, measuring=replace(each.measuring, profile_steps=0))
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
        ratio = times[0] / times[1]
        work.keep(
            "compared",
            {"ours_s": times[0], "plain_s": times[1], "ours_over_plain": ratio},
            f"ours / plain: {ratio:.3f}",
        )


def plain(work: Work, each: Job, directory: Path) -> dict[str, Any]:
    """The plain script's figures of the same shapes, or {"failure"}; its tokens and first weights are its own."""
    directory.mkdir()
    document = {
        "model": {**asdict(each.model), "kv_heads": each.model.kv_heads or each.model.heads},
        "plan": each.plan.as_dict(),
        "dtype": str(each.dtype),
        "compile": each.compile,
        "warmup_steps": each.measuring.max_warmup_steps,
        "steps": each.measuring.min_steps,
    }
    (directory / "reference.json").write_text(json.dumps(document), encoding="utf-8")
    begun, log = time.monotonic(), directory / "log"
    with log.open("wb") as file:
        command = [sys.executable, str(REFERENCE), "reference.json"]
        done = subprocess.run(command, cwd=directory, stdout=file, stderr=file, timeout=work.left_s)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
    if done.returncode:
        return {"failure": f"exit status {done.returncode}: {said[-1][-500:]}"}
    found: dict[str, Any] = json.loads(next(line for line in reversed(said) if line.startswith("{")))
    return {**found, "wall_s": time.monotonic() - begun}


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
