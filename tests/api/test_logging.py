"""What the service logs: every request and every change once, as text or JSON, and never a secret."""

import io
import json
import logging
import re

import pytest
from fastapi.testclient import TestClient

from meshtune.tuner.service import telemetry as logs
from meshtune.tuner.service.telemetry import TroubleLog, log_events, mask
from meshtune.tuner.service.trouble import Trouble

SECRET = "mt_Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2Rl"


@pytest.fixture
def output():
    """Set up logging with this format; what is logged. Afterwards everything is as it was."""
    root, levels = logging.root, {name: logging.getLogger(name).level for name in logs.OURS}
    before = root.handlers, root.level
    stream = io.StringIO()

    def start(*, as_json: bool, level: str = "info") -> io.StringIO:
        logs.set_up_logging(as_json=as_json, level=level, stream=stream)
        return stream

    yield start
    root.handlers, root.level = before[0], before[1]
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"token {SECRET} it was", "token mt_*** it was"),
        (f"GET /v1/x?token={SECRET}&y=1", "GET /v1/x?token=mt_***&y=1"),
        ("postgresql://me:p4ss@host/db", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:p@s/s:w@host:5432/db?x=1", "postgresql+psycopg://me:***@host:5432/db?x=1"),
        ("postgresql://:p4ss@/db", "postgresql://:***@/db"),
        ("host=h password=p4ss dbname=d", "host=h password=*** dbname=d"),
        ("PGPASSWORD='p4 ss' pg_dump", "PGPASSWORD=*** pg_dump"),
        ("{'password': 'p4 ss', 'user': 'me'}", "{'password': ***, 'user': 'me'}"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("[(b'authorization', b'Bearer abc.def')]", "[(b'authorization', b'Bearer ***')]"),
        ("bearer abcdefgh12", "bearer ***"),
        ("nothing secret: fmt_string, mt_ and https://host:8000/a, me@b", None),
    ],
)
def test_secrets_are_masked_and_nothing_else(text, masked):
    assert mask(text) == (text if masked is None else masked)


@pytest.mark.parametrize("as_json", [False, True])
def test_no_secret_gets_through_in_a_message_a_field_or_a_traceback(output, as_json):
    stream = output(as_json=as_json)
    log = logging.getLogger("meshtune.api.test")
    url = 'postgresql://me:p4"ss@host/db'
    log.info(
        "at %s", url, extra={"headers": {"Authorization": "Token xyz-xyz"}, "urls": [url], "object": Exception(SECRET)}
    )
    try:
        raise ValueError(f"Authorization: Bearer {SECRET}")
    except ValueError:
        log.exception("it failed")
    text = stream.getvalue()
    for secret in (SECRET, "xyz-xyz", 'p4"ss', 'p4\\"ss', "p4"):
        assert secret not in text
    assert "it failed" in text
    assert "Traceback" in text
    if as_json:
        assert [line["level"] for line in lines(stream)] == ["info", "error"]


def test_a_request_is_one_line_with_its_route_its_token_and_its_id(output, client, create):
    id = create()
    stream = output(as_json=True)
    response = client.get(f"/v1/campaigns/{id}", params={"x": SECRET}, headers={"X-Request-Id": "page-17"})
    assert response.headers["x-request-id"] == "page-17"
    (line,) = [line for line in lines(stream) if line["logger"] == "meshtune.api.middleware.request_log"]
    assert line["ms"] > 0
    del line["ms"], line["time"], line["message"], line["logger"]
    assert line == {
        "level": "info",
        "method": "GET",
        "route": "/v1/campaigns/{campaign_id}",
        "status": response.status_code,
        "token": "tester",
        "request_id": "page-17",
        "campaign": id,
    }
    assert SECRET not in stream.getvalue()


def test_a_request_id_that_is_none_is_replaced(shared_client):
    made = {
        shared_client.get("/healthz", headers={"X-Request-Id": given.encode("latin-1")}).headers["x-request-id"]
        for given in ("", "a b", "x" * 65, "a\tb", "\u00e4")
    }
    assert [len(id) for id in made] == [32] * 5


def test_every_answer_is_of_a_safe_page(shared_client):
    for path in ("/", "/v1/campaigns", "/v1/no-such"):
        headers = shared_client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_a_defect_keeps_its_request_id_and_the_headers_of_a_safe_page(app, service, monkeypatch, token):
    monkeypatch.setattr(service, "ownerships", lambda ids: 1 / 0)
    response = TestClient(app, raise_server_exceptions=False, headers=token()).get("/v1/campaigns/x")
    assert response.status_code == 500
    assert response.headers["x-request-id"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.json()["status"] == 500


def test_what_machines_ask_all_the_time_is_no_line_while_it_is_answered(output, client):
    stream = output(as_json=False)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert client.get(path).status_code == 200
    assert stream.getvalue() == ""


def test_events_are_lines_and_a_trouble_is_one_when_it_changes_and_when_it_is_over(service, spec, runner, caplog):
    caplog.set_level(logging.INFO)
    id = service.create(spec).id
    service.pause(id)
    log_events(service.store.events(id))
    assert [record.getMessage() for record in caplog.records][-2:] == [
        f"{id} campaign.created",
        f"{id} campaign.paused: paused",
    ]
    assert caplog.records[-1].event_id == service.store.events(id)[-1].id
    caplog.clear()
    log = TroubleLog()
    for words in ("waits for 3 s", "waits for 4 s", "is lost", "is lost"):
        log.update({"c": Trouble(words)})
    log.update({})
    log.update({})
    assert [record.getMessage() for record in caplog.records] == [
        "c: waits for 3 s",
        "c: is lost",
        "c: the trouble is over",
    ]


def test_no_answer_of_the_api_may_be_kept_by_others(client, over):
    """Of each route that is read: what the service knows of its campaigns is for its caller alone."""
    paths = client.get("/openapi.json").json()["paths"]
    asked = []
    for path in (path for path, verbs in paths.items() if "get" in verbs and path != "/v1/stream"):
        filled = path.replace("{campaign_id}", over).replace("{number}", "0")
        kept = client.get(re.sub(r"{\w+}", "slurm", filled)).headers["cache-control"]
        asked.append(kept)
        assert kept in ("no-store", "private, no-cache"), path
    assert len(asked) > 30
    assert client.post("/v1/campaigns", json={}).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/v1/campaigns/", "/v1/campaigns/x/", "/healthz/"])
def test_no_answer_leads_to_the_host_that_a_request_names(client, path):
    answer = client.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "evil.example" not in str(answer.headers)
