"""The fork server: one thread, the training code imported once, and every process of a job a fresh fork of it.

A child of the agent, whose Ray worker has threads and so must not fork. One JSON request per line, one answer per line:

    {"do": "warm", "command": [...]}                           {"said": "warm"}
    {"do": "start", "job": {}, "ranks": [], "meeting": []}     {"said": "started"}, or {"said": "failed", "why": ""}
    {"do": "end"}                                              {"said": "ended"}, once no process of the job is left

and in between {"said": "died", "rank": 2, "code": -9}. At the end of its input it kills what runs and ends."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from meshtune.runners.base import JobSpec, JobState
from meshtune.runners.json_files import read_json_value
from meshtune.runners.processes.gang import JOB_MARK, PERIOD_S, Gang, Meeting, kill_marked, warm_entry

_INPUT, _OUTPUT = 0, 1


@dataclass(slots=True)
class ForkServer:
    # The job's processes on this node, None before the first job and after each one's end.
    gang: Gang | None = None
    # The agent has asked for the job's end.
    ending: bool = False

    def obey(self, request: Mapping[str, Any]) -> None:
        if request["do"] == "warm":
            warm_entry(request["command"])
            _say("warm")
        elif request["do"] == "start":
            self._start(request)
        else:
            self.ending = True

    def step(self) -> None:
        """Tell who died, and whether the job is at its end."""
        if self.gang is not None:
            if self.ending:
                self.gang.end(JobState.CANCELLED, time.time())
            seen = len(self.gang.deaths)
            self.gang.step(time.time())
            for rank, code in self.gang.deaths[seen:] if not self.ending else ():
                _say("died", rank=rank, code=code)
        if self.ending and (self.gang is None or not self.gang.alive):
            self.close()
            self.ending = False
            _say("ended")

    def close(self) -> None:
        """Kill what is left of the job."""
        if self.gang is not None:
            self.gang.kill()
            kill_marked(self.gang.spec.env[JOB_MARK])
            self.gang = None

    def _start(self, request: Mapping[str, Any]) -> None:
        spec = read_json_value(JobSpec, request["job"])
        if not spec.directory.is_dir():
            _say("failed", why=f"{spec.directory} is not there: it must be on a file system that all nodes share")
            return
        self.gang = Gang(spec, time.time())
        try:
            self.gang.start(request["ranks"], Meeting(*request["meeting"]), warm_entry(spec.command))
        except OSError as error:
            _say("failed", why=f"its processes could not be started: {error.strerror}")
            return
        _say("started")


def _say(said: str, **more: Any) -> None:
    os.write(_OUTPUT, json.dumps({"said": said, **more}).encode() + b"\n")


def main() -> int:
    # A terminal's Ctrl-C is for whoever started Ray.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = ForkServer()
    heard = b""
    while True:
        readable, _, _ = select.select([_INPUT], [], [], PERIOD_S if server.gang or server.ending else None)
        if readable:
            more = os.read(_INPUT, 65536)
            if not more:
                break
            *lines, heard = (heard + more).split(b"\n")
            for line in lines:
                server.obey(json.loads(line))  # noqa: TID251  # the agent's
        with suppress(BrokenPipeError):
            server.step()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
