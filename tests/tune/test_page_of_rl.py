"""The launches of docs/how-to/rl.md are understood as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from command_lab import run_meshtune
from rl_stand_in import NEMO_RL

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "rl.md"
TEXT = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
LINES = re.findall(r"^    meshtune tune -- (.+)$", TEXT, re.MULTILINE)
# By the program's first words: its catalog, and the share that the launch has of the device.
PROGRAMS = {
    "python3 -m verl": ("verl", 0.4),
    "python3 -m openrlhf": ("openrlhf", 0.5),
    "trl grpo": ("trl_grpo", 0.3),
    "uv run": ("nemo_rl", 0.6),
}


def test_the_page_has_a_launch_of_each_program():
    assert [next(name for name in PROGRAMS if line.startswith(name)) for line in LINES] == list(PROGRAMS)


@pytest.mark.parametrize("line", LINES, ids=[line.split()[2].partition(".")[0] for line in LINES])
def test_a_launch_of_the_page_is_understood(line, tmp_path, monkeypatch):
    monkeypatch.setenv("MESHTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "2000")
    # No program of the launches is run.
    (uv := tmp_path / "bin" / "uv").parent.mkdir()
    uv.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (folder := tmp_path / "examples" / "configs").mkdir(parents=True)
    (folder / "grpo_math_8B.yaml").write_text(yaml.safe_dump(NEMO_RL))
    (tmp_path / "examples" / "run_grpo.py").touch()
    catalog, share = PROGRAMS[next(name for name in PROGRAMS if line.startswith(name))]
    on = ["--answer", "cluster={preset: dgx-h100, nodes: 1}", "--dry-run"]
    done = run_meshtune(tmp_path, "tune", *on, "--", *shlex.split(line))
    assert done.code == 0, done.err
    shown = " ".join(done.out.split())
    assert re.search(rf"tried [^│]*{catalog}\w*_gpu_memory_utilization [\d., ]*\b{share}\b", shown), done.out
    assert "open:" not in done.err
