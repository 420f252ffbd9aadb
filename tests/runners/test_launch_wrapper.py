"""A rank under a batch scheduler ends as its program ends, tells so in a note, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from jobs import alive, processes_where, wait_for

from meshtune.runners.base import JobSpec, JobState
from meshtune.runners.processes.gang import GRACE_S
from meshtune.runners.schedulers.batch.launch_wrapper import (
    GANG_FILE,
    End,
    Note,
    noted_end,
    rank_of,
    read_notes,
    render_gang,
)


def spec_of(directory: Path, script: str, **changes) -> JobSpec:
    fields = {
        "name": "job",
        "command": ("sh", "-c", script),
        "directory": directory,
        "nodes": 2,
        "devices_per_node": 2,
        "time_limit_s": 30.0,
        "env": {"MARK": str(directory)},
    }
    return JobSpec(**fields | changes)


# A rank that gives its peers an hour.
PATIENT = (
    "-c",
    "import sys; from meshtune.runners.schedulers.batch import launch_wrapper as w; sys.exit(w.main(grace_s=3600))",
)


def start(
    spec: JobSpec,
    rank: int = 3,
    program: Sequence[str] = ("-m", "meshtune.runners.schedulers.batch.launch_wrapper"),
    **environment,
):
    (spec.directory / GANG_FILE).write_text(render_gang(spec))
    given = {"PATH": os.environ["PATH"], "SLURM_PROCID": str(rank), "SLURMD_NODENAME": "n1"}
    return subprocess.Popen(
        [sys.executable, *program], cwd=spec.directory, env={**given, **environment}, stderr=subprocess.PIPE
    )


def end(process: subprocess.Popen) -> int:
    _, told = process.communicate(timeout=60)
    assert b"Traceback" not in told, told.decode()
    return process.returncode


def left(spec: JobSpec) -> list[int]:
    mark = f"MARK={spec.directory}".encode()
    return [pid for pid in processes_where(lambda at: mark in (at / "environ").read_bytes()) if alive(pid)]


def test_a_rank_knows_its_place_and_sees_what_the_script_set(tmp_path):
    spec = spec_of(tmp_path, "env > seen; echo said; echo wrong >&2", env={"OWN": "a b", "RANK": "9"})
    meeting = {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "20123"}
    of_the_script = {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "ZE_AFFINITY_MASK": "0.1",
        "NCCL_SOCKET_IFNAME": "hsn0",
        "OWN": "no",
    }
    assert end(start(spec, **meeting, **of_the_script)) == 0
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    places = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "NNODES")
    assert [seen[name] for name in places] == ["3", "4", "1", "1", "2"]
    assert seen.items() >= {**meeting, **of_the_script, "OWN": "a b"}.items()
    assert (tmp_path / "rank-3.log").read_text() == "said\nwrong\n"
    (note,) = read_notes(tmp_path)
    assert (note.rank, note.host, note.end, note.exit_code) == (3, "n1", End.ITSELF, 0)
    assert note.started_at <= note.finished_at <= time.time()


def test_scripts_that_were_exported_earlier_start_it_by_its_old_name(tmp_path):
    program = ("-m", "meshtune.runners.batch.launch_wrapper", "env", "FIRST=1")
    assert end(start(spec_of(tmp_path, 'test "$FIRST" = 1'), program=program)) == 0
    assert [note.rank for note in read_notes(tmp_path)] == [3]


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", -9)])
def test_a_rank_that_failed_waits_for_its_peers_words_before_it_says_so(script, code, tmp_path):
    before = time.time()
    assert end(start(spec_of(tmp_path, script))) == 1
    (note,) = read_notes(tmp_path)
    assert (note.end, note.exit_code) == (End.ITSELF, code)
    assert time.time() - note.finished_at >= GRACE_S
    assert note.finished_at - before < 60


def test_the_time_limit_ends_a_rank_and_what_it_started(tmp_path):
    spec = spec_of(tmp_path, "setsid sleep 60 & trap '' TERM; sleep 60", time_limit_s=0.3)
    assert end(start(spec)) == 1
    (note,) = read_notes(tmp_path)
    assert (note.end, note.exit_code) == (End.TIME_LIMIT, None)
    assert 0.3 <= note.finished_at - note.started_at < 30
    wait_for(lambda: left(spec) == [], 20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_is_told_to_end_does_so_at_once(number, tmp_path):
    spec = spec_of(tmp_path, "setsid sleep 60 & trap '' TERM INT; touch ready; sleep 60 & wait; sleep 60")
    process = start(spec, program=PATIENT)
    wait_for((tmp_path / "ready").exists)
    process.send_signal(number)
    assert end(process) == 1
    assert [(note.end, note.exit_code) for note in read_notes(tmp_path)] == [(End.TOLD, None)]
    wait_for(lambda: left(spec) == [], 20)


def test_a_killed_watcher_takes_the_program_with_it_and_had_left_word_of_the_start(tmp_path):
    spec = spec_of(tmp_path, "touch ready; exec sleep 60")
    process = start(spec)
    wait_for((tmp_path / "ready").exists)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: left(spec) == [], 20)
    (note,) = read_notes(tmp_path)
    assert (note.end, note.finished_at, note.exit_code) == (None, None, None)


LAUNCHERS = {
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    "pals": ("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NODEID"),
    "hydra": ("PMI_RANK", "MPI_LOCALRANKID"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
}


@pytest.mark.parametrize("names", LAUNCHERS.values(), ids=LAUNCHERS)
def test_every_launchers_number_is_understood(names):
    assert rank_of({names[0]: "5"}, 2) == 5
    blocks = [dict(zip(names, (str(n), str(n % 2), str(n // 2)), strict=False)) for n in range(4)]
    assert [rank_of(place, 2) for place in blocks] == [0, 1, 2, 3]


@pytest.mark.parametrize("names", LAUNCHERS.values(), ids=LAUNCHERS)
def test_the_ranks_of_a_node_are_consecutive_though_a_launcher_deals_its_processes_out_in_turn(names):
    cyclic = [dict(zip(names, (str(n), str(n // 2), str(n % 2)), strict=False)) for n in range(4)]
    assert rank_of(cyclic[0], 2) == 0
    if len(names) == 3:
        assert [rank_of(place, 2) for place in cyclic] == [0, 2, 1, 3]
    else:  # that launcher does not tell the node
        told = "^the launcher must fill one node after the other, 2 on each, but process 1 is number 0 of its node$"
        with pytest.raises(LookupError, match=told):
            rank_of(cyclic[1], 2)


def test_a_node_with_more_processes_than_devices_ends_the_job_with_a_word_in_its_log(tmp_path):
    process = start(spec_of(tmp_path, "touch ran"), SLURM_LOCALID="2", SLURM_NODEID="1")
    told = (
        "the launcher started too many processes on this node: "
        "SLURM_LOCALID is 2, but the job has 2 processes on each node\n"
    )
    _, heard = process.communicate(timeout=60)
    assert (process.returncode, heard.decode()) == (1, told)
    assert (tmp_path / "rank-0.log").read_text() == told
    assert not (tmp_path / "ran").exists()


def test_without_a_launcher_the_rank_says_what_is_missing():
    with pytest.raises(
        LookupError, match=r"^none of MESHTUNE_RANK, SLURM_PROCID, .* is set: start this with srun or mpiexec$"
    ):
        rank_of({"RANK": "1"}, 1)


def note(rank: int, end: End | None = End.ITSELF, code: int | None = 0, at: float = 10.0) -> Note:
    return Note(rank=rank, host="h", started_at=1.0, finished_at=at, end=end, exit_code=code)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([note(0), note(1), note(2), note(3)], (JobState.SUCCEEDED, 0, "")),
        ([note(0), note(1), note(2)], None),
        ([], None),
        ([note(0), note(1), note(2), note(3, None)], None),
        ([note(0), note(1, End.TOLD, None), note(2), note(3)], None),
        (
            [note(0, code=3, at=9.9), note(1, code=4, at=9.8), note(2, End.TOLD, None), note(3)],
            (JobState.FAILED, 4, "rank 1 exited with code 4"),
        ),
        (
            [note(0, code=3, at=9.8), note(1, code=-9, at=9.9)],
            (JobState.FAILED, -9, "rank 1 was killed by SIGKILL"),
        ),
        (
            [note(0), note(1, End.TIME_LIMIT, None)],
            (JobState.TIMED_OUT, None, "ran longer than its time limit of 30 s"),
        ),
        ([note(0, End.TIME_LIMIT, None), note(1, code=2)], (JobState.FAILED, 2, "rank 1 exited with code 2")),
    ],
)
def test_the_notes_together_say_how_the_job_ended(notes, expected, tmp_path):
    found = noted_end(notes, spec_of(tmp_path, ""))
    assert (None if found is None else (found.state, found.exit_code, found.reason)) == expected


def test_notes_that_cannot_be_read_are_left_out(tmp_path):
    good = {"rank": 10, "host": "h", "started_at": 1.0, "finished_at": None, "end": None, "exit_code": None}
    texts = {"10": json.dumps(good), "2": json.dumps({**good, "rank": 2}), "3": "{", "4": "[]", "5": '{"end": "odd"}'}
    for rank, text in texts.items():
        (tmp_path / f"rank-{rank}.json").write_text(text)
    (tmp_path / "rank-6.json").mkdir()
    assert [note.rank for note in read_notes(tmp_path)] == [2, 10]
