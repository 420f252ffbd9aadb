"""The dashboard's files: what may be kept how long, what is sent compressed, and what is not theirs."""

import gzip

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from meshtune.api import static_files

PAGE = "<!doctype html><title>meshtune</title>" + " " * 2000
SCRIPT = "export const x = 1;" * 200


@pytest.fixture
def built(app, tmp_path) -> FastAPI:
    """The application with a dashboard."""
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "assets" / "main-abc123.js").write_text(SCRIPT)
    (folder / "assets" / "main-abc123.js.gz").write_bytes(gzip.compress(SCRIPT.encode(), mtime=0))
    (folder / "assets" / "main-abc123.js.br").write_bytes(b"as brotli has it")
    (tmp_path / "secret").write_text("secret")
    static_files.install(app, folder)
    return app


def test_the_page_of_the_api_is_served_or_said_to_be_not_built(built, app, tmp_path):
    (tmp_path / "static" / "docs.html").write_text("the REST API")
    static_files.install(built, tmp_path / "static")
    assert TestClient(built).get("/docs").text == "the REST API"
    static_files.install(app, tmp_path)
    assert "is not built" in TestClient(app).get("/docs").text


def test_the_page_needs_no_token_and_is_asked_for_again(built):
    response = TestClient(built).get("/")
    assert response.text == PAGE
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["cache-control"] == "no-cache"
    again = TestClient(built).get("/", headers={"If-None-Match": response.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    ("accepted", "encoding"), [("gzip", "gzip"), ("gzip, br;q=0.5", "br"), ("br;q=0, gzip", "gzip"), ("identity", None)]
)
def test_files_with_a_hash_are_kept_for_ever_and_sent_as_the_client_takes_them(built, accepted, encoding):
    with TestClient(built).stream("GET", "/assets/main-abc123.js", headers={"Accept-Encoding": accepted}) as response:
        assert response.status_code == 200
        assert response.headers.get("content-encoding") == encoding
        assert response.headers["content-type"].startswith("text/javascript")
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert "Accept-Encoding" in response.headers["vary"]
        raw = b"".join(response.iter_raw())
    assert raw == {"br": b"as brotli has it", "gzip": gzip.compress(SCRIPT.encode(), mtime=0)}.get(
        encoding, SCRIPT.encode()
    )


@pytest.mark.parametrize(
    "path", ["/no-such", "/../secret", "/%2e%2e/secret", "/assets/..%2f..%2fsecret", "/%00", "/v1"]
)
def test_what_is_not_there_is_a_problem(built, path, problem):
    response = TestClient(built).get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def test_each_form_of_a_file_has_its_own_etag_and_is_not_sent_to_those_who_have_it(built):
    client, tags = TestClient(built), set()
    assert client.get("/openapi.json").headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get("/healthz").headers
    for encoding in ("br", "gzip", "identity"):
        asking = {"Accept-Encoding": encoding}
        with client.stream("GET", "/assets/main-abc123.js", headers=asking) as response:
            tags.add(tag := response.headers["etag"])
        again = client.get("/assets/main-abc123.js", headers={**asking, "If-None-Match": f'W/{tag}, "other"'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == "public, max-age=31536000, immutable"
        other = client.get("/assets/main-abc123.js", headers={"Accept-Encoding": "x", "If-None-Match": '"other"'})
        assert other.status_code == 200
    assert len(tags) == 3


def test_without_a_build_the_page_says_how_to_make_one(app, tmp_path):
    static_files.install(app, tmp_path)
    response = TestClient(app).get("/")
    assert response.status_code == 200
    assert "npm run build" in response.text
    assert TestClient(app).get("/index.html").status_code == 404
