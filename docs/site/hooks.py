"""What the site makes: the pages of the command line and of runners, the tables that a page asks for by the comment
`<!-- made: NAME -->`, and what the commands of a block ```run print."""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from meshtune.api.app import create_app
from meshtune.runners.documents import read_value
from meshtune.search_spaces.cluster import ClusterSpec, LinkSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.cli.main import app
from meshtune.tuner.client.campaign import Campaign
from meshtune.tuner.client.client import Client
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

sys.path.insert(0, str(Path(__file__).parent))
import keys
import programs
import samples

ROOT = Path(__file__).parents[2]
# Of a route with more parameters in its query they are not named one by one.
MOST_PARAMETERS = 10
MANY_PARAMETERS = "fields of a plan, and [others](#pages-filters-order)"

EXIT_CODES = """
## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | no measured plan; `db check`, `doctor`: problems; `confirm`, `revalidate`, `rerun`: other results |
| 2 | a mistake in the arguments or the spec, or something that is missing; one message, on standard error |
| 3 | the campaign is paused, the reason is printed; `meshtune resume` continues it |
| 130 | interrupted; `meshtune resume` continues the campaign |

`meshtune sbatch` exits with the code of `sbatch`.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="meshtune", title="Command line")
    files.append(File.generated(config, "reference/cli.md", content=text + EXIT_CODES))
    files.append(File.generated(config, "reference/runners.md", content=keys.schedulers()))
    files.append(File.generated(config, "reference/programs.md", content=programs.page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = re.sub(r"(?ms)^```run\n(.*?)^```\n", lambda found: f"```\n{_printed(found[1])}```\n", markdown)
    return re.sub(r"<!-- made: ([a-z]+)(?: of (.+?))? -->", lambda found: MADE[found[1]](found[2] or ""), markdown)


def _printed(commands: str) -> str:
    """Each command with what it prints, in an empty home."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        told = samples.printed(commands.splitlines(), Path(folder), width="220", refused=False)
    return "\n".join(f"{command}\n\n{text}\n" for command, text in zip(commands.splitlines(), told, strict=True))


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    names = head.split(", ")
    lines = (names, ["---"] * len(names), *rows)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _routes(tags: str) -> str:
    """The routes of these tags; of a description its first paragraph."""
    rows = []
    for path, methods in _openapi()["paths"].items():
        for method, route in methods.items():
            if tags.split(", ").count(route["tags"][0]):
                query = [each["name"] for each in route.get("parameters", ()) if each["in"] == "query"]
                scopes = [scope for needed in route.get("security", ()) for scope in needed.get("token", ())]
                code = next(code for code in route["responses"] if code[0] == "2")
                words = " ".join(route["description"].split("\n\n")[0].split())
                named = f"`{method.upper()} {path.replace('campaign_id', 'id')}`"
                asked = " ".join(f"`{name}`" for name in query) if len(query) <= MOST_PARAMETERS else MANY_PARAMETERS
                rows.append(
                    [named, " ".join(f"`{scope}`" for scope in scopes), asked, words + f" {code}." * (code != "200")]
                )
    return _table("route, scope, query, answer", rows)


@cache
def _openapi() -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Store.open("sqlite://") as store:
        return create_app(Service(store, Home(Path(folder)))).openapi()


def _models(_: str) -> str:
    rows = []
    for name, entry in model_presets().items():
        model = read_value(ModelSpec, described(entry))
        heads = str(model.heads) if model.kv_heads == model.heads else f"{model.heads}/{model.kv_heads}"
        experts = f", {model.experts} experts top {model.top_k}" if model.experts else ""
        shape = f"{model.layers} x {model.hidden}, {heads}{experts}"
        rows.append([f"`{name}`", f"{model.parameters / 1e9:.3g}", shape, str(model.seq_len), entry["source"]])
    return _table("model, weights in 1e9, layers x hidden with heads, seq_len, from", rows)


def _clusters(_: str) -> str:
    def rate(link: LinkSpec | None) -> str:
        return "" if link is None else f"{link.bandwidth_bytes_per_s / 1e9:.4g}"

    rows = []
    for name, entry in cluster_presets().items():
        cluster = read_value(ClusterSpec, described(entry))
        rates = map(rate, (cluster.module_link, cluster.node_link, cluster.network_link))
        source = entry["source"].split(". Device: ")[0]
        rows.append([f"`{name}`", str(cluster.devices), cluster.device.name, *rates, source])
    return _table("cluster, devices per node, device, module, node, network, from", rows)


def _calls(owner: type) -> Callable[[str], str]:
    """The public methods of a class of the client."""

    def made(_: str) -> str:
        rows = []
        for name, member in inspect.getmembers(owner):
            method = getattr(member, "_method", member)
            if name.startswith("_") or not inspect.isfunction(method) or not method.__doc__:
                continue
            signature = inspect.signature(method)
            values = [value.replace(annotation=inspect.Parameter.empty) for value in signature.parameters.values()]
            told = re.sub(r"^Steps\[(.*)\]$", r"\1", str(signature.return_annotation)).replace("Handle", "Campaign")
            words = " ".join(method.__doc__.split())
            rows.append(
                [
                    f"`{name}{signature.replace(parameters=values[1:], return_annotation=inspect.Signature.empty)}`",
                    f"`{told}`",
                    words,
                ]
            )
        return _table("call, gives, what it is", rows)

    return made


MADE: Mapping[str, Callable[[str], str]] = {
    "routes": _routes,
    "models": _models,
    "clusters": _clusters,
    "client": _calls(Client),
    "campaign": _calls(Campaign),
    "keys": lambda words: keys.table(*words.split()),
    "objectives": lambda _: keys.objectives(),
}
