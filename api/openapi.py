"""The OpenAPI description: a campaign spec as a document, which may name presets and leave out what has a default,
and the problem documents. What the routes return is described by their views.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from starlette.concurrency import run_in_threadpool

from meshtune.api import static_files
from meshtune.api.dependencies import MERGE_PATCH, READERS
from meshtune.api.errors import PROBLEM_JSON
from meshtune.api.middleware.idempotency import METHODS, PARAMETER
from meshtune.runners.documents import field_comments, plain
from meshtune.runners.registry import WORKLOADS, runners
from meshtune.search_spaces.bounds import Bounds
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.knob import MAX_VALUES, Knob
from meshtune.search_spaces.knob_values import KNOB_NAME, KNOB_WORD
from meshtune.search_spaces.knobs import MAX_KNOBS
from meshtune.search_spaces.model import UNKNOWN, ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.plan_names import SHORT_NAMES
from meshtune.search_spaces.presets import cluster_presets, model_presets
from meshtune.search_spaces.recipe import Recipe
from meshtune.tuner.campaign.changes import CampaignDetails
from meshtune.tuner.campaign.spec import FREE, SCALARS, Acceptance, Budget, CampaignSpec, StopRule, TrialLimits
from meshtune.tuner.prediction.projection import ProjectionWords
from meshtune.tuner.search.registry import searches
from meshtune.tuner.service.ask_tell import Ask, Completion, Report
from meshtune.tuner.service.views.problems import ProblemDetails
from meshtune.tuner.specs.fit_words import FitWords
from meshtune.tuner.specs.import_script import SentScript

SPEC_EXAMPLE: dict[str, Any] = {
    "demo": {
        "summary": "A small GPT on four CPU processes",
        "value": {
            "name": "demo",
            "model": "gpt-micro",
            "cluster": "local-cpu",
            "global_batch_size": 16,
            "baseline": {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 0},
            "budget": {"trials": 15},
        },
    }
}

# A value of a knob in a query.
KNOB_TEXT = re.compile(rf"^{KNOB_NAME.pattern}:{KNOB_WORD.pattern}$")


class _Described(GenerateJsonSchema):
    """Each field with the comment above it in the source, which may hold for those below it too."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> dict[str, Any]:
        made = super().dataclass_schema(schema)
        words = ""
        for name, comment in field_comments(schema["cls"]):
            words = comment or words
            if words and name in made["properties"]:
                made["properties"][name]["description"] = words
        return made


def _inline(kind: Any, **changes: Any) -> dict[str, Any]:
    """A value's JSON schema with its references resolved in place, so that it stands anywhere in a document."""
    schema = TypeAdapter(kind).json_schema(mode="validation", schema_generator=_Described)
    definitions = schema.pop("$defs", {})

    def resolved(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolved(definitions[node["$ref"].rpartition("/")[2]])
            # Titles repeat the names that stand there anyway, and generators of clients make colliding types of them.
            named = {key: value for key, value in node.items() if key != "title" or not isinstance(value, str)}
            return {key: resolved(value) for key, value in named.items()}
        return [resolved(value) for value in node] if isinstance(node, list) else node

    made = resolved(schema)
    if (own := made.get("properties")) and kind in (Plan, Bounds):
        own |= {short: own[name] for short, name in SHORT_NAMES.items() if name in own}
    return {**made, **changes}


def _optional(node: Any) -> Any:
    """The schema with nothing required, at any depth: what is left out comes from the preset."""
    if isinstance(node, dict):
        return {key: _optional(value) for key, value in node.items() if key != "required"}
    return [_optional(value) for value in node] if isinstance(node, list) else node


def _with_preset(kind: Any, presets: list[str]) -> dict[str, Any]:
    whole = _inline(kind)
    overrides = _optional(whole)
    overrides |= {"required": ["preset"], "properties": {**overrides["properties"], "preset": {"enum": presets}}}
    # A description is named after its section unless it says otherwise.
    whole["required"] = [name for name in whole["required"] if name != "name"]
    return {"anyOf": [{"enum": presets}, overrides, whole]}


def _backend(known: list[str]) -> dict[str, Any]:
    options = {"type": "object", "properties": {"kind": {"enum": known}}, "additionalProperties": True}
    return {"anyOf": [{"enum": known}, options]}


# Of a knob.
_NAME = {"type": "string", "pattern": f"^{KNOB_NAME.pattern}$"}
_VALUE = {"anyOf": [{"type": "boolean"}, {"type": "number"}, {"type": "string", "pattern": f"^{KNOB_WORD.pattern}$"}]}
# Knobs may stand beside the fields; or a text, such as the plan's key.
_PLAN = {"anyOf": [_inline(Plan, propertyNames=_NAME, additionalProperties=_VALUE), {"type": "string"}]}


def _knobs() -> dict[str, Any]:
    """Knobs by name, where keys of a catalog's may be left out, or a list of whole ones, as a campaign has them."""
    whole = _inline(Knob)
    values = {"type": "array", "items": _VALUE, "minItems": 1, "maxItems": MAX_VALUES, "uniqueItems": True}
    whole["properties"] |= {"name": _NAME, "values": values}
    own = {key: schema for key, schema in whole["properties"].items() if key != "name"}
    some = {**_optional(whole), "properties": {**own, "values": {"anyOf": [values, _VALUE]}}}
    named = {"type": "object", "propertyNames": _NAME, "additionalProperties": some, "maxProperties": MAX_KNOBS}
    return {"anyOf": [named, {"type": "array", "items": whole, "maxItems": MAX_KNOBS}]}


_DEFAULTS = {field.name: field.default for field in fields(CampaignSpec)}
SPEC_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "CampaignSpec",
    "additionalProperties": False,
    "required": ["cluster", "global_batch_size"],
    "properties": {
        **{name: _inline(kind, default=plain(_DEFAULTS[name])) for name, kind in SCALARS.items()},
        "model": {"anyOf": [{"enum": [UNKNOWN]}, _with_preset(ModelSpec, sorted(model_presets()))]},
        "cluster": _with_preset(ClusterSpec, sorted(cluster_presets())),
        "workload": _backend(sorted(WORKLOADS)),
        "global_batch_size": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "enum": [FREE]}]},
        "space": _inline(Bounds),
        "training": _inline(Recipe),
        "catalogs": {"type": "array", "items": {"type": "string", "pattern": r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)?$"}},
        "knobs": _knobs(),
        "accept": {"type": "array", "items": _inline(Acceptance)},
        "baseline": _PLAN,
        "search": _backend(sorted(searches())),
        "runner": _backend(sorted(runners())),
        "budget": _inline(Budget),
        "trial": _inline(TrialLimits),
        "stop": _inline(StopRule),
        # Of an import; each is a mistake.
        "open_questions": {"type": "array", "items": {"type": "string"}, "maxItems": 0},
    },
}

SPEC_REFERENCE = {"$ref": "#/components/schemas/CampaignSpec"}


def _body(
    schema: dict[str, Any], examples: dict[str, Any], *, required: bool = True, kinds: tuple[str, ...] = tuple(READERS)
) -> dict[str, Any]:
    """A body that comes as JSON or as YAML."""
    content = {"schema": schema, "examples": examples}
    return {"requestBody": {"required": required, "content": {kind: content for kind in kinds}}}


def _object(required: Sequence[str] = (), title: str = "", **properties: Any) -> dict[str, Any]:
    """Of these properties alone."""
    named = {"title": title} if title else {}
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **named, "additionalProperties": False, **needed, "properties": properties}


SPEC_BODY = _body(SPEC_REFERENCE, SPEC_EXAMPLE)
WHY_BODY = _body(
    _object(["spec", "plan"], spec=SPEC_REFERENCE, plan=_PLAN),
    {
        "demo": {
            "summary": "Why not eight-fold tensor parallelism",
            "value": {"spec": SPEC_EXAMPLE["demo"]["value"], "plan": {"tp": 8}},
        }
    },
)
NODES_BODY = _body(
    _inline(ProjectionWords),
    {"demo": {"summary": "To 8 nodes", "value": {"spec": SPEC_EXAMPLE["demo"]["value"], "nodes": [2, 4, 8]}}},
)
FIT_BODY = _body(
    _inline(FitWords),
    {"lora": {"summary": "LoRA on a node", "value": {"model": "Qwen/Qwen3-32B", "on": "8xH100", "method": "lora"}}},
)
IMPORT_BODY = _body(
    _inline(SentScript, title="SentScript"),
    {"line": {"summary": "One line", "value": {"script": "torchrun --nproc-per-node 8 train.py --batch-size 4"}}},
)
CHANGES_BODY = _body(
    {"type": "object", "title": "Changes", "description": "Laid over the spec as RFC 7396 has it: null takes away."},
    {"seed": {"summary": "The same once more, with another seed", "value": {"name": "demo-2", "seed": 2}}},
)


_DETAILS = {**_optional(_inline(CampaignDetails)), "description": "What is left out stays; null lifts a limit."}
_LIMITS = {name: _DETAILS["properties"][name] for name in ("budget", "trial")}
DETAILS_BODY = _body(
    {**_DETAILS, "title": "CampaignChanges"},
    {"more": {"summary": "More trials, and a tag", "value": {"budget": {"trials": 40}, "tags": ["paper"]}}},
    kinds=(*READERS, MERGE_PATCH),
)
RESUME_BODY = _body(
    {**_DETAILS, "title": "Resumption", "properties": _LIMITS},
    {"more": {"summary": "A campaign that is complete goes on", "value": {"budget": {"trials": 40}}}},
    required=False,
)
PLAN_BODY = _body(
    _object(["plan"], title="PlanByHand", plan=_PLAN),
    {"tp": {"summary": "Two-fold tensor parallelism", "value": {"plan": {"tp": 2, "micro_batch_size": 2}}}},
)


SUGGEST_BODY = _body(
    _inline(Ask, title="Ask"),
    {"worker": {"summary": "For a worker", "value": {"wait_s": 20, "worker": "node-3", "lease_s": 60}}},
    required=False,
)
HEARTBEAT_BODY = _body(
    _inline(Report, title="Report"),
    {"steps": {"summary": "Two steps so far", "value": {"claim": "demo-t0003-a1", "step_times_s": [1.21, 1.2]}}},
)
COMPLETION_BODY = _body(
    _inline(Completion),
    {
        "measured": {
            "summary": "Measured",
            "value": {"step_times_s": [1.21, 1.2, 1.22], "peak_memory_bytes": [41_000_000_000]},
        },
        "oom": {"summary": "Out of memory", "value": {"verdict": "oom", "reason": "rank 3: CUDA out of memory"}},
    },
)


def plan_query() -> dict[str, Any]:
    """The fields of a plan and its knobs as parameters of a query, none of them required."""
    knob = {"type": "string", "pattern": KNOB_TEXT.pattern}
    words = "Values of knobs, each as name:value; of one that is left out the default, where it is active."
    properties: dict[str, Any] = {
        **_inline(Plan)["properties"],
        "knobs": {"type": "array", "items": knob, "maxItems": MAX_KNOBS, "description": words},
    }
    asked = {"knob" if name == "knobs" else name: schema for name, schema in properties.items()}
    described = [{"name": name, "in": "query", "required": False, "schema": own} for name, own in asked.items()]
    return {"parameters": described}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route documents of the errors that it answers with these statuses."""
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    retry = {"Retry-After": {"description": "Seconds to wait before the next try.", "schema": {"type": "integer"}}}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": content,
            **({"headers": retry} if status in (429, 503) else {}),
        }
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Serve the description, with the schemas that no route's types name: the spec as a document, and problems."""
    generated = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generated()
            schemas = document["components"]["schemas"]
            schemas |= {"CampaignSpec": SPEC_SCHEMA, "Problem": _inline(ProblemDetails)}
            schemas["CampaignView"]["properties"]["spec"] = SPEC_REFERENCE
            _document_access(document)
        return generated()

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI documents it ("Extending OpenAPI")
    forms: dict[str, static_files.Form] = {}

    async def document(request: Request) -> Response:
        """Rendered and compressed once."""
        if not forms:
            body = await run_in_threadpool(lambda: json.dumps(openapi(), separators=(",", ":")).encode())
            compressed = await run_in_threadpool(gzip.compress, body)
            kind = {"content_type": "application/json", "cache_control": static_files.ASK_FIRST}
            forms.update(static_files.forms_of({"gzip": compressed, "identity": body}, **kind))
        return static_files.answer_with(forms, request.headers)

    app.add_route("/openapi.json", document, methods=["GET"], include_in_schema=False)


def _document_access(document: dict[str, Any]) -> None:
    """Add to each operation that needs a token the errors that follow from its path, its bodies and its method, and to
    each POST and PATCH of these the Idempotency-Key."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "security" not in operation:
                continue
            statuses = [401, 403, 422, 429, 503]
            if "{" in path:
                statuses.append(404)
            if len(operation.get("requestBody", {}).get("content", {})) > 1:
                statuses += [413, 415]
            if method in ("post", "patch", "delete"):
                statuses.append(409)
            if any(one["name"].lower() == "if-match" for one in operation.get("parameters", ())):
                statuses.append(412)
            for status, answer in problems(*statuses).items():
                operation["responses"].setdefault(str(status), answer)
            if method in METHODS:
                operation.setdefault("parameters", []).append(PARAMETER)
