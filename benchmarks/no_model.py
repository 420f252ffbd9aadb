"""Searches of a spec without a model, on simulated clusters: trials until within 2 % of the best plan that runs.

`python benchmarks/no_model.py [--seeds 10] [--search physics,optuna,random] [--told] [--no-peaks]`: `--told` adds the
physical search that is told the model, which is the bound. A program of known shapes runs under the simulated runner's
hidden constants (`runners.schedulers.ground_truth`, another cluster for each seed); the searches see the space that a
spec without a model has. A plan that the program's shapes do not allow crashes there, one that does not fit ends as out
of memory, each after one trial; every step is 2 % off, by chance. Counted from the first trial of the search on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshtune.runners.documents import read_value
from meshtune.runners.outcome import Verdict
from meshtune.runners.schedulers.ground_truth import truth
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import Capabilities, SpaceContext
from meshtune.search_spaces.model import NO_MODEL, ModelSpec
from meshtune.search_spaces.physics.framework_profiles import FRAMEWORKS
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Search, Task
from meshtune.tuner.search.registry import create_search

NEAR, NOISE, MOST = 1.02, 0.02, 80
BOTH = (Recompute.NONE, Recompute.FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A program of one model on a cluster, and the bounds of its spec."""

    model: str
    cluster: str
    nodes: int
    framework: str
    batch: int
    bounds: Mapping[str, object]
    seq_len: int = 4096

    def space(self, *, told: bool) -> Space:
        cluster = read_value(ClusterSpec, described(cluster_presets()[self.cluster]))
        model = read_value(ModelSpec, {**described(model_presets()[self.model]), "seq_len": self.seq_len})
        able = Capabilities(
            recompute=frozenset(Recompute), schedules=frozenset(Schedule), zero_stages_with_pp=frozenset({0, 1})
        )
        context = SpaceContext(
            model=model if told else NO_MODEL,
            cluster=replace(cluster, nodes=self.nodes),
            global_batch_size=self.batch,
            capabilities=able,
        )
        return Space(Bounds(**self.bounds), context)


ZERO = {"tp": (1,), "pp": (1,), "recompute": BOTH, "zero_stage": (0, 1, 2, 3), "micro_batch_size": (1, 2, 4, 8, 16, 32)}
GRID = {"recompute": BOTH, "zero_stage": (0, 1), "micro_batch_size": (1, 2, 4, 8, 16)}
WORLDS = {
    "DDP or ZeRO, 1.7B, 8 H100": World(
        model="megatron-1.7b", cluster="dgx-h100", nodes=1, framework="deepspeed", batch=256, bounds=ZERO, seq_len=2048
    ),
    "ZeRO, 8B, 2 x 8 A100": World(
        model="llama3-8b", cluster="dgx-a100", nodes=2, framework="deepspeed", batch=512, bounds=ZERO
    ),
    "tp pp dp, 13B, 4 x 8 A100": World(
        model="llama2-13b", cluster="dgx-a100", nodes=4, framework="megatron-deepspeed", batch=256, bounds=GRID
    ),
    "tp pp dp, 70B, 8 x 8 H100": World(
        model="llama3-70b", cluster="dgx-h100", nodes=8, framework="megatron-core-bfloat16", batch=512, bounds=GRID
    ),
}


@cache
def outcome(name: str, plan: Plan, seed: int) -> tuple[Verdict, float, float]:
    """The verdict, the true seconds per step, and the true peak."""
    world, space = WORLDS[name], _space(name, told=True)
    if plan not in space:
        return Verdict.CRASHED, np.inf, np.inf
    training = Training(space.context.model, space.context.cluster, FRAMEWORKS[world.framework])
    true = truth(training, plan, seed)
    fits = true.peak_bytes <= space.context.cluster.device.memory_bytes
    return (Verdict.OK if fits else Verdict.OOM), true.step_s, true.peak_bytes


@cache
def _space(name: str, *, told: bool) -> Space:
    return WORLDS[name].space(told=told)


@cache
def best(name: str, seed: int) -> float:
    space = _space(name, told=True)
    found = (outcome(name, space[at], seed) for at in range(len(space)))
    return min(step_s for verdict, step_s, _ in found if verdict is Verdict.OK)


def trials_until(search: Search, name: str, seed: int, *, told: bool = False, peaks: bool = True) -> tuple[int, int]:
    """The trial that is near the best, MOST + 1 for none; and how many before it failed. peaks: the jobs tell them."""
    space, rng = _space(name, told=told), np.random.default_rng(seed)
    training = Training(space.context.model, space.context.cluster, FRAMEWORKS[WORLDS[name].framework])
    task, seen, failed = Task(space=space, training=training), list[Observation](), 0
    for number in range(1, MOST + 1):
        plans = search.ask(task, seen, 1).plans
        if not plans:
            break
        verdict, true_s, peak = outcome(name, plans[0], seed)
        if verdict is Verdict.OK:
            if true_s <= NEAR * best(name, seed):
                return number, failed
            step_s = true_s * float(np.exp(NOISE * rng.standard_normal()))
            measured = {"score": 1 / step_s, "step_time_s": step_s, "peak_bytes": peak if peaks else None}
            seen.append(Observation(plan=plans[0], verdict=verdict, **measured))
        else:
            failed += 1
            seen.append(Observation(plan=plans[0], verdict=verdict))
    return MOST + 1, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--search", default="physics,optuna,random")
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--no-peaks", action="store_true", help="The jobs tell no memory.")
    given = parser.parse_args()
    lines = ["| space | plans | search | median | 90 % | failed |", "|---|---|---|---|---|---|"]
    for name in WORLDS:
        for kind in [*given.search.split(","), *(["physics, told the model"] if given.told else [])]:
            told = kind.endswith("model")
            runs = [
                trials_until(
                    create_search(kind.partition(",")[0], seed=seed, options={}),
                    name,
                    seed,
                    told=told,
                    peaks=not given.no_peaks,
                )
                for seed in range(given.seeds)
            ]
            trials, failed = np.array(runs).T
            plans = len(_space(name, told=told))
            numbers = f"{np.median(trials):.0f} | {np.percentile(trials, 90):.0f} | {failed.mean():.1f}"
            lines.append(f"| {name} | {plans} | {kind} | {numbers} |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
