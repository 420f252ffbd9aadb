"""The commands that judge a spec before anything is tuned: its space, what its campaign will meet, and the constants
that this is predicted with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from meshtune.search_spaces.checks import InvalidValue, did_you_mean, raising
from meshtune.tuner.cli.commands.fit import BatchOption, MethodOption, OnOption, ProgramOption, SeqOption
from meshtune.tuner.cli.common import WrongCall, console, errors, print_found, print_page
from meshtune.tuner.cli.options import (
    LEAST_EFFICIENCY,
    ClusterFileOption,
    HomePlace,
    JsonOption,
    Place,
    SpecFile,
    placed,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from meshtune.search_spaces.plan import Plan
    from meshtune.tuner.campaign.spec import CampaignSpec
    from meshtune.tuner.campaign.trial import Trial
    from meshtune.tuner.prediction.predict import ExactMemory
    from meshtune.tuner.specs.calibrating import CalibrationSetup

app = typer.Typer()
PANEL = "Before a campaign"
# What names a spec, where a campaign may stand as well.
SPEC_SUFFIXES = (".yaml", ".yml", ".json")
# Plans that are listed at the most: a second's work.
MAX_LISTED = 100_000
# In a log, on a pipe.
TELL_EVERY_S = 10.0
CalibrateOption = Annotated[
    str, typer.Option("--calibrate", help="Learn from this campaign: an id, its beginning, or `last`.")
]


@app.command(rich_help_panel=PANEL, short_help="Count the legal plans of a spec; say why one is not legal.")
@placed
def spaces(
    spec: SpecFile,
    place: HomePlace,
    why: Annotated[str, typer.Option(help="Explain one plan, such as tp=4,zero=1,KNOB=value.")] = "",
    plans: Annotated[bool, typer.Option("--list", help="List every legal plan.")] = False,
    knobs: Annotated[bool, typer.Option("--knobs", help="Say what each knob adds.")] = False,
    cluster: ClusterFileOption = None,
) -> None:
    """Show the space of a spec: how many plans are legal, what rejects the others, why a plan is not legal."""
    from meshtune.search_spaces.knobs import count_with_knobs
    from meshtune.tuner.cli.render.display import space_table, space_text
    from meshtune.tuner.cli.render.knobs import knobs_table
    from meshtune.tuner.cli.spec_file import read_spec_file, stored_basis
    from meshtune.tuner.cli.telling import print_missing
    from meshtune.tuner.specs.knobs import plan_fields
    from meshtune.tuner.specs.read import quoted

    document, campaign_spec, space = read_spec_file(spec, None, cluster)
    print_missing(campaign_spec, None)
    if why:
        plan = space.complete(**plan_fields(why, space.knobs))
        broken = space.explain(plan)
        console.print(f"{plan.key}: {'illegal' if broken else 'legal'}", soft_wrap=True)
        for violation in broken:
            console.print(f"  {violation.constraint}: {violation.message}; {violation.reason}", soft_wrap=True)
        return
    quote = quoted(document, campaign_spec, space, stored_basis(campaign_spec, place))
    print_page([space_text(space), *quote.memory_needs, space_table(space), *quote.limits.words])
    if knobs:
        if not space.knobs:
            raise WrongCall("--knobs: the spec has no knobs; `meshtune knobs` lists catalogs of them")
        console.print(knobs_table(space, count_with_knobs(space)))
    if plans:
        listed = space.listing(MAX_LISTED)
        if listed is None:
            raise WrongCall(f"--list: {space.plans} plans are more than {MAX_LISTED}")
        for index, codes in zip(*listed, strict=True):
            console.print(space.plan(int(index), codes.tolist()).key, soft_wrap=True)


@app.command(rich_help_panel=PANEL, short_help="List the catalogs of knobs that a spec may name, or show one.")
def knobs(
    catalog: Annotated[str, typer.Argument(help="The one to show; none: list all.", show_default=False)] = "",
    as_json: JsonOption = False,
) -> None:
    """List the catalogs that `catalogs: [NAME]` in a spec takes, or show one: each knob, its values, how a job is told,
    its source, and its risk. `catalogs: [CATALOG.KNOB]` takes one knob."""
    from meshtune.tuner.cli.render.knobs import catalog_lines, catalogs_lines
    from meshtune.tuner.results.views import catalogs_view
    from meshtune.tuner.specs.knobs import read_catalogs

    known = read_catalogs()
    if catalog and catalog not in known:
        raise WrongCall(f"no catalog is called {catalog!r}; {did_you_mean(catalog, known)}")
    shown = {catalog: known[catalog]} if catalog else known
    page = catalog_lines(catalog, known[catalog]) if catalog else catalogs_lines(known)
    print_found(catalogs_view(shown), page, as_json)


@app.command(rich_help_panel=PANEL, short_help="Measure the physics' constants on one node, for all sizes.")
@placed
def calibrate(
    place: HomePlace,
    spec: Annotated[Path | None, typer.Argument(help="Campaign spec, YAML.", show_default=False)] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Of the spec's cluster; default: 1.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Of one node, in place of all of it.")] = None,
    trials: Annotated[int, typer.Option(min=3, help="How many at the most.")] = 8,
    cluster: ClusterFileOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured; start nothing.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the stored calibrations.")] = False,
    delete: Annotated[str, typer.Option(metavar="CAMPAIGN", help="Delete a stored calibration.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Measure the physics' constants on one node, and keep them for predictions and searches on any number of nodes.

    Eight short trials of the spec's own training code. They hold for its device, training code and release.
    """
    from meshtune.tuner.campaign.campaign import Home
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.cli.render.predictions import calibrations_table
    from meshtune.tuner.cli.spec_file import read_spec_file
    from meshtune.tuner.cli.telling import dry_run_lines
    from meshtune.tuner.prediction.predict import Basis
    from meshtune.tuner.prediction.quote import make_quote
    from meshtune.tuner.results.calibrations import calibration_view
    from meshtune.tuner.specs.calibrating import calibration_setup
    from meshtune.tuner.specs.document import InvalidSpec

    if sum((spec is not None, listed, bool(delete))) != 1:
        raise WrongCall("calibrate: give one of SPEC, --list and --delete CAMPAIGN")
    if listed:
        with open_service(place) as service:
            calibrations = [calibration_view(one) for one in service.store.calibrations.newest_first()]
        print_found({"calibrations": calibrations}, [calibrations_table(calibrations)], as_json)
    elif delete:
        with open_service(place) as service:
            service.store.calibrations.remove(delete)
        console.print(f"the calibration {delete} is deleted; its campaign stays", soft_wrap=True)
    elif spec is not None:
        # The runner need not have the whole cluster.
        _, campaign_spec, _ = read_spec_file(spec, None, cluster)
        with raising(WrongCall, f"{spec}: cannot be calibrated", InvalidSpec):
            setup = calibration_setup(
                campaign_spec, Home(place.home.absolute()), nodes=nodes, devices=devices, trials=trials
            )
        if not as_json:
            console.print(f"calibrating {'; '.join(setup.notes)}", soft_wrap=True)
        if dry_run:
            print_page(dry_run_lines(setup.spec, make_quote(setup.spec, setup.space, Basis()), place.home))
        else:
            _measure(setup, place, as_json=as_json)


def _measure(setup: CalibrationSetup, place: HomePlace, *, as_json: bool) -> None:
    """Raises WrongCall where it stores nothing."""
    from meshtune.tuner.cli.at_home import open_service
    from meshtune.tuner.cli.following import work_on
    from meshtune.tuner.cli.render.predictions import calibration_parts
    from meshtune.tuner.results.calibrations import calibration_view

    with open_service(place, create=True) as service:
        ended = work_on(service, service.add(setup.spec, setup.space.totals, drives=True), quiet=as_json)
        stored = next((one for one in service.store.calibrations.newest_first() if one.campaign == ended.id), None)
    if stored is None:
        # A paused one may be resumed, one that has failed says why.
        raise WrongCall(f"{ended.id} is {ended.state}: {ended.reason}")
    view = calibration_view(stored)
    if not as_json:
        console.print(f"{ended.id} is {ended.state}: {ended.reason}", soft_wrap=True)
    print_found(view, calibration_parts(view), as_json)


@app.command(rich_help_panel=PANEL, short_help="Predict what a campaign will find and cost; exact memory.")
@placed
def estimate(
    spec: Annotated[Path, typer.Argument(metavar="SPEC|MODEL|LAUNCH", help="A spec; with --on as of `fit`.")],
    place: Place,
    exact: Annotated[bool, typer.Option("--exact", help="Run the trainer on tensors without memory.")] = False,
    plan: Annotated[str, typer.Option("--why", "--plan", help="One plan, such as tp=8,zero=1,KNOB=value.")] = "",
    rank: Annotated[
        list[int] | None, typer.Option(min=0, help="With --exact: a rank; default: one per kind of stage.")
    ] = None,
    calibrate: CalibrateOption = "",
    cluster: ClusterFileOption = None,
    model: Annotated[
        str, typer.Option(help="In place of the spec's model: a preset, or a config.json with the spec's seq_len.")
    ] = "",
    on: OnOption = "",
    seq: SeqOption = None,
    method: MethodOption = "",
    program: ProgramOption = "fsdp",
    batch: BatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict what a campaign will meet: plans that fit, the best of them, its cost; or why not one plan.

    Of a model or a launch in place of a spec, --on and the options behind it are as of `meshtune fit`.

    With --exact: peak memory per pipeline stage of a plan (default: baseline, else predicted best), in up to minutes.
    """
    from meshtune.runners.documents import plain
    from meshtune.tuner.cli.render.predictions import exact_memory_parts, explanation_parts, quote_parts
    from meshtune.tuner.cli.spec_file import read_spec_file, stored_basis
    from meshtune.tuner.cli.telling import first_plan
    from meshtune.tuner.prediction.predict import Basis, check_same, learn
    from meshtune.tuner.prediction.quote import Quote, explain
    from meshtune.tuner.specs.document import InvalidSpec
    from meshtune.tuner.specs.knobs import plan_fields
    from meshtune.tuner.specs.read import quoted, read_spec

    words = None
    if on or not (spec.exists() or str(spec).endswith(SPEC_SUFFIXES)):
        from meshtune.tuner.specs.fit_words import document_here, said

        with raising(WrongCall, "", InvalidValue, InvalidSpec):
            told = said(model=str(spec), on=on, seq=seq, method=method, program=program, batch=batch)
            described, _ = document_here(told)
            words = described, *read_spec(described, None)
    elif seq or method or batch:
        raise WrongCall("--seq, --method and --batch go with a model; a spec has model.seq_len, training and its batch")
    if place.server and not (words or exact or plan or rank or calibrate):
        from meshtune.tuner.cli.at_service import AtService

        quote = AtService(place).estimate(spec, cluster=cluster, model=model)
        print_found(quote, quote_parts(quote), as_json)
        return
    document, campaign_spec, space = words or read_spec_file(spec, None, cluster, model)
    chosen = space.complete(**plan_fields(plan, space.knobs)) if plan else None
    if exact and calibrate:
        raise WrongCall("--calibrate goes with predictions, and --exact predicts nothing")
    if rank and not exact:
        raise WrongCall("--rank goes with --exact")
    if exact:
        if (chosen := chosen or campaign_spec.baseline) is None:
            quote = quoted(document, campaign_spec, space, stored_basis(campaign_spec, place))
            chosen, which = first_plan(campaign_spec, quote)
            errors.print(f"the spec names no baseline: of the plan {which}", soft_wrap=True)
        memory = _estimated_exactly(campaign_spec, chosen, rank or [])
        print_found(memory, exact_memory_parts(memory), as_json)
        return
    if place.server and not calibrate:
        from meshtune.tuner.client.client import Client

        with Client(place.server) as client:
            answer = client.estimate(document) if chosen is None else client.why(document, plan)
    else:
        if calibrate:
            record = place.record(calibrate)
            check_same(record.campaign.spec, campaign_spec)
            # The service's own calibrations are not known here.
            start = Basis() if place.server else stored_basis(campaign_spec, place, record.trials)
            basis = learn(record.campaign.label, record.campaign.spec, record.trials, start)
        else:
            basis = stored_basis(campaign_spec, place)
        if chosen is None:
            answer = quoted(document, campaign_spec, space, basis)
        else:
            answer = explain(campaign_spec, space, chosen, basis)
    if isinstance(answer, Quote):
        print_found(answer, quote_parts(answer), as_json)
        return
    found = plain(answer)
    # No campaign is asked, and the violations have another name than over REST.
    del found["trial"]
    print_found({"broken": found.pop("violations"), **found}, explanation_parts(answer), as_json)


def _estimated_exactly(spec: CampaignSpec, plan: Plan, ranks: Sequence[int]) -> ExactMemory:
    """With its duration told before it starts; then a bar on a terminal, and a line now and then elsewhere."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

    from meshtune.tuner.campaign.units import seconds
    from meshtune.tuner.prediction.predict import estimate_exactly

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar,
        _told_now_and_then(bar, wanted=not errors.is_terminal),
    ):
        task = bar.add_task("", expected_s=0.0)

        def show(done: float, total: float) -> None:
            if done:
                expected_s = (bar.tasks[0].elapsed or 0.0) * total / done
                bar.update(task, completed=done, total=total, expected_s=expected_s)
            else:
                errors.print(f"this takes about {seconds(total)}, judged by one layer; Ctrl-C ends it", soft_wrap=True)
                bar.reset(task, total=total, expected_s=total)

        return estimate_exactly(spec, plan, ranks, show)


@contextmanager
def _told_now_and_then(bar: Progress, *, wanted: bool) -> Iterator[None]:
    """By a thread: one part of the work may take minutes. How long it takes in all is told as it was judged, then at
    the pace that is seen."""
    from meshtune.tuner.campaign.units import seconds

    ended = Event()

    def tell() -> None:
        while not ended.wait(TELL_EVERY_S):
            passed_s, expected_s = bar.tasks[0].elapsed or 0.0, bar.tasks[0].fields["expected_s"]
            rest = f" of about {seconds(max(passed_s, expected_s))}"
            errors.print(
                seconds(passed_s) + (rest if expected_s else ": PyTorch is loaded, and one layer timed"), soft_wrap=True
            )

    thread = Thread(target=tell, daemon=True)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if wanted:
            thread.join()


@app.command(rich_help_panel=PANEL, short_help="Predict speed and efficiency at other node counts.")
@placed
def project(
    place: Place,
    source: Annotated[str, typer.Argument(metavar="CAMPAIGN|SPEC", help="What it learns from, or a spec.")] = "last",
    nodes: Annotated[str, typer.Option(help="Node counts, such as 1,2,4; default: the spec's, doubled 5 times.")] = "",
    plan: Annotated[
        str, typer.Option(help="The same layout on every node count, such as tp=8,mbs=2; dp follows from the devices.")
    ] = "",
    wall: Annotated[
        float, typer.Option(min=0.01, max=1, help="The least efficiency that still pays.")
    ] = LEAST_EFFICIENCY,
    tokens: Annotated[float | None, typer.Option(help="Days and device-hours to train on so many.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the best plan, or one layout's time, MFU and efficiency at other node counts, and where scaling ends."""
    from meshtune.tuner.cli.render.predictions import projection_parts
    from meshtune.tuner.cli.spec_file import read_spec_file, stored_basis
    from meshtune.tuner.prediction.predict import learn
    from meshtune.tuner.prediction.projection import layout_of, node_counts
    from meshtune.tuner.prediction.scaling import make_projection

    if tokens is not None and not 0 < tokens < float("inf"):
        raise WrongCall(f"--tokens: must be positive, not {tokens:g}")
    of_spec = source.endswith(SPEC_SUFFIXES)
    if of_spec:
        document, spec, _ = read_spec_file(Path(source), None)
    if place.server:
        if wall != LEAST_EFFICIENCY or tokens is not None:
            option = "--wall" if wall != LEAST_EFFICIENCY else "--tokens"
            raise WrongCall(f"project {option} is for campaigns of a home on this machine: a service does not take it")
        from meshtune.tuner.cli.at_service import AtService
        from meshtune.tuner.client.client import Client

        counts = node_counts(nodes, 1) if nodes else ()
        if of_spec:
            with Client(place.server) as client:
                projection = client.project(document, nodes=counts, plan=plan)
        else:
            with AtService(place).opened(source) as chosen:
                projection = chosen.projection(counts, plan)
    else:
        trials: Sequence[Trial] = ()
        if of_spec:
            basis = stored_basis(spec, place)
        else:
            record = place.record(source)
            campaign, trials, spec = record.campaign, record.trials, record.campaign.spec
            basis = learn(campaign.label, spec, trials, stored_basis(spec, place, trials))
        counts = node_counts(nodes, spec.cluster.nodes)
        projection = make_projection(
            spec, basis, counts, least_efficiency=wall, tokens=tokens, trials=trials, plan=layout_of(plan)
        )
    print_found(projection, projection_parts(projection), as_json)
