"""Whatever a job leaves in its folder, reading it ends soon, and with a verdict that names what is wrong."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from meshtune.runners.base import Cause, JobState, JobStatus, RunnerUnavailable
from meshtune.runners.job_files import MAX_ENTRIES, UnfitFile, list_entries, open_file, read_document
from meshtune.runners.log_lines import MAX_LOG_BYTES, lines_of, read_tail
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.programs.log_reader import rank_logs
from meshtune.runners.programs.workloads import base
from meshtune.runners.programs.workloads.command import CommandWorkload
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.schedulers.batch.launch_wrapper import read_notes
from meshtune.runners.schedulers.batch.records import JobRecord
from meshtune.runners.schedulers.batch.script import CLAIM_FILE
from meshtune.runners.trainer.failure import Phase, describe, read_failures


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 << 30)


UNFIT = {
    "is a pipe, not a regular file": os.mkfifo,
    "is a link, not a regular file": lambda path: path.symlink_to("/dev/zero"),
    "is a folder, not a regular file": Path.mkdir,
    "is a socket, not a regular file": make_socket,
    "has 10737418240 bytes, and at most 8388608 are read": make_sparse,
}
SUCCEEDED = JobStatus(state=JobState.SUCCEEDED)
FAILED = JobStatus(state=JobState.FAILED, reason="rank 0 exited with code 1", exit_code=1)
LOGGED = CommandWorkload({"command": ["x"], "log": {"step_time_s": r"took ([\d.]+)"}})
SILENT = CommandWorkload({"command": ["x"]})


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("words", UNFIT)
def test_whatever_stands_in_the_place_of_a_file_has_its_verdict(words, tmp_path):
    UNFIT[words](tmp_path / "result.json")
    for workload in (LOGGED, SILENT, TorchWorkload({})):
        outcome = workload.read(tmp_path, SUCCEEDED)
        told = f"the result file is malformed: result.json {words}"
        assert (outcome.verdict, outcome.cause, outcome.reason) == (Verdict.CRASHED, Cause.CRASH, told)


@pytest.mark.parametrize("words", UNFIT)
@pytest.mark.parametrize(
    "name", ["rank-0.log", "failure-0.json", "rank-0.json", "brief.json", "job.json", CLAIM_FILE, "gang.json"]
)
def test_whatever_stands_in_the_place_of_a_log_or_a_note_is_left_out(name, words, tmp_path):
    UNFIT[words](tmp_path / name)
    for workload in (LOGGED, SILENT, TorchWorkload({})):
        assert workload.read(tmp_path, FAILED).verdict is Verdict.CRASHED
    assert (read_notes(tmp_path), read_failures(tmp_path)) == ([], [])
    record = JobRecord(name="c-t0-a1", directory=tmp_path, sent_at=0.0)
    assert (record.claimed_by, record.job().command) == (None, ())
    if name == "rank-0.log":
        tail = read_tail(tmp_path / name)
        assert tail == ("\0" * 4000 if "bytes" in words else f"({name} {words})")


def test_of_an_endless_log_no_more_is_read_than_a_log_may_have(tmp_path):
    (tmp_path / "rank-0.log").write_text("took 1\n" * 20)
    os.truncate(tmp_path / "rank-0.log", 10 << 30)
    assert sum(map(len, lines_of(tmp_path / "rank-0.log"))) < MAX_LOG_BYTES
    assert LOGGED.read(tmp_path, SUCCEEDED).cause is Cause.CRASH  # it has no context here


def test_names_and_folders_of_a_job_s_own_choice_are_no_logs(tmp_path):
    for name in ("rank-x.log", "rank-01.log", "rank-9999999999.log", "rank-.log", "rank-\u0663.log", "rank-2.log"):
        (tmp_path / name).touch()
    assert list(rank_logs(tmp_path)) == [2]
    (tmp_path / "link").symlink_to(tmp_path)
    assert (list_entries(tmp_path / "link"), rank_logs(tmp_path / "link")) == ([], {})
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "link" / "rank-2.log")
    assert MAX_ENTRIES > 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_file_of_somebody_else_is_not_read_unless_the_folder_was_given_to_its_owner(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    os.chown(tmp_path / "result.json", 12345, -1)
    (tmp_path / "mine").write_text("{}")
    os.chown(tmp_path / "mine", 54321, -1)
    (tmp_path / "closed").touch(0o000)
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(gettempdir()):
            break
        folder.chmod(0o755)
    told: list[str] = []
    os.seteuid(54321)
    try:
        assert read_document(tmp_path / "mine") == "{}"
        for name in ("result.json", "closed"):
            with pytest.raises(UnfitFile) as caught:
                read_document(tmp_path / name)
            told.append(str(caught.value))
    finally:
        os.seteuid(0)
    assert told == ["result.json belongs to the user 12345, not to its folder's owner", "closed may not be read"]
    os.chown(tmp_path, 12345, -1)
    os.seteuid(54321)
    try:
        assert read_document(tmp_path / "result.json") == "{}"
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("workload", [LOGGED, SILENT, TorchWorkload({})])
@pytest.mark.parametrize("status", [SUCCEEDED, FAILED])
def test_a_job_whose_folder_is_gone_is_lost(status, workload, tmp_path):
    outcome = workload.read(tmp_path / "gone", status)
    assert (outcome.verdict, outcome.cause) == (Verdict.LOST, Cause.STORAGE)
    assert outcome.reason.startswith(f"the job's folder {tmp_path}/gone is gone; ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
@pytest.mark.parametrize("change", ["full", "read-only"])
def test_a_job_that_fails_on_a_full_disk_is_lost_and_a_result_that_it_wrote_counts(change, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(OSError) as caught:
            (disk / "rank-0.log").write_bytes(b"x" * (1 << 20))
        assert caught.value.errno == errno.ENOSPC
        if change == "read-only":
            (disk / "rank-0.log").write_bytes(b"")
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for workload in (LOGGED, SILENT, TorchWorkload({})):
            outcome = workload.read(disk, FAILED)
            assert (outcome.verdict, outcome.cause) == (Verdict.LOST, Cause.STORAGE)
            assert f"the file system of the job's folder {disk} is {change}" in outcome.reason
        if change == "full":
            os.truncate(disk / "rank-0.log", 64 << 10)
            (disk / "result.json").write_text(
                '{"version": 1, "verdict": "crashed", "cause": "crash", "reason": "mine"}'
            )
            (disk / "rest").write_bytes(b"x" * (56 << 10))
            assert SILENT.read(disk, FAILED).reason == "mine"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_a_rank_says_of_its_storage_is_no_crash(tmp_path):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoint")
    failure = describe(error, rank=0, phase=Phase.INIT, at=1.0)
    assert (failure.cause, failure.verdict, failure.echo) == (Cause.STORAGE, Verdict.LOST, False)
    assert "[Errno 28] No space left on device" in failure.reason
    (tmp_path / "rank-0.log").write_text("Traceback\nOSError: [Errno 116] Stale file handle: 'result.json'\n")
    outcome = SILENT.read(tmp_path, FAILED)
    assert (outcome.verdict, outcome.cause) == (Verdict.LOST, Cause.STORAGE)
    (tmp_path / "rank-0.log").unlink()
    silent = SILENT.read(tmp_path, JobStatus(state=JobState.FAILED, reason="rank 0 exited with code 74", exit_code=74))
    assert (silent.verdict, silent.cause) == (Verdict.LOST, Cause.STORAGE)


def test_a_file_that_cannot_be_read_just_now_is_no_verdict(tmp_path, monkeypatch):
    def broken(directory: Path) -> Outcome | None:
        raise OSError(errno.EIO, "Input/output error", str(directory))

    monkeypatch.setattr(base, "outcome_from_result", broken)
    with pytest.raises(RunnerUnavailable, match="Input/output error"):
        SILENT.read(tmp_path, FAILED)
