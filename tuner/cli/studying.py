"""Published work repeated, and its figures printed beside ours.

A study's campaigns run by the service's own loop, one after the other, in a home folder of the study's own. A
campaign's id is the name that the study has for it, so that a study that was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from meshtune.runners.documents import plain
from meshtune.runners.extras import MissingExtra, require_extra
from meshtune.runners.json_files import write_whole
from meshtune.runners.registry import runners
from meshtune.search_spaces.checks import did_you_mean, problems_as
from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.cli.at_home import open_service
from meshtune.tuner.cli.common import WrongCall, console, errors, print_json, print_page
from meshtune.tuner.cli.options import HomePlace
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.cli.spec_file import mistaken, yaml_file
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import NotFound
from meshtune.tuner.studies.evidence import Evidence, Run
from meshtune.tuner.studies.findings import SIMULATED, StudyReport, cells, find, headings, misses, verdict_text
from meshtune.tuner.studies.read import LoadedStudy, Planned, load_study, read_study
from meshtune.tuner.studies.study import STUDY_FILE, Study, shipped

STUDY_JSON, REPORT = "study.json", "report.html"


def show() -> None:
    console.print(_study_list({name: read_study(folder) for name, folder in shipped().items()}))
    console.print("run one: meshtune study run NAME")


def repeat(name: str, output: Path | None, home: Path, *, runner: str, with_file: Path | None, as_json: bool) -> None:
    folder = _folder(name)
    place = (home / "studies" / folder.name if output is None else output).absolute()
    sections = _sections(runner, with_file)
    with problems_as(partial(mistaken, f"the study {folder.name}")):
        loaded = load_study(folder, Home(place), sections)
    with open_service(HomePlace(place, ""), create=True) as service:
        try:
            evidence = _evidence(service, loaded)
        except KeyboardInterrupt:
            console.print("\nInterrupted. Running trials go on by themselves; the same command goes on with the study.")
            raise typer.Exit(130) from None
    report = find(loaded, evidence)
    document = plain(report)
    write_whole(place / STUDY_JSON, json.dumps(document, indent=1) + "\n")
    wrote = [STUDY_JSON, *_write_page(loaded, report, evidence, place)]
    if as_json:
        print_json(document)
        return
    print_page(_study_lines(loaded.study, report))
    console.print(
        f"wrote {' and '.join(wrote)} in {place}; its campaigns: meshtune show --home {place}", soft_wrap=True
    )


def _write_page(loaded: LoadedStudy, report: StudyReport, evidence: Evidence, place: Path) -> list[str]:
    """The name of the file, or none, said on standard error, where the libraries of reports are missing."""
    try:
        require_extra("report", "the page of a study")
    except MissingExtra as missing:
        errors.print(f"no {REPORT}: {missing}", soft_wrap=True)
        return []
    from meshtune.tuner.studies.report import study_page

    write_whole(place / REPORT, study_page(loaded, report, evidence))
    return [REPORT]


def _evidence(service: Service, loaded: LoadedStudy) -> Evidence:
    """Run the campaigns with a line of progress on a terminal, else with a line for each."""
    if not errors.is_terminal:
        return run_campaigns(service, loaded, lambda planned: errors.print(f"{planned.id} ..."))
    with errors.status("") as status:

        def watch(planned: Planned) -> None:
            at = 1 + loaded.planned.index(planned)
            status.update(f"{planned.id} (campaign {at} of {len(loaded.planned)})")

        return run_campaigns(service, loaded, watch)


def _folder(name: str) -> Traversable:
    """Raises WrongCall."""
    if (Path(name) / STUDY_FILE).is_file():
        return Path(name).resolve()
    known = shipped()
    if name not in known:
        hint = did_you_mean(name, known)
        raise WrongCall(f"there is no study {name!r}, and no folder of that name with a {STUDY_FILE}; {hint}")
    return known[name]


def _sections(runner: str, with_file: Path | None) -> dict[str, Any]:
    """What takes the place of the specs' own sections. Raises WrongCall."""
    sections: dict[str, Any] = {}
    if with_file is not None:
        try:
            document = yaml_file(with_file, f"--with {with_file}: ")
        except OSError as error:
            raise WrongCall(f"--with {with_file}: {error.strerror or error}") from None
        if not isinstance(document, dict):
            raise WrongCall(f"--with {with_file}: must be a mapping of sections of a spec")
        sections = document
    if runner:
        if runner not in runners():
            raise WrongCall(f"--runner {runner}: no runner is called so; {did_you_mean(runner, runners())}")
        own = sections.get("runner")
        sections = {**sections, "runner": {**(own if isinstance(own, dict) else {}), "kind": runner}}
    return sections


def _study_list(studies: Mapping[str, Study]) -> RenderableType:
    table = new_table("", "study", "what it repeats", "source", "what it shows", spare=("what it shows", "source"))
    for name, study in studies.items():
        paper = study.paper
        table.add_row(name, study.title, f"{paper.authors} {paper.year}, {paper.source}", study.shows.split(". ")[0])
    return table


def _study_lines(study: Study, report: StudyReport) -> Iterator[RenderableType | str]:
    """One table, published beside ours, then why what is off is off."""
    yield f"{report.study}: {study.title} ({study.paper.authors} {study.paper.year}, {study.paper.source})"
    if report.simulated:
        yield SIMULATED
    names = headings(report)
    table = new_table("", *names, right=names[2:6], spare=(names[6], names[1], names[3], names[5]))
    for one in report.findings:
        table.add_row(*cells(one))
    yield table
    yield verdict_text(report)
    for name, why in misses(report):
        yield f"* {name}: {why}"


def run_campaigns(service: Service, loaded: LoadedStudy, watch: Callable[[Planned], None]) -> Evidence:
    """Run what has not run yet. watch: called before each campaign. Raises WrongCall, and what driving raises."""
    for planned in loaded.planned:
        _known(service, planned)  # before any is started
    found: dict[str, list[Run]] = defaultdict(list)
    for planned in loaded.planned:
        watch(planned)
        found[planned.name].append(_run(service, planned))
    return dict(found)


def _known(service: Service, planned: Planned) -> bool:
    """Whether it is there. Raises WrongCall where it has another spec: it is of another study, or of another state of
    this one."""
    try:
        campaign = service.store.campaign(planned.id)
    except NotFound:
        return False
    if campaign.spec != planned.spec:
        there = f"{service.home.root}: the campaign {planned.id} there"
        raise WrongCall(f"{there} has another spec: name another folder with -o DIR")
    return True


def _run(service: Service, planned: Planned) -> Run:
    if not _known(service, planned):
        service.add(planned.spec, planned.space.totals, drives=True, id=planned.id)
    elif service.store.campaign(planned.id).state is CampaignState.PAUSED:
        service.resume(planned.id)
    if not service.store.campaign(planned.id).state.final:
        drive_one(Driver(service), service, planned.id, lambda: None)
    return Run(
        seed=planned.seed,
        campaign=service.store.campaign(planned.id),
        space=planned.space,
        trials=tuple(service.store.trials(planned.id)),
    )
