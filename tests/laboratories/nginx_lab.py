"""nginx before a service, by the very lines that docs/how-to/service.md shows.

with NginxLab(folder, service.port) as proxy:
    urlopen(f"{proxy.url}/v1/whoami")
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from service_process import free_port

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "service.md"
PREFIX = "/meshtune"
START_LIMIT_S = 60.0
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
# The workers of a server of root are another user's by default, who may not enter a test's folder.
CONFIGURATION = """\
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ }}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        {locations}
    }}
}}
"""


def program() -> str:
    """nginx; where there is none, the test is skipped, and fails in CI."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None and os.environ.get("CI"):
        pytest.fail("there is no nginx on this machine")
    if found is None:
        pytest.skip("there is no nginx on this machine")
    return found


def documented_locations(port: int) -> str:
    """The lines of the page, for a service on this port."""
    section = PAGE.read_text().partition("\n## Behind a proxy\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("    ")]
    found = "\n".join(lines)
    assert found.count("http://127.0.0.1:8000/") == 1, found
    return found.replace("http://127.0.0.1:8000/", f"http://127.0.0.1:{port}/")


class NginxLab:
    """url: of the service behind the proxy, without a slash at its end."""

    def __init__(self, folder: Path, service_port: int) -> None:
        self._program, self._folder, self.port = program(), folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}{PREFIX}"
        self._configuration = folder / "nginx.conf"
        self._configuration.write_text(
            CONFIGURATION.format(
                user="user root root;" if os.geteuid() == 0 else "",
                folder=folder,
                temporary="\n    ".join(f"{name}_temp_path {folder}/{name};" for name in TEMPORARY),
                port=self.port,
                locations=documented_locations(service_port),
            )
        )

    def __enter__(self) -> NginxLab:
        command = [self._program, "-e", str(self._folder / "error.log"), "-c", str(self._configuration)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            assert self._process.poll() is None, (self._folder / "error.log").read_text()
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
