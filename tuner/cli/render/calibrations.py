"""Stored calibrations on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from meshtune.tuner.campaign.units import number, percent
from meshtune.tuner.cli.render.tables import new_table
from meshtune.tuner.results.calibrations import CalibrationView

# A constant is told when what is known of it has grown by this share.
MIN_LEARNT = 0.1


def calibrations_table(found: Sequence[CalibrationView]) -> Table:
    numbers = ("devices", "trials", "scatter of times")
    columns = ("campaign", "made (UTC)", "device", "framework", "version", "model")
    table = new_table("", *columns, *numbers, right=numbers)
    for one in found:
        cells = (one.campaign, f"{one.created_at:%Y-%m-%d %H:%M}", one.device, one.framework, one.version or "-")
        table.add_row(*cells, one.model, str(one.devices), str(one.trials), percent(one.time_log_sd))
    return table


def calibration_parts(found: CalibrationView) -> list[Table | str]:
    """The constants that the trials told something of, and what is left."""
    numbers = ("before", "measured", "known to, before", "now")
    table = new_table("", "constant", *numbers, right=numbers)
    unseen = []
    for one in found.constants:
        if one.log_sd > (1 - MIN_LEARNT) * one.default_log_sd:
            unseen.append(one.name)
            continue
        spreads = (percent(one.default_log_sd), percent(one.log_sd))
        table.add_row(one.name, number(one.default), number(one.value), *spreads)
    told = f"predictions scatter by {percent(found.time_log_sd)} around measured times, "
    told += f"{percent(found.memory_log_sd)} around measured memory"
    left = [f"not to be seen in these trials, so as before: {', '.join(unseen)}"] if unseen else []
    return [table, told, *left]
