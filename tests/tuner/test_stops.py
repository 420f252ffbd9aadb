"""What people see of a campaign that stops or waits: the command's words and exit codes, on the lab's machine."""

from __future__ import annotations

import sys
import time

import pytest
import yaml

from meshtune.tuner.cli import main


@pytest.fixture
def meshtune(lab, tmp_path, monkeypatch, capsys):
    """The command in this process, so that its runner is the lab's; the lab's clock is the wall's."""
    lab.machine.clock = time.time
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["meshtune", *arguments, "--home", "h"])
        code = 0
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code or 0
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def spec(lab, tmp_path):
    def write(**over):
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(lab.document(**over)))
        return "spec.yaml"

    return write


def quick(make, kind="ok", run_s=0.01):
    return lambda name: make.Behaviour(kind, run_s=run_s)


def test_a_bug_of_the_user_is_shown_with_its_log_and_is_a_failure(lab, make, meshtune, spec):
    lab.machine.script = quick(make, "bug")
    code, out, _ = meshtune("run", spec())
    assert code == 1
    lines = out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if " is failed: trial 0 failed for a reason" in line]
    told = "ModuleNotFoundError: No module named 'megatron'"
    assert f"{told}; mend it and start a new campaign" in lines[at]
    assert lines[at + 1 : at + 3] == ["starting", told]
    code, out, err = meshtune("resume", "last")
    assert code == 2
    assert f"{told}; mend it and start a new campaign): there is nothing to resume" in err
    assert "starting" not in err
    code, out, _ = meshtune("show")
    assert (code, "starting" in out, "mend it" in " ".join(out.split())) == (0, False, True)
    assert "crashed (user_bug)" in meshtune("show", "last")[1]


def test_no_time_left_is_no_failure_and_resume_goes_on(lab, make, meshtune, spec):
    lab.machine.script = quick(make)
    lab.machine.closes = True
    code, out, _ = meshtune("run", spec())
    assert code == 0
    assert " is paused: 12 s are left, and a trial may take 300 s; resume it to go on" in out
    lab.machine.closes = False
    code, out, _ = meshtune("resume", "last")
    assert (code, " is completed: " in out) == (0, True)
    assert set(lab.machine.sent.values()) == {1}


def test_show_says_which_nodes_are_excluded_and_where_attempts_ran(lab, make, meshtune, spec):
    lab.machine.nodes = ("n1", "n2", "n3")
    first = ("t0000-a1", "t0001-a1")
    lab.machine.script = lambda name: make.Behaviour("fault" if name.endswith(first) else "ok", run_s=0.01)
    meshtune("run", spec())
    assert "excluded nodes: n1" in meshtune("show", "last")[1]
    lines = meshtune("show", "last", "--trial", "1")[1].splitlines()
    attempts = [line.split() for line in lines if "t0001-a" in line]
    assert [(words[3:5] if "!" in words else words[3:4]) for words in attempts] == [["n1", "!"], ["n2"]]
    assert "attempt 2 was to keep away from n1, where it could" in lines
