"""The commands over what was measured: `export`, `analyze`, `recommend`, `export-data`, `report`, and `rerun` and
`revalidate`, which measure plans once more by fresh jobs: on a home they store nothing, at a service these are second
runs of the campaign."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import typer

from meshtune.runners.documents import MISSING, plain
from meshtune.runners.outcome import Outcome
from meshtune.runners.registry import require_extra
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import number
from meshtune.tuner.cli import commands
from meshtune.tuner.cli.common import Refused, console, errors, print_found
from meshtune.tuner.cli.opening import open_campaign, open_service
from meshtune.tuner.cli.opening import recorded as recorded  # also of the predictions, which load it when they run
from meshtune.tuner.cli.render.analysis import analysis_parts, recommendation_lines, revalidation_lines
from meshtune.tuner.cli.usage.options import Place
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.export import (
    FORMATS,
    NothingToExport,
    choose,
    command_of,
    export_of,
    handover_of,
    note_of,
    write_export,
)
from meshtune.tuner.results.known_best import (
    MAX_CAMPAIGNS,
    CampaignRecords,
    Question,
    best_measured,
    environment_text,
    software_versions,
)
from meshtune.tuner.results.known_best_projection import best_projected
from meshtune.tuner.results.ranking import Ranked
from meshtune.tuner.results.revalidation import judge, to_measure
from meshtune.tuner.results.table import TableFormat, data_of
from meshtune.tuner.service.service import remeasure
from meshtune.tuner.specs.document import parse_options


def export(campaign: str, output: Path, place: Place, *, trial: str, format: str, options: Sequence[str]) -> None:
    record = recorded(place, campaign)
    entry = choose(record.campaign, record.trials, trial)
    given = parse_options(options)
    form = FORMATS.get(format)
    if given and (not format or (form is not None and not form.program and not form.script)):
        told = f"--format {format} has" if format else "the formats json and job have"
        raise Refused(f"--option {next(iter(given))}: {told} no options; a scheduler's or program's format has")
    setting = export_of(record.campaign, entry, output, given)
    try:
        written = write_export(setting, output, format)
    except InvalidValue as error:
        raise Refused(f"--format {format}: {_option_mistakes(error, given)}") from None
    for path in written:
        console.print(f"wrote {path}", soft_wrap=True)
    if form is not None:
        texts = {path.name: path.read_text(encoding="utf-8") for path in written}
        if (command := command_of(setting, format, texts)) is not None:
            errors.print(f"start it in {output}: {command}", soft_wrap=True)
    if note := note_of(setting, format or "job"):
        errors.print(note, style="yellow", soft_wrap=True)
    if handover := handover_of(setting, format):
        errors.print(f"warning: {handover.warning}.", style="yellow", soft_wrap=True)
        errors.print(f"{handover.offer}:\n    {handover.confirm}{place.option}", soft_wrap=True)


def _option_mistakes(error: InvalidValue, given: Mapping[str, object]) -> str:
    """Each problem by the option that mends it, where it is one of an option."""
    told = []
    for problem in error.problems:
        if problem.message == MISSING:
            told.append(f"needs --option {problem.path}=...")
        else:
            told.append(f"--option {problem}" if problem.path.partition(".")[0] in given else str(problem))
    return "; ".join(told)


def analyze(campaign: str, place: Place, *, as_json: bool) -> None:
    if place.server:
        with commands.remote.open_remote(place, campaign) as remote:
            found = remote.analysis()
    else:
        record = recorded(place, campaign)
        found = analyse(record.campaign, space_of(record.campaign.spec), record.trials)
    print_found(plain(found), analysis_parts(found), as_json)


def recommend(
    place: Place,
    *,
    model: str,
    cluster: str,
    nodes: int,
    global_batch_size: int | None,
    workload: str,
    software: str,
    simulated: bool,
    as_json: bool,
    as_env: bool,
) -> None:
    question = Question(
        model=model,
        cluster=cluster,
        nodes=nodes,
        global_batch_size=global_batch_size,
        workload=workload or None,
        software=software_versions(software),
        simulated=simulated,
    )
    if place.server:
        found = commands.remote.recommend(question, place)
    else:
        with open_service(place.home, place.db) as service:
            records = CampaignRecords(service.store.readable_campaigns(limit=MAX_CAMPAIGNS), service.store.trials)
            found = best_measured(question, records) or best_projected(question, records)
    if as_env and not as_json:
        sys.stdout.write(environment_text(found))
    else:
        print_found(plain(found), recommendation_lines(found), as_json)


def rerun(campaign: str, trials: Sequence[str], place: Place) -> None:
    record = recorded(place, campaign)
    named = {entry.rank: entry for name in trials if (entry := choose(record.campaign, record.trials, name))}
    again: list[tuple[float, float]] = []
    for trial, outcome in _remeasured(place, record.campaign, list(named.values())):
        before = trial.measurement
        if before is None or outcome.measurement is None:
            errors.print(f"trial {trial.number}: {outcome.verdict}: {outcome.reason}", style="red")
            raise typer.Exit(1)
        again.append((before.tokens_per_s_per_device, outcome.measurement.tokens_per_s_per_device))
        console.print(
            f"trial {trial.number}: {trial.plan.key}: recorded {number(again[-1][0])}, "
            f"now {number(again[-1][1])} tokens/s/device"
        )
    holds = [now for _, now in sorted(again, reverse=True)] == sorted((now for _, now in again), reverse=True)
    console.print("the order holds" if holds else "the order does not hold", style="green" if holds else "red")
    raise typer.Exit(0 if holds else 1)


def revalidate(campaign: str, place: Place, *, as_json: bool) -> None:
    record = recorded(place, campaign)
    entries = to_measure(record.campaign, record.trials)
    if not entries:
        raise NothingToExport(f"campaign {record.campaign.id} has no plan to measure again")
    outcomes = [outcome for _, outcome in _remeasured(place, record.campaign, entries)]
    found = judge(record.campaign, record.trials, entries, outcomes)
    print_found(plain(found), revalidation_lines(found), as_json)
    raise typer.Exit(0 if found.stands else 1)


def _remeasured(place: Place, campaign: Campaign, entries: Sequence[Ranked]) -> Iterator[tuple[Trial, Outcome]]:
    """Each setting's trial with the outcome of a fresh job. At a service these are second runs of the campaign."""
    trials = [entry.trial for entry in entries]
    if place.server:
        yield from commands.remote.remeasure(place, campaign.id, trials)
        return
    with open_campaign(place.home, place.db, campaign.id) as (service, chosen):
        yield from remeasure(service, chosen, trials)


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
    from meshtune.tuner.results.report.campaigns import render_report

    found = {record.campaign.id: record for record in (recorded(place, campaign) for campaign in campaigns)}
    _write(output, render_report([(record.campaign, record.trials) for record in found.values()]).encode())


def _write(output: Path, body: bytes) -> None:
    output.write_bytes(body)
    console.print(f"wrote {output}", soft_wrap=True)
