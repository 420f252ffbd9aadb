"""The OpenAPI document is complete: clients can be generated from it, and it promises what the routes do."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from meshtune.api.openapi import SPEC_EXAMPLE, SPEC_SCHEMA
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.specs.knobs import CATALOGS
from meshtune.tuner.specs.read import OPEN_QUESTIONS

# What is answered by text alone.
TEXTS = ("read_trial_log", "stream", "read_metrics")
# Their answers are files.
FILES = ("archive_trial", "archive_campaign", "get_data", "get_report")
REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
OPERATION_IDS = """
    create_campaign list_campaigns get_campaign pause_campaign resume_campaign cancel_campaign list_trials
    get_trial best_trials pareto_front analyse_campaign campaign_space count_space estimate_campaign judge_fit
    import_script
    get_recommendation list_events whoami list_audit delete_campaign clone_campaign get_job export_trial
    export_campaign list_trial_logs read_trial_log explain_plan explain_plan_of_spec project_campaign project_spec
    compare_campaigns list_presets get_model_preset get_cluster_preset list_examples get_registry list_runners
    suggest_trials complete_trial heartbeat_trial
    change_campaign spec_as_written enqueue_trial rerun_trial revalidate_campaign
    compare_trials archive_trial archive_campaign get_record get_data get_report
    list_calibrations list_knobs report_result stream read_metrics live ready
"""


@pytest.fixture(scope="module")
def document(shared_client) -> dict[str, Any]:
    return shared_client.app.openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def resolver(document: dict[str, Any], schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """A validator for a schema of the document, whose references point into the document."""
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


def test_the_keys_of_a_spec_are_described_by_the_comments_of_their_fields():
    keys = SPEC_SCHEMA["properties"]
    assert "ends early as `pruned`" in keys["trial"]["properties"]["racing"]["description"]
    device = keys["cluster"]["anyOf"][2]["properties"]["device"]["properties"]
    assert "ROCm devices are `cuda`" in device["kind"]["description"]
    assert keys["baseline"]["anyOf"][0]["properties"]["tp"]["description"] == "tensor parallel degree"


def test_the_served_document_is_the_built_one_and_operation_ids_change_for_no_reason(
    shared_client, document, monkeypatch
):
    """Generated clients call their methods by them."""
    answer = shared_client.get("/openapi.json")
    assert answer.json() == document
    assert answer.headers["content-encoding"] == "gzip"
    for tag, status in ((answer.headers["etag"], 304), ('"other"', 200)):
        assert shared_client.get("/openapi.json", headers={"If-None-Match": tag}).status_code == status
    with monkeypatch.context() as patch:
        patch.setattr("gzip.compress", None)  # it was compressed once, for all
        assert shared_client.get("/openapi.json").status_code == 200
    assert document["openapi"].startswith("3.1")
    assert sorted(operation["operationId"] for _, _, operation in operations(document)) == sorted(OPERATION_IDS.split())


def test_every_route_says_what_it_is_for(document):
    for method, path, operation in operations(document):
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)
        assert operation["tags"], (method, path)
        declared = {entry["name"] for entry in operation.get("parameters", []) if entry["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path)), (method, path)


def test_every_answer_is_a_named_model(document):
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items():
            assert response["description"], (method, path, status)
            if status in ("204", "304"):
                assert "content" not in response
                continue
            if status == "200" and operation["operationId"] in FILES:
                for kind, content in response["content"].items():
                    assert content["schema"]["type"] == ("object" if kind == "application/json" else "string")
                continue
            told = [entry for entry in response.get("content", {}).items() if not entry[0].startswith("text/")]
            if not told:
                assert operation["operationId"] in TEXTS, (method, path, status)
                continue
            ((kind, content),) = told
            schema = content["schema"].get("items", content["schema"])
            assert schema.keys() == {"$ref"}, (method, path, status)
            assert (kind == "application/problem+json") == (int(status) >= 400)
            assert (schema["$ref"] == "#/components/schemas/Problem") == (int(status) >= 400)


def test_the_errors_of_every_route_are_documented(document):
    for method, path, operation in operations(document):
        statuses = set(operation["responses"])
        if path.startswith("/v1"):
            assert {"422", "503"} <= statuses, (method, path)
        if "{campaign_id}" in path:
            assert "404" in statuses, (method, path)
        if method in ("post", "delete"):
            assert "409" in statuses, (method, path)
        if "requestBody" in operation:
            assert {"413", "415"} - statuses <= ({"415"} if method == "put" else set()), (method, path)


def test_every_route_but_those_of_health_and_fit_says_that_it_needs_a_token(document):
    """Jobs report by tokens of their own."""
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for method, path, operation in operations(document):
        if operation["operationId"] not in ("report_result", "judge_fit", "live", "ready"):
            assert [list(entry) for entry in operation["security"]] == [["token"]], (method, path)
            assert {"401", "403", "429"} <= set(operation["responses"]), (method, path)
            headers = {each["name"] for each in operation.get("parameters", []) if each["in"] == "header"}
            assert ("Idempotency-Key" in headers) == (method in ("post", "patch")), path


def test_every_example_of_a_body_keeps_its_schema(document):
    for method, path, operation in operations(document):
        if method != "post" or "requestBody" not in operation:
            continue
        content = operation["requestBody"]["content"]
        assert set(content) == {"application/json", "application/yaml"}, path
        for entry in content.values():
            assert entry["examples"], path
            for example in entry["examples"].values():
                resolver(document, entry["schema"]).validate(example["value"])


def test_the_schema_of_a_spec_has_the_keys_of_a_spec():
    keys = {*(field.name for field in fields(CampaignSpec)), CATALOGS, OPEN_QUESTIONS}
    assert set(SPEC_SCHEMA["properties"]) == keys


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_of_the_repository_keeps_the_schema_and_is_accepted(shared_client, path):
    example = yaml.safe_load(path.read_text())
    jsonschema.validate(example, SPEC_SCHEMA, jsonschema.Draft202012Validator)
    response = shared_client.post("/v1/spaces", json=example)
    assert response.status_code == 200, response.text


GOOD = [
    {"cluster": {"preset": "local-cpu", "device": {"memory_bytes": 10**9}}},
    {"model": {"preset": "gpt-micro", "layers": 1}},
    {"global_batch_size": "free"},
    {"search": {"kind": "grid"}},
    {"space": {"tp": [1, 2], "recompute": ["none"]}},
    {"space": {"tp": 1, "mbs": [1, 2], "zero": 0}},
    {"baseline": {"mbs": 2, "zero": 0}},
    {"baseline": "tp2 pp1 dp2 mbs2 ga4 zero1"},
    {"knobs": {"threads": {"values": 1, "env": "MY_THREADS"}}},
    {"objective": "step_time"},
    {"budget": {"trials": 1}, "stop": {"tolerance": 0, "chance": 0.99}, "trial": {"attempts": 1}},
    {"name": " a ", "confirm": 0, "parallel": 10**6},
    {"knobs": {"threads": {"values": [1, 2.5, "auto"], "env": "MY_THREADS", "when": "tp == 1"}}},
    {"knobs": [{"name": "devices", "values": [2, 4]}], "accept": ["numerics"]},
    {"knobs": {"fast": {"values": [0, 1], "env": "FAST"}}, "baseline": {"fast": 1, "knobs": {}}},
    {"catalogs": ["cpu.omp_places"], "knobs": {"cpu_omp_places": {"risk": "none"}}},
]
LATENT = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
BAD = [
    {"modell": "gpt-micro"},
    {"model": {"preset": "gpt-micro", "layer": 1}},
    {"model": "gpt-nano"},
    {"global_batch_size": 0},
    {"search": "magic"},
    {"seed": -1},
    {"parallel": 0},
    {"space": {"tp": {}}},
    {"baseline": {"ddp": [2]}},
    {"objective": "price"},
    {"budget": {"dollars": 5}},
    {"name": " "},
    {"confirm": -1},
    {"budget": {"trials": 0}},
    {"budget": {"wall_time_s": 0}},
    {"trial": {"attempts": 0}},
    {"trial": {"time_limit_s": 0}},
    {"trial": {"queue_limit_s": 0}},
    {"trial": {"time_limit_s": 1e10}},
    {"stop": {"chance": 1}},
    {"stop": {"tolerance": -0.1}},
    {"space": {"tp": []}},
    {"space": {"tp": [1, 1]}},
    {"space": {"micro_batch_size": [0]}},
    {"space": {"micro_batch_size": [1_000_001]}},
    {"baseline": {"zero_stage": 4}},
    {"baseline": {"tp": 2**31}},
    {"model": {"preset": "gpt-micro", "layers": 0}},
    {"model": {"preset": "gpt-micro", "experts": -1}},
    {"model": {"preset": "gpt-micro", "head_dim": -1}},
    {"model": {"preset": "gpt-micro", "latent_attention": {**LATENT, "kv_lora_rank": 0}}},
    {"cluster": {"preset": "local-cpu", "nodes": 2**31}},
    {"cluster": {"preset": "local-cpu", "device_hour_price": 0}},
    {"cluster": {"preset": "local-cpu", "device": {"memory_bytes": 0}}},
    {"cluster": {"preset": "local-cpu", "device": {"peak_flops": {"float32": 0}}}},
    {"cluster": {"preset": "local-cpu", "device": {"sustained_flops": {"float32": 0}}}},
    {"knobs": {"Threads": {"values": [1], "env": "A"}}},
    {"knobs": {"threads": {"values": [], "env": "A"}}},
    {"knobs": {"threads": {"values": [1, 1], "env": "A"}}},
    {"knobs": {"threads": {"values": ["a b"], "env": "A"}}},
    {"knobs": {"threads": {"values": [1], "env": "A", "numerics": "maybe"}}},
    {"knobs": {"threads": {"values": [1], "env": "A", "value": 1}}},
    {"knobs": [{"values": [2, 4], "env": "A"}]},
    {"catalogs": "cpu"},
    {"catalogs": ["cpu."]},
    {"accept": ["anything"]},
    {"baseline": {"knobs": {"threads": []}}},
    {"cluster": {"preset": "local-cpu", "node_link": {"latency_s": -1, "bandwidth_bytes_per_s": 1}}},
]


@pytest.mark.parametrize("changes", GOOD + BAD, ids=str)
def test_the_schema_and_the_route_agree(shared_client, changes):
    spec = SPEC_EXAMPLE["demo"]["value"] | changes
    assert jsonschema.Draft202012Validator(SPEC_SCHEMA).is_valid(spec) is (changes in GOOD)
    assert shared_client.post("/v1/spaces", json=spec).status_code == (200 if changes in GOOD else 422)


def test_every_list_is_an_object_with_a_page_token(document):
    schemas, lists = document["components"]["schemas"], 0
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items():
            for content in response.get("content", {}).values():
                assert content["schema"].get("type") != "array", (method, path, status)
        if operation["operationId"].startswith("list_"):
            lists += 1
            named = operation["responses"]["200"]["content"]["application/json"]["schema"]
            schema = schemas[named["$ref"].rpartition("/")[2]]
            for view in schema.get("anyOf", [named]):
                assert "next_page_token" in schemas[view["$ref"].rpartition("/")[2]]["properties"], path
    assert lists >= 10


def test_what_changes_a_campaign_takes_if_match_and_may_be_412(document):
    for method, path, operation in operations(document):
        headers = {each["name"].lower() for each in operation.get("parameters", []) if each["in"] == "header"}
        assert ("if-match" in headers) == ("412" in operation["responses"]), (method, path)
        changes = method in ("post", "patch", "delete") and "{campaign_id}" in path
        if changes and not path.endswith((":clone", "/why", ":report")) and "/attempts/" not in path:
            assert "if-match" in headers, (method, path)
