"""Profiles of sites: listed, and shown with the source of each value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from meshtune.runners.documents import plain
from meshtune.runners.sites.profiles import Site, find_site, own_folder, read_site_file, site_names
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.cli.common import Refused, console, print_json
from meshtune.tuner.cli.render.tables import new_table
from meshtune.tuner.specs.named_files import is_path


def list_all(*, as_json: bool) -> None:
    """Print every profile in a line."""
    folder = own_folder()
    listed = {name: (_found(name, folder), own) for name, own in site_names(folder).items()}
    if as_json:
        print_json(
            [
                {"name": name, "about": site.about, "runner": site.kind, "cluster": site.cluster, "own": own}
                for name, (site, own) in listed.items()
            ]
        )
        return
    table = new_table("", "site", "runner", "cluster", "what it is")
    for name, (site, own) in listed.items():
        table.add_row(name, site.kind, site.cluster, escape(site.about) + (" (your own)" if own else ""))
    console.print(table)
    console.print(f"show one: meshtune sites NAME; add your own in {folder}", soft_wrap=True)


def show(name: str, *, as_json: bool) -> None:
    """Print a profile, each value with its evidence. Raises Refused."""
    site = _found(name, own_folder())
    if as_json:
        print_json(plain(site))
        return
    console.print(escape(site.about), soft_wrap=True)
    values: dict[str, Any] = {**({"cluster": site.cluster} if site.cluster else {}), **site.runner}
    for option, value in values.items():
        for line in _lines(option, value):
            console.print(escape(line), soft_wrap=True)
        if (found := site.evidence.get(option)) is not None:
            note = f"; {found.note}" if found.note else ""
            console.print(escape(f"    {found.sure}: {found.source}{note}"), soft_wrap=True)
    needed = "".join(f", {option}: ..." for option in site.needs)
    console.print(escape(f"in a spec: runner: {{site: {name}{needed}}}"), soft_wrap=True)


def _lines(option: str, value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{option}:", *(f"  {key}: {inner}" for key, inner in value.items())]
    if isinstance(value, list | tuple):
        return [f"{option}:", *(f"  - {inner}" for inner in value)]
    return [f"{option}: {value}"]


def _found(name: str, folder: Path) -> Site:
    try:
        return read_site_file(Path(name)) if is_path(name) else find_site(name, folder)
    except InvalidValue as error:
        raise Refused(str(error)) from None
