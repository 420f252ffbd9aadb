"""The fork server: one thread, the training code imported once, and every process of a job a fresh fork of it.

A child of the agent, whose Ray worker has threads and so must not fork. One JSON request per line; the first two have
one answer each, and "end" has "run" answer soon:

    {"do": "warm", "command": [...]}                      {}
    {"do": "run", "job": {}, "ranks": [], "meeting": []}  {"why": "", "deaths": [[rank, exit code, seconds ago]]}
    {"do": "end"}

once no process of the job is left here. why: what kept them from being started; deaths: of those that ended by
themselves. At the end of its input it kills what runs and ends."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from meshtune.runners.base import JobSpec, JobState
from meshtune.runners.json_files import read_json_value
from meshtune.runners.processes.gang import JOB_MARK, PERIOD_S, Gang, Meeting, kill_marked, warm_entry

_INPUT, _OUTPUT = 0, 1


@dataclass(slots=True)
class NodeShare:
    """The processes of one job on this node."""

    gang: Gang
    # Without processes it lasts until it is ended: its node is the job's all the same.
    empty: bool
    died_at: list[float] = field(default_factory=list)

    def step(self) -> bool:
        """Look at the processes; True once none is left."""
        now = time.monotonic()
        self.gang.step(now)
        self.died_at += [now] * (len(self.gang.deaths) - len(self.died_at))
        return not self.gang.alive and (not self.empty or self.gang.ending is not None)

    def close(self) -> None:
        """Kill what is left of it. Of the whole job where that was ended: another of its nodes may be this machine
        too, and Ray kills a fork server with its agent."""
        self.gang.kill()
        own, spec = self.gang.spec.env[JOB_MARK], self.gang.spec
        job, _, _ = own.rpartition("#")
        for mark in [f"{job}#{node}" for node in range(spec.nodes)] if self.gang.ending else [own]:
            kill_marked(mark)

    def answer(self) -> dict[str, Any]:
        now = time.monotonic()
        pairs = zip(self.gang.deaths, self.died_at, strict=True)
        return {"why": "", "deaths": [[rank, code, now - died_at] for (rank, code), died_at in pairs]}


def start(request: Mapping[str, Any]) -> NodeShare | str:
    """Start a job's processes, or say why that is not possible."""
    spec = read_json_value(JobSpec, request["job"])
    if not spec.directory.is_dir():
        return f"{spec.directory} is not there: it must be on a file system that all nodes share"
    gang = Gang(spec, time.monotonic())
    try:
        gang.start(request["ranks"], Meeting(*request["meeting"]), warm_entry(spec.command, spec.directory))
    except OSError as error:
        return f"its processes could not be started: {error.strerror}"
    return NodeShare(gang, empty=not request["ranks"])


def obey(request: Mapping[str, Any], share: NodeShare | None) -> NodeShare | None:
    """Do what is asked; return what runs then."""
    if request["do"] == "warm":
        warm_entry(request["command"])
        _say({})
    elif request["do"] == "run":
        started = start(request)
        if isinstance(started, NodeShare):
            return started
        _say({"why": started, "deaths": []})
    elif share is not None:
        share.gang.end(JobState.CANCELLED, time.monotonic())
    return share


def _say(answer: Mapping[str, Any]) -> None:
    with suppress(BrokenPipeError):
        os.write(_OUTPUT, json.dumps(answer).encode() + b"\n")


def main() -> int:
    # A terminal's Ctrl-C is for whoever started Ray.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    share: NodeShare | None = None
    heard = b""
    while True:
        readable, _, _ = select.select([_INPUT], [], [], PERIOD_S if share else None)
        if readable:
            more = os.read(_INPUT, 65536)
            if not more:
                break
            *lines, heard = (heard + more).split(b"\n")
            for line in lines:
                share = obey(json.loads(line), share)  # noqa: TID251  # the agent's
        if share is not None and share.step():
            share.close()
            _say(share.answer())
            share = None
    if share is not None:
        share.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
