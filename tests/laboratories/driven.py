"""A home whose campaigns are driven by `meshtune` in processes of their own, and jobs that tell when they start.

site = Driven(folder)
site.write(tiny(workload=site.workload("{micro_batch_size}")))
site.hold("0001-a1"); run = site.start("run", "spec.yaml")
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from jobs import wait_for

from meshtune.tuner.campaign.campaign import Campaign, Home
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.store import Store

# Notes its start, takes its seconds, goes on for as long as its job is held, reports and notes its end.
SCRIPT = """
import os, sys, time
from meshtune.runners.report import report
folder, seconds, first = sys.argv[1:4]
job = os.path.basename(os.getcwd())
def note(word):
    ledger = os.open(os.path.join(folder, "ledger"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(ledger, f"{word} {job} {os.environ['RANK']} {os.getpid()}\\n".encode())
    os.close(ledger)
note("start")
time.sleep(float(seconds))
while os.path.exists(os.path.join(folder, "holds", job.rpartition("-t")[2])):
    time.sleep(0.05)
step_s = 0.01 * (1 + int(first))
report([step_s * (1 + 0.01 * (number % 3)) for number in range(15)])
note("end")
"""
LIMIT_S = 240.0


class Driven:
    # Of its commands, beside ours.
    environment: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, Home(folder / "home")
        self.holds, self.ledger, self.said = folder / "holds", folder / "ledger", folder / "said.txt"
        self.holds.mkdir()
        self.ledger.touch()
        (folder / "train.py").write_text(SCRIPT)

    def workload(self, *values: str, seconds: float = 0.0) -> dict[str, Any]:
        """values: placeholders of the plan; what a step takes is told by the first, a number."""
        script = ["{python}", str(self.folder / "train.py"), str(self.folder), str(seconds)]
        return {"kind": "command", "command": [*script, *values]}

    def write(self, spec: dict[str, Any]) -> None:
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(spec))

    def hold(self, *jobs: str) -> None:
        """Let no rank of these jobs end by itself, until `let_go`. jobs: trial and attempt, as "0001-a1"."""
        for job in jobs:
            (self.holds / job).touch()

    def let_go(self, job: str) -> None:
        (self.holds / job).unlink()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A `meshtune` command in a session of its own; what it says is kept in `said`."""
        with self.said.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "meshtune.tuner.cli", *words, "--home", str(self.home.root)],
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def finish(self, process: subprocess.Popen[bytes], code: int | None = 0) -> str:
        """What was said until it ended by itself, with this status."""
        try:
            assert process.wait(LIMIT_S) == code, self.said.read_text()
        finally:
            end(process)
        return self.said.read_text()

    def campaigns(self) -> list[Campaign]:
        if not (self.home.root / "meshtune.db").exists():
            return []
        with Store.open(self.home.database_url) as store:
            return store.campaigns(limit=9)

    def trials(self) -> list[Trial]:
        """Of the one campaign that there is."""
        with Store.open(self.home.database_url) as store:
            return [trial for campaign in store.campaigns(limit=9) for trial in store.trials(campaign.id)]

    def noted(self, word: str = "start") -> Counter[str]:
        """How often the first rank of each job noted its start or its end."""
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        return Counter(job for noted, job, rank, _ in lines if (noted, rank) == (word, "0"))

    def await_ranks(self, job: str, ranks: int) -> tuple[str, list[int]]:
        """A job's name and the process ids of its ranks, once all run."""

        def started() -> dict[int, tuple[str, int]]:
            lines = [line.split() for line in self.ledger.read_text().splitlines() if line.startswith("start")]
            return {int(rank): (name, int(pid)) for _, name, rank, pid in lines if name.endswith(f"-t{job}")}

        wait_for(lambda: len(started()) == ranks, LIMIT_S)
        found = [started()[rank] for rank in range(ranks)]
        return found[0][0], [pid for _, pid in found]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs of a command."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
