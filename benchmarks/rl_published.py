"""What the physics predicts for published settings of reinforcement learning, beside what is said of them.

    python benchmarks/rl_published.py [--update]

The settings (benchmarks/rl_published/*.toml) are facts of public pages in our own words: all of them ran, some have the
seconds of a step. Legal: by the rules of the space; fits: with a probability above one half; order: of two settings of
one model that differ by a tenth or more, the predicted times have the order of the published ones. --update writes
docs/explanation/physics-rl.md's table."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from meshtune.runners.programs.named_models import preset_named
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.physics.estimate import estimate, estimate_phases
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import usable_bytes
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.specs.read import read_spec

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/explanation/physics-rl.md"
FILES = sorted((HERE / "rl_published").glob("*.toml"))
# Of two published times that differ by less nobody knows the order.
APART = 1.1
GIB = 2**30
console = Console(width=240, highlight=False, markup=False)


@dataclass(frozen=True, slots=True)
class Predicted:
    """gib, p_fits: by phase. parts_s: of a step; of the updates together."""

    setting: Mapping[str, Any]
    gib: Mapping[str, float]
    p_fits: Mapping[str, float]
    step_s: float
    parts_s: Mapping[str, float]

    @property
    def fits(self) -> bool:
        return min(self.p_fits.values()) > 0.5

    @property
    def ratio(self) -> float | None:
        published = self.setting.get("step_s")
        return published and self.step_s / published


def document_of(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The setting as a spec, whose baseline must be legal."""
    rollout = setting["rollout"]
    recipe = ("beside", "loss_kernel", "mean_tokens")
    return {
        "name": setting["name"],
        "model": {**preset_named(setting["model"]), "seq_len": rollout["prompt_tokens"] + rollout["answer_tokens"]},
        "cluster": setting["cluster"],
        "global_batch_size": setting["global_batch_size"],
        "training": {"rollout": rollout, **{key: setting[key] for key in recipe if key in setting}},
        "baseline": setting["plan"],
        "workload": {"kind": "command", "framework": setting["framework"]},
    }


def predict(setting: Mapping[str, Any]) -> Predicted:
    """Raises InvalidSpec where the setting is not legal."""
    spec, _ = read_spec(document_of(setting), None)
    assert spec.baseline is not None
    training, columns = training_of(spec), columns_of([spec.baseline])
    with np.errstate(all="ignore"):
        phases = estimate_phases(training, columns, UNCALIBRATED)
        time = estimate(training, columns).time
    own = (TimePart.GENERATION, TimePart.LOG_PROBS, TimePart.REFIT)
    parts = {str(part): float(time.parts[part][0]) for part in own}
    return Predicted(
        setting,
        {phase: float(one.peak_bytes[0]) / GIB for phase, one in phases.items()},
        {phase: float(one.fits(usable_bytes(training))[0]) for phase, one in phases.items()},
        float(time.step_s[0]),
        {**parts, "updates": float(time.step_s[0]) - sum(parts.values())},
    )


def settings() -> list[Mapping[str, Any]]:
    return [one for file in FILES for one in tomllib.loads(file.read_text())["setting"]]


def order(found: list[Predicted]) -> list[tuple[Predicted, Predicted, bool]]:
    """The pairs of one model on one kind of device, and whether the predictions have the published order."""
    timed = [one for one in found if one.ratio]
    pairs = []
    for one, other in combinations(timed, 2):
        alike = all(one.setting[key] == other.setting[key] for key in ("model", "framework"))
        alike &= one.setting["cluster"]["preset"] == other.setting["cluster"]["preset"]
        published = one.setting["step_s"] / other.setting["step_s"]
        if alike and max(published, 1 / published) >= APART:
            pairs.append((one, other, (one.step_s > other.step_s) == (published > 1)))
    return pairs


def table(found: list[Predicted]) -> str:
    lines = [
        "| setting | P(fits): generation, log-probabilities, update | generation, log-probabilities, refit, updates, s "
        "| step, s | published, s |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        chances = ", ".join(f"{one.p_fits[phase]:.2f}" for phase in ("generation", "log_probs", "steady"))
        times = ", ".join(f"{one.parts_s[part]:.3g}" for part in ("generation", "log_probs", "refit", "updates"))
        published = one.setting.get("step_s", "")
        lines.append(f"| {one.setting['name']} | {chances} | {times} | {one.step_s:.3g} | {published} |")
    pairs = order(found)
    ratios = np.log([one.ratio for one in found if one.ratio])
    right = sum(right for *_, right in pairs)
    lines += [
        "",
        f"{len(found)} settings, all legal; {sum(one.fits for one in found)} fit. Of {len(pairs)} pairs of one model",
        f"on one kind of device {right} are in the published order. Predicted over published time:",
        f"median {np.exp(np.median(ratios)):.2f}, from {np.exp(ratios.min()):.2f} to {np.exp(ratios.max()):.2f}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    found = [predict(one) for one in settings()]
    text = table(found)
    console.print(text)
    for one, other, right in order(found):
        if not right:
            console.print("not in order:", one.setting["name"], other.setting["name"])
    if parser.parse_args().update:
        page = PAGE.read_text()
        head, _, rest = page.partition("<!-- figures -->")
        PAGE.write_text(f"{head}<!-- figures -->\n{text}\n<!-- end -->{rest.partition('<!-- end -->')[2]}")


if __name__ == "__main__":
    main()
