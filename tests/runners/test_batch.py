"""What was sent is known again after any death, and of two copies of a job only the first one runs."""

from __future__ import annotations

import os
import subprocess

import pytest

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.schedulers.batch.records import Records
from meshtune.runners.schedulers.batch.script import CLAIM_FILE, CLAIMED_CODE, REQUEUED_FILE, SubmitHost, render_body
from meshtune.runners.schedulers.slurm.script import SlurmOptions


@pytest.fixture
def records(tmp_path) -> Records:
    return Records(tmp_path / "root")


@pytest.mark.parametrize("content", [None, "", "{}", '{"name": "job"}'])
def test_what_cannot_be_read_was_perhaps_sent(content, records, tmp_path):
    """Taken for a job that never was, it would be sent again. None: a folder in its place."""
    file = tmp_path / "root" / "jobs" / "job.json"
    file.parent.mkdir(parents=True)
    file.mkdir() if content is None else file.write_text(content)
    with pytest.raises(RunnerUnavailable, match="the record of job cannot be read"):
        records.get("job")
    with pytest.raises(RunnerUnavailable):
        records.of("17")


def test_of_two_copies_of_a_script_one_runs(tmp_path):
    options = SlurmOptions(setup=("echo $NUMBER >> ran", "sleep 0.2"))
    script = render_body("$NUMBER", SubmitHost(python="", environment={}), "script.sh", options)
    copies = [
        subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "NUMBER": str(number)})
        for number in (17, 18, 19)
    ]
    codes = [copy.wait(60) for copy in copies]
    winner = str(17 + codes.index(0))
    assert sorted(codes) == [0, CLAIMED_CODE, CLAIMED_CODE]
    assert (tmp_path / "ran").read_text() == (tmp_path / CLAIM_FILE).read_text() == f"{winner}\n"
    assert not (tmp_path / REQUEUED_FILE).exists()
    again = subprocess.run(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "NUMBER": winner}, check=False)
    assert again.returncode == CLAIMED_CODE
    assert (tmp_path / REQUEUED_FILE).exists()
