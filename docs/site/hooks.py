"""Pages that the site generates: the command line's reference, from the commands themselves."""

from __future__ import annotations

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from meshtune.tuner.cli.main import app


def on_files(files: Files, config: MkDocsConfig) -> Files:
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="meshtune", title="Command line")
    files.append(File.generated(config, "reference/cli.md", content=text))
    return files
