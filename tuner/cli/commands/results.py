"""The commands over what was measured: `export`, `analyze`, `recommend`, and `rerun` and `revalidate`, which measure
plans once more by fresh jobs. They store nothing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from meshtune.runners.documents import plain
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.units import number
from meshtune.tuner.cli.common import (
    DEFAULT_HOME,
    CampaignId,
    DatabaseOption,
    HomeOption,
    JsonOption,
    console,
    errors,
    open_campaign,
    open_service,
    print_found,
)
from meshtune.tuner.cli.render.analysis import analysis_parts, recommendation_lines, revalidation_lines
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.export import FORMATS, NothingToExport, choose, export_of, handover_of, write_export
from meshtune.tuner.results.known_best import (
    MAX_CAMPAIGNS,
    CampaignRecords,
    Question,
    best_measured,
    environment_text,
    software_versions,
)
from meshtune.tuner.results.known_best_projection import best_projected
from meshtune.tuner.results.revalidation import judge, to_measure
from meshtune.tuner.service.service import remeasure
from meshtune.tuner.specs.document import parse_options


def export(
    campaign: CampaignId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")],
    trial: Annotated[str, typer.Option(help="`recommended`, `best`, `worst` or a trial's number.")] = "recommended",
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}; default: json and job.")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="name=value for the format's scheduler or program, such as queue=gpu.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Write a setting as setting.json and as the job file that measures it again, or in another program's words."""
    with open_campaign(home, db, campaign) as (service, chosen):
        entry = choose(chosen, service.store.trials(chosen.id), trial)
        setting = export_of(chosen, entry, output, parse_options(option or []))
        for path in write_export(setting, output, format):
            console.print(f"wrote {path}", soft_wrap=True)
        if handover := handover_of(setting, format):
            errors.print(f"warning: {handover.warning}.", style="yellow", soft_wrap=True)
            there = "" if home == DEFAULT_HOME else f" --home {shlex.quote(str(home))}"
            errors.print(f"{handover.offer}:\n    {handover.confirm}{there}", soft_wrap=True)


def analyze(
    campaign: CampaignId, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = ""
) -> None:
    """Say what the trials teach: the knobs that matter, failures, what was expected, why the best plans win."""
    with open_campaign(home, db, campaign) as (service, chosen):
        trials = service.store.trials(chosen.id)
    found = analyse(chosen, space_of(chosen.spec), trials)
    print_found(plain(found), analysis_parts(found), as_json)


def recommend(
    model: Annotated[str, typer.Option(help="The model's name, as campaigns or presets have it.")],
    cluster: Annotated[str, typer.Option(help="The cluster's name, as campaigns or presets have it.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes the job gets.")],
    global_batch_size: Annotated[int | None, typer.Option(min=1, help="Default: as it was measured.")] = None,
    workload: Annotated[str, typer.Option(help="The training code; default: the newest campaign's.")] = "",
    software: Annotated[str, typer.Option(help="What the job runs on, such as torch=2.13,cuda=13.0.")] = "",
    simulated: Annotated[bool, typer.Option("--simulated", help="Of simulated campaigns alone.")] = False,
    as_json: JsonOption = False,
    as_env: Annotated[bool, typer.Option("--env", help="Print MESHTUNE_... lines for a shell.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Print the best known plan for a model on some nodes of a cluster: measured, or projected and said to be."""
    question = Question(
        model=model,
        cluster=cluster,
        nodes=nodes,
        global_batch_size=global_batch_size,
        workload=workload or None,
        software=software_versions(software),
        simulated=simulated,
    )
    with open_service(home, db) as service:
        records = CampaignRecords(service.store.readable_campaigns(limit=MAX_CAMPAIGNS), service.store.trials)
        found = best_measured(question, records) or best_projected(question, records)
    if as_env and not as_json:
        sys.stdout.write(environment_text(found))
    else:
        print_found(plain(found), recommendation_lines(found), as_json)


def rerun(
    campaign: CampaignId,
    trials: Annotated[
        list[str] | None, typer.Argument(help="`best`, `worst`, `recommended` or numbers; default: best worst.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Measure settings once more, by fresh jobs, and say whether their order holds. Stores nothing."""
    with open_campaign(home, db, campaign) as (service, chosen):
        recorded = service.store.trials(chosen.id)
        named = {entry.rank: entry for name in trials or ["best", "worst"] if (entry := choose(chosen, recorded, name))}
        entries = list(named.values())
        again: list[tuple[float, float]] = []
        for trial, outcome in remeasure(service, chosen, [entry.trial for entry in entries]):
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


def revalidate(
    campaign: CampaignId, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = ""
) -> None:
    """Measure the optimum and the best other plan once more, and say whether the optimum still stands. Stores nothing.

    Exit code 0: it stands; 1: it is slower, fails, or another plan is better now.
    """
    with open_campaign(home, db, campaign) as (service, chosen):
        trials = service.store.trials(chosen.id)
        entries = to_measure(chosen, trials)
        if not entries:
            raise NothingToExport(f"campaign {chosen.id} has no plan to measure again")
        outcomes = [outcome for _, outcome in remeasure(service, chosen, [entry.trial for entry in entries])]
    found = judge(chosen, trials, entries, outcomes)
    print_found(plain(found), revalidation_lines(found), as_json)
    raise typer.Exit(0 if found.stands else 1)
