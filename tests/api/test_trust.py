"""Whom a real service lets in: nobody by an address, through a proxy or not; who has a token; and whoever may open its
home, which is closed to others whatever the umask."""

import http.client
import json
import os
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from command_lab import run_meshtune
from nginx_lab import NginxLab
from service_lab import START_LIMIT_S, ServiceLab
from service_process import meshtune, without_ours
from specs import simulated

from meshtune.tuner.access.tokens import digest
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.cli.signing_in import DISPLAYS
from meshtune.tuner.store import Store

pytestmark = pytest.mark.slow
SPEC = simulated(budget={"trials": 2}, confirm=0)
# What would make a client local to a service that believed in addresses and headers.
CLAIMS = (
    {},
    {"host": "127.0.0.1"},
    {"host": "localhost", "origin": "http://localhost", "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"},
    {"x-real-ip": "127.0.0.1", "x-remote-user": "root", "authorization": "Bearer "},
)
# Stands for a browser: notes what it was started with and the mode of the file, and signs in as the page does.
BROWSER = """#!{python}
import json, pathlib, re, stat, sys, urllib.parse, urllib.request
file = pathlib.Path(urllib.parse.urlsplit(sys.argv[1]).path)
link = re.search(r"url=([^\\"]+)", file.read_text())[1]
url, _, token = link.partition("/#token=")
asked = urllib.request.Request(url + "/v1/whoami", headers={{"Authorization": "Bearer " + token}})
with urllib.request.urlopen(asked, timeout=60) as answer:
    seen = {{"arguments": sys.argv[1:], "link": link, "mode": stat.S_IMODE(file.stat().st_mode), **json.load(answer)}}
pathlib.Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    """Started by somebody whose files everybody may read and write."""
    before = os.umask(0)
    try:
        with ServiceLab(tmp_path_factory.mktemp("trust")) as lab:
            os.umask(before)
            yield lab
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_documented_proxy_lets_nobody_in_without_a_token_and_holds_no_event_back(service, tmp_path):
    with NginxLab(tmp_path, service.port) as proxy:

        def ask(method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
            with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)) as connection:
                connection.request(method, f"{urlsplit(proxy.url).path}{path}", headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read()

        paths = json.loads(ask("GET", "/openapi.json", {})[1])["paths"]
        routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
        guarded = [(method, path) for method, path in routes if path.startswith("/v1/") or path == "/metrics"]
        guarded.remove(("POST", "/v1/fit"))
        assert len(guarded) > 30
        assert {ask(method, path.translate({123: "0", 125: ""}), {})[0] for method, path in guarded} == {401}
        assert {ask("GET", "/v1/audit", claims)[0] for claims in CLAIMS} == {401}
        assert ask("GET", "/", {})[1].startswith(b"<!doctype html>")

        token = {"authorization": f"Bearer {service.token}"}
        assert json.loads(ask("GET", "/v1/whoami", token)[1])["name"] == "lab"
        stream = urllib.request.Request(f"{proxy.url}/v1/stream", headers=token)
        with urllib.request.urlopen(stream, timeout=30) as events:
            assert any(line == b"event: ready\n" for line in events)
            id = service.call("POST", "/v1/campaigns", SPEC)["id"]
            # It goes on for as long as somebody listens: what comes was not waited for.
            assert any(id.encode() in line for line in events)


def test_a_home_is_closed_to_other_users_also_one_that_was_open(service):
    id = service.call("POST", "/v1/campaigns", SPEC)["id"]
    service.wait_state(id, "completed")
    files = {path.name: path for path in service.home.iterdir() if path.is_file()}
    assert files.keys() >= {"meshtune.db", "meshtune.db-wal", "meshtune.db-shm", "meshtune.db.serving", "service.json"}
    assert ({mode(path) for path in files.values()}, mode(service.home)) == ({0o600}, 0o700)
    service.kill()
    service.home.chmod(0o755)
    for path in files.values():
        path.chmod(0o644)
    service.start()
    assert {mode(path) for path in service.home.glob("meshtune.db*")} == {0o600}
    assert mode(service.home) == 0o700
    assert "closed to other users of this machine, who had rights to home, meshtune.db" in service.log.read_text()


def test_a_link_signs_a_browser_in_and_no_process_list_shows_it(service, tmp_path, monkeypatch):
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.format(python=sys.executable))
    browser.chmod(0o755)
    environment = {**without_ours(os.environ), "DISPLAY": ":0", "BROWSER": str(browser)}
    command = ("open", "--home", str(service.home))
    done = subprocess.run(
        meshtune(*command), env=environment, capture_output=True, text=True, timeout=START_LIMIT_S, check=False
    )
    seen = json.loads((tmp_path / "seen.json").read_text())
    link = done.stdout.strip()
    secret = link.removeprefix(f"{service.url}/#token=")
    assert (done.returncode, seen["link"], seen["scopes"]) == (0, link, ["launch", "read:all"]), done.stderr
    assert (secret in str(seen["arguments"]), seen["mode"]) == (False, 0o600)
    assert not (service.home / ".open.html").exists()
    assert "no browser" not in done.stderr
    # The next link is of the same name, so that its campaigns stay theirs, and ends the one before.
    for display in DISPLAYS:
        monkeypatch.delenv(display, raising=False)
    again = run_meshtune(tmp_path, *command).out.strip().partition("#token=")[2]
    with Store.open(Home(service.home).database_url) as store:
        assert store.access.by_digest(digest(secret)) is None
        assert store.access.by_digest(digest(again)).name == seen["name"]
    # What listens on that port now may be anybody's.
    service.kill()
    told = run_meshtune(tmp_path, *command)
    assert (told.code, told.out, "no service runs" in told.err) == (2, "", True)
