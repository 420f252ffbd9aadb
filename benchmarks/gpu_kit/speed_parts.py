"""The parts that time single jobs of the trainer: beside a plain script, in its modes, and as a mixture of experts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from part import Work
from trainer_jobs import BFLOAT16, Found, job, losses_apart, run, told

from meshtune.runners.trainer.job import Dtype, Measuring, TrainerJob
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan, Recompute

PLAIN = Path(__file__).parents[1] / "reference_trainers" / "production.py"
ROUNDS, CPU_ROUNDS = 2, 1
ON_CPU = "not on a CPU, where compiling takes longer than the part"


def one(work: Work, kind: str, name: str, **more: Any) -> TrainerJob:
    """One device, 8 sequences at once."""
    return job(work, name, ModelSpec(**work.model(kind)), Plan(micro_batch_size=8), **{"compile": work.cuda, **more})


def attempt(work: Work, each: TrainerJob) -> Found:
    """What became of a job, kept under its name; where it measured nothing, the part says why."""
    ((name, found),) = run(work, {each.name: each})
    work.keep(name, found, told(name, found))
    if "result" not in found:
        work.end("cut" if "late" in found else "failed", told(name, found))
    return found


def reference(work: Work) -> None:
    """Ours and the plain script in turn, so that clocks and neighbours are the same for both; the least median of each
    counts."""
    each = one(work, "llama-1.3b", "ours 0")
    ours: list[float] = []
    theirs: list[float] = []
    rounds = ROUNDS if work.cuda else CPU_ROUNDS
    for turn in range(rounds):
        begun, found = time.monotonic(), attempt(work, each)
        if "result" not in found:
            break
        ours.append(median(found["result"]["measurement"]["step_times_s"]))
        if not PLAIN.exists():
            work.keep("without", PLAIN.name, f"without the plain script: there is no {PLAIN.name}")
            return
        theirs.append(plain(work, each, turn))
        if turn + 1 < rounds and work.left_s < time.monotonic() - begun:
            work.end("cut", f"{turn + 1} of {rounds} rounds")
            break
        # The parts of a step are known.
        each = replace(each, name=f"ours {turn + 1}", measuring=replace(each.measuring, profile_steps=0))
    if theirs:
        ratio = min(ours) / min(theirs)
        work.keep("compared", {"ours": ours, "plain": theirs, "ratio": ratio}, f"ours / plain: {ratio:.3f}")


def plain(work: Work, each: TrainerJob, turn: int) -> float:
    """The plain script's step time at the same shapes, kept; its tokens and first weights are its own."""
    directory = work.folder / f"plain-{turn}"
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
    begun, command = time.monotonic(), [sys.executable, str(PLAIN), "reference.json"]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, text=True, timeout=work.left_s, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    step_s, wall_s = median(found["step_times_s"]), time.monotonic() - begun
    held = found["peak_held_bytes"] / 2**30
    work.keep(
        f"plain {turn}", found, f"plain {turn}: {1e3 * step_s:.1f} ms, {held:.2f} GiB held, {wall_s:.0f} s in all"
    )
    return step_s


def shapes(work: Work) -> None:
    """Llama and GPT, eager and compiled; the compiled Llama is the part `reference`."""
    for kind, compiled in (("llama-1.3b", False), ("gpt-1.3b", False), ("gpt-1.3b", True)):
        name = f"{kind} {'compiled' if compiled else 'eager'}"
        if compiled and not work.cuda:
            work.keep(name, ON_CPU, f"{name}: {ON_CPU}")
        else:
            attempt(work, one(work, kind, name, compile=compiled))


def further(work: Work) -> None:
    """A larger model of longer sequences, whose shapes no probe timed, and products in 8 bits."""
    model = ModelSpec(**work.model("llama-2.7b"))
    for size, recompute in ((2, Recompute.NONE), (4, Recompute.SELECTIVE)):
        plan = Plan(micro_batch_size=size, recompute=recompute)
        attempt(work, job(work, f"llama-2.7b {size}, {recompute}", model, plan, compile=work.cuda))
    attempt(work, one(work, "llama-1.3b", "llama-1.3b float8", dtype=Dtype.BFLOAT16, float8=True))


def mixture(work: Work) -> None:
    """Experts by grouped products in bfloat16, eager and compiled, and their first losses beside float32's."""
    base = one(work, "mixture", "bfloat16 eager", dtype=Dtype.BFLOAT16, compile=False)
    runs = [base, *([replace(base, name="bfloat16 compiled", compile=True)] if work.cuda else [])]
    short = Measuring(max_warmup_steps=0, min_steps=2, max_steps=2, profile_steps=0)
    exact = attempt(work, replace(base, name="float32 eager", dtype=Dtype.FLOAT32, measuring=short))
    for each in runs:
        apart = losses_apart(attempt(work, each), exact)
        if apart is not None:
            checked = {"apart": apart, "tolerance": BFLOAT16, "right": apart <= BFLOAT16}
            work.keep(f"{each.name} apart", checked, f"{each.name}: {apart:.3g} from float32's losses")
