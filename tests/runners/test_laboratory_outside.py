"""The contract suite runs on a laboratory of another package alone, named by a variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONTRACT = Path(__file__).with_name("test_contract.py")


def test_a_package_outside_names_its_laboratory(tmp_path):
    (tmp_path / "outside_lab.py").write_text("from jobs import LocalLaboratory as OutsideLaboratory\n")
    words = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *words, str(CONTRACT), "-k", "time_limit or files_are_there"]
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "MESHTUNE_LABORATORY": "outside_lab:OutsideLaboratory"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    found = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    names = ("the_time_limit_ends_a_job", "the_files_are_there_when_the_job_starts_in_the_submitters_directory")
    assert found == [f"test_{name}[outside_lab:OutsideLaboratory]" for name in names], done.stdout + done.stderr
