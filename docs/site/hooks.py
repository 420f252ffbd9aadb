"""What the site generates: the command line's reference from the commands, and tables of keys from the fields."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from meshtune.tuner.cli.main import app

sys.path.insert(0, str(Path(__file__).parent))
import keys

EXIT_CODES = """
## Exit codes

| code | meaning |
|---|---|
| 0 | done, or paused; the reason is printed |
| 1 | no measured setting; `db check`, `doctor`: problems; `confirm`, `revalidate`, `rerun`: other results |
| 2 | a mistake in the arguments or the spec, or something that is missing; one message, on standard error |
| 130 | interrupted; `meshtune resume` continues the campaign |

`meshtune sbatch` exits with the code of `sbatch`.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="meshtune", title="Command line")
    files.append(File.generated(config, "reference/cli.md", content=text + EXIT_CODES))
    files.append(File.generated(config, "reference/runners.md", content=keys.schedulers()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return keys.filled(markdown)
