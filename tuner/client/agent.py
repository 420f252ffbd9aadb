"""Tools by which an agent uses a service: the Model Context Protocol over stdio, `meshtune mcp`.

`agent.yaml` describes them as the protocol has it: the schema of an answer says what an agent, who pays for each word,
gets of a value. Only `create_campaign` starts anything, by the go of its own dry run. Words of jobs are quotations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import mcp_types as protocol
from jsonschema import Draft202012Validator
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from meshtune.runners.documents import json_of, plain, read_value
from meshtune.runners.outcome import FAILED
from meshtune.runners.untrusted_text import read_yaml, visible
from meshtune.search_spaces.checks import InvalidValue, Problem, UserError
from meshtune.tuner.access.quotas import require_room
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Budget
from meshtune.tuner.client.client import AsyncClient, document_of
from meshtune.tuner.client.errors import NotAuthenticated, ServiceUnreachable
from meshtune.tuner.service.views.campaigns import EventView
from meshtune.tuner.specs.knobs import plan_fields

TABLE = read_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), off_is_word=True)
TOOLS = {about["name"]: protocol.Tool.model_validate(about) for about in TABLE["tools"]}
# Kinds of events that are told; the others are steps of a trial.
TOLD = ("trial.done", "search.ended", "campaign.")


class Tools:
    """The tools, by their names: values of which the answers are cut. Methods raise UserError."""

    def __init__(self, url: str) -> None:
        self._client = AsyncClient(url, patience_s=5.0)

    async def fit(self, on: str, model: str = "", **words: Any) -> object:
        return await self._client.fit(model, on=on, words=words)

    async def estimate(self, spec: str) -> object:
        return await self._client.estimate(spec)

    async def why_not(self, plan: str, spec: str = "", campaign: str = "") -> object:
        if bool(spec) == bool(campaign):
            raise InvalidValue([Problem("arguments", "need a spec or a campaign, one of the two")])
        if campaign:
            return await (await self._client.campaign(campaign)).why(plan_fields(plan))
        return await self._client.why(spec, plan)

    async def import_launch(self, script: str, **words: Any) -> object:
        return await self._client.import_script(script, **words)

    async def create_campaign(self, spec: str, go: str = "") -> object:
        quote, token = await self._client.estimate(spec, to_run=True), await self._client.whoami()
        budget, hours = document_of(spec).get("budget"), quote.cost.device_hours
        if not isinstance(budget, Mapping) or budget.get("device_hours") is None:
            told = f"must be stated; all trials are predicted to take {hours.low:.3g} to {hours.high:.3g}"
            raise InvalidValue([Problem("budget.device_hours", told)])
        word = sha256(spec.encode() + json_of(quote.cost) + json_of(quote.limits)).hexdigest()[:12]
        if go and go != word:
            raise InvalidValue([Problem("go", f"{go} is of another spec or an older quote: make a dry run of this")])
        if go:
            campaign = await self._client.create(spec, key=f"agent-{word}")
            return {"started": True, "campaign": campaign.view}
        require_room(token.name, token.quotas, token.used, read_value(Budget, budget))
        return {"started": False, "quote": quote, "token": token, "go": word}

    async def campaigns(self, limit: int = 5, **filters: Any) -> object:
        return {"campaigns": [one.view for one in await self._client.campaigns(limit=limit, **filters)]}

    async def follow(self, campaign: str, after: int = 0, wait_s: float = 50, news: bool = False) -> object:
        one, until = await self._client.campaign(campaign), time.monotonic() + wait_s
        newest, told = after, list[EventView]()
        while True:
            view, events = await one.refresh(), await one.events(newest)
            newest = events[-1].id if events else newest
            told += [event for event in events if event.kind.startswith(TOLD)]
            if view.state is not CampaignState.RUNNING or (news and told) or time.monotonic() >= until:
                return {"over": view.state.final, "campaign": view, "events": told[::-1], "newest_event": newest}
            await asyncio.sleep(min(1.0, wait_s))

    async def best(self, campaign: str) -> object:
        return await (await self._client.campaign(campaign)).best()

    async def why(self, campaign: str) -> object:
        one = await self._client.campaign(campaign)
        return {"analysis": await one.analysis(), "failed": await one.trials(verdicts=[*FAILED], sort="-number")}

    async def export(self, campaign: str, format: str, trial: str = "recommended") -> object:
        return await (await self._client.campaign(campaign)).export(format, trial)


async def serve(url: str) -> None:
    """Until standard input ends. url: of the service; default MESHTUNE_SERVER. Raises ServiceError."""
    tools = Tools(url)

    async def listed(_: object, __: object) -> protocol.ListToolsResult:
        return protocol.ListToolsResult(tools=[*TOOLS.values()])

    async def called(_: object, asked: protocol.CallToolRequestParams) -> protocol.CallToolResult:
        return await answer(tools, asked.name, asked.arguments or {})

    server = Server("meshtune", instructions=TABLE["instructions"], on_list_tools=listed, on_call_tool=called)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def answer(tools: Tools, name: str, arguments: Mapping[str, Any]) -> protocol.CallToolResult:
    """What a call comes to, or the sentence of its refusal."""
    document, said = None, f"there is no tool {name}; there are {', '.join(TOOLS)}"
    if tool := TOOLS.get(name):
        wrong = Draft202012Validator(tool.input_schema).iter_errors(arguments)
        said = "\n".join(f"{'.'.join(map(str, one.path)) or 'arguments'}: {one.message[-300:]}" for one in wrong)
    if tool and not said:
        # A spec of one line is never taken for the name of a file.
        given = {key: f"{value}\n" if key == "spec" else value for key, value in arguments.items()}
        try:
            found = await getattr(tools, name)(**given)
            whole = {key: plain(one) for key, one in found.items()} if isinstance(found, dict) else plain(found)
            document = cut(whole, tool.output_schema or {})
        except UserError as error:
            away = isinstance(error, (ServiceUnreachable, NotAuthenticated))
            said = f"{error}\n{TABLE['away']}" if away else str(error)
    text = protocol.TextContent(text=cut(said, TABLE["refusal"]) if document is None else json_of(document).decode())
    return protocol.CallToolResult(content=[text], structured_content=document, is_error=document is None)


def cut(value: Any, schema: Mapping[str, Any]) -> Any:
    """What a schema has of a value, without empty fields, with numbers of items left out. No quotation ends early."""
    if isinstance(value, dict):
        parts = schema.get("properties", dict.fromkeys(value, schema.get("additionalProperties", {})))
        kept = {
            name: cut(value[name], part)
            for name, part in parts.items()
            if name in schema.get("required", ()) or value.get(name) not in (None, "", [], {})
        }
        most = {name: part["maxItems"] for name, part in parts.items() if name in kept and "maxItems" in part}
        return kept | {f"{name}_left_out": over for name, n in most.items() if (over := len(value[name]) - n) > 0}
    if isinstance(value, list):
        return [cut(one, schema.get("items", {})) for one in value[: schema.get("maxItems")]]
    if isinstance(value, float):
        return int(short) if (short := float(f"{value:.4g}")).is_integer() else short
    if not isinstance(value, str):
        return value
    quotes = schema.get("format") == "quotation"
    shown, most = visible(value), schema.get("maxLength", 300) - 4 * quotes
    shown = shown.translate({ord("<"): "\u2039", ord(">"): "\u203a"}) if quotes else shown
    over = len(shown) - most + 40
    text = shown if over <= 40 else f"{shown[:-over]} ... [{over} characters left out]"
    return f"<<{text}>>" if quotes else text
