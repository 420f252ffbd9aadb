"""Whether a training fits, over HTTP."""

import pytest

LORA = {"model": "Qwen/Qwen3-8B", "on": "8xH100", "seq": 4096, "method": "lora"}


def test_the_answer_has_the_peak_by_phase_the_setting_and_changes(shared_client):
    shown = shared_client.post("/v1/fit", json=LORA)
    assert shown.status_code == 200, shown.text
    found = shown.json()["fit"]
    assert found["fits"]
    assert set(found["best"]["phases_bytes"]) == {"load", "first_step", "steady", "checkpoint"}
    assert found["best"]["p_fits"] >= found["sure"]
    assert "LoRA rank 16" in found["training"]
    assert {change["effect"] for change in found["changes"]} <= {"none", "changes numerics", "changes what is trained"}


def test_without_a_model_the_largest_is_named(shared_client):
    shown = shared_client.post("/v1/fit", json={"on": "4090", "seq": 1024}).json()
    assert shown["fit"] is None
    assert [one["method"] for one in shown["largest"]] == ["full", "lora", "qlora"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({**LORA, "model": "qwen9-8b"}, "model"),
        ({**LORA, "model": "/etc"}, "model"),
        ({**LORA, "on": ""}, "on"),
        ({**LORA, "program": "fsbp"}, "program"),
        ({**LORA, "seq": 0}, "seq"),
        ({**LORA, "further": 1}, "further"),
    ],
)
def test_a_mistake_is_told_by_its_path(shared_client, problem, body, path):
    told = problem(shared_client.post("/v1/fit", json=body), 422, "/problems/invalid-spec")
    assert any(one["pointer"].startswith(f"/{path}") for one in told["errors"])
