"""The command that makes a spec: `import`. It stores nothing; with `--capture` it runs the user's launcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from meshtune.runners.programs.capture.process import read_process
from meshtune.runners.programs.capture.read import read_captured
from meshtune.runners.programs.capture.session import capture as capture_calls
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.sources import read_command, read_source
from meshtune.runners.untrusted_text import UnreadableText
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.presets import cluster_presets
from meshtune.tuner.cli.common import Refused, console, errors
from meshtune.tuner.specs.import_script import import_notes, missing, render_spec, spec_document

app = typer.Typer()


@app.command("import")
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
    words = source or []
    if cluster and cluster not in cluster_presets():
        raise Refused(f"--cluster: no cluster preset is called {cluster!r}; {did_you_mean(cluster, cluster_presets())}")
    if (bool(words), bool(command), pid is not None).count(True) != 1:
        raise Refused("give one of FILE, --command TEXT, --pid N, or --capture -- COMMAND")
    if len(words) > 1 and not capture:
        raise Refused(f"one file is imported, not {len(words)}; a command is run by `--capture -- COMMAND`")
    given = _settings(set_ or [])
    # What the spec is named after, and imported from.
    name, told = "process", f"process {pid}"
    try:
        if capture:
            captured = capture_calls(words, given)
            imported = read_captured(captured, start, format_)
            name, told = Path(captured.script or words[0]).stem, Path(captured.script or words[0]).name
        elif pid is not None:
            imported = read_process(pid, format_)
        elif command:
            name, told = "command", "a command line"
            imported = read_command(command, given=given, number=start, dialect=format_)
        else:
            name, told = Path(words[0]).stem, Path(words[0]).name
            imported = read_source(Path(words[0]), given=given, number=start, dialect=format_)
    except (CannotRead, UnreadableText) as error:
        place = "" if capture or pid or command or str(error).startswith(told) else f"{words[0]}: "
        raise Refused(f"{place}{error}") from None
    document = spec_document(imported, name=name, cluster=cluster, here=Path.cwd())
    notes = import_notes(imported, cluster)
    text = render_spec(document, told, notes)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        console.print(f"wrote {output}", soft_wrap=True)
    _tell(imported, notes, missing(document), output)


def _settings(words: Sequence[str]) -> dict[str, str]:
    given = {}
    for setting in words:
        name, joined, value = setting.partition("=")
        if not joined or not name.isidentifier():
            raise Refused(f"--set: must be NAME=VALUE, not {setting!r}")
        given[name] = value
    return given


def _tell(imported: Imported, notes: Sequence[str], gaps: Sequence[str], output: Path | None) -> None:
    """Notes, open questions, what is missing, and the next command, beside the spec."""
    for note in notes:
        errors.print(f"note: {note}", style="dim", markup=False, soft_wrap=True)
    for question in imported.questions:
        errors.print(f"open question: {question}", style="yellow", markup=False, soft_wrap=True)
    if gaps:
        errors.print(f"fill in before use: {', '.join(gaps)}", style="yellow", soft_wrap=True)
    spec = output or "SPEC"
    todo = []
    if imported.questions:
        todo.append(f"answer the open questions in {spec} and delete their lines")
    if gaps:
        todo.append("fill in what is missing")
    errors.print(f"next: {', '.join([*todo, ''])}meshtune spaces {spec}", markup=False, soft_wrap=True)
