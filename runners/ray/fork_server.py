"""The zygote: one thread, the training code imported once, and every process of a job a fresh fork of it.

`python -m meshtune.runners.ray.fork_server`, the child of an agent (`runners.ray.agent`): a Ray worker has threads, so
nothing may be forked from it. One JSON request per line on its input, one answer per line on its output, in order:

    {"do": "warm", "command": [...]}                           {"said": "warm"}
    {"do": "start", "job": {}, "ranks": [], "meeting": []}     {"said": "started"}, or {"said": "failed", "why": ""}
    {"do": "end"}                                              {"said": "ended"}, once no process of the job is left

and in between, by itself, {"said": "died", "rank": 2, "code": -9}. At the end of its input it kills what runs and ends;
when it dies its processes die too. It never touches a device: the memory of one job is never seen by the next.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.base import JobSpec
from meshtune.runners.processes.gang import JOB_MARK, Entry, Meeting, kill_marked, kill_tree, reap_one, start_rank
from meshtune.runners.processes.job_json import decode_job

PERIOD_S = 0.01
_INPUT, _OUTPUT = 0, 1


@dataclass(slots=True)
class Zygote:
    """What the loop knows. alive: rank by process id. ending: the job's processes are being killed."""

    warm: dict[str, Entry | None] = field(default_factory=dict)
    alive: dict[int, int] = field(default_factory=dict)
    mark: str = ""
    ending: bool = False

    def obey(self, request: Mapping[str, Any]) -> None:
        if request["do"] == "warm":
            self._entry(request["command"])
            _say("warm")
        elif request["do"] == "start":
            self._start(decode_job(request["job"]), request["ranks"], Meeting(*request["meeting"]))
        else:
            self.ending = True

    def step(self) -> None:
        """One turn: tell who died, and whether the job is at its end."""
        if self.ending:
            self.kill()
        while (ended := reap_one()) is not None:
            rank = self.alive.pop(ended[0], None)
            if rank is not None and not self.ending:
                _say("died", rank=rank, code=ended[1])
        if self.ending and not self.alive:
            kill_marked(self.mark)
            self.ending = False
            _say("ended")

    def kill(self) -> None:
        for pid in self.alive:
            kill_tree(pid)

    def _start(self, spec: JobSpec, ranks: Sequence[int], meeting: Meeting) -> None:
        self.mark = spec.env[JOB_MARK]
        if not spec.directory.is_dir():
            _say("failed", why=f"{spec.directory} is not there: it must be on a file system that all nodes share")
            return
        entry = self._entry(spec.command)
        try:
            for rank in ranks:
                self.alive[start_rank(spec, rank, meeting, entry)] = rank
        except OSError as error:
            _say("failed", why=f"its processes could not be started: {error.strerror}")
            return
        _say("started")

    def _entry(self, command: Sequence[str]) -> Entry | None:
        """What to run in a fork of this process instead of starting an interpreter, where that is possible."""
        if list(command[:2]) != [sys.executable, "-m"]:
            return None
        # Only here: these modules import more than a job of any other program needs to wait for.
        from meshtune.runners.local.server import WARM_MODULES, import_warm

        module = command[2] if len(command) > 2 else ""
        if module in WARM_MODULES and module not in self.warm:
            self.warm[module] = import_warm(module)
        return self.warm.get(module)


def _say(said: str, **more: Any) -> None:
    os.write(_OUTPUT, json.dumps({"said": said, **more}).encode() + b"\n")


def main() -> int:
    # A terminal's Ctrl-C is for whoever started Ray.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    zygote = Zygote()
    heard = b""
    while True:
        readable, _, _ = select.select([_INPUT], [], [], PERIOD_S if zygote.alive or zygote.ending else None)
        if readable:
            more = os.read(_INPUT, 65536)
            if not more:
                break
            *lines, heard = (heard + more).split(b"\n")
            for line in lines:
                zygote.obey(json.loads(line))
        with suppress(BrokenPipeError):
            zygote.step()
    zygote.kill()
    kill_marked(zygote.mark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
