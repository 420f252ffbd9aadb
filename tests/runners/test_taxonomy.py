"""Every cause of a failure, made to happen with real processes, is told as what it is.

A fault of a node and a preemption are a scheduler's to make; they are with the tests of Slurm.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.workloads.command import CommandWorkload
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

pytestmark = pytest.mark.slow

MODEL = ModelSpec(name="tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128, seq_len=16)
DEVICE = DeviceSpec(name="cpu", kind=DeviceKind.CPU, memory_bytes=2 * 2**30)
CLUSTER = ClusterSpec(name="c", nodes=1, devices_per_node=2, device=DEVICE)
PLAN = Plan(dp=2, micro_batch_size=2, grad_accum_steps=2)


def start(lab, workload, name: str = "job", time_limit_s: float = 60.0) -> None:
    directory = lab.folder / "work" / name
    job = workload.materialize(name, MODEL, PLAN, CLUSTER, directory, seed=0, time_limit_s=time_limit_s)
    assert lab.runner.submit(job) == name


def outcome(lab, workload, name: str = "job") -> Outcome:
    return workload.read(lab.folder / "work" / name, lab.wait(name))


def script(text: str, **options) -> CommandWorkload:
    """A script in Python that both ranks run, told the trial's ZeRO stage."""
    return CommandWorkload(
        {
            "command": [sys.executable, "script.py", "--zero", "{zero_stage}"],
            "files": {"script.py": text.replace("{", "{{").replace("}", "}}")},
            **options,
        }
    )


def run(lab, text: str, time_limit_s: float = 60.0, **options) -> Outcome:
    workload = script(text, **options)
    start(lab, workload, time_limit_s=time_limit_s)
    return outcome(lab, workload)


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


TALKS = """
import os, socket
peer = socket.create_connection(("127.0.0.1", int(os.environ["RELAY"])))
peer.sendall(b"here")
peer.recv(1)
"""


def test_ranks_that_all_lost_their_connection_are_lost_by_the_network(local):
    with cut_network(connections=2) as port:
        found = run(local, TALKS, env={"RELAY": str(port)})
    assert (found.verdict, found.failure) == (Verdict.LOST, Cause.COMMUNICATION)
    assert found.reason == "ConnectionResetError: [Errno 104] Connection reset by peer"
    assert found.verdict.retryable


@contextmanager
def cut_network(connections: int) -> Iterator[int]:
    """What stands between the ranks: it takes so many connections, and then resets all of them. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken = [server.accept()[0] for _ in range(connections)]
            for connection in taken:
                assert connection.recv(4) == b"here"
            for connection in taken:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(timeout=30)


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
    workload = CommandWorkload(options)
    start(local, workload)
    found = outcome(local, workload)
    assert (found.verdict, found.failure) == (Verdict.CRASHED, Cause.USER_BUG)
    assert reason in found.reason


DIES = """
import os, time
if os.environ["RANK"] == "1":
    open("there", "w").close()
    os.kill(os.getpid(), 9)
while not os.path.exists("there"):
    time.sleep(0.01)
time.sleep(0.2)
raise BrokenPipeError(32, "Broken pipe")
"""


def test_a_rank_killed_from_outside_is_a_crash_though_its_peers_lost_a_connection(local):
    found = run(local, DIES)
    assert (found.failure, found.reason) == (Cause.CRASH, "rank 1 was killed by SIGKILL")
