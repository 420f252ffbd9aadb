"""The command `sbatch`: submits a batch script with the best known plan for it, or, when there is none, as it is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from meshtune.runners.slurm.sbatch import directives, exporting, node_count, submit
from meshtune.tuner.access.credentials import SECRET_VARIABLES
from meshtune.tuner.cli.common import Refused
from meshtune.tuner.cli.launch_script import fill, has_placeholders, read_directive
from meshtune.tuner.cli.remote import DEFAULT_URL, NoAnswer, ask
from meshtune.tuner.cli.render.terminal import errors

# A launch does not wait longer for advice.
LIMIT_S = 2.0

sbatch_app = typer.Typer()


@sbatch_app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def sbatch(
    script: Annotated[Path, typer.Argument(help="Batch script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Options of sbatch; after `--`, arguments of the script.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model's name; default: the script's #MESHTUNE line.")] = "",
    cluster: Annotated[str, typer.Option(help="The cluster's name; default: the script's #MESHTUNE line.")] = "",
    url: Annotated[str, typer.Option(envvar="MESHTUNE_URL", help="The service.")] = DEFAULT_URL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be submitted.")] = False,
) -> None:
    """Submit a script with MESHTUNE_... variables and @MESHTUNE_...@ placeholders set to the best known plan.

    Without an answer within 2 s the script goes with its own defaults, and a warning is printed.
    """
    try:
        text = script.read_text(encoding="utf-8")
        asked = {**read_directive(directives(text, "MESHTUNE")), **_given(model=model, cluster=cluster)}
        options, own = _split(arguments or [])
        nodes = node_count(text, options)
    except ValueError as error:  # not UTF-8, or an open quote
        raise Refused(f"{script}: {error}") from None
    for name in ("model", "cluster"):
        if name not in asked:
            raise Refused(f"{script}: name the {name}: --{name}, or a line `#MESHTUNE model=... cluster=...`")
    values = _values(url, asked, nodes)
    filled = fill(text, values)
    if values:
        exported = exporting(options, text, values)
        if exported is None:
            _warn("--export lets no variables into the job: only placeholders are filled")
        options = exported or options
    if dry_run:
        _show(script, options, own, filled)
        return
    with TemporaryDirectory(prefix="meshtune-") as folder:
        sent = script
        if has_placeholders(text):
            sent = Path(folder) / script.name  # the same name: jobs are called by it
            sent.write_text(filled, encoding="utf-8")
        code = submit([*options, str(sent), *own], hide=SECRET_VARIABLES)
    raise typer.Exit(code)


def _values(url: str, asked: Mapping[str, str], nodes: int | None) -> dict[str, str]:
    """The variables; none, with a warning, where there is no answer."""
    if nodes is None:
        _warn("the script names no node count (--nodes): it goes with its own defaults")
        return {}
    try:
        values = ask(url, {**asked, "nodes": str(nodes)}, limit_s=LIMIT_S)
    except NoAnswer as told:
        _warn(f"no recommendation, the script goes with its own defaults: {told}")
        return {}
    errors.print(f"meshtune: {' '.join(f'{name}={value}' for name, value in values.items())}", soft_wrap=True)
    if values.get("MESHTUNE_MEASURED") != "1":
        _warn("this plan is projected, not measured")
    return values


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """sbatch's options, and the script's own arguments."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    end = words.index("--")
    return words[:end], words[end + 1 :]


def _given(**named: str) -> dict[str, str]:
    return {name: value for name, value in named.items() if value}


def _show(script: Path, options: Sequence[str], own: Sequence[str], filled: str) -> None:
    sys.stdout.write(f"{shlex.join(['sbatch', *options, str(script), *own])}\n\n{filled}")


def _warn(message: str) -> None:
    errors.print(f"meshtune: warning: {message}", style="yellow", soft_wrap=True)
