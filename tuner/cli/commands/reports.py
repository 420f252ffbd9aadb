"""The commands that write what a campaign measured for others: `export-data` and `report`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from meshtune.runners.registry import require_extra
from meshtune.tuner.cli.common import Refused, console
from meshtune.tuner.cli.opening import recorded
from meshtune.tuner.cli.usage.options import Place
from meshtune.tuner.results.table import TableFormat, data_of


def export_data(campaign: str, place: Place, *, format: str, output: Path | None) -> None:
    form = TableFormat(format)
    if form is TableFormat.PARQUET:
        require_extra("parquet", "writing Parquet")
        if output is None:
            raise Refused("--format parquet: needs -o FILE: it is no text")
    record = recorded(place, campaign)
    body = data_of(record.campaign, record.trials, form)
    if output is None:
        sys.stdout.write(body.decode())
    else:
        _write(output, body)


def report(campaigns: Sequence[str], place: Place, *, output: Path) -> None:
    require_extra("report", "a report")
    from meshtune.tuner.service.reporting import render_report

    found = {record.campaign.id: record for record in (recorded(place, campaign) for campaign in campaigns)}
    _write(output, render_report([(record.campaign, record.trials) for record in found.values()]))


def _write(output: Path, body: bytes) -> None:
    output.write_bytes(body)
    console.print(f"wrote {output}", soft_wrap=True)
