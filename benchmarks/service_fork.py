"""Services that start at once: one process has imported everything, and forks one for each line that it reads.

A line is {"words": meshtune's command line, "environment": of the process, "log": a file}; the answer is its pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Forking:
    """The process that forks; `start` from one thread."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def start(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"words": words, "environment": dict(environment), "log": str(log)})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return Forked(int(self._process.stdout.readline()))

    def stop(self) -> None:
        """With all that it started and that has not ended, as where this process is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(30)


class Forked:
    """One of them, as Popen has it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} has not ended within {limit_s:g} s")
            time.sleep(0.01)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def main() -> None:
    import meshtune.api.app
    import meshtune.tuner.cli.at_home  # noqa: F401  # what a service would import
    from meshtune.tuner.cli.main import main as run

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        wanted = json.loads(line)
        if (pid := os.fork()) != 0:
            sys.stdout.write(f"{pid}\n")
            sys.stdout.flush()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(wanted["environment"])
        sys.argv = ["meshtune", *wanted["words"]]
        run()
        os._exit(0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
