"""What may happen between a client and a service: an answer that is lost on its way, and answers of something else."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """A way to a service. lose: of so many next answers nothing arrives, though the service has given them."""

    url: str
    lose: int = 0
    sent: list[bytes] = field(default_factory=list)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """Before a service at this port. Each connection is for one request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=pass_on, args=(client,), daemon=True).start()

        def pass_on(client: socket.socket) -> None:
            with client, socket.create_connection(("127.0.0.1", port)) as service:
                request = read_message(client).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
                made.sent.append(request.partition(b"\r\n")[0])
                service.sendall(request)
                answer = b"".join(iter(lambda: service.recv(2**16), b""))
                if made.lose:
                    made.lose -= 1
                else:
                    client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield made


def read_message(connection: socket.socket) -> bytes:
    """Headers, and a body of the length that they tell."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += connection.recv(2**16)
    head, _, body = text.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < int(lengths[0] if lengths else 0):
        body += connection.recv(2**16)
    return head + b"\r\n\r\n" + body


@dataclass
class Script:
    url: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def answering(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Script]:
    """A server that gives these answers in turn, the last of them for ever."""
    left: Sequence[tuple[int, dict[str, str], bytes]] = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.asked.append(f"{self.command} {self.path}")
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]  # type: ignore[attr-defined]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script = Script(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield script
        server.shutdown()
