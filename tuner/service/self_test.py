"""A self-test of this machine: two tiny real campaigns in a home of their own, driven by the loop of all campaigns.

`search` tunes a script whose fastest plan is drawn anew and told to the script alone, so it is known here whether
the search found it. `devices` trains the built-in trainer on all local devices."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshtune.runners.devices.facts import Machine
from meshtune.runners.devices.findings import Finding, Level, device_count
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.dialects.config_import import literal
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

# A campaign that still runs then is cancelled: the search, and both together.
SEARCH_LIMIT_S, LIMIT_S = 30.0, 60.0
# The axes of the planted script: 6 x (1 + 2 x 2) plans, since without recomputation there is no interval.
AXES: Mapping[str, Sequence[Any]] = {
    "micro_batch_size": (1, 2, 4, 8, 16, 32),
    "recompute": ("none", "selective", "full"),
    "recompute_interval": (1, 2),
}
SEARCH_TRIALS, STEPS, WARMUP = 20, 7, 2
# A step of the fastest plan, and how much longer it takes for each position that a plan is away from it on an axis.
FASTEST_STEP_S, SLOWDOWN = 0.02, 1.35
# How much slower than the planted plan the best one found may be: less than the slowdown of one position.
TOLERANCE = 0.15
# A job of this script: it waits as long as its plan takes, in place of training.
SCRIPT = """
import json
import sys
import time

from meshtune.runners.report import Reporter

planted, chosen = json.loads(sys.argv[1]), json.loads(sys.argv[2])
step_s = planted["step_s"]
for axis, values in planted["axes"].items():
    away = abs(values.index(planted["plan"][axis]) - values.index(chosen[axis]))
    step_s *= planted["slowdown"] ** away
reporter = Reporter()
done = False
while not done:
    time.sleep(step_s)
    done = reporter.step(loss=1.0)
reporter.done()
"""
TINY = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64}
MAX_CPU_RANKS = 2
# Of both campaigns.
ALIKE = {"model": TINY, "runner": {"kind": "local", "idle_s": 1}, "confirm": 0, "warm_start": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTest:
    """planted: the fastest setting. best: the plan that was measured the fastest. slower: how much slower it is than
    the planted one, by construction; found: it is the planted one, or as fast. trials: measured ones. reason: why the
    campaign ended, or why nothing was measured."""

    planted: str
    best: str
    found: bool
    slower: float | None
    trials: int
    plans: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesTest:
    """devices: how many ranks trained together, one on each. tokens_per_s: of the best trial. failure: the verdict and
    reason of the first trial that failed; empty where none did. reason: why the campaign ended. skipped: why nothing
    was run."""

    kind: str
    devices: int = 0
    trials: int = 0
    tokens_per_s: float | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""
    reason: str = ""
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    search: SearchTest
    devices: DevicesTest


def run_self_test(machine: Machine, progress: Callable[[str], None] = lambda _: None) -> SelfTest:
    """Takes about half a minute, a minute at most, and leaves nothing behind. progress: is told what begins."""
    with tempfile.TemporaryDirectory(prefix="meshtune-doctor-") as folder:
        home = Home(Path(folder) / "home")
        home.root.mkdir(mode=0o700)
        with Store.open(home.database_url) as store:
            service = Service(store, home)
            try:
                begun = time.monotonic()
                progress("self-test: a search for a planted plan")
                search = planted_search(service, random.SystemRandom())
                progress("self-test: training on all local devices")
                left_s = LIMIT_S - (time.monotonic() - begun)
                return SelfTest(search=search, devices=all_devices(service, machine, left_s))
            finally:
                service.close()


def self_test_findings(test: SelfTest) -> list[Finding]:
    findings = []
    search, devices = test.search, test.devices
    if not search.trials:
        finding = f"no trial of the self-test was measured: {search.reason}"
        mend = "run `meshtune run` on a spec of your own and read `meshtune show last`"
        findings.append(Finding(level=Level.ERROR, rule="self-test-failed", found=finding, mend=mend))
    elif not search.found:
        finding = f"the self-test's search ended {search.slower or 0:.0%} above its planted optimum ({search.reason})"
        mend = "repeat it on a quiet machine: it waits for times of 20 ms, which a loaded machine stretches"
        findings.append(Finding(level=Level.WARNING, rule="optimum-missed", found=finding, mend=mend))
    if devices.failure:
        finding = f"training on {devices.devices} local {devices.kind} devices failed: {devices.failure}"
        mend = "the findings above may name the cause; docs/reference/failures.md has the causes of failed trials"
        findings.append(Finding(level=Level.ERROR, rule="training-failed", found=finding, mend=mend))
    elif not devices.skipped and not devices.trials:
        finding = f"no step was trained on {devices.devices} local {devices.kind} devices: {devices.reason}"
        mend = "repeat it on a quiet machine; importing torch from a network disk takes a minute the first time"
        findings.append(Finding(level=Level.WARNING, rule="training-unfinished", found=finding, mend=mend))
    return findings


def planted_search(service: Service, source: random.Random) -> SearchTest:
    """source: where the planted plan is drawn from."""
    planted = {axis: source.choice(values) for axis, values in AXES.items()}
    if planted["recompute"] == "none":
        planted["recompute_interval"] = 1  # which changes nothing there
    axes = {axis: [*values] for axis, values in AXES.items()}
    secret = {"plan": planted, "axes": axes, "step_s": FASTEST_STEP_S, "slowdown": SLOWDOWN}
    chosen = [
        f'"{axis}": "{{{axis}}}"' if isinstance(values[0], str) else f'"{axis}": {{{axis}}}'
        for axis, values in AXES.items()
    ]
    # Not used; a script that is not told it could not keep the batch.
    chosen.append('"grad_accum_steps": {grad_accum_steps}')
    document = {
        "name": "self-test-search",
        "cluster": {"preset": "local-cpu", "devices_per_node": 1},
        "global_batch_size": max(AXES["micro_batch_size"]),
        "space": {**axes, "zero_stage": [0]},
        "workload": {
            "kind": "command",
            "command": ["{python}", "planted.py", literal(json.dumps(secret)), "{{" + ", ".join(chosen) + "}}"],
            "files": {"planted.py": literal(SCRIPT)},
            "steps": STEPS,
            "warmup_steps": WARMUP,
            "framework": "trainer-float32",
        },
        "budget": {"trials": SEARCH_TRIALS},
        "stop": {"chance": 0.01},
        "trial": {"time_limit_s": 20, "attempts": 1},
        "seed": source.randrange(2**31),
    }
    ended = _run(service, document, SEARCH_LIMIT_S)
    best = ended.best
    slower = None
    if best is not None:
        # In positions on the axes, as the script counts them.
        places = {axis: [*values].index for axis, values in AXES.items()}
        away = (abs(place(planted[axis]) - place(getattr(best.plan, axis))) for axis, place in places.items())
        slower = SLOWDOWN ** sum(away) - 1
    return SearchTest(
        planted=", ".join(f"{axis}={value}" for axis, value in planted.items()),
        best="" if best is None else best.plan.key,
        found=slower is not None and slower <= TOLERANCE,
        slower=slower,
        trials=ended.measured,
        plans=ended.plans,
        seconds=ended.seconds,
        reason=ended.reason if ended.measured else ended.failure or ended.reason,
    )


def all_devices(service: Service, machine: Machine, limit_s: float) -> DevicesTest:
    build = machine.torch
    kind = DeviceKind.CPU if build is None else DeviceKind(build.kind)
    devices = min(MAX_CPU_RANKS, machine.host.cores) if kind is DeviceKind.CPU else device_count(machine)
    if build is None:
        return DevicesTest(kind=str(kind), skipped="torch is not installed")
    memory = build.devices[0].memory_bytes if build.devices else 2 * 2**30
    document = {
        "name": "self-test-devices",
        "cluster": {
            "nodes": 1,
            "devices_per_node": devices,
            "device": {"name": "local device", "kind": str(kind), "memory_bytes": memory},
        },
        "global_batch_size": 4 * devices,
        "space": {"tp": [1], "pp": [1], "micro_batch_size": [1, 2, 4], "zero_stage": [0, 1]},
        "workload": {
            "kind": "torch",
            "dtype": "float32",
            "compile": False,
            "measuring": {"max_steps": 8, "max_seconds": 3, "profile_steps": 0, "max_warmup_steps": 3},
        },
        "search": "grid",
        "budget": {"trials": 3},
        "trial": {"time_limit_s": limit_s, "attempts": 1},
    }
    ended = _run(service, document, limit_s)
    measured = None if ended.best is None or ended.best.outcome is None else ended.best.outcome.measurement
    return DevicesTest(
        kind=str(kind),
        devices=devices,
        trials=ended.measured,
        tokens_per_s=None if measured is None else measured.tokens_per_s,
        software={} if measured is None else measured.software,
        seconds=ended.seconds,
        failure=ended.failure,
        reason=ended.reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    best: Trial | None
    measured: int
    plans: int
    # Of the first trial that failed by itself.
    failure: str
    reason: str
    seconds: float


def _run(service: Service, document: Mapping[str, Any], limit_s: float) -> _Ended:
    """A campaign to its end, which is a cancellation where it takes longer than the limit."""
    begun = time.monotonic()
    campaign = service.create({**ALIKE, **document}, drives=True)

    def watch() -> None:
        late = time.monotonic() - begun > limit_s
        if late and service.campaign(campaign.id).state is CampaignState.RUNNING:
            service.cancel(campaign.id)

    drive_one(Driver(service), service, campaign.id, watch)
    ended, trials = service.campaign(campaign.id), service.trials(campaign.id)
    ranking = rank(ended, trials)
    outcomes = [trial.outcome for trial in trials if trial.outcome]
    failed = next((one for one in outcomes if one.verdict not in (Verdict.OK, Verdict.CANCELLED)), None)
    return _Ended(
        best=ranking[0].trial if ranking else None,
        measured=len(ranking),
        plans=campaign.legal,
        failure="" if failed is None else f"{failed.verdict}: {failed.reason}".strip(": "),
        reason=f"no end within {limit_s:g} s" if time.monotonic() - begun > limit_s else ended.reason,
        seconds=time.monotonic() - begun,
    )
