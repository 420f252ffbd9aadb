"""The local runner and its server survive each other's death, and leave neither half-sent jobs nor processes; a job
gets into the spool whole and once."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import alive, children
from places import cluster

from meshtune.runners.base import JobSpec, JobState, RunnerUnavailable, SubmitFailed
from meshtune.runners.schedulers.local.runner import MOST_PROCESSES, create
from meshtune.runners.schedulers.local.spool import Spool, SpooledJob
from meshtune.search_spaces.checks import InvalidValue

FOREVER = "exec sleep 300"


def status_within(lab, id, limit_s=60.0):
    """The job's next status; a runner that has lost its server may say so first."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return lab.status(id)
        except RunnerUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def final(lab, id):
    lab.wait_for(lambda: status_within(lab, id).state.final)
    return lab.status(id)


def family(script: str) -> str:
    """A rank with a child in its session, and one with a child of its own that left the session; all told by files."""
    away = "setsid sh -c 'sleep 300 & touch away-$RANK; sleep 300'"
    return f"sleep 300 & {away} & while [ ! -e away-$RANK ]; do sleep 0.01; done; {script}"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "the local server died and its processes with it"),
        (signal.SIGTERM, "the local server was told to stop"),
    ],
)
def test_a_dead_server_takes_everything_with_it_and_the_next_one_goes_on(number, reason, local):
    running = local.submit("running", family(f"touch started-$RANK; {FOREVER}"), processes=3)
    queued = local.submit("queued", "echo $RANK >> count", processes=2)
    for rank in range(3):
        local.wait_file("running", f"started-{rank}")
    server = local.wait_server()
    local.wait_for(lambda: len(local.left()) >= 3 * (1 + 1 + 2))  # one that is about to become `sleep` has no mark
    ranks = children(server)
    os.kill(server, number)
    local.wait_for(lambda: not any(map(alive, [server, *ranks])))  # before anybody looks
    lost = final(local, running)
    assert (lost.state, lost.exit_code, lost.reason) == (JobState.LOST, None, reason)
    assert lost.started_at is not None
    assert final(local, queued).state is JobState.SUCCEEDED
    assert local.left() == []
    assert sorted((local.folder / "work" / "queued" / "count").read_text().split()) == ["0", "1"]
    assert local.wait_server() != server
    assert local.status(running) == lost


def test_the_server_ends_by_itself_when_idle_and_comes_back(local):
    local.runner = local.open(idle_s=0.3)
    servers = []
    for name in ("one", "two"):
        local.submit(name, "touch started; while [ ! -e go ]; do sleep 0.02; done")
        # Polled: what a server forked may hold its lock for a moment longer, and then a poll starts the next server.
        local.wait_for(lambda name=name: local.status(name).state is JobState.RUNNING)
        local.wait_file(name, "started")
        servers.append(local.wait_server())  # while it has something to do
        (local.folder / "work" / name / "go").touch()
        assert local.wait(name).state is JobState.SUCCEEDED
        local.wait_for(lambda: not local.servers(), 20)  # it would wait for 30 s by itself
        local.runner.close()
    assert servers[0] != servers[1]


def test_two_runners_share_one_server_and_its_slots(local):
    other = local.open()
    local.submit("mine", f"touch started; {FOREVER}", processes=3)
    other.submit(local.spec("theirs", "touch ran", processes=2))
    local.wait_file("mine", "started")
    assert other.poll(["mine", "theirs"])["mine"].state is JobState.RUNNING
    assert local.status("theirs").state is JobState.QUEUED
    local.wait_server()
    other.cancel("mine")
    assert local.wait("mine").state is JobState.CANCELLED
    assert local.wait("theirs").state is JobState.SUCCEEDED
    assert len(local.servers()) == 1


def test_a_server_that_cannot_start_is_told_with_its_log(local, monkeypatch):
    broken = local.folder / "broken"
    broken.mkdir()
    (broken / "argparse.py").write_text("raise SystemExit('no such luck')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    id = local.submit("job", "touch ran")
    log = local.folder / "spool" / "server.log"

    def death_is_told() -> bool:
        try:
            local.status(id)
        except RunnerUnavailable as error:
            return str(error) == f"the local server has died; see {log}"
        return False

    for _ in range(3):  # again and again: nothing reads as if it would run soon
        local.wait_for(death_is_told)
    assert "no such luck" in log.read_text()
    assert local.runner.find("job") == id
    monkeypatch.delenv("PYTHONPATH")
    assert final(local, id).state is JobState.SUCCEEDED


def test_first_come_first_served(local):
    blocker = local.submit("blocker", FOREVER, processes=local.slots)
    # Neither the names nor the sizes are in the order of submission.
    names = [f"job{number}" for number in (9, 3, 7, 1, 8, 10, 2, 5)]
    for position, name in enumerate(names):
        local.submit(name, "true", processes=local.slots if position % 2 else 3)
    local.runner.cancel(blocker)
    started = [local.wait(name).started_at for name in names]
    assert started == sorted(started)
    assert len(set(started)) == len(started)


@contextmanager
def full_disk(bytes_: int):
    """No file can be made longer than this while it lasts."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_half_a_job(local):
    spec = local.spec("job", "cat input > seen", files={"input": "short"})
    for bytes_ in (0, 10):
        with full_disk(bytes_), pytest.raises(SubmitFailed, match="File too large"):
            local.runner.submit(spec)
        assert local.runner.find("job") is None
        assert [path.name for path in (local.folder / "spool").iterdir()] == ["jobs"]
        assert all(path.name == "input" and path.read_text() == "short" for path in spec.directory.iterdir())
    assert local.wait(local.runner.submit(spec)).state is JobState.SUCCEEDED
    assert (spec.directory / "seen").read_text() == "short"


def test_a_job_starts_only_once_its_start_is_written_down(local):
    blocker = local.submit("blocker", FOREVER, processes=4)
    job = local.submit("job", "echo ran >> count")
    local.wait(blocker, JobState.RUNNING)
    # A folder where the server would draft the job's status: every write of it fails.
    draft = local.folder / "spool" / "jobs" / "job" / f".status.json.{local.wait_server()}"
    draft.mkdir()
    local.runner.cancel(blocker)
    local.wait(blocker)
    time.sleep(0.3)
    assert local.status(job).state is JobState.QUEUED
    assert not (local.folder / "work" / "job" / "count").exists()
    draft.rmdir()
    assert local.wait(job).state is JobState.SUCCEEDED
    assert (local.folder / "work" / "job" / "count").read_text() == "ran\n"


def test_the_server_itself_does_not_hold_what_the_service_hides(local, monkeypatch):
    monkeypatch.setenv("MESHTUNE_SECRET", "hush")
    local.wait(local.submit("job", "true"))
    with open(f"/proc/{local.wait_server()}/environ", "rb") as file:
        assert b"hush" not in file.read()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 3}, r"^slots: slots\(3\) cannot hold the 4 processes of one trial$"),
        ({"idle_s": 0}, "^idle_s: must be positive, not 0.0$"),
        (
            {"slots": 100_000},
            r"^slots: 100000 processes at once are more than the \d+ that this machine runs \(16 for each of its",
        ),
        ({"slot": 8}, "^slot: is not a known key; did you mean 'slots'"),
    ],
)
def test_wrong_options_are_refused(options, message, tmp_path):
    with pytest.raises(InvalidValue, match=message):
        create(tmp_path / "spool", cluster(1, 4), options)


def test_what_a_machine_cannot_hold_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv(MOST_PROCESSES, "1000000")
    with pytest.raises(
        InvalidValue, match=r"^slots: 900000 processes take 128 MiB each .*, and this machine has \d+ MiB$"
    ):
        create(tmp_path / "spool", cluster(1, 900_000), {})
    monkeypatch.setenv(MOST_PROCESSES, "3")
    too_many = r"4 processes at once are more than the 3 that this machine runs \(MESHTUNE_LOCAL_PROCESSES\)$"
    with pytest.raises(InvalidValue, match=too_many):
        create(tmp_path / "spool", cluster(1, 4), {})
    assert list(tmp_path.iterdir()) == []


def test_a_rank_is_the_first_to_end_where_memory_runs_out(local):
    local.wait(local.submit("job", "cat /proc/self/oom_score_adj > seen"))
    assert (local.folder / "work" / "job" / "seen").read_text() == "1000\n"
    assert Path("/proc/self/oom_score_adj").read_text() != "1000\n"


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path)
    spool.create()
    return spool


ADDER = """
import sys
from pathlib import Path
from meshtune.runners.base import JobSpec
from meshtune.runners.schedulers.local.spool import Spool, SpooledJob
root, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    spec = JobSpec(name=f"job{number}", command=(me,), directory=root, time_limit_s=1)
    if Spool(root).add(SpooledJob(spec=spec, slots=1)):
        print(spec.name)
"""


def test_of_several_processes_exactly_one_puts_a_job_in(spool):
    commands = [[sys.executable, "-c", ADDER, spool.root, str(me)] for me in range(4)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    adders = [subprocess.Popen(command, **pipes) for command in commands]
    assert [adder.stdout.readline() for adder in adders] == ["ready\n"] * 4
    for adder in adders:
        adder.stdin.write("go\n")
        adder.stdin.flush()
    won = [adder.communicate(timeout=60)[0].split() for adder in adders]
    assert sorted(name for added in won for name in added) == sorted(f"job{number}" for number in range(100))
    assert all(spool.job(name).spec.command == (str(me),) for me, added in enumerate(won) for name in added)
    assert [path.name for path in spool.root.iterdir()] == ["jobs"]


def test_a_state_that_the_server_never_wrote_is_that_job_s_loss_alone(spool):
    for name in ("good", "bad"):
        spool.add(SpooledJob(spec=JobSpec(name=name, command=("x",), directory=spool.root, time_limit_s=1), slots=1))
    os.mkfifo(spool.jobs / "bad" / "status.json")
    assert spool.status("good").state is JobState.QUEUED
    lost = spool.status("bad")
    assert (lost.state, "status.json is a pipe, not a regular file" in lost.reason) == (JobState.LOST, True)
