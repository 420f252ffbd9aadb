"""The commands that measure a campaign's plans once more, by fresh jobs: `rerun`, do their speeds keep their order;
`revalidate`, does the optimum still stand. Nothing is stored."""

from __future__ import annotations

from typing import Annotated

import typer

from meshtune.runners.documents import plain
from meshtune.tuner.campaign.units import number
from meshtune.tuner.cli.common import find_campaign, open_service
from meshtune.tuner.cli.options import DEFAULT_HOME, CampaignId, DatabaseOption, HomeOption, JsonOption, print_json
from meshtune.tuner.cli.render.terminal import console, errors
from meshtune.tuner.results.export import NothingToExport, choose
from meshtune.tuner.results.revalidation import Remeasured, judge, to_measure
from meshtune.tuner.service.remeasure import remeasure

remeasure_app = typer.Typer()


@remeasure_app.command()
def rerun(
    campaign: CampaignId,
    trials: Annotated[
        list[str] | None, typer.Argument(help="`best`, `worst`, `recommended` or numbers; default: best worst.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Measure settings once more, by fresh jobs, and say whether their order holds. Stores nothing."""
    with open_service(home, db) as service:
        chosen = find_campaign(service, campaign)
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


@remeasure_app.command()
def revalidate(
    campaign: CampaignId,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Measure the optimum and the best other plan once more, and say whether the optimum still stands. Stores nothing.

    Exit code 0: it stands; 1: it is slower, fails, or another plan is better now.
    """
    with open_service(home, db) as service:
        chosen = find_campaign(service, campaign)
        trials = service.store.trials(chosen.id)
        entries = to_measure(chosen, trials)
        if not entries:
            raise NothingToExport(f"campaign {chosen.id} has no plan to measure again")
        outcomes = [outcome for _, outcome in remeasure(service, chosen, [entry.trial for entry in entries])]
    found = judge(chosen, trials, entries, outcomes)
    if as_json:
        print_json(plain(found))
    else:
        for name, one in (("optimum", found.optimum), ("runner-up", found.rival)):
            if one is not None:
                console.print(f"{name}, trial {one.trial}: {_line(one)}", soft_wrap=True)
        changes = found.optimum.software_changes.items()
        versions = ", ".join(f"{name} {before} -> {now}" for name, (before, now) in changes)
        console.print(f"software: {versions or 'as recorded'}", soft_wrap=True)
        console.print(found.words, style="green" if found.stands else "red", soft_wrap=True)
    raise typer.Exit(0 if found.stands else 1)


def _line(one: Remeasured) -> str:
    speeds = one.tokens_per_s_per_device
    now = f"{one.verdict}: {one.reason}" if speeds.now is None else number(speeds.now)
    return f"{one.plan_key}: recorded {number(speeds.recorded)}, now {now} tokens/s/device"
