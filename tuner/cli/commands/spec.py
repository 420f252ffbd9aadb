"""The command that writes a spec: `import`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from meshtune.runners.capture.read import read_captured
from meshtune.runners.capture.session import capture as capture_calls
from meshtune.runners.dialects.base import CannotRead, Imported
from meshtune.runners.untrusted_text import SLOW_LIMITS, UnreadableText, read_file
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.presets import cluster_presets
from meshtune.tuner.cli.common import Refused, console, errors
from meshtune.tuner.specs.import_script import import_notes, missing, parse_script, render_spec, spec_document

# The dialects of files by their suffix; any other file is a launch script.
_FORMATS = {".toml": "torchtitan", ".json": "deepspeed"}
_SCRIPT = "megatron"

app = typer.Typer()


@app.command("import")
def import_(
    source: Annotated[
        list[str],
        typer.Argument(metavar="FILE | -- COMMAND...", help="Launch script or configuration.", show_default=False),
    ],
    capture: Annotated[
        bool, typer.Option("--capture", help="Run COMMAND here with stand-ins that start no training; see the docs.")
    ] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="With --capture: a variable for it.")
    ] = None,
    number: Annotated[
        int, typer.Option("--command", min=0, help="With --capture: which of several starts, from 1.")
    ] = 0,
    format_: Annotated[
        str, typer.Option("--format", help="`megatron`, `deepspeed` or `torchtitan`; default: by the file's name.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="A cluster preset; nodes as the script says.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the spec there; default: print.")] = None,
) -> None:
    """Make a campaign spec of a launch script: its setting is the baseline, its other arguments stay as they are."""
    if cluster and cluster not in cluster_presets():
        raise Refused(f"--cluster: no cluster preset is called {cluster!r}; {did_you_mean(cluster, cluster_presets())}")
    if capture:
        if format_:
            raise Refused("--format goes with a file; with --capture the program says what it is")
        path, imported = _captured(source, set_ or [], number)
    elif set_ or number:
        raise Refused("--set and --command go with --capture")
    elif len(source) > 1:
        raise Refused(f"one file is imported, not {len(source)}; a command is run by `--capture -- COMMAND`")
    else:
        path = Path(source[0])
        imported = _imported(path, format_ or _FORMATS.get(path.suffix, _SCRIPT))
    document = spec_document(imported, name=path.stem, cluster=cluster, here=Path.cwd())
    text = render_spec(document, path.name, import_notes(imported, cluster))
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        console.print(f"wrote {output}", soft_wrap=True)
    for question in imported.questions:
        errors.print(f"open question: {question}", style="yellow", markup=False, soft_wrap=True)
    if gaps := missing(document):
        errors.print(f"fill in before use: {', '.join(gaps)}", style="yellow", soft_wrap=True)


def _imported(script: Path, kind: str) -> Imported:
    try:
        return parse_script(kind, read_file(script, SLOW_LIMITS.max_bytes, regular=False))
    except UnreadableText as error:
        raise Refused(f"{script}: {error}") from None
    except CannotRead as error:
        raise Refused(f"{script}: cannot be read as {kind}: {error}") from None


def _captured(command: Sequence[str], settings: Sequence[str], number: int) -> tuple[Path, Imported]:
    """The script that the command runs, and what the start that it comes to says."""
    given = {}
    for setting in settings:
        name, joined, value = setting.partition("=")
        if not joined or not name.isidentifier():
            raise Refused(f"--set: must be NAME=VALUE, not {setting!r}")
        given[name] = value
    try:
        captured = capture_calls(command, given)
        imported = read_captured(captured, number)
    except CannotRead as error:
        raise Refused(str(error)) from None
    for note in imported.notes:
        errors.print(note, style="yellow", markup=False, soft_wrap=True)
    return Path(captured.script or command[0]), imported
