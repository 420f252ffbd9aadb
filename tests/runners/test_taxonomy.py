"""Every cause of a failure, made to happen with real processes, is told as what it is.

A fault of a node and a preemption are with the tests of Slurm, lost connections with those of logs and of ranks.
"""

from __future__ import annotations

import sys

import pytest
from places import TINY, cluster

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.programs.workloads.command import CommandWorkload
from meshtune.search_spaces.plan import Plan

pytestmark = pytest.mark.slow

CLUSTER = cluster(1, 2, memory_bytes=2 * 2**30)
PLAN = Plan(dp=2, micro_batch_size=2, grad_accum_steps=2)


def outcome(lab, workload) -> Outcome:
    directory = lab.folder / "work" / "job"
    job = workload.materialize(JobRequest("job", TINY, PLAN, CLUSTER, directory, seed=0, time_limit_s=60.0))
    assert lab.runner.submit(job) == "job"
    return workload.read(directory, lab.wait("job"))


def run(lab, text: str, **options) -> Outcome:
    """Of a script in Python that both ranks run, told the trial's ZeRO stage."""
    command = [sys.executable, "script.py", "--zero", "{zero_stage}"]
    files = {"script.py": text.replace("{", "{{").replace("}", "}}")}
    return outcome(lab, CommandWorkload({"command": command, "files": files, **options}))


OUT_OF_MEMORY = """
import os, resource, time

def backward():
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        return bytearray(2**31)
    time.sleep(60)

def train():
    backward()

train()
"""


def test_out_of_memory_is_told_with_its_rank_and_its_phase(local):
    found = run(local, OUT_OF_MEMORY)
    assert (found.verdict, found.failure, found.failed_rank) == (Verdict.OOM, Cause.OOM, 1)
    assert (found.reason, found.phase) == ("MemoryError", "backward")


CHOOSY = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--zero", type=int, choices=(1, 2))
parser.parse_args()
"""
REFUSES = """
heads, tp = 4, 3
assert heads % tp == 0, f"heads({heads}) is not divisible by tp({tp})"
"""
REPORTS = """
from meshtune.runners.report import report_failure
report_failure("illegal_setting", "no such layout")
raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (CHOOSY, {}, "script.py: error: argument --zero: invalid choice: 0 (choose from 1, 2)"),
        (
            REFUSES,
            {"log": {"step_time_s": r"took ([\d.]+)", "illegal": "is not divisible by"}},
            "AssertionError: heads(4) is not divisible by tp(3)",
        ),
        (REPORTS, {}, "no such layout"),
    ],
)
def test_a_setting_that_the_program_refuses_is_illegal(text, options, reason, local):
    found = run(local, text, **options)
    assert (found.verdict, found.failure, found.reason) == (Verdict.ILLEGAL, Cause.ILLEGAL_SETTING, reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"command": ["no-such-program"]}, "FileNotFoundError: [Errno 2] No such file or directory"),
        ({"command": "no-such-program --tp {tp}"}, "no-such-program: "),
        ({"command": ["true"], "working_directory": "/no/such/folder"}, "cd: "),
        ({"command": [sys.executable, "nowhere.py"]}, "can't open file"),
        ({"command": ["true"]}, "the command ended without an error, but wrote no result.json"),
    ],
)
def test_what_no_plan_can_change_is_the_users_to_mend(options, reason, local):
    found = outcome(local, CommandWorkload(options))
    assert (found.verdict, found.failure) == (Verdict.CRASHED, Cause.USER_BUG)
    assert reason in found.reason
