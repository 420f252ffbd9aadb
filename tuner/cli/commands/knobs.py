"""The command `knobs`: the catalogs of knobs, listed, and shown with the source of each knob."""

from __future__ import annotations

from rich.constrain import Constrain

from meshtune.runners.documents import plain
from meshtune.search_spaces.checks import did_you_mean
from meshtune.tuner.cli.common import Refused, console, print_json
from meshtune.tuner.cli.render.display import WIDEST
from meshtune.tuner.cli.render.knobs import catalog_lines, catalogs_table
from meshtune.tuner.results.knob_views import catalogs_view
from meshtune.tuner.specs.knobs import read_catalogs


def knobs(catalog: str, *, as_json: bool) -> None:
    """catalog: empty for all. Raises Refused."""
    known = read_catalogs()
    if catalog and catalog not in known:
        raise Refused(f"no catalog is called {catalog!r}; {did_you_mean(catalog, known)}")
    shown = {catalog: known[catalog]} if catalog else known
    if as_json:
        print_json(plain(catalogs_view(shown)))
        return
    if not catalog:
        console.print(Constrain(catalogs_table(known), WIDEST))
        console.print("show one: meshtune knobs NAME; in a spec: catalogs: [NAME] or [NAME.KNOB]", soft_wrap=True)
        return
    for line in catalog_lines(catalog, known[catalog]):
        console.print(line, soft_wrap=True)
