"""A job's result goes to the service, too, where its folder has a token and its environment an address."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from meshtune.runners import report
from meshtune.runners.report import REPORT_URL, TOKEN_FILE, send


class Service:
    """Answers with these statuses, one after the other, then 204; keeps what it was sent."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.seen: list[tuple[str, str, bytes]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.seen.append((self.path, self.headers["Authorization"], body))
                self.send_response(owner.statuses.pop(0) if owner.statuses else 204)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/reports/job-1"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(report, "_PAUSES_S", (0.0, 0.0, 0.0))
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv(REPORT_URL, made.url)
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def result(tmp_path):
    (tmp_path / TOKEN_FILE).write_text("123.abc\n")
    file = tmp_path / "result.json"
    file.write_text('{"version": 1}')
    return file


def test_a_result_is_sent_with_the_jobs_token(service, result):
    assert send(result)
    assert service.seen == [("/v1/reports/job-1", "Bearer 123.abc", b'{"version": 1}')]


@pytest.mark.parametrize("statuses", [[503], [500, 429]])
def test_a_service_that_cannot_now_is_asked_again(service, result, statuses):
    service.statuses = list(statuses)
    assert send(result)
    assert len(service.seen) == len(statuses) + 1


@pytest.mark.parametrize("status", [307, 401, 404, 422])
def test_a_refusal_is_the_last_word(service, result, status):
    service.statuses = [status]
    assert not send(result)
    assert len(service.seen) == 1


def test_after_some_tries_the_file_has_to_do(service, result):
    service.statuses = [503] * 9
    assert not send(result)
    assert len(service.seen) == 3


def test_without_an_address_or_a_token_nothing_is_sent(service, result, monkeypatch):
    result.with_name(TOKEN_FILE).unlink()
    assert not send(result)
    result.with_name(TOKEN_FILE).write_text("123.abc")
    monkeypatch.delenv(REPORT_URL)
    assert not send(result)
    assert service.seen == []


def test_whoever_reports_sends(service, result, tmp_path, monkeypatch):
    monkeypatch.setenv(report.DIRECTORY, str(tmp_path))
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    brief = {"tokens_per_step": 64, "devices": 2, "warmup_steps": 1}
    brief |= {"model_flops_per_token": None, "peak_flops_per_device": None}
    (tmp_path / "brief.json").write_text(json.dumps(brief))
    report.report([1.0, 0.5])
    [(_, _, body)] = service.seen
    assert body == result.read_bytes()
    assert json.loads(body)["measurement"]["step_times_s"] == [0.5]
