"""The runner: how Flux is asked. What holds for every batch scheduler is meshtune's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobStatus, RunnerUnavailable
from meshtune.runners.command import Answer
from meshtune.runners.documents import read_value
from meshtune.runners.schedulers.batch.base import BatchRunner
from meshtune.runners.schedulers.batch.launch_wrapper import read_notes
from meshtune.runners.schedulers.batch.records import JobRecord
from meshtune.runners.schedulers.batch.shared_look import SharedRunner, share
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune_flux.script import LOG_FILE, SCRIPT_FILE, FluxOptions, render
from meshtune_flux.vocabulary import Unreadable, plain_id, read_jobs, read_status, status_of

_ID = re.compile(r"[fƒ][1-9A-HJ-NP-Za-km-z]+")
# What `flux jobs ID` says; other failures leave it open whether there is such a job.
_UNKNOWN_JOB = (" unknown",)
_UNKNOWN_HOST = ("host constraint contains invalid hosts",)


class FluxRunner(BatchRunner[FluxOptions]):
    script_file = SCRIPT_FILE
    log_file = LOG_FILE
    # Of an instance that is not there, or does not answer: the client's own words, and the system's for its connection.
    silences = (
        *("Unable to connect to Flux", "lost connection", "Connection refused", "Connection reset"),
        *("Connection timed out", "No route to host", "Function not implemented"),
    )
    # Where the instance is, and what its connection needs. In the locale C, Flux writes ids in ASCII.
    connection = ("FLUX_URI", "FLUX_SSH", "KRB5CCNAME")
    cancel_command = "flux cancel"
    over = ("job is inactive", "unknown job id")
    script_text = staticmethod(render)

    def _send(self, spec: JobSpec, script: Path) -> tuple[Answer, str | None]:
        answer = self._call("flux", "batch", str(script))
        if spec.avoid and answer.code != 0 and answer.says(_UNKNOWN_HOST):
            # A node to avoid that was taken out of the instance.
            return self._send(replace(spec, avoid=()), self._write_script(replace(spec, avoid=())))
        words = answer.out.split()
        return answer, plain_id(words[-1]) if words and _ID.fullmatch(words[-1]) else None

    def _search(self, record: JobRecord) -> str | None:
        jobs = _jobs(self._call("flux", "jobs", "-a", "--json", f"--name={record.name}"))
        return min(jobs, key=lambda id: jobs[id]["t_submit"], default=None)

    def _look(self, records: Mapping[str, JobRecord]) -> Mapping[str, JobStatus]:
        numbers = {id: record.number for id, record in records.items()}
        jobs = _jobs(self._call("flux", "jobs", "--json", *dict.fromkeys(numbers.values())))
        return {
            id: status_of(
                record.job(),
                read_status(jobs[numbers[id]]) if numbers[id] in jobs else None,
                read_notes(record.directory),
                cancel_asked=record.cancel_asked,
            )
            for id, record in records.items()
        }


def _jobs(answer: Answer) -> Mapping[str, Mapping[str, Any]]:
    """What `flux jobs --json` lists, by id. Of several jobs it leaves out the unknown ones, of one it fails. Raises
    RunnerUnavailable."""
    if answer.code != 0 and not answer.says(_UNKNOWN_JOB):
        raise RunnerUnavailable(f"flux jobs: {answer.complaint}")
    try:
        return read_jobs(answer.out)
    except Unreadable as error:
        raise RunnerUnavailable(str(error)) from None


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> SharedRunner:
    chosen = read_value(FluxOptions, dict(options))
    runner = FluxRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    return share(runner, "flux", root, chosen.poll_s)
