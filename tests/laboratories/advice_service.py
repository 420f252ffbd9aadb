"""A stand-in for the service: `GET /v1/recommendations?format=env` with the answers that a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import TracebackType


@dataclass
class AdviceService:
    """A context that serves while it is open."""

    answer: str = "MESHTUNE_TP=4\nMESHTUNE_PP=1\nMESHTUNE_SOURCE=demo-1a2b3c/7\n"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    # Before the answer's last line.
    pause_s: float = 0.0
    # Between two bytes of the answer.
    drip_s: float = 0.0
    # It never answers.
    silent: bool = False
    # The paths and tokens that came.
    asked: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    closing: Event = field(default_factory=Event)

    def __enter__(self) -> AdviceService:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.closing.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                service.tokens.append(self.headers.get("Authorization"))
                if service.silent:
                    service.closing.wait(60)
                    return
                self.send_response(service.status)
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                body = service.answer.encode()
                last = body.rstrip().rfind(b"\n") + 1
                for position in range(len(body)):
                    if position == last:
                        service.closing.wait(service.pause_s)
                    self.wfile.write(body[position : position + 1])
                    if service.drip_s and service.closing.wait(service.drip_s):
                        return

            def log_message(self, *_: object) -> None:
                pass

        return Handler
