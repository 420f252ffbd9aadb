"""The PBS Pro runner against recorded answers of qsub, qstat, qselect and qdel, every state letter and exit status of
OpenPBS 23.06, and job scripts that run under programs that pretend to be PBS; no PBS was at hand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pbs_jobs import PbsLaboratory
from recorded_programs import Recorded

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Refused, RunnerUnavailable, Start
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note
from meshtune.runners.schedulers.batch.script import CLAIM_FILE
from meshtune.runners.schedulers.pbs.runner import PbsOptions, PbsRunner
from meshtune.runners.schedulers.pbs.vocabulary import Unreadable, read_jobs, read_status

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
    """A job whose script has begun."""
    id = runner.submit(spec)
    (spec.directory / CLAIM_FILE).write_text(id)
    return id


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
    ("message", "code"),
    [
        ("qsub: Unknown queue", 170),
        ("usage: qsub [-a date_time] [-A account_string]", 2),
        ("qsub: would exceed queue debug's per-user limit", 217),
        ("qsub: Budget exceeded, says a hook of the site", 123),
    ],
)
def test_a_refused_job_was_not_sent_whatever_the_words(message, code, runner, shims, spec):
    shims.answer("qsub", err=f"{message}\n", code=code)
    with pytest.raises(Refused, match=f"^{spec.name} was refused: ") as error:
        runner.submit(spec)
    assert " ".join(message.split()) in str(error.value)
    assert runner.find(spec.name) is None
    assert shims.calls("qselect") == []
    shims.answer("qsub", f"{ID}\n")
    assert runner.submit(spec) == ID


def test_a_server_that_is_away_refuses_nothing(runner, shims, spec):
    shims.answer("qselect", "")
    shims.answer("qsub", err="Connection refused\nqsub: cannot connect to server pbs01 (errno=15010)\n", code=255)
    with pytest.raises(RunnerUnavailable, match="cannot connect to server"):
        runner.submit(spec)


@pytest.mark.parametrize("out", ["", "submitted to the queue debug\n", f"2026\n{ID}\nyour quota in %:\n77\n", None])
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
        (spec.directory / f"{number}" / CLAIM_FILE).write_text(ids[-1])
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
    if expected[0] is JobState.QUEUED:
        (spec.directory / CLAIM_FILE).unlink()
    status = runner.poll([sent])[sent]
    assert (status.state, status.reason, status.exit_code, status.cause) == expected
    if status.state.final and job is not None:
        assert status.nodes == ("node7", "node8")
    if status.state is SUCCEEDED:
        assert (status.started_at, status.finished_at) == (100.0, 200.0)


def test_a_job_that_pbs_puts_back_before_its_script_began_is_lost_and_its_first_node_blamed(runner, shims, spec):
    id = runner.submit(spec)
    shims.answer("qdel", "")
    given = {"job_state": "R", "exec_host": "node7/0*8+node8/0*8", "stime": "Thu Nov 26 10:00:00 2026"}
    lists(shims, {ID: given})
    seen = runner.poll([id])[id]
    assert (seen.state, seen.started_at) == (JobState.QUEUED, None)
    assert seen.reason == "its nodes have not started it yet: node7, node8"
    lists(shims, {ID: {"job_state": "Q", "comment": "Job was requeued"}})
    lost = runner.poll([id])[id]
    assert (lost.state, lost.cause, lost.failed_nodes) == (LOST, Cause.NODE_FAULT, ("node7",))
    assert lost.elapsed_s is None
    assert shims.calls("qdel") == [id]


def test_a_job_that_pbs_shows_as_running_before_it_says_since_when_is_started(runner, shims, spec):
    """It is R while it is sent to its nodes, whose hooks run; stime comes with its start (req_runjob.c), and its login
    shell reads the site's profiles before the script claims the folder."""
    id = runner.submit(spec)
    sent = {"job_state": "R", "substate": 41, "exec_host": "node7/0*8+node8/0*8"}
    begun = {**sent, "substate": 42, "stime": "Thu Nov 26 10:00:00 2026"}
    again = {**begun, "stime": "Thu Nov 26 10:05:00 2026"}
    for job, state in ((sent, JobState.QUEUED), (begun, JobState.QUEUED), (begun, JobState.QUEUED), (again, LOST)):
        assert shims.calls("qdel") == []
        lists(shims, {ID: job})
        assert runner.poll([id])[id].state is state


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


# The attributes of a job that ended, as `qstat -x -f -F json` gives them.
JOB = {
    "Job_Name": "c1-t3-a1",
    "Job_Owner": "ada@login1",
    "resources_used": {"cput": "00:20:10", "ncpus": 16, "walltime": "00:05:02"},
    "job_state": "F",
    "queue": "workq",
    "exec_host": "node7/0*8+node8/0*8",
    "exec_vnode": "(node7:ncpus=8)+(node8:ncpus=8)",
    "mtime": "Tue Oct  4 21:30:05 2022",
    "Resource_List": {"ncpus": 16, "nodect": 2, "place": "scatter:excl", "select": "2:ncpus=8", "walltime": "00:11:00"},
    "stime": "Tue Oct  4 21:23:20 2022",
    "obittime": "Tue Oct  4 21:30:02 2022",
    "substate": 92,
    "comment": "Job run at Tue Oct 04 at 21:23 on (node7:ncpus=8)+(node8:ncpus=8) and finished",
    "Exit_status": 0,
    "run_count": 1,
}


def seconds(text: str) -> float:
    return time.mktime(time.strptime(text, "%H:%M:%S %d %b %Y"))


def job_that_ended(**changes) -> JobStatus:
    return read_status({key: value for key, value in {**JOB, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("letters", "state"),
    [("HQTW0Z", JobState.QUEUED), ("BERSU", JobState.RUNNING), ("M", JobState.LOST), ("FX", JobState.SUCCEEDED)],
)
def test_every_state_letter_has_its_state(letters, state):
    for letter in letters:
        assert read_status({**JOB, "job_state": letter}).state is state, letter
    assert read_status({**JOB, "job_state": ""}).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("codes", "state", "cause"),
    [
        (range(-7, 0), JobState.LOST, Cause.NODE_FAULT),
        ([-10, -14, *range(-22, -15), -30], JobState.LOST, Cause.NODE_FAULT),
        ([-11, -12, -15], JobState.LOST, Cause.PREEMPTION),
        ([-13, -23], JobState.FAILED, Cause.USER_BUG),
        ([-24, -25], JobState.FAILED, None),
        ([-26, -27], JobState.FAILED, Cause.OOM),
        ([-28, -29], JobState.TIMED_OUT, Cause.TIME_LIMIT),
        ([-8, -9, -31, -1000], JobState.LOST, Cause.NODE_FAULT),
    ],
)
def test_every_exit_status_has_its_state_and_cause(codes, state, cause):
    for code in codes:
        status = job_that_ended(Exit_status=code, substate=93)
        assert (status.state, status.cause, status.exit_code) == (state, cause, None), code
        assert status.reason
        assert status.failed_nodes == (("node7",) if code == -20 else ())


def test_a_job_that_ended_well_tells_where_and_when():
    assert job_that_ended() == JobStatus(
        state=JobState.SUCCEEDED,
        exit_code=0,
        started_at=seconds("21:23:20 4 Oct 2022"),
        finished_at=seconds("21:30:02 4 Oct 2022"),
        nodes=("node7", "node8"),
    )


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [
        (3, 3, "the job script exited with code 3"),
        (143, 143, "the job script exited with code 143"),
        (255, 255, "the job script exited with code 255"),
        (265, -9, "the job script was killed by SIGKILL"),
        (271, -15, "the job script was killed by SIGTERM"),
        (256 + 99, -99, "the job script was killed by signal 99"),
    ],
)
def test_a_job_that_failed_says_how(code, exit_code, reason):
    status = job_that_ended(Exit_status=code, substate=93)
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, exit_code, reason)


@pytest.mark.parametrize("code", [0, 1, 271, 265, -11, None])
def test_a_deleted_job_was_cancelled_whatever_its_exit_status(code):
    status = job_that_ended(Exit_status=code, substate=91)
    assert (status.state, status.reason, status.exit_code) == (JobState.CANCELLED, "cancelled", None)


@pytest.mark.parametrize("code", [271, 265, 143, 1])
@pytest.mark.parametrize(("used", "state"), [("00:11:03", JobState.TIMED_OUT), ("00:10:59", JobState.FAILED)])
def test_a_failure_at_the_end_of_the_walltime_is_a_time_out(used, state, code):
    """Servers before 22.05 have no -29."""
    status = job_that_ended(Exit_status=code, substate=93, resources_used={"walltime": used})
    assert status.state is state
    assert (status.exit_code is None) == (state is JobState.TIMED_OUT)


def test_a_job_that_ended_well_at_the_last_moment_has_succeeded():
    assert job_that_ended(resources_used={"walltime": "00:11:00"}).state is JobState.SUCCEEDED


def test_a_job_without_an_exit_status_is_lost():
    status = job_that_ended(Exit_status=None)
    assert (status.state, status.cause) == (JobState.LOST, Cause.NODE_FAULT)


def test_a_waiting_job_says_what_it_waits_for():
    waits = {"job_state": "H", "substate": 20, "comment": "Job held by ada on Mon Jan 24 at 08:39"}
    assert read_status(waits).reason == "held: Job held by ada on Mon Jan 24 at 08:39"
    queued = {"job_state": "Q", "comment": "Not Running: Insufficient amount of resource: ngpus"}
    assert read_status(queued).reason == "Not Running: Insufficient amount of resource: ngpus"
    assert read_status({"job_state": "Q"}) == JobStatus(state=JobState.QUEUED)


def test_a_running_job_says_since_when_and_where():
    running = {**JOB, "job_state": "R", "substate": 42, "Exit_status": None, "obittime": None}
    assert read_status(running) == JobStatus(
        state=JobState.RUNNING, started_at=seconds("21:23:20 4 Oct 2022"), nodes=("node7", "node8")
    )


def test_the_last_change_stands_in_for_a_time_of_death_that_older_servers_do_not_give():
    assert job_that_ended(obittime=None).finished_at == seconds("21:30:05 4 Oct 2022")
    assert job_that_ended(obittime=None, mtime="yesterday", stime=None).finished_at is None


# As pbs_json.c writes it, until 23.06: one item per line, four spaces, no space after the colon.
OLD = """{
    "timestamp":1664911414,
    "pbs_version":"19.0.0",
    "pbs_server":"pbs",
    "Jobs":{
        "7.pbs":{
            "Job_Name":"c1-t3-a1",
            "job_state":"F",
            "Resource_List":{
                "ncpus":16,
                "walltime":"00:11:00"
            },
            "substate":92,
            "Variable_List":{
                "PBS_O_HOME":"/home/ada",
                ODD
            },
            "comment":"Job run at Tue Oct 04 and finished",
            "Exit_status":0
        },
        "8.pbs":{
            "job_state":"Q",
            ODD
        }
    }
}
"""
# As cJSON_Print writes it, which came after 23.06.
NEW = """{
	"timestamp":	1750053827,
	"pbs_version":	"latest",
	"pbs_server":	"pbs",
	"Jobs":	{
		"7.pbs":	{
			"Job_Name":	"c1-t3-a1",
			"job_state":	"F",
			"Resource_List":	{
				"ncpus":	16
			},
			"substate":	92,
			"Exit_status":	0
		}
	}
}
"""


@pytest.mark.parametrize(
    "odd",
    [
        '"foo":"bar"',
        '"foo":005',  # openpbs issue 1255
        '"foo":1.',
        '"foo":0x1F',
        '"foo":nan',
        '"foo":"say "hello" (Sep 04 14:13)"',  # pull request 830
        r'"MYVAR":"\'\"asads\"\'"',  # pull request 2049
        r'"MYVAR2":"ab\,c"',
        r'"SCRIPT":"printf \"%s\\n\" \$1; \`x\`"',
        '"BASH_FUNC_module()":"() {  eval $(tclsh "$MODULES" bash "$@")"',  # issue 2541
        '"foo":"trailing backslash \\"',
        '"foo":"a tab \t in it"',
        '"foo":""',
        '"foo":"first line\n and "the" second',
        '"a key with: colon":"{"',
    ],
)
def test_odd_values_of_older_servers_do_not_hide_the_jobs(odd):
    jobs = read_jobs(OLD.replace("ODD", odd))
    assert list(jobs) == ["7.pbs", "8.pbs"]
    assert jobs["7.pbs"]["Exit_status"] == 0
    assert jobs["7.pbs"]["substate"] == 92
    assert jobs["7.pbs"]["Resource_List"] == {"ncpus": 16, "walltime": "00:11:00"}
    assert jobs["7.pbs"]["comment"] == "Job run at Tue Oct 04 and finished"
    assert jobs["8.pbs"]["job_state"] == "Q"


def test_a_value_set_right_keeps_its_text():
    jobs = read_jobs(OLD.replace("ODD", '"foo":"say "hello"",\n            "bar":005'))
    assert (jobs["8.pbs"]["foo"], jobs["8.pbs"]["bar"]) == ('say "hello"', "005")


def test_newer_servers_are_read_as_they_are():
    assert read_jobs(NEW)["7.pbs"]["Resource_List"] == {"ncpus": 16}


@pytest.mark.parametrize("text", ["", "qstat: oops", "{", OLD[:300], "[]", '{"Jobs": []}', '{"Jobs":\n{"7.pbs"\n'])
def test_what_is_not_an_answer_is_refused(text):
    with pytest.raises(Unreadable, match="qstat's answer"):
        read_jobs(text)


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[PbsLaboratory]:
    laboratory = PbsLaboratory(tmp_path)
    yield laboratory
    laboratory.close()


@pytest.mark.slow
def test_every_process_has_what_the_setup_lines_set_and_a_meeting_of_the_jobs_own(pbs):
    script = 'echo "$FROM_SETUP $NODE_RANK $NNODES $MASTER_ADDR $MASTER_PORT" > said-$RANK'
    id = pbs.wide().submit(pbs.spec("job", script, nodes=2, processes=2))
    assert pbs.wait(id).state is JobState.SUCCEEDED
    said = [(pbs.folder / "work" / "job" / f"said-{rank}").read_text() for rank in range(4)]
    assert said == [f"seen {node} 2 127.0.0.1 20001\n" for node in (0, 0, 1, 1)]


@pytest.mark.slow
def test_a_script_that_launches_for_itself_is_started_once_without_a_launcher(pbs):
    id = pbs.submit("job", 'echo "$RANK of $WORLD_SIZE" >> said', start=Start.JOB, processes=4)
    assert pbs.wait(id).state is JobState.SUCCEEDED
    assert (pbs.folder / "work" / "job" / "said").read_text() == "0 of 1\n"


@pytest.mark.slow
def test_each_rank_is_wrapped_and_a_job_that_ends_or_is_deleted_is_torn_down(pbs):
    template = {
        "prefix": "env WRAPPED=$FROM_SETUP",
        "environment": {"FI_PROVIDER": "cxi 'quoted' $HOME"},
        "teardown": ('echo "$FROM_SETUP" > torn-down', "false"),
    }
    pbs.runner = pbs.open(**template)
    status = pbs.wait(pbs.submit("job", 'echo "$WRAPPED $FI_PROVIDER" > said; exit 3'))
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert (pbs.folder / "work" / "job" / "said").read_text() == "seen cxi 'quoted' $HOME\n"
    long = pbs.long("long")
    pbs.wait_file("long", "ran")
    pbs.runner.cancel(long)
    assert pbs.wait(long).state is JobState.CANCELLED
    for name in ("job", "long"):
        assert pbs.wait_text(name, "torn-down") == "seen\n"
