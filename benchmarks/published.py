"""The physics, uncalibrated, against published results of large runs; benchmarks/published.md explains every row.

`python benchmarks/published.py [--constant NAME=VALUE ...] [--json OUT]`. Nothing is measured here and no setting is
chosen by its error: where the source leaves a setting open, it is the fastest predicted one of those that should fit
(of all, where none should), and the table shows what the slowest of them would reach.

Exit status: 0, or 2 where an argument is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from published_rows import Published, Reading, rows
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import FloatColumn, columns_of
from meshtune.search_spaces.physics.constants import TIME_CONSTANTS, UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import Estimates, estimate
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan

TOLERANCE = 0.15
LIKELY = 0.5
PARTS: Mapping[TimePart, str] = {
    TimePart.COMPUTE: "compute",
    TimePart.RECOMPUTE: "again",
    TimePart.TP: "tp",
    TimePart.CP: "cp",
    TimePart.EP: "ep",
    TimePart.SEND_RECEIVE: "send",
    TimePart.BUBBLE: "bubble",
    TimePart.DP: "dp",
    TimePart.OPTIMIZER: "optim",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one row. other: of the setting that the source allows and that is predicted to be the slowest of those that
    should fit. shares: of the step, by part. fits: the probability that the setting fits the memory."""

    row: Published
    plan: Plan
    step_s: float
    value: float
    other: float
    fits: float
    shares: Mapping[TimePart, float]

    @property
    def error(self) -> float:
        """Relative to the published value; of a step's seconds, more is slower, of FLOP/s, more is faster."""
        return self.value / self.row.value - 1

    def as_dict(self) -> dict[str, Any]:
        row = self.row
        return {
            "group": row.group,
            "name": row.name,
            "reading": row.reading.value,
            "published": row.value,
            "predicted": self.value,
            "error": self.error,
            "slowest_open_setting": self.other,
            "step_s": self.step_s,
            "fits": self.fits,
            "devices": row.devices,
            "setting": self.plan.as_dict(),
            "open_settings": len(row.plans),
            "shares": {part.value: share for part, share in self.shares.items()},
            "code": row.training.framework.name,
            "source": row.source,
            "assumed": row.assumed,
            "unverified": row.unverified,
        }


def predict(row: Published, calibration: Calibration = UNCALIBRATED) -> Prediction:
    """What the physics says of the row, in the row's own reading."""
    estimates = estimate(row.training, columns_of(row.plans), calibration)
    likely = [at for at in range(len(row.plans)) if estimates.fits[at] >= LIKELY] or list(range(len(row.plans)))
    by_speed = sorted(likely, key=lambda at: -float(estimates.tokens_per_s[at]))
    chosen, values = by_speed[0], in_reading(row, estimates)
    step_s = float(estimates.time.step_s[chosen])
    return Prediction(
        row,
        row.plans[chosen],
        step_s,
        float(values[chosen]),
        float(values[by_speed[-1]]),
        float(estimates.fits[chosen]),
        {part: float(column[chosen]) / step_s for part, column in estimates.time.parts.items()},
    )


def in_reading(row: Published, estimates: Estimates) -> FloatColumn:
    """The estimates of the row's settings as the quantity that was published."""
    parts, step_s = estimates.time.parts, estimates.time.step_s
    if row.reading is Reading.SECONDS:
        return step_s
    if row.reading is Reading.BUBBLE_OF_STEP:
        return parts[TimePart.BUBBLE] / step_s
    if row.reading is Reading.BUBBLE_OF_PIPELINE:
        return parts[TimePart.BUBBLE] / (step_s - parts[TimePart.DP] - parts[TimePart.OPTIMIZER])
    counted: FloatColumn = estimates.tokens_per_s * flops_per_token(row.training, row.reading) / row.devices / 1e12
    return counted


def flops_per_token(training: Training, reading: Reading) -> float:
    """FLOPs that a source counts for one token. HARDWARE holds for models of two matrices of 4 hidden and as many key
    as query heads; `flops_per_token` of the model counts the rest (docs of Reading)."""
    model = training.model
    if reading is Reading.HARDWARE:
        relative = 1 + model.seq_len / (6 * model.hidden) + model.vocab / (16 * model.layers * model.hidden)
        return 96.0 * model.layers * model.hidden**2 * relative
    causal = 6.0 * model.layers * model.hidden * model.seq_len if reading is Reading.CAUSAL else 0.0
    return model.flops_per_token - causal


def show(predictions: Sequence[Prediction], console: Console) -> None:
    """Three tables: the values; where the predicted step's time goes, in percent; the settings."""
    values = _table("run", "reading", "published", "predicted", "error", "slowest", "step s", "P(fits)")
    for one in predictions:
        row = one.row
        error = f"{100 * one.error:+.1f} %" + (" *" if abs(one.error) > TOLERANCE else "")
        slowest = _number(one.other) if len(row.plans) > 1 else ""
        numbers = (_number(row.value), _number(one.value), error, slowest, f"{one.step_s:.2f}", f"{one.fits:.2f}")
        values.add_row(_name(row), row.reading.value, *numbers)
    console.print(values)
    within = sum(abs(one.error) <= TOLERANCE for one in predictions)
    told = f"{within} of {len(predictions)} within 15 %; * more; ? in part from memory, unverified\n"
    console.print(told, highlight=False)
    shares, settings = _table("per cent of the step", *PARTS.values()), _table("run", "devices", "setting")
    for one in {_name(one.row): one for one in predictions}.values():
        shares.add_row(_name(one.row), *(_share(one.shares[part]) for part in PARTS))
        settings.add_row(_name(one.row), str(one.row.devices), one.plan.key)
    console.print(shares)
    console.print()
    console.print(settings)


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=MARKDOWN)
    for heading in others:
        table.add_column(heading, justify="left" if heading in ("reading", "setting") else "right", no_wrap=True)
    return table


def _name(row: Published) -> str:
    return f"{row.group} {row.name}{'?' if row.unverified else ''}"


def document(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """What `--json` writes. Errors and shares are fractions."""
    within = sum(abs(one.error) <= TOLERANCE for one in predictions)
    return {"rows": [one.as_dict() for one in predictions], "within": within, "tolerance": TOLERANCE}


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f}" if value >= 0.005 else "" if value == 0 else "0"


def _constant(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in TIME_CONSTANTS:
        raise argparse.ArgumentTypeError(f"no constant {name!r}; there are: {', '.join(TIME_CONSTANTS)}")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} must be a number, not {value!r}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="published.py", description="The physics against published results.")
    parser.add_argument(
        "--constant",
        metavar="NAME=VALUE",
        type=_constant,
        action="append",
        default=[],
        help="instead of the default of search_spaces/physics/constants.py; may be repeated",
    )
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the rows there")
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        constants = replace(UNCALIBRATED.constants, **dict(given.constant))
        predictions = [predict(row, replace(UNCALIBRATED, constants=constants)) for row in rows()]
        show(predictions, console)
        if given.json is not None:
            text = json.dumps(document(predictions), indent=1, allow_nan=False)
            given.json.write_text(text + "\n", encoding="utf-8")
    except (InvalidValue, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
