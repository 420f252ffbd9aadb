"""A scheduler's command is heard out within its time, and whatever it started dies with it."""

from __future__ import annotations

import os
import time

import pytest
from jobs import alive, wait_for

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.command import call


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("cat; echo $LC_ALL; echo oh >&2; echo no >&2; exit 3", (3, "in\nC\n", "oh\nno\n", "oh no")),
        ("echo out; exit 1", (1, "out\n", "", "out")),
        ("exit 4", (4, "", "", "exit status 4")),
    ],
)
def test_a_command_says_what_it_says(script, expected, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    answer = call(["sh", "-c", script], time_limit_s=60, stdin="in\n")
    assert (answer.code, answer.out, answer.err, answer.complaint) == expected
    assert call(["/usr/bin/env"], time_limit_s=60, environment={"ONLY": "this"}).out == "ONLY=this\n"


def test_a_command_that_is_not_there_is_unavailable():
    with pytest.raises(RunnerUnavailable, match=r"^no-such-program cannot be run: No such file or directory$"):
        call(["no-such-program"], time_limit_s=60)


def test_a_command_that_does_not_answer_is_ended_with_its_children(tmp_path):
    """A site's wrapper around squeue starts the real one, which holds the pipe."""
    script = f"sh -c 'echo $$ > {tmp_path}/child; exec sleep 60' & wait"
    for limit_s in (0.5, 2.0, 8.0):
        before = time.monotonic()
        with pytest.raises(RunnerUnavailable, match=rf"^sh did not answer within {limit_s:g} s$"):
            call(["sh", "-c", script], time_limit_s=limit_s)
        assert time.monotonic() - before < 40
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break  # else it was ended before it could say its number
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child), 10)


def test_nothing_is_left_open():
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        call(["true"], time_limit_s=60)
        with pytest.raises(RunnerUnavailable):
            call(["sleep", "5"], time_limit_s=0.05)
    assert len(os.listdir("/proc/self/fd")) <= open_before
