"""`sbatch`: options of ours, of sbatch and of the script on one command line.

Ours may stand anywhere before `--`, as sbatch's may; what follows `--` is the script's, and is looked at by nobody.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from meshtune.tuner.cli import commands

app = typer.Typer()
DEFAULT_URL = "http://127.0.0.1:8000"
_END = "--"
# Where the words behind `--` are kept while Typer reads those before it.
_OWN = "meshtune.sbatch.arguments"


class _UpToTheEnd(TyperCommand):
    """Reads no option behind `--`, and keeps the place of the `--` itself, which Click forgets."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index(_END) if _END in args else len(args)
        ctx.meta[_OWN] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@app.command(cls=_UpToTheEnd, context_settings={"ignore_unknown_options": True})
def sbatch(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SBATCH OPTIONS] SCRIPT [-- SCRIPT ARGUMENTS]",
            help="Batch script, with options of sbatch before or behind it.",
            show_default=False,
        ),
    ],
    model: Annotated[str, typer.Option(help="The model's name; default: the script's #MESHTUNE line.")] = "",
    cluster: Annotated[str, typer.Option(help="The cluster's name; default: the script's #MESHTUNE line.")] = "",
    url: Annotated[str, typer.Option(envvar="MESHTUNE_URL", help="The service.")] = DEFAULT_URL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be submitted.")] = False,
) -> None:
    """Submit a script with MESHTUNE_... variables and @MESHTUNE_...@ placeholders set to the best known plan.

    Options of meshtune and of sbatch stand in any order before `--`, arguments of the script behind it. Without an
    answer within 2 s the script goes with its own defaults, and a warning is printed.
    """
    commands.sbatch.sbatch(words, context.meta[_OWN], model=model, cluster=cluster, url=url, dry_run=dry_run)
