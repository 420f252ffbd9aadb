"""Who gets a second chance, and who does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "once_more.py"
SETTINGS = "[pytest]\nmarkers =\n    slow\n    browser\n    postgres\n    ray\n    slurm\n"
# A test of each name fails as often as its file says, counted by a file that is there then.
TEST = """
import pytest
from pathlib import Path

{mark}
@pytest.mark.parametrize("case", ["plain", "b@c-[d]"])
def test_{name}(case):
    counted = Path(__file__).parent / f"{name}-{{case[0]}}"
    times = len(counted.read_text()) if counted.exists() else 0
    counted.write_text("x" * (times + 1))
    assert case == "plain" or times >= {failures}
"""


@pytest.fixture
def once_more(tmp_path):
    """Runs tests of these names, marks and numbers of failures: exit status, output, how often each ran."""

    def run(*tests: tuple[str, str, int]) -> tuple[int, str, dict[str, int]]:
        (tmp_path / "pytest.ini").write_text(SETTINGS)
        for name, mark, failures in tests:
            marked = f"@pytest.mark.{mark}" if mark else ""
            text = TEST.format(name=name, mark=marked, failures=failures)
            (tmp_path / f"test_{name}.py").write_text(text)
        command = [sys.executable, SCRIPT, "--numprocesses", "2", "--dist", "loadgroup"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        ran = {name: len((tmp_path / f"{name}-b").read_text()) for name, _, _ in tests}
        return done.returncode, done.stdout, ran

    return run


@pytest.mark.slow
def test_two_tests_with_real_processes_that_pass_alone_pass_and_are_named(once_more):
    code, out, ran = once_more(("one", 'xdist_group("one")\n@pytest.mark.slow', 1), ("two", "ray", 1), ("three", "", 0))
    assert (code, ran) == (0, {"one": 2, "two": 2, "three": 1})
    assert "2 failed, 4 passed" in out
    assert "times >= 1" in out
    last = out.rstrip().splitlines()[-1]
    assert last.startswith("Passed alone: ")
    assert "test_one.py::test_one[b@c-[d]]" in last
    assert "test_two.py::test_two[b@c-[d]]" in last


@pytest.mark.slow
def test_what_fails_again_fails(once_more):
    code, out, ran = once_more(("one", "slurm", 2), ("two", "browser", 1))
    assert (code, ran) == (1, {"one": 2, "two": 2})
    assert out.rstrip().splitlines()[-1].startswith("Failed again: ")


@pytest.mark.slow
@pytest.mark.parametrize("marks", [["slow", ""], ["slow", "postgres", "ray"]])
def test_a_test_without_real_processes_and_a_third_failure_get_no_second_chance(marks, once_more):
    code, out, ran = once_more(*((f"t{index}", mark, 1) for index, mark in enumerate(marks)))
    assert (code, set(ran.values())) == (1, {1})
    assert "once more" not in out


@pytest.mark.slow
def test_a_run_without_tests_ends_as_pytest_says(once_more):
    code, out, _ = once_more()
    assert code == 5
    assert "once more" not in out
