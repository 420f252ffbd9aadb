"""The command line: `meshtune run|resume|show|best|export|rerun|spaces|pause|cancel|serve`.

Exit codes: 0 done; 1 the campaign ended without a measured setting; 2 a mistake in what was asked for, or something
that meshtune needs and does not get, told in one message; 130 interrupted, and the campaign can be resumed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from runners.base import RunnerError
from search_spaces.checks import InvalidValue, Problem
from search_spaces.plan import PLAN_FIELDS
from tuner import display
from tuner.campaign import Campaign
from tuner.documents import InvalidSpec, parse_yaml, read_spec
from tuner.driver import Driver, drive_one
from tuner.export import NothingToExport, choose, ranked_document, recommendation_document, write_export
from tuner.paths import Home
from tuner.recommend import rank, recommend
from tuner.remeasure import remeasure
from tuner.search.base import SearchError
from tuner.service import Service
from tuner.store import Store, StoreError
from tuner.work import CampaignBusy

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Find the fastest way to lay one training job over one cluster.",
)
console = Console()
errors = Console(stderr=True, highlight=False)

SpecFile = Annotated[Path, typer.Argument(help="Campaign spec, YAML.", show_default=False)]
CampaignId = Annotated[str, typer.Argument(help="Campaign id, or `last` for the newest.", show_default=False)]
HomeOption = Annotated[
    Path, typer.Option("--home", envvar="MESHTUNE_HOME", help="Folder with the database and the jobs' files.")
]
DatabaseOption = Annotated[
    str, typer.Option("--db", envvar="MESHTUNE_DB", help="Database URL; default: SQLite in the home folder.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DEFAULT_HOME = Path(".meshtune")
# What a user can mend; anything else is a defect of ours and keeps its traceback.
USER_ERRORS = (InvalidSpec, InvalidValue, StoreError, RunnerError, SearchError, CampaignBusy, NothingToExport, OSError)


@contextmanager
def _service(home: Path, db: str) -> Iterator[Service]:
    """The service over a home folder and its database, which are created where they are missing."""
    place = Home(home.absolute())
    if not db:
        place.root.mkdir(parents=True, exist_ok=True)
    with Store.open(db or place.database_url) as store:
        service = Service(store, place)
        try:
            yield service
        finally:
            service.close()


def _read_document(spec: Path) -> object:
    try:
        text = spec.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidSpec([Problem("", "is not a text file in UTF-8")]) from None
    return parse_yaml(text)


def _campaign(service: Service, campaign_id: str) -> Campaign:
    if campaign_id == "last":
        newest = service.store.campaigns(limit=1)
        if not newest:
            raise NothingToExport("there is no campaign yet; start one with `meshtune run spec.yaml`")
        return newest[0]
    return service.store.campaign(campaign_id)


@app.command()
def run(spec: SpecFile, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Create a campaign from a spec and work on it until it is done. Ctrl-C leaves it to `meshtune resume`."""
    document = _read_document(spec)
    read_spec(document, Home(home.absolute()))  # before anything is created, so that a mistake leaves nothing behind
    with _service(home, db) as service:
        _work_on(service, service.create(document))


@app.command()
def resume(campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Go on with a campaign that was interrupted or paused."""
    with _service(home, db) as service:
        known = _campaign(service, campaign)
        _work_on(service, service.resume(known.id) if known.state.resting else known)


@app.command()
def pause(campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """Start no more trials; running ones are measured to their end."""
    with _service(home, db) as service:
        console.print(f"{service.pause(_campaign(service, campaign).id).id} is paused")


@app.command()
def cancel(campaign: CampaignId, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = "") -> None:
    """End a campaign and its running jobs; what was measured stays."""
    with _service(home, db) as service:
        known = service.cancel(_campaign(service, campaign).id)
        try:
            drive_one(Driver(service), service, known.id, lambda: None)
        except CampaignBusy as busy:
            console.print(f"{known.id} is being cancelled: {busy}")
        else:
            console.print(f"{known.id} is {service.store.campaign(known.id).state}")


@app.command()
def show(
    campaign: Annotated[str, typer.Argument(help="Campaign id or `last`; none: all campaigns.")] = "",
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Show all campaigns, or one with every trial."""
    with _service(home, db) as service:
        if not campaign:
            known = service.store.campaigns(limit=50)
            counts = service.store.verdict_counts([entry.id for entry in known])
            console.print(display.campaigns_table([(entry, counts.get(entry.id, {})) for entry in known]))
            return
        chosen = _campaign(service, campaign)
        trials = service.store.trials(chosen.id)
        console.print(display.header(chosen))
        console.print(f"state: {chosen.state}{': ' + chosen.reason if chosen.reason else ''}")
        console.print(display.trials_table(trials))


@app.command()
def best(
    campaign: CampaignId,
    top: Annotated[int, typer.Option(min=1, help="How many settings.")] = 10,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Print the best settings measured, with intervals, memory and the gain over the baseline."""
    with _service(home, db) as service:
        chosen = _campaign(service, campaign)
        trials = service.store.trials(chosen.id)
        if as_json:
            _print_json(
                {
                    "campaign": chosen.id,
                    "recommendation": recommendation_document(chosen, recommend(chosen, trials)),
                    "best": [ranked_document(chosen, entry) for entry in rank(chosen, trials)[:top]],
                }
            )
        else:
            _print_best(chosen, service, top)


@app.command()
def export(
    campaign: CampaignId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")],
    trial: Annotated[str, typer.Option(help="`recommended`, `best`, `worst` or a trial's number.")] = "recommended",
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Write a setting as setting.json, and as the job file that measures it again."""
    with _service(home, db) as service:
        chosen = _campaign(service, campaign)
        entry = choose(chosen, service.store.trials(chosen.id), trial)
        for path in write_export(service, chosen, entry, output):
            console.print(f"wrote {path}", soft_wrap=True)


@app.command()
def rerun(
    campaign: CampaignId,
    trials: Annotated[
        list[str] | None, typer.Argument(help="`best`, `worst`, `recommended` or numbers; default: best worst.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Measure settings once more, by fresh jobs, and say whether their order holds. Stores nothing."""
    with _service(home, db) as service:
        chosen = _campaign(service, campaign)
        recorded = service.store.trials(chosen.id)
        entries = [choose(chosen, recorded, selector) for selector in trials or ["best", "worst"]]
        again: list[tuple[float, float]] = []
        for trial, outcome in remeasure(service, chosen, [entry.trial for entry in entries]):
            before = trial.measurement
            if before is None or outcome.measurement is None:
                errors.print(f"trial {trial.number}: {outcome.verdict}: {outcome.reason}", style="red")
                raise typer.Exit(1)
            again.append((before.tokens_per_s_per_device, outcome.measurement.tokens_per_s_per_device))
            console.print(
                f"trial {trial.number}: {trial.plan.key}: recorded {display.number(again[-1][0])}, "
                f"now {display.number(again[-1][1])} tokens/s/device"
            )
        holds = [now for _, now in sorted(again, reverse=True)] == sorted((now for _, now in again), reverse=True)
        console.print("the order holds" if holds else "the order does not hold", style="green" if holds else "red")
        raise typer.Exit(0 if holds else 1)


@app.command()
def spaces(
    spec: SpecFile,
    why: Annotated[str, typer.Option(help="Explain one plan, such as tp=4,pp=2,zero_stage=1.")] = "",
    plans: Annotated[bool, typer.Option("--list", help="List every legal plan.")] = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Show the space of a spec: how many plans are legal, what rejects the others, why a plan is not legal."""
    _, space = read_spec(_read_document(spec), Home(home.absolute()))
    if why:
        plan = space.complete(**_plan_fields(why))
        broken = space.explain(plan)
        console.print(f"{plan.key}: {'illegal' if broken else 'legal'}", highlight=False)
        for violation in broken:
            console.print(f"  {violation.constraint}: {violation.message}; {violation.reason}", highlight=False)
        return
    console.print(display.dimensions_text(space), highlight=False)
    console.print(display.space_table(space))
    if plans:
        for plan in space:
            console.print(plan.key, highlight=False)


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = "",
) -> None:
    """Serve the REST API, and drive every active campaign of this home."""
    import uvicorn

    os.environ["MESHTUNE_HOME"] = str(home.absolute())
    if db:
        os.environ["MESHTUNE_DB"] = db
    with _service(home, db):
        pass  # a database that cannot be used is told here, in one message
    uvicorn.run("api.app:from_environment", factory=True, host=host, port=port, timeout_graceful_shutdown=2)


def _work_on(service: Service, campaign: Campaign) -> None:
    """Drive a campaign with live progress, and print its result."""
    driver = Driver(service)
    try:
        if console.is_terminal:
            _drive_live(driver, service, campaign.id)
        else:
            _drive_logged(driver, service, campaign)
    except KeyboardInterrupt:
        console.print(
            f"\nInterrupted. Running trials go on by themselves and are collected by `meshtune resume {campaign.id}`; "
            f"`meshtune cancel {campaign.id}` ends them."
        )
        raise typer.Exit(130) from None
    ended = service.store.campaign(campaign.id)
    console.print(f"{ended.id} is {ended.state}: {ended.reason}")
    ranking = rank(ended, service.store.trials(ended.id))
    _print_best(ended, service, 10)
    if not ranking and ended.state.final:
        raise typer.Exit(1)


def _drive_live(driver: Driver, service: Service, campaign_id: str) -> None:
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def watch() -> None:
            campaign = service.current(campaign_id)
            trials = service.store.trials(campaign_id)
            trouble = driver.troubles.get(campaign_id, "")
            live.update(display.progress(campaign, trials, rank(campaign, trials), time.time(), trouble))

        drive_one(driver, service, campaign_id, watch)


def _drive_logged(driver: Driver, service: Service, campaign: Campaign) -> None:
    console.print(display.header(campaign), soft_wrap=True, highlight=False)
    told: set[int] = {trial.number for trial in service.store.trials(campaign.id) if trial.state.final}
    trouble_told = ""

    def watch() -> None:
        nonlocal trouble_told
        for trial in service.store.trials(campaign.id):
            if trial.state.final and trial.number not in told:
                told.add(trial.number)
                console.print(display.trial_line(trial), soft_wrap=True, highlight=False)
        trouble = driver.troubles.get(campaign.id, "")
        if trouble and trouble != trouble_told:
            errors.print(f"waiting: {trouble}", style="yellow")
        trouble_told = trouble

    drive_one(driver, service, campaign.id, watch)


def _print_best(campaign: Campaign, service: Service, top: int) -> None:
    trials = service.store.trials(campaign.id)
    ranking = rank(campaign, trials)
    wide = Console(width=max(console.width, 140)) if not console.is_terminal else console
    if ranking:
        wide.print(display.best_table(campaign, ranking, top))
    failures = display.failure_counts(trials)
    if failures:
        console.print("failures: " + ", ".join(f"{count} {kind}" for kind, count in failures.items()))
    console.print(display.recommendation_text(recommend(campaign, trials)))


def _plan_fields(text: str) -> dict[str, Any]:
    """Plan fields from `name=value,name=value`. Raises InvalidValue."""
    given: dict[str, Any] = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name not in PLAN_FIELDS:
            raise InvalidValue([Problem(name, f"is not a field of a plan; known: {', '.join(PLAN_FIELDS)}")])
        given[name] = int(value) if value.lstrip("-").isdigit() else value
    return given


def _print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def _message(error: Exception) -> str:
    if isinstance(error, InvalidSpec):
        lines = "\n".join(f"  {problem}" for problem in error.problems)
        count = len(error.problems)
        return f"the spec has {count} mistake{'s' if count > 1 else ''}:\n{lines}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return str(error)


def main() -> None:
    """The entry point of the `meshtune` command."""
    try:
        app()
    except USER_ERRORS as error:
        errors.print(f"meshtune: {_message(error)}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
