"""Projections on a terminal: a table for each kind of scaling, and a sentence for each wall."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.units import number, percent
from meshtune.tuner.cli.render.display import new_table
from meshtune.tuner.cli.render.quote import interval_s, interval_text, ranked_by, shares
from meshtune.tuner.prediction.scaling import Projection, Row, Scaling, count_nodes

TITLES = {
    Scaling.WEAK: "Weak scaling: the global batch grows with the devices",
    Scaling.STRONG: "Strong scaling: the global batch stays",
    Scaling.FREE: "The global batch is free",
}


def projection_parts(found: Projection) -> list[Table | Text]:
    """Everything of a projection, from top to bottom."""
    parts: list[Table | Text] = [
        Text(f"{found.name}: {found.model} on {found.device}, from {count_nodes(found.reference_nodes)}", style="bold")
    ]
    if found.measured_best is not None:
        best = found.measured_best
        ratio = best.predicted_tokens_per_s / best.tokens_per_s
        parts.append(
            Text(
                f"measured best: trial {best.trial}, {best.plan_key}, {number(best.tokens_per_s)} tokens/s; "
                f"predicted for it: {number(best.predicted_tokens_per_s)} ({100 * ratio:.0f} % of that)"
            )
        )
    for wall in found.walls:
        parts.append(_table([row for row in found.rows if row.scaling is wall.scaling], found.tokens))
        parts.append(Text(wall.sentence))
    parts += [Text(f"each row is the best plan there, {ranked_by(known=True)}"), Text(f"basis: {found.basis.words}")]
    return parts


def _table(rows: Sequence[Row], tokens: float | None) -> Table:
    table = new_table(TITLES[rows[0].scaling])
    for name in ("nodes", "devices", "batch"):
        table.add_column(name, justify="right")
    table.add_column("setting", overflow="fold")
    for name in ("step (95 %)", "tokens/s", "MFU (95 %)", "P(fits)", "speed-up", "efficiency"):
        table.add_column(name, justify="right")
    for name in () if tokens is None else (f"days for {tokens:.3g} tokens", "device-hours"):
        table.add_column(name, justify="right")
    table.add_column("time by part, %", overflow="fold")
    for row in rows:
        batch = "-" if row.global_batch_size is None else str(row.global_batch_size)
        table.add_row(str(row.nodes), str(row.devices), batch, *_cells(row, tokens))
    return table


def _cells(row: Row, tokens: float | None) -> list[str]:
    best = row.best
    if best is None or best.speed is None:
        return [row.reason]
    speed = best.speed
    # The interval of MFU is that of the throughput.
    mfu = speed.tokens_per_s.times(speed.mfu / speed.tokens_per_s.value)
    cells = [best.plan_key, interval_s(speed.step_s), number(speed.tokens_per_s.value)]
    cells += [interval_text(percent(mfu.value), percent(mfu.low), percent(mfu.high)), percent(best.p_fits)]
    cells += ["-" if row.speedup is None else f"{row.speedup:.2f}"]
    cells += ["-" if row.efficiency is None else percent(row.efficiency)]
    if tokens is not None and row.run is not None:
        days = row.run.days
        cells += [f"{number(days.value)} ({number(days.low)} - {number(days.high)})"]
        cells += [number(row.run.device_hours.value)]
    return [*cells, shares(best)]
