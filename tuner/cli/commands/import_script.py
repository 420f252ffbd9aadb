"""The command `import`: a launch script of another trainer becomes a campaign spec. Nothing is started or stored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshtune.runners.dialects.base import CannotRead
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.presets import cluster_presets
from meshtune.tuner.cli.common import Refused
from meshtune.tuner.cli.render.terminal import console, errors
from meshtune.tuner.specs.import_script import import_notes, missing, parse_script, render_spec, spec_document

import_app = typer.Typer()
# What a file's name says of its dialect; any other is a launch script.
_FORMATS = {".toml": "torchtitan", ".json": "deepspeed"}
_SCRIPT = "megatron"


@import_app.command("import")
def import_(
    script: Annotated[Path, typer.Argument(help="Launch script or configuration.", show_default=False)],
    format_: Annotated[
        str, typer.Option("--format", help="`megatron`, `deepspeed` or `torchtitan`; default: by the file's name.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="A cluster preset; nodes as the script says.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the spec there; default: print.")] = None,
) -> None:
    """Make a campaign spec of a launch script: its setting is the baseline, its other arguments stay as they are."""
    if cluster and cluster not in cluster_presets():
        raise Refused(f"--cluster: no cluster preset is called {cluster!r}; {did_you_mean(cluster, cluster_presets())}")
    kind = format_ or _FORMATS.get(script.suffix, _SCRIPT)
    try:
        imported = parse_script(kind, script.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise Refused(f"{script}: is not a text file in UTF-8") from None
    except CannotRead as error:
        raise Refused(f"{script}: cannot be read as {kind}: {error}") from None
    document = spec_document(imported, name=script.stem, cluster=cluster, here=Path.cwd())
    text = render_spec(document, script.name, import_notes(imported, cluster))
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        console.print(f"wrote {output}", soft_wrap=True)
    if gaps := missing(document):
        errors.print(f"fill in before use: {', '.join(gaps)}", style="yellow", soft_wrap=True)
