"""Every state letter and exit status of PBS Pro, code by code (OpenPBS 23.06, src/include/job.h), and what it calls
JSON: as its newer servers write it, and as its older ones do where values are unusual."""

from __future__ import annotations

import time

import pytest

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.schedulers.pbs.vocabulary import Unreadable, read_jobs, read_status

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


def ended(**changes) -> JobStatus:
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
        status = ended(Exit_status=code, substate=93)
        assert (status.state, status.cause, status.exit_code) == (state, cause, None), code
        assert status.reason
        assert status.failed_nodes == (("node7",) if code == -20 else ())


def test_a_job_that_ended_well_tells_where_and_when():
    assert ended() == JobStatus(
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
    status = ended(Exit_status=code, substate=93)
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, exit_code, reason)


@pytest.mark.parametrize("code", [0, 1, 271, 265, -11, None])
def test_a_deleted_job_was_cancelled_whatever_its_exit_status(code):
    status = ended(Exit_status=code, substate=91)
    assert (status.state, status.reason, status.exit_code) == (JobState.CANCELLED, "cancelled", None)


@pytest.mark.parametrize("code", [271, 265, 143, 1])
@pytest.mark.parametrize(("used", "state"), [("00:11:03", JobState.TIMED_OUT), ("00:10:59", JobState.FAILED)])
def test_a_failure_at_the_end_of_the_walltime_is_a_time_out(used, state, code):
    """Servers before 22.05 have no -29."""
    status = ended(Exit_status=code, substate=93, resources_used={"walltime": used})
    assert status.state is state
    assert (status.exit_code is None) == (state is JobState.TIMED_OUT)


def test_a_job_that_ended_well_at_the_last_moment_has_succeeded():
    assert ended(resources_used={"walltime": "00:11:00"}).state is JobState.SUCCEEDED


def test_a_job_without_an_exit_status_is_lost():
    status = ended(Exit_status=None)
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
    assert ended(obittime=None).finished_at == seconds("21:30:05 4 Oct 2022")
    assert ended(obittime=None, mtime="yesterday", stime=None).finished_at is None


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
