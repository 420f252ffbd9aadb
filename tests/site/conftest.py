"""A stand-in for the service: it gives the answers that it is told to, as `GET /v1/recommendations?format=env` does."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest


class Service:
    """answer, status: what is given to whoever asks. pause_s: before its last line. asked, tokens: what came."""

    def __init__(self) -> None:
        self.answer = "MESHTUNE_TP=4\nMESHTUNE_PP=1\nMESHTUNE_SOURCE=demo-1a2b3c/7\n"
        self.status = 200
        self.pause_s = 0.0
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        self.closing = Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                service.tokens.append(self.headers.get("Authorization"))
                body = service.answer.encode()
                self.send_response(service.status)
                self.end_headers()
                last = body.rstrip().rfind(b"\n") + 1
                self.wfile.write(body[:last])
                service.closing.wait(service.pause_s)
                self.wfile.write(body[last:])

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    thread = Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield service
    service.closing.set()
    service.server.shutdown()
    thread.join()
    service.server.server_close()
