"""The local runner and its server survive each other's death, and leave neither half-sent jobs nor processes."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import time
from contextlib import contextmanager

import pytest

from meshtune.runners.base import InvalidJob, JobState, RunnerUnavailable, SubmitFailed
from meshtune.runners.local.runner import create
from meshtune.runners.processes.gang import JOB_MARK
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec

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


def test_a_killed_server_takes_everything_with_it_and_the_next_one_goes_on(local):
    running = local.submit("running", family(f"touch started-$RANK; {FOREVER}"), processes=3)
    queued = local.submit("queued", "echo $RANK >> count", processes=2)
    for rank in range(3):
        local.wait_file("running", f"started-{rank}")
    server = local.wait_server()
    local.wait_for(lambda: len(local.left()) >= 3 * (1 + 1 + 2))  # one that is about to become `sleep` has no mark
    ranks = local.left()
    os.kill(server, signal.SIGKILL)
    lost = final(local, running)
    assert (lost.state, lost.exit_code) == (JobState.LOST, None)
    assert lost.reason == "the local server died and its processes with it"
    assert lost.started_at is not None
    assert not any(local.alive(pid) for pid in ranks)
    assert final(local, queued).state is JobState.SUCCEEDED
    assert sorted((local.folder / "work" / "queued" / "count").read_text().split()) == ["0", "1"]
    assert local.wait(local.submit("next", "true")).state is JobState.SUCCEEDED
    assert local.wait_server() != server
    assert local.status(running) == lost


def test_the_ranks_of_a_killed_server_die_before_anybody_looks(local):
    local.submit("running", f"touch started-$RANK; {FOREVER}", processes=2)
    for rank in (0, 1):
        local.wait_file("running", f"started-{rank}")
    os.kill(local.wait_server(), signal.SIGKILL)
    local.wait_nothing_left()


def test_a_terminated_server_says_that_its_jobs_are_lost_and_keeps_the_queue(local):
    running = local.submit("running", family(f"touch started-$RANK; {FOREVER}"), processes=3)
    queued = local.submit("queued", "true", processes=2)
    for rank in range(3):
        local.wait_file("running", f"started-{rank}")
    server = local.wait_server()
    os.kill(server, signal.SIGTERM)
    local.wait_for(lambda: not local.alive(server))
    assert local.left() == []
    lost = local.status(running)
    assert (lost.state, lost.reason) == (JobState.LOST, "the local server was told to stop")
    assert final(local, queued).state is JobState.SUCCEEDED


def test_the_server_ends_by_itself_when_idle_and_comes_back(local):
    local.runner = local.open(idle_s=0.3)
    servers = []
    for name in ("one", "two"):
        local.submit(name, "touch started; while [ ! -e go ]; do sleep 0.02; done")
        local.wait_file(name, "started")
        servers.append(local.wait_server())  # while it has something to do
        (local.folder / "work" / name / "go").touch()
        assert local.wait(name).state is JobState.SUCCEEDED
        local.wait_for(lambda: not local.servers(), 20)  # it would wait for 30 s by itself
        local.runner.close()
    assert servers[0] != servers[1]


def test_a_server_whose_spool_was_removed_ends_with_its_ranks_and_another_may_take_the_place(local):
    local.submit("old", f"touch started; {FOREVER}")
    local.wait_file("old", "started")
    first = local.wait_server()
    shutil.rmtree(local.folder / "spool")
    local.wait_for(lambda: not local.alive(first))
    local.wait_nothing_left()
    local.runner = local.open()
    assert local.wait(local.submit("new", "true")).state is JobState.SUCCEEDED
    assert local.wait_server() != first


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


def test_two_spools_with_equal_names_do_not_meet(local):
    other = local.open(root=local.folder / "spool" / "nested")
    away = "setsid sh -c 'touch away; exec sleep 300'"
    script = f"{away} & while [ ! -e away ]; do sleep 0.01; done; touch started; {FOREVER}"
    for runner, work in ((local.runner, "one"), (other, "two")):
        runner.submit(local.spec("same", script, directory=local.folder / "work" / work))
    for work in ("one", "two"):
        local.wait_file(work, "started")
    local.runner.cancel("same")
    local.wait("same")
    local.wait_for(lambda: len(local.left()) == 2)  # the other job's rank, and what left its session
    time.sleep(0.1)
    assert len(local.left()) == 2
    assert other.poll(["same"])["same"].state is JobState.RUNNING
    other.cancel("same")
    local.wait_for(lambda: other.poll(["same"])["same"].state.final)


def test_a_server_that_cannot_start_is_told_with_its_log(local, monkeypatch):
    broken = local.folder / "broken"
    (broken / "runners").mkdir(parents=True)
    (broken / "runners" / "__init__.py").write_text("raise SystemExit('no such luck')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    monkeypatch.chdir(local.folder)  # the interpreter looks there first, and this checkout may be it
    id = local.submit("job", "touch ran")
    log = local.folder / "spool" / "server.log"
    for _ in range(3):  # again and again: nothing reads as if it would run soon
        local.wait_for(lambda: local.runner._server is None or local.runner._server.poll() is not None)
        with pytest.raises(RunnerUnavailable, match=f"^the local server has died; see {log}$"):
            local.status(id)
    assert "no such luck" in log.read_text()
    assert local.runner.find("job") == id
    monkeypatch.delenv("PYTHONPATH")
    assert final(local, id).state is JobState.SUCCEEDED


def test_a_lock_that_cannot_be_is_no_living_server(local):
    root = local.folder / "spool"
    (root / "server.lock").mkdir(parents=True)
    id = local.submit("job", "true")  # was sent, so it does not raise
    with pytest.raises(RunnerUnavailable, match=r"cannot be started: .*server.lock"):
        local.status(id)
    (root / "server.lock").rmdir()
    assert final(local, id).state is JobState.SUCCEEDED


def test_a_log_that_cannot_be_written_does_not_unsend_a_job(local):
    (local.folder / "spool" / "server.log").mkdir(parents=True)
    assert local.submit("job", "true") == "job"
    with pytest.raises(RunnerUnavailable, match=r"cannot be started: .*server.log"):
        local.status("job")


def test_an_unwritable_root_sends_nothing(local):
    (local.folder / "file").write_text("")
    runner = local.open(root=local.folder / "file" / "spool")
    spec = local.spec("job", "true", files={"input": "text"})
    with pytest.raises(SubmitFailed, match=r"^job cannot be written: "):
        runner.submit(spec)
    assert runner.find("job") is None
    assert runner.poll(["job"])["job"].state is JobState.LOST
    assert not spec.directory.exists()
    runner.cancel("job")


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"processes": 5}, "job needs 5 processes, but the runner has 4 slots"),
        ({"processes": 2, "nodes": 3}, "job needs 6 processes, but the runner has 4 slots"),
        ({"processes": 0}, "job needs 0 processes, but the runner has 4 slots"),
    ],
)
def test_a_job_larger_than_the_slots_is_told_both_numbers(changes, message, local):
    with pytest.raises(InvalidJob, match=f"^{message}$"):
        local.submit("job", "true", **changes)


@contextmanager
def full_disk(bytes_: int):
    """No file can be made longer than this while it lasts."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("bytes_", [0, 10])
def test_a_full_disk_leaves_no_half_a_job(bytes_, local):
    spec = local.spec("job", "cat input > seen", files={"input": "short"})
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


def test_an_end_that_cannot_be_written_is_written_later(local):
    job = local.submit("job", "touch started; while [ ! -e go ]; do sleep 0.02; done; exit 3")
    local.wait_file("job", "started")
    draft = local.folder / "spool" / "jobs" / "job" / f".status.json.{local.wait_server()}"
    draft.mkdir()
    (local.folder / "work" / "job" / "go").touch()
    local.wait_nothing_left()
    time.sleep(0.2)
    assert local.status(job).state is JobState.RUNNING
    assert local.wait(local.submit("other", "true")).state is JobState.SUCCEEDED
    draft.rmdir()
    assert local.wait(job).exit_code == 3


@pytest.mark.parametrize("text", ["", "[]", '{"spec": {}}', '{"spec": {"command": []}, "slots": 1}'])
def test_an_order_that_nobody_understands_is_lost_and_harms_no_other(text, local):
    running = local.submit("running", FOREVER)
    server = local.wait_server()
    local.wait(running, JobState.RUNNING)
    folder = local.folder / "spool" / "draft-strange"
    folder.mkdir()
    (folder / "spec.json").write_text(text)
    folder.rename(local.folder / "spool" / "jobs" / "strange")
    status = local.wait("strange")
    assert status.state is JobState.LOST
    assert "its order in the spool cannot be understood" in status.reason
    assert local.status(running).state is JobState.RUNNING
    assert local.servers() == [server]
    local.runner.cancel(running)
    local.wait(running)


def test_what_somebody_else_puts_into_the_spool_is_no_job(local):
    jobs = local.folder / "spool" / "jobs"
    (jobs / "empty").mkdir(parents=True)
    (jobs / "file").write_text("")
    assert local.wait(local.submit("job", "true")).state is JobState.SUCCEEDED


def test_a_removed_job_does_not_hold_up_the_queue(local):
    blocker = local.submit("blocker", FOREVER, processes=4)
    local.submit("removed", "touch ran")
    after = local.submit("after", "true")
    local.wait(blocker, JobState.RUNNING)
    time.sleep(0.1)
    for path in (local.folder / "spool" / "jobs" / "removed").iterdir():
        path.unlink()
    (local.folder / "spool" / "jobs" / "removed").rmdir()
    local.runner.cancel(blocker)
    assert local.wait(after).state is JobState.SUCCEEDED
    assert local.status("removed").state is JobState.LOST
    assert not (local.folder / "work" / "removed" / "ran").exists()


def test_ranks_log_to_their_own_files_and_know_their_job(local):
    spec = local.spec(
        "loud", f"echo out $RANK; echo err $RANK >&2; echo ${JOB_MARK}; read line || echo no input", processes=2
    )
    local.wait(local.runner.submit(spec))
    for rank in (0, 1):
        said = (spec.directory / f"rank-{rank}.log").read_text()
        assert said == f"out {rank}\nerr {rank}\n{local.folder}/spool/jobs/loud\nno input\n"


def test_what_a_rank_started_dies_with_it_while_others_go_on(local):
    id = local.submit("job", f"[ $RANK = 0 ] && {{ sleep 300 & touch away; exit 0; }}; {FOREVER}", processes=2)
    local.wait_file("job", "away")
    local.wait_for(lambda: len(local.left()) == 1)
    assert local.status(id).state is JobState.RUNNING
    local.runner.cancel(id)
    local.wait(id)


def test_the_server_itself_does_not_hold_what_the_service_hides(local, monkeypatch):
    monkeypatch.setenv("MESHTUNE_SECRET", "hush")
    local.wait(local.submit("job", "true"))
    with open(f"/proc/{local.wait_server()}/environ", "rb") as file:
        assert b"hush" not in file.read()


def test_the_order_of_a_job_holds_no_copy_of_its_files(local):
    local.wait(local.runner.submit(local.spec("job", "true", files={"big": "x" * 1000})))
    document = json.loads((local.folder / "spool" / "jobs" / "job" / "spec.json").read_text())
    assert document["spec"]["files"] == {}


def kill_a_server(local) -> bool:
    """True when one was there to be killed: for a moment between two servers there is none."""
    servers = local.servers()
    for server in servers[:1]:
        os.kill(server, signal.SIGKILL)
    return bool(servers)


@pytest.mark.slow
def test_fifty_jobs_with_random_deaths_leave_no_process(local):
    chance = random.Random(17)
    ends = ["true", "exit 3", "kill -9 $$", "sleep 0.05", "sleep 30"]
    expected = {}
    for number in range(50):
        end = chance.choice(ends)
        child = chance.choice(["", "sleep 300 &", "setsid sleep 300 &"])
        id = local.submit(f"job{number}", f"{child} {end}", processes=chance.randint(1, 4), time_limit_s=30)
        expected[id] = end
        if end == "sleep 30" or chance.random() < 0.1:
            local.runner.cancel(id)
            expected[id] = None
        if number in (20, 35):
            local.wait_for(lambda id=id: status_within(local, id) and kill_a_server(local))
    states = {id: final(local, id).state for id in expected}
    assert local.left() == []
    for id, end in expected.items():
        usual = JobState.SUCCEEDED if end in ("true", "sleep 0.05") else JobState.FAILED
        assert states[id] in ({usual, JobState.LOST} if end else set(JobState) - {JobState.TIMED_OUT}), (id, end)
    assert list(states.values()).count(JobState.LOST) <= 2 * 4


def cluster(devices: int) -> ClusterSpec:
    device = DeviceSpec(name="cpu", kind=DeviceKind.CPU, memory_bytes=2**30)
    return ClusterSpec(name="c", nodes=1, devices_per_node=devices, device=device)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 3}, r"^slots: slots\(3\) cannot hold the 4 processes of one trial$"),
        ({"idle_s": 0}, "^idle_s: must be positive, not 0.0$"),
        (
            {"slot": 8, "idle_s": "long"},
            "^slot: is not a known key; did you mean 'slots'\\?; idle_s: .*'long'$|idle_s.*slot",
        ),
    ],
)
def test_wrong_options_are_refused(options, message, tmp_path):
    with pytest.raises(InvalidValue, match=message):
        create(tmp_path / "spool", cluster(4), options)


def test_creating_a_runner_starts_and_writes_nothing(tmp_path):
    runner = create(tmp_path / "spool", cluster(4), {})
    assert runner.poll(["job"])["job"].state is JobState.LOST
    assert runner.find("job") is None
    runner.close()
    assert list(tmp_path.iterdir()) == []
