"""Writes what the page takes from the service: `python api/web/schemas.py SCHEMAS AXES`, both JSON.

SCHEMAS: those of the OpenAPI document, the input of openapi-typescript. AXES: the axes of a plan, in order, each with
its words and what they mean, its default and, unless it is a number, its values; and the measured quantities of a
listed trial that have words.
"""

import json
import sys
import tempfile
from pathlib import Path

from meshtune.api.app import create_app
from meshtune.search_spaces.plan import AXES
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.results.quantities import TrialBrief, shown_in
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store


def without_words(schema: object) -> object:
    """The schema without its titles and descriptions, so that the types change only with the documents."""
    if isinstance(schema, dict):
        words = {key for key in ("title", "description") if isinstance(schema.get(key), str)}
        return {key: without_words(value) for key, value in schema.items() if key not in words}
    return [without_words(each) for each in schema] if isinstance(schema, list) else schema


with tempfile.TemporaryDirectory() as folder, Store.open("sqlite://") as store:
    document = create_app(Service(store, Home(Path(folder)))).openapi()
schemas = {
    name: without_words(schema)
    for name, schema in document["components"]["schemas"].items()
    if not name.startswith("$")
}
kept = {"openapi": document["openapi"], "info": document["info"], "paths": {}, "components": {"schemas": schemas}}
Path(sys.argv[1]).write_text(json.dumps(kept, indent=1, sort_keys=True))
axes = [
    {
        "name": axis.name,
        "label": axis.words,
        "title": f"{axis.name}: {axis.description}",
        "values": axis.members or ([False, True] if axis.kind is bool else []),
        "default": axis.default,
    }
    for axis in AXES
]
quantities = [{"name": one.name, "label": one.words, "unit": one.unit} for one in shown_in(TrialBrief) if one.words]
Path(sys.argv[2]).write_text(json.dumps({"axes": axes, "quantities": quantities}, indent=2) + "\n")
