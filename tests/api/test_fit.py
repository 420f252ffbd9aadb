"""Whether a training fits, over HTTP."""

from threading import Event

import pytest
from starlette.testclient import TestClient

from meshtune.api.app import create_app
from meshtune.api.dependencies import MAX_BYTES
from meshtune.api.settings import ServiceSettings
from meshtune.api.worker_pool import MAX_WAITING_EACH
from meshtune.tuner.specs.fit_words import MAX_NAME

LORA = {"model": "Qwen/Qwen3-8B", "on": "8xH100", "seq": 4096, "method": "lora"}


def test_the_answer_has_the_peak_by_phase_the_setting_and_changes(shared_client):
    shown = shared_client.post("/v1/fit", json=LORA)
    assert shown.status_code == 200, shown.text
    found = shown.json()["fit"]
    assert found["fits"]
    assert set(found["best"]["phases_bytes"]) == {"load", "first_step", "steady", "checkpoint"}
    assert found["best"]["prediction"]["p_fits"] >= 0.9
    assert "LoRA rank 16" in found["best"]["training"]
    assert {change["effect"] for change in found["changes"]} <= {"", "changes numerics", "changes what is trained"}


def test_generated_rows_have_a_diagram(shared_client):
    body = {"model": "Qwen/Qwen2.5-7B", "on": "8xH100", "rollout": [512, 512], "batch": 16}
    found = shared_client.post("/v1/fit", json=body).json()["fit"]
    assert set(found["best"]["generated"]["p_fits"]) == {"generation", "log_probs", "steady"}
    assert {cell["share"] for cell in found["diagram"]} >= {0.1, 0.5, 0.9}
    assert found["fastest_cell"] in found["diagram"]


def test_without_a_model_the_largest_is_named(shared_client):
    shown = shared_client.post("/v1/fit", json={"on": "4090", "seq": 1024}).json()
    assert shown["fit"] is None
    assert [*shown["largest"]] == ["full", "lora", "qlora"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({**LORA, "model": "qwen9-8b"}, "model"),
        ({**LORA, "model": "/etc"}, "model"),
        ({**LORA, "on": ""}, "on"),
        ({**LORA, "program": "fsbp"}, "program"),
        ({**LORA, "seq": 0}, "seq"),
        ({**LORA, "further": 1}, "further"),
        ({**LORA, "model": "a" * (MAX_NAME + 1)}, "model"),
    ],
)
def test_a_mistake_is_told_by_its_path(shared_client, problem, body, path):
    told = problem(shared_client.post("/v1/fit", json=body), 422, "/problems/invalid-spec")
    assert any(one["pointer"].startswith(f"/{path}") for one in told["errors"])


@pytest.fixture(scope="module")
def nobody(shared_client):
    """A browser without a token."""
    return TestClient(shared_client.app)


def test_no_token_is_needed_and_a_wrong_one_is_refused(nobody, shared_client, problem):
    assert nobody.post("/v1/fit", json=LORA).json() == shared_client.post("/v1/fit", json=LORA).json()
    wrong = nobody.post("/v1/fit", json=LORA, headers={"Authorization": "Bearer mt_wrong"})
    problem(wrong, 401, "/problems/unauthenticated")
    # One path alone, and one method of it.
    for path in ("/v1/fit/", "/v1/fits", "/v1//fit", "/v1/estimates"):
        problem(nobody.post(path, json=LORA), 401, "/problems/unauthenticated")
    assert nobody.get("/v1/fit").status_code == 405


def test_a_body_without_a_token_has_the_usual_limits(nobody, problem):
    for content, kind, status in ((b" " * (MAX_BYTES + 1), "application/json", 413), (b"model=a", "text/plain", 415)):
        answer = nobody.post("/v1/fit", content=content, headers={"content-type": kind})
        problem(answer, status, "about:blank")


def test_without_a_token_an_address_has_a_rate(service, problem):
    settings = ServiceSettings(requests_per_s=0.01, requests_burst=9, posts_per_s=0.01, posts_burst=2)
    app = create_app(service, settings=settings)
    try:
        statuses = [TestClient(app).post("/v1/fit", json={}).status_code for _ in range(4)]
    finally:
        app.state.pool.stop()
    assert statuses == [422, 422, 429, 429]


def test_those_without_a_token_wait_as_one(nobody, shared_client, problem):
    """Their places are taken, and who has a token still has his own."""
    pool = shared_client.app.state.pool
    free, pool._free[:] = list(pool._free), []
    try:
        waiting = [pool.submit("", Event) for _ in range(MAX_WAITING_EACH)]
        problem(nobody.post("/v1/fit", json=LORA), 429, "/problems/rate-limited")
        own = pool.submit("token", Event)
        assert not own.done()
        for one in (*waiting, own):
            one.cancel()
    finally:
        pool._waiting.clear()
        pool._free[:] = free
