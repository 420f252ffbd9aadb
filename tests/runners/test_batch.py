"""What was sent is known again after any death, and of two copies of a job only the first one runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from meshtune.runners.base import JobState, JobStatus, RunnerUnavailable
from meshtune.runners.batch.records import CLAIM_FILE, CLAIMED_CODE, Records, render_claim, render_exports, surroundings


@pytest.fixture
def records(tmp_path) -> Records:
    return Records(tmp_path / "root")


def test_nothing_is_written_before_a_job_is_begun(records, tmp_path):
    assert records.get("job") is None
    assert records.of("17") is None
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_was_begun_is_known_before_it_has_an_id(records, tmp_path):
    begun = records.begin("job", tmp_path / "work", 12.5)
    assert (begun.id, begun.number, begun.directory, begun.sent_at) == (None, None, tmp_path / "work", 12.5)
    assert Records(tmp_path / "root").get("job") == begun
    again = records.begin("job", tmp_path / "elsewhere", 99.0)
    assert again == begun


def test_a_job_is_found_by_its_id_after_a_restart_too(records, tmp_path):
    for name, id in (("one", "17"), ("two", "18")):
        records.begin(name, tmp_path / name, 1.0)
        records.set_id(name, id)
    restarted = Records(tmp_path / "root")
    for known in (records, restarted):
        assert known.of("18").name == "two"
        assert known.of("17").id == "17"
        assert known.of("19") is None
    records.begin("three", tmp_path / "three", 1.0)
    records.set_id("three", "19")
    assert restarted.of("19").name == "three"


def test_a_job_that_was_not_sent_is_forgotten(records, tmp_path):
    records.begin("job", tmp_path / "work", 1.0)
    records.forget("job")
    assert records.get("job") is None
    assert list((tmp_path / "root" / "jobs").iterdir()) == []


def test_the_copy_that_ran_is_the_one_to_ask_for(records, tmp_path):
    records.begin("job", tmp_path, 1.0)
    records.set_id("job", "18")
    assert records.get("job").number == "18"
    (tmp_path / CLAIM_FILE).write_text("17\n")
    record = records.get("job")
    assert (record.id, record.claimed_by, record.number) == ("18", "17", "17")


def test_a_final_status_is_kept_whole(records, tmp_path):
    records.begin("job", tmp_path, 1.0)
    assert records.final("job") is None
    status = JobStatus(state=JobState.LOST, reason="r", started_at=1.5, nodes=("a", "b"), failed_nodes=("b",))
    records.set_final("job", status)
    assert Records(tmp_path / "root").final("job") == status


def test_a_wish_to_cancel_is_kept(records, tmp_path):
    records.begin("job", tmp_path, 1.0)
    assert not records.cancel_asked("job")
    records.ask_cancel("job")
    assert Records(tmp_path / "root").cancel_asked("job")


def test_what_cannot_be_read_was_perhaps_sent(records, tmp_path):
    """Taken for a job that never was, it would be sent again."""
    records.begin("job", tmp_path, 1.0)
    file = tmp_path / "root" / "jobs" / "job" / "job.json"
    file.unlink()
    file.mkdir()
    with pytest.raises(RunnerUnavailable, match="the record of job cannot be read"):
        records.get("job")
    (tmp_path / "root" / "jobs" / "job" / "id").mkdir()
    with pytest.raises(IsADirectoryError):
        Records(tmp_path / "root").of("17")


def test_of_two_copies_of_a_script_one_runs(tmp_path):
    script = render_claim("$NUMBER") + "echo $NUMBER >> ran\nsleep 0.2\n"
    copies = [
        subprocess.Popen(["sh", "-c", script], cwd=tmp_path, env={**os.environ, "NUMBER": str(number)})
        for number in (17, 18, 19)
    ]
    codes = [copy.wait(60) for copy in copies]
    winner = str(17 + codes.index(0))
    assert sorted(codes) == [0, CLAIMED_CODE, CLAIMED_CODE]
    assert (tmp_path / "ran").read_text() == (tmp_path / CLAIM_FILE).read_text() == f"{winner}\n"


def test_a_script_takes_no_more_of_our_environment_than_jobs_may_see(monkeypatch, tmp_path):
    for name in ("MESHTUNE_TOKEN", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT"):
        monkeypatch.setenv(name, "hush")
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TMPDIR"):
        monkeypatch.setenv(name, "of this node")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/it's here/$HOME")
    around = surroundings()
    assert around.python == sys.executable
    assert not {"hush", "of this node"} & set(around.environment.values())
    script = f"{render_exports(around.environment)}exec {sys.executable} -c '{_SHOW}'"
    seen = subprocess.run(["sh", "-c", script], env={}, capture_output=True, text=True, check=True)
    assert json.loads(seen.stdout).items() >= around.environment.items()


_SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
