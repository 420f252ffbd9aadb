"""The PBS Pro runner against recorded answers of qsub, qstat, qselect and qdel; no PBS is needed, and none was at hand.

The answers have the form that OpenPBS 23.06 gives them (src/cmds/qstat.c, qsub.c, qdel.c; messages from
src/lib/Liblog/pbs_messages.c); their exit statuses are the server's error numbers, of which a shell sees 8 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_programs import Recorded

from meshtune.runners.base import Cause, JobSpec, JobState, Refused, RunnerUnavailable, SubmitFailed
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note
from meshtune.runners.schedulers.pbs.runner import PbsOptions, PbsRunner

ID = "7.pbs01.example.org"
# qstat.c prints the head of its answer whatever it found.
HEAD = {"timestamp": 1750053827, "pbs_version": "23.06.06", "pbs_server": "pbs01.example.org"}
CANNOT_CONNECT = "Connection refused\nqstat: cannot connect to server pbs01.example.org (errno=15010)\n"
NO_HISTORY = "qstat: PBS is not configured to maintain job history 7.pbs01.example.org\n"
UNKNOWN = f"qstat: Unknown Job Id {ID}\n"


def opened(folder: Path, options: PbsOptions) -> PbsRunner:
    return PbsRunner(folder / "root", options, nodes=2, devices_per_node=4)


@pytest.fixture
def shims(recorded) -> Recorded:
    for program in ("qstat", "qdel", "qselect"):
        recorded.answer(program)
    recorded.answer("qsub", f"{ID}\n")
    return recorded


def lists(shims: Recorded, jobs: Mapping[str, Mapping[str, object]], err: str = "", code: int = 0) -> None:
    """What qstat says: these attributes of these jobs."""
    shims.answer("qstat", json.dumps({**HEAD, **({"Jobs": jobs} if jobs else {})}, indent="\t"), err, code)


@pytest.fixture
def runner(tmp_path, shims) -> PbsRunner:
    return opened(tmp_path, PbsOptions(call_limit_s=10.0))


@pytest.fixture
def spec(tmp_path) -> JobSpec:
    return JobSpec(
        name="c1-t3-a1",
        command=("python", "train.py"),
        directory=tmp_path / "work" / "c1-t3-a1",
        nodes=2,
        devices_per_node=1,
        time_limit_s=600.0,
        files={"input.json": "{}"},
        env={"HF_TOKEN": "hush"},
    )


@pytest.fixture
def sent(runner, spec) -> str:
    return runner.submit(spec)


def note(spec: JobSpec, rank: int, **changes) -> None:
    """What a process of the job leaves behind."""
    fields = {"rank": rank, "host": f"node{rank}", "started_at": 100.0, "finished_at": 200.0}
    written = Note(**fields | {"end": End.ITSELF, "exit_code": 0} | changes)
    document = {name: getattr(written, name) for name in Note.__dataclass_fields__}
    (spec.directory / f"rank-{rank}.json").write_text(json.dumps(document))


def ended(code: int | None, substate: int = 93, **more) -> dict[str, object]:
    exit_status = {} if code is None else {"Exit_status": code}
    return {"job_state": "F", "substate": substate, "exec_host": "node7/0+node8/0", **exit_status, **more}


def test_a_job_is_sent_once_with_its_files_and_its_script(runner, shims, spec, tmp_path):
    shims.answer("qsub", f"Welcome to the debug queue, 2 nodes are free\n{ID}\n")
    assert runner.submit(spec) == runner.submit(spec) == opened(tmp_path, PbsOptions()).submit(spec) == ID
    assert shims.calls("qsub") == [str(spec.directory / "pbs.sh")]
    assert (spec.directory / "input.json").read_text() == "{}"
    assert json.loads((spec.directory / "gang.json").read_text())["env"] == {"HF_TOKEN": "hush"}
    assert "#PBS -N c1-t3-a1\n" in (spec.directory / "pbs.sh").read_text()
    assert runner.find(spec.name) == ID


@pytest.mark.parametrize(
    ("message", "code", "kind"),
    [
        ("qsub: Unknown queue", 170, Refused),
        ("qsub: Job violates queue and/or server resource limits", 188, Refused),
        ("qsub: Illegal attribute or resource value Resource_List.select", 166, Refused),
        ("qsub: Job rejected by all possible destinations", 191, Refused),
        ("usage: qsub [-a date_time] [-A account_string]", 2, Refused),
        ("qsub: would exceed queue debug's per-user limit", 217, SubmitFailed),
        ("qsub: Maximum number of jobs already in queue", 197, SubmitFailed),
        ("Connection refused\nqsub: cannot connect to server pbs01 (errno=15010)", 255, SubmitFailed),
        ("qsub: Budget exceeded, says a hook of the site", 123, SubmitFailed),
    ],
)
def test_a_refused_job_was_not_sent_and_says_whether_to_try_again(message, code, kind, runner, shims, spec):
    shims.answer("qsub", err=f"{message}\n", code=code)
    with pytest.raises(kind, match=f"^{spec.name} was refused: ") as error:
        runner.submit(spec)
    assert " ".join(message.split()) in str(error.value)
    assert runner.find(spec.name) is None
    assert shims.calls("qselect") == []
    shims.answer("qsub", f"{ID}\n")
    assert runner.submit(spec) == ID


@pytest.mark.parametrize("out", ["", "submitted to the queue debug\n", None])
def test_an_answer_that_never_came_or_has_no_id_leaves_open_whether_it_was_sent(out, runner, shims, spec, tmp_path):
    """None: qsub hangs."""
    if out is None:
        shims.hang("qsub")
    else:
        shims.answer("qsub", out)
    with pytest.raises(RunnerUnavailable, match=r"^c1-t3-a1 may not have been sent: "):
        opened(tmp_path, PbsOptions(call_limit_s=0.5)).submit(spec)
    shims.answer("qselect", f"10.pbs01.example.org\n{ID}\n")
    assert runner.submit(spec) == ID
    assert shims.calls("qselect")[-1].startswith("-x -u ")
    assert shims.calls("qselect")[-1].endswith(f" -N {spec.name}")
    assert len(shims.calls("qsub")) == 1


def test_a_job_that_pbs_never_got_is_sent_again_and_one_that_runs_says_itself_that_it_was(runner, shims, spec):
    shims.answer("qsub", "")
    with pytest.raises(RunnerUnavailable):
        runner.submit(spec)
    shims.answer("qselect", err="qselect: cannot connect to server\n", code=255)
    with pytest.raises(RunnerUnavailable, match="cannot connect"):
        runner.submit(spec)
    assert len(shims.calls("qsub")) == 1
    shims.answer("qselect")
    with pytest.raises(RunnerUnavailable):
        runner.submit(spec)
    assert len(shims.calls("qsub")) == 2
    (spec.directory / "batch-id").write_text(f"{ID}\n")
    asked = len(shims.calls("qselect"))
    assert (runner.find(spec.name), len(shims.calls("qselect"))) == (ID, asked)


def test_of_two_copies_the_one_that_runs_is_followed(runner, shims, spec, sent):
    """A request that PBS got after we had given up on it; the copy that starts first claims the job's folder."""
    (spec.directory / "batch-id").write_text("8.pbs01.example.org\n")
    lists(shims, {"8.pbs01.example.org": {"job_state": "R"}})
    assert runner.poll([sent])[sent].state is JobState.RUNNING
    assert shims.calls("qstat") == ["-x -E -f -F json 8.pbs01.example.org"]
    runner.cancel(sent)
    assert shims.calls("qdel") == [f"{ID} 8.pbs01.example.org"]


def test_all_jobs_are_asked_for_in_one_request(runner, shims, spec):
    ids = []
    for number in range(5):
        shims.answer("qsub", f"{number}.pbs\n")
        ids.append(
            runner.submit(
                JobSpec(name=f"job{number}", command=("x",), directory=spec.directory / f"{number}", time_limit_s=1)
            )
        )
    lists(shims, {id: {"job_state": "R"} for id in ids[:4]})
    statuses = runner.poll([*ids, "99.pbs", ""])
    assert [statuses[id].state for id in ids] == [JobState.RUNNING] * 4 + [JobState.LOST]
    assert statuses["99.pbs"].reason == statuses[""].reason == "this runner sent no such job"
    assert shims.calls("qstat") == ["-x -E -f -F json 0.pbs 1.pbs 2.pbs 3.pbs 4.pbs"]


@pytest.mark.parametrize(
    ("out", "err", "code", "message"),
    [
        (json.dumps(HEAD), CANNOT_CONNECT, 255, "qstat: cannot connect to server"),
        ("", "qstat: End of File\n", 1, "qstat: End of File"),
        ("{", "", 0, "qstat's answer is not JSON"),
        (json.dumps(HEAD), "", 0, "qstat listed no job"),
        ("<html>a proxy's page</html>", "", 0, "qstat's answer is not JSON"),
    ],
)
def test_a_poll_that_failed_says_nothing_of_jobs(out, err, code, message, runner, shims, sent):
    shims.answer("qstat", out, err, code)
    with pytest.raises(RunnerUnavailable, match=message):
        runner.poll([sent])
    lists(shims, {ID: ended(0, 92)})
    assert runner.poll([sent])[sent].state is JobState.SUCCEEDED


def test_a_server_without_history_is_asked_for_what_it_has(runner, shims, sent):
    """Such a server refuses -x as a whole, with exit status 0."""
    shims.answer("qstat-x", json.dumps(HEAD), NO_HISTORY)
    lists(shims, {ID: {"job_state": "R"}})
    shims.script("qstat", f'case $1 in -x) exec {shims.folder}/qstat-x; esac; cat "$here.out"')
    assert runner.poll([sent])[sent].state is JobState.RUNNING
    assert runner.poll([sent])[sent].state is JobState.RUNNING
    assert [call.split()[0] for call in shims.calls("qstat")] == ["-x", "-E", "-E"]


SUCCEEDED, FAILED, LOST = JobState.SUCCEEDED, JobState.FAILED, JobState.LOST
WELL = [{}, {}]
BADLY = [{"exit_code": 1, "finished_at": 201.0}, {"exit_code": 7}]
LATE = [{"end": End.TIME_LIMIT, "exit_code": None}] * 2
DYING = [{"exit_code": -15}, {"exit_code": 1}]


@pytest.mark.parametrize(
    ("job", "notes", "expected"),
    [
        ({"job_state": "H"}, [], (JobState.QUEUED, "held", None, None)),
        ({"job_state": "R"}, [], (JobState.RUNNING, "", None, None)),
        (ended(3), [], (FAILED, "the job script exited with code 3", 3, None)),
        # The notes know best of what came to its own end, or is forgotten.
        (ended(1), BADLY, (FAILED, "rank 1 exited with code 7", 7, None)),
        (None, BADLY, (FAILED, "rank 1 exited with code 7", 7, None)),
        (ended(1), LATE, (JobState.TIMED_OUT, "ran longer than its time limit of 600 s", None, None)),
        (ended(271, 91), WELL, (SUCCEEDED, "", 0, None)),
        # What survivors of a lost node or of a kill noted blames nobody.
        (ended(-20), DYING, (LOST, "its first node was lost", None, Cause.NODE_FAULT)),
        (ended(-11), DYING, (LOST, "PBS took its nodes back to run it again later", None, Cause.PREEMPTION)),
        (ended(-29), DYING, (JobState.TIMED_OUT, "ran longer than its walltime", None, Cause.TIME_LIMIT)),
        (ended(-27), DYING, (FAILED, "used more memory than its mem", None, Cause.OOM)),
        (ended(271, 91), DYING, (JobState.CANCELLED, "cancelled from outside", None, None)),
    ],
)
def test_a_job_is_as_pbs_and_its_processes_say_together(job, notes, expected, runner, shims, spec, sent):
    for rank, changes in enumerate(notes):
        note(spec, rank, **changes)
    lists(shims, {} if job is None else {ID: job}, *([UNKNOWN, 153] if job is None else []))
    status = runner.poll([sent])[sent]
    assert (status.state, status.reason, status.exit_code, status.cause) == expected
    if status.state.final and job is not None:
        assert status.nodes == ("node7", "node8")
    if status.state is SUCCEEDED:
        assert (status.started_at, status.finished_at) == (100.0, 200.0)


def test_what_pbs_has_forgotten_is_as_it_was_or_cancelled_or_lost(runner, shims, spec, sent, tmp_path):
    lists(shims, {ID: ended(3)})
    before = runner.poll([sent])
    lists(shims, {}, UNKNOWN, 153)
    assert runner.poll([sent]) == opened(tmp_path, PbsOptions()).poll([sent]) == before
    runner.cancel(sent)
    assert (len(shims.calls("qstat")), shims.calls("qdel")) == (1, [])
    for number, state in (("8.pbs", LOST), ("9.pbs", JobState.CANCELLED)):
        shims.answer("qsub", f"{number}\n")
        runner.submit(replace(spec, name=f"job{number}", directory=tmp_path / number))
        if state is JobState.CANCELLED:
            runner.cancel(number)
        assert runner.poll([number])[number].state is state


@pytest.mark.parametrize(
    "complaint",
    ["", f"qdel: Unknown Job Id {ID}", f"qdel: Job has finished {ID}", f"qdel: Request invalid for state of job {ID}"],
)
def test_cancelling_what_may_have_ended_is_no_error(complaint, runner, shims, sent):
    shims.answer("qdel", err=f"{complaint}\n", code=35 if complaint else 0)
    runner.cancel(sent)
    runner.cancel(sent)
    runner.cancel("99.pbs")
    assert shims.calls("qdel") == [ID, ID]
    shims.answer("qdel", err="qdel: cannot connect to server pbs01 (errno=15010)\n", code=255)
    with pytest.raises(RunnerUnavailable, match=f"{ID} cannot be cancelled: qdel: cannot connect"):
        runner.cancel(sent)
