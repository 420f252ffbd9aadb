"""What every runner of programs promises, tried with shell scripts; what holds for any job is in test_life_cycle.py.

A new runner joins LABORATORIES in conftest.py and passes both; MESHTUNE_LABORATORY names one of another package.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from meshtune.runners.base import Cause, InvalidJob, JobState, Refused, SubmitFailed

# Long enough to outlive any test: what must end it is the runner.
FOREVER = "exec sleep 300"


def test_a_job_that_fails_says_which_rank_and_how(lab):
    before = time.time()
    bad = lab.submit("bad", "[ $RANK = 2 ] && exit 7; exec sleep 300", processes=3)
    none = lab.submit("none", "", command=("/no/such/program",))
    status = lab.wait(bad)
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, 7, "rank 2 exited with code 7")
    assert before - 1 < status.started_at <= status.finished_at < time.time() + 1
    assert lab.wait(none).state is JobState.FAILED


def test_a_killed_rank_ends_its_gang_at_once_and_is_blamed(lab):
    # The others notice and fail as well, as ranks do that lose a peer; one of them ends well.
    script = """
        if [ $RANK = 1 ]; then touch ready; sleep 0.3; kill -9 $$; fi
        if [ $RANK = 3 ]; then exit 0; fi
        trap 'exit 5' TERM; sleep 300 & wait"""
    id = lab.submit("killed", script, processes=4)
    lab.wait_file("killed", "ready")
    status = lab.wait(id)  # the others would sleep far longer
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, -9, "rank 1 was killed by SIGKILL")
    lab.wait_nothing_left()


def test_the_time_limit_ends_a_job(lab):
    status = lab.wait(lab.submit("slow", FOREVER, processes=2, time_limit_s=0.5))
    assert (status.state, status.exit_code) == (JobState.TIMED_OUT, None)
    assert status.reason == "ran longer than its time limit of 0.5 s"
    assert 0.5 <= status.finished_at - status.started_at < 20
    lab.wait_nothing_left()


def test_a_cancelled_job_ends_though_it_does_not_listen(lab):
    id = lab.submit("long", f"trap '' TERM INT HUP; touch started; sleep 300; {FOREVER}", processes=2)
    lab.wait_file("long", "started")
    lab.runner.cancel(id)
    assert lab.wait(id).state is JobState.CANCELLED
    lab.wait_nothing_left()


def test_a_name_runs_once_however_often_it_is_submitted(lab):
    script = "echo ran >> count; while [ ! -e go ]; do sleep 0.05; done"
    spec = lab.spec("once", script, files={"input": "text"})
    ids = {lab.runner.submit(spec) for _ in range(3)}
    lab.wait(next(iter(ids)), JobState.RUNNING)
    ids.add(lab.runner.submit(spec))
    (id,) = ids
    (spec.directory / "go").touch()
    done = lab.wait(id)
    assert lab.runner.submit(lab.spec("once", "exit 1", files={"input": "other"})) == id
    time.sleep(0.2)
    assert lab.status(id) == done
    assert (spec.directory / "count").read_text() == "ran\n"
    assert (spec.directory / "input").read_text() == "text"


def test_every_process_knows_its_rank(lab):
    script = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK" > rank-$RANK.txt'
    spec = lab.spec("ranks", script, nodes=2, processes=2, env={"RANK": "9", "WORLD_SIZE": "9"})
    lab.runner = lab.wide()
    lab.wait(lab.runner.submit(spec))
    said = [(spec.directory / f"rank-{rank}.txt").read_text().split() for rank in range(4)]
    assert said == [["0", "4", "0"], ["1", "4", "1"], ["2", "4", "0"], ["3", "4", "1"]]


def test_a_job_sees_its_own_environment_and_not_the_services(lab, monkeypatch):
    for name in ("MESHTUNE_SECRET", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "hush")
    lab.wait(lab.submit("env", "env > env.txt; env | tr '\\n' ' '", env={"GREETING": "two words = one"}))
    directory = lab.folder / "work" / "env"
    seen = dict(line.split("=", 1) for line in (directory / "env.txt").read_text().splitlines())
    assert seen["GREETING"] == "two words = one"
    assert seen["PATH"] == os.environ["PATH"]
    assert "hush" not in "".join(seen.values())
    assert not any(b"hush" in path.read_bytes() for path in lab.folder.rglob("*") if path.is_file())


def test_the_files_are_there_when_the_job_starts_in_the_submitters_directory(lab, monkeypatch):
    lab.wait(lab.submit("warm-up", "true"))
    (lab.folder / "elsewhere").mkdir()
    monkeypatch.chdir(lab.folder / "elsewhere")
    script = "cp input.json seen; pwd > where"
    files = {"input.json": '{"\u00e9": 1}\n', "empty": ""}
    assert lab.wait(lab.submit("job", script, files=files, directory=Path("job"))).state is JobState.SUCCEEDED
    directory = lab.folder / "elsewhere" / "job"
    assert (directory / "seen").read_text(encoding="utf-8") == '{"\u00e9": 1}\n'
    assert (directory / "empty").read_text() == ""
    assert Path((directory / "where").read_text().strip()) == directory.resolve()


def test_never_more_processes_run_than_there_are_slots(lab):
    wait = "while [ ! -e ../../go ]; do sleep 0.05; done; sleep 0.3"
    script = f"date +%s%N > times-$RANK; {wait}; date +%s%N >> times-$RANK"
    ids = [lab.submit(name, script, processes=2) for name in ("a", "b")]
    for name in ("a", "b"):
        for rank in (0, 1):
            lab.wait_text(name, f"times-{rank}")
    ids += [lab.submit(name, script, processes=processes) for name, processes in (("c", 2), ("d", 1), ("e", 2))]
    time.sleep(0.2)
    assert [lab.status(id).state for id in ids[2:]] == [JobState.QUEUED] * 3
    (lab.folder / "go").touch()
    for id in ids:
        assert lab.wait(id).state is JobState.SUCCEEDED
    ran = [[int(stamp) for stamp in path.read_text().split()] for path in (lab.folder / "work").glob("*/times-*")]
    assert len(ran) == 9
    assert max(sum(start <= moment < end for start, end in ran) for moment, _ in ran) == lab.slots


def test_what_is_no_job_is_invalid_and_what_is_too_large_is_refused_and_neither_leaves_anything(lab):
    too_large = (
        ("big", {"processes": 5}, Refused, "^big needs 5 "),
        ("nodes", {"processes": 2, "nodes": 3}, Refused, "^nodes needs (3 nodes|6 processes|6 devices)"),
    )
    for name, changes, error, message in (
        *(() if lab.grows else too_large),
        ("nothing", {"processes": 0}, InvalidJob, "^nothing needs 0 "),
        ("silent", {"command": ()}, InvalidJob, "silent has an empty command"),
    ):
        with pytest.raises(error, match=message):
            lab.runner.submit(lab.spec(name, "true", directory=lab.folder / "work" / "refused", **changes))
        assert lab.runner.find(name) is None
    assert not (lab.folder / "work").exists()


def test_a_job_that_cannot_be_written_was_not_sent(lab):
    (lab.folder / "work").write_text("a file where a folder should be")
    with pytest.raises(SubmitFailed, match=r"^job cannot be written: .*work"):
        lab.submit("job", "true")
    assert lab.runner.find("job") is None
    (lab.folder / "work").unlink()
    assert lab.wait(lab.submit("job", "true")).state is JobState.SUCCEEDED


def test_a_restarted_service_finds_its_jobs(lab):
    id = lab.submit("long", "touch started; while [ ! -e go ]; do sleep 0.05; done; exit 4")
    lab.wait_file("long", "started")
    lab.runner.close()
    lab.runner.close()
    lab.runner = lab.open()
    assert lab.runner.find("long") == id
    assert lab.status(id).state is JobState.RUNNING
    (lab.folder / "work" / "long" / "go").touch()
    assert lab.wait(id).exit_code == 4


def test_what_ranks_start_ends_with_the_gang(lab):
    """What stays in the rank's session and what leaves it."""
    children = [f"{away} sh -c 'sleep 300 & touch {away or 'here'}-$RANK; sleep 300'" for away in ("", "setsid")]
    wait = "while [ ! -e here-$RANK ] || [ ! -e setsid-$RANK ]; do sleep 0.01; done"
    start = f"{children[0]} & {children[1]} & {wait}; touch started-$RANK"
    ends = {"well": "true", "badly": "exit 3", "killed": "kill -9 $$", "never": FOREVER}
    ids = {name: lab.submit(name, f"{start}; {end}", processes=2) for name, end in ends.items()}
    for rank in (0, 1):
        lab.wait_file("never", f"started-{rank}")
    lab.wait_for(lambda: len(lab.left()) >= 10)
    lab.runner.cancel(ids["never"])
    assert all(lab.wait(id).state is not JobState.LOST for id in ids.values())
    lab.wait_nothing_left()


@pytest.mark.parametrize("first", [True, False])
def test_a_node_that_dies_before_a_job_starts_is_blamed_and_the_job_is_repeated_elsewhere(first, mortal):
    """Before its scheduler notices, which takes minutes. Slurm may find by itself that the first one is dead."""
    node = mortal.lose_node(first=first)
    lost = mortal.wait(mortal.short("job", nodes=2))
    if lost.state is not JobState.SUCCEEDED or not (first or mortal.heals):
        assert (lost.state, lost.cause, lost.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, (node,)), lost
    for name, avoid in (("again", lost.failed_nodes), ("another", ("host-of-another-cluster",))):
        done = mortal.wait(mortal.short(name, avoid=avoid))
        assert (done.state, node in done.nodes) == (JobState.SUCCEEDED, False), done


def test_a_node_that_dies_under_a_running_job_is_blamed_and_the_job_lost(mortal):
    id = mortal.submit("job", f"touch started-$RANK; {FOREVER}", nodes=2)
    for rank in (0, 1):
        mortal.wait_file("job", f"started-{rank}")
    node = mortal.kill_node(mortal.wait(id, JobState.RUNNING).nodes[-1])
    lost = mortal.wait(id, limit_s=2 * mortal.limit_s)
    assert (lost.state, lost.cause, lost.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, (node,)), lost
    mortal.wait_nothing_left()
