"""The commands that help to write a spec, but for those that predict: `doctor`, `examples`, `sites` and `import`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from signal import SIGHUP, SIGTERM, signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshtune.search_spaces.checks import InvalidValue, did_you_mean, raising
from meshtune.tuner.cli.common import WrongCall, console, errors, print_found
from meshtune.tuner.cli.options import DEFAULT_HOME, HomeOption, JsonOption

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from rich.console import RenderableType

    from meshtune.runners.sites.profiles import Site
    from meshtune.tuner.service.self_test import SelfTest
    from meshtune.tuner.specs.import_script import ImportedSpec

app = typer.Typer()
PANEL = "Before a campaign"
FOLDER = "examples"
SPEC_FILE, SUFFIX = "campaign.yaml", ".yaml"
# What stands beside a spec: a script that trains, or the launch script that it was imported from.
BESIDE = (SPEC_FILE, "train.py", "launch.sh")
_SENTENCE = re.compile(r".*?[.?](?= |$)")


@app.command(rich_help_panel=PANEL, short_help="Look at this machine or allocation, and test the tuner on it.")
def doctor(
    skip_self_test: Annotated[
        bool, typer.Option("--skip-self-test", help="Only look: run no campaign, which takes up to a minute.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Show what this machine or allocation is, test the tuner on it, and list what would go wrong."""
    from meshtune.runners.devices.findings import Level, findings
    from meshtune.runners.machine import read_machine
    from meshtune.tuner.cli.render.doctor import doctor_page

    machine = read_machine(home, os.environ)
    problems = findings(machine)
    test: SelfTest | None = None
    if not skip_self_test:
        from meshtune.tuner.service.self_test import run_self_test, self_test_findings  # dear

        test = run_self_test(machine, _progress)
        problems = sorted([*problems, *self_test_findings(test)], key=lambda finding: [*Level].index(finding.level))
    document = {"machine": machine, "self_test": test, "findings": problems}
    print_found(document, doctor_page(machine, test, problems), as_json)
    if any(finding.level is Level.ERROR for finding in problems):
        raise typer.Exit(1)


def _progress(message: str) -> None:
    if errors.is_terminal:
        errors.print(message)


@app.command(rich_help_panel=PANEL, short_help="List specs to begin with, or write one here.")
def examples(
    name: Annotated[str, typer.Argument(help="The one to write; none: list all.", show_default=False)] = "",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Write `examples/` into this folder.")
    ] = Path(),
) -> None:
    """List the campaigns that come with meshtune, or write one: its spec, and the script that it trains with.

    It is written where the documentation has it, such as examples/demo.yaml, so that its commands work as they stand.
    """
    if not name:
        _list_examples()
        return
    name, every = name.removesuffix(SUFFIX), {**example_texts(), **study_texts()}
    if name not in every:
        raise WrongCall(f"there is no example {name!r}; {did_you_mean(name, every)}")
    texts = {output / FOLDER / file: text for file, text in every[name].items()}
    for file in texts:
        if file.exists():
            raise WrongCall(f"{file} is there already; write the example elsewhere with -o DIR, or remove it first")
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        console.print(f"wrote {file}", soft_wrap=True)
    spec = next(file for file in texts if file.suffix == SUFFIX).relative_to(output)
    place = "" if output == Path() else f"cd {output}; "
    command = f"study run {FOLDER}/{name}" if name in study_texts() else f"spaces {spec}"
    console.print(f"next: {place}meshtune {command}", soft_wrap=True)


def _list_examples() -> None:
    """Print every example with the first sentence of its spec."""
    from meshtune.tuner.cli.render.terminal import new_table

    table = new_table("", "example", "what it is")
    for name, files in sorted(example_texts().items()):
        table.add_row(name, first_sentence(next(text for file, text in files.items() if file.endswith(SUFFIX))))
    console.print(table)
    console.print("write one: meshtune examples NAME; studies of published work: meshtune study list")


def example_texts() -> Mapping[str, Mapping[str, str]]:
    """The texts of every example by their paths below `examples/`."""
    from importlib.resources import files

    texts: dict[str, dict[str, str]] = {}
    for entry in files("meshtune.examples").iterdir():
        if entry.name.endswith(SUFFIX):
            texts[entry.name.removesuffix(SUFFIX)] = {entry.name: _text(entry)}
        elif entry.is_dir() and (entry / SPEC_FILE).is_file():
            texts[entry.name] = {
                f"{entry.name}/{file}": _text(entry / file) for file in BESIDE if (entry / file).is_file()
            }
    return texts


def study_texts() -> Mapping[str, Mapping[str, str]]:
    """The texts of every study by their paths below `examples/`."""
    from meshtune.tuner.studies.study import shipped

    return {
        f"studies/{name}": {
            f"studies/{name}/{file.name}": _text(file) for file in folder.iterdir() if file.name.endswith(SUFFIX)
        }
        for name, folder in shipped().items()
    }


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def first_sentence(spec: str) -> str:
    """Of the comment that a spec begins with."""
    lines = []
    for line in spec.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    words = " ".join(lines)
    sentence = _SENTENCE.match(words)
    return sentence[0] if sentence else words


@app.command(rich_help_panel=PANEL, short_help="List the machines whose runner section is known, or show one.")
def sites(
    name: Annotated[
        str, typer.Argument(help="The one to show, or a profile's file; none: list all.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the profiles that `runner: {site: NAME}` takes, or show one: each value, its source and how sure it is.

    A site's own lie in ~/.config/meshtune/sites, or the folder that MESHTUNE_SITES names.
    """
    from meshtune.runners.sites.profiles import own_folder, site_names

    folder = own_folder()
    if name:
        site = _found(name, folder)
        print_found(site, _site_lines(name, site), as_json)
        return
    known = {each: (_found(each, folder), own) for each, own in site_names(folder).items()}
    document = [
        {"name": each, "about": site.about, "runner": site.kind, "cluster": site.cluster, "own": own}
        for each, (site, own) in known.items()
    ]
    print_found(document, _sites_page(known, folder), as_json)


def _site_lines(name: str, site: Site) -> Iterator[str]:
    yield site.about
    values: dict[str, Any] = {**({"cluster": site.cluster} if site.cluster else {}), **site.runner}
    for option, value in values.items():
        yield from _lines(option, value)
        if (evidence := site.evidence.get(option)) is not None:
            note = f"; {evidence.note}" if evidence.note else ""
            yield f"    {evidence.sure}: {evidence.source}{note}"
    needed = "".join(f", {option}: ..." for option in site.needs)
    yield f"in a spec: runner: {{site: {name}{needed}}}"


def _sites_page(sites: Mapping[str, tuple[Site, bool]], folder: Path) -> Iterator[RenderableType]:
    from meshtune.tuner.cli.render.terminal import new_table

    table = new_table("", "site", "runner", "cluster", "what it is")
    for name, (site, own) in sites.items():
        table.add_row(name, site.kind, site.cluster, site.about + (" (your own)" if own else ""))
    yield table
    yield f"show one: meshtune sites NAME; add your own in {folder}"


def _lines(option: str, value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{option}:", *(f"  {key}: {inner}" for key, inner in value.items())]
    if isinstance(value, list | tuple):
        return [f"{option}:", *(f"  - {inner}" for inner in value)]
    return [f"{option}: {value}"]


def _found(name: str, folder: Path) -> Site:
    """Raises WrongCall."""
    from meshtune.runners.sites.profiles import find_site, read_site_file
    from meshtune.tuner.specs.named_files import is_path

    with raising(WrongCall, "", InvalidValue):
        return read_site_file(Path(name)) if is_path(name) else find_site(name, folder)


@app.command("import", rich_help_panel=PANEL, short_help="Make a spec of a launch script or configuration.")
def import_(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | -- COMMAND...]", help="Launch script, configuration or log.", show_default=False
        ),
    ] = None,
    capture: Annotated[
        bool, typer.Option("--capture", help="Run COMMAND here with stand-ins that start no training; see the docs.")
    ] = False,
    command: Annotated[
        str, typer.Option("--command", metavar="TEXT", help="Read one command line, such as 'torchrun ... train.py'.")
    ] = "",
    pid: Annotated[
        int | None, typer.Option("--pid", min=1, help="Read a live process: a rank or its launcher.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable that the script finds.")
    ] = None,
    start: Annotated[int, typer.Option("--start", min=0, help="Which of several starts, from 1.")] = 0,
    format_: Annotated[str, typer.Option("--format", help="The program; default: what recognises the text.")] = "",
    cluster: Annotated[str, typer.Option(help="A cluster preset; nodes as the script says.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the spec there; default: print.")] = None,
) -> None:
    """Make a campaign spec of a training that you have: its setting is the baseline, the rest stays as it is.

    It is read from a launch script, a configuration file, a log, a command line or a live process; or from what a
    launcher calls when it runs with stand-ins.
    """
    from meshtune.runners.programs.capture.process import read_process
    from meshtune.runners.programs.capture.session import capture as capture_calls
    from meshtune.runners.programs.capture.session import read_captured
    from meshtune.runners.programs.dialects.base import CannotRead
    from meshtune.runners.programs.dialects.sources import read_command, read_source
    from meshtune.runners.untrusted_text import UnreadableText
    from meshtune.search_spaces.presets import cluster_presets
    from meshtune.tuner.specs.import_script import import_spec

    words = source or []
    if cluster and cluster not in cluster_presets():
        raise WrongCall(
            f"--cluster: no cluster preset is called {cluster!r}; {did_you_mean(cluster, cluster_presets())}"
        )
    if (bool(words), bool(command), pid is not None).count(True) != 1:
        raise WrongCall("give one of FILE, --command TEXT, --pid N, or --capture -- COMMAND")
    if len(words) > 1 and not capture:
        raise WrongCall(f"one file is imported, not {len(words)}; a command is run by `--capture -- COMMAND`")
    given = _settings(set_ or [])
    # What the spec is named after, and imported from.
    name, origin = "process", f"process {pid}"
    try:
        if capture:
            for end in (SIGTERM, SIGHUP):  # so that its folder is removed then too
                signal(end, lambda number, _: sys.exit(128 + number))
            devices = cluster_presets()[cluster]["devices_per_node"] if cluster else None
            captured = capture_calls(words, given, devices=devices)
            imported = read_captured(captured, start, format_)
            name, origin = Path(captured.script or words[0]).stem, Path(captured.script or words[0]).name
        elif pid is not None:
            imported = read_process(pid, format_)
        elif command:
            name, origin = "command", "a command line"
            imported = read_command(command, given=given, number=start, dialect=format_)
        else:
            name, origin = Path(words[0]).stem, Path(words[0]).name
            imported = read_source(Path(words[0]), given=given, number=start, dialect=format_)
    except (CannotRead, UnreadableText) as error:
        place = "" if capture or pid or command or str(error).startswith(origin) else f"{words[0]}: "
        raise WrongCall(f"{place}{error}") from None
    made = import_spec(imported, name=name, origin=origin, cluster=cluster, here=Path.cwd())
    if output is None:
        sys.stdout.write(made.spec)
    else:
        output.write_text(made.spec, encoding="utf-8")
        console.print(f"wrote {output}", soft_wrap=True)
    _tell(made, output)


def _settings(words: Sequence[str]) -> dict[str, str]:
    given = {}
    for setting in words:
        name, joined, value = setting.partition("=")
        if not joined or not name.isidentifier():
            raise WrongCall(f"--set: must be NAME=VALUE, not {setting!r}")
        given[name] = value
    return given


def _tell(made: ImportedSpec, output: Path | None) -> None:
    """Notes, open questions, what is missing, and the next command, beside the spec."""
    for note in made.notes:
        errors.print(f"note: {note}", style="dim", markup=False, soft_wrap=True)
    for question in made.questions:
        errors.print(f"open question: {question}", style="yellow", markup=False, soft_wrap=True)
    if made.missing:
        errors.print(f"fill in before use: {', '.join(made.missing)}", style="yellow", soft_wrap=True)
    spec = output or "SPEC"
    todo = []
    if made.questions:
        todo.append(f"answer the open questions in {spec} and delete their lines")
    if made.missing:
        todo.append("fill in what is missing")
    errors.print(f"next: {', '.join([*todo, ''])}meshtune spaces {spec}", markup=False, soft_wrap=True)
