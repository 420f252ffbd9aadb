"""What PBS Pro calls JSON: as its newer servers write it, and as its older ones do where values are unusual."""

from __future__ import annotations

import pytest

from meshtune.runners.schedulers.pbs.vocabulary import Unreadable, read_jobs

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
