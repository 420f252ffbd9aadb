"""The command that measures a campaign's winner with another program: `confirm`."""

from __future__ import annotations

from pathlib import Path

import typer

from meshtune.runners.documents import plain
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.cli.common import Refused, console, print_found, require_home
from meshtune.tuner.cli.following import work_on
from meshtune.tuner.cli.opening import open_campaign
from meshtune.tuner.cli.render.analysis import handover_lines
from meshtune.tuner.cli.usage.options import Place
from meshtune.tuner.results.export import FORMATS, NothingToExport, choose
from meshtune.tuner.results.handover import check_handover, rival_of
from meshtune.tuner.results.ranking import Ranked
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.confirming import confirming_document
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml


def confirm(campaign: str, spec: Path, place: Place, *, trial: str, as_json: bool) -> None:
    require_home(place, "confirm")
    with open_campaign(place.home, place.db, campaign) as (service, chosen):
        recorded = service.store.trials(chosen.id)
        winner = choose(chosen, recorded, trial)
        rival = rival_of(chosen, recorded, winner)
        if rival is None:
            told = "no measured plan of another layout and the same size to compare with; other programs know no knobs"
            raise NothingToExport(f"campaign {chosen.id} has {told}")
        there = _measured_there(service, chosen, winner, rival, spec, quiet=as_json)
        if not there.state.final:
            raise Refused(f"{there.id} is {there.state}: {there.reason}; `meshtune resume {there.id}` goes on")
        found = check_handover(chosen, recorded, winner, rival, there, service.store.trials(there.id))
    print_found(plain(found), handover_lines(found), as_json)
    if not as_json and found.confirmed and (kind := there.spec.workload.kind) in FORMATS:
        told = f"meshtune export {there.id} --format {kind} --output FOLDER"
        console.print(f"to export it as it ran there: {told}", soft_wrap=True)
    raise typer.Exit(0 if found.confirmed else 1)


def _measured_there(
    service: Service, source: Campaign, winner: Ranked, rival: Ranked, file: Path, *, quiet: bool
) -> Campaign:
    """The campaign of two trials, as it ended. quiet: say nothing meanwhile."""
    try:
        text = parse_yaml(read_file(file, SLOW_LIMITS.max_bytes, regular=False))
        plans = (winner.trial.plan, rival.trial.plan)
        document = confirming_document(text, source.spec, *plans, service.home)
    except (UnreadableText, InvalidSpec) as error:
        raise Refused(f"{file}: {source.id} cannot be confirmed with it:\n{error}") from None
    ended = work_on(service, service.create(document, drives=True), quiet=quiet)
    if not quiet:
        console.print(f"{ended.id} is {ended.state}: {ended.reason}", soft_wrap=True)
    return ended
