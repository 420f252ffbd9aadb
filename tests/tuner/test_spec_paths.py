"""Paths in a spec's file count from that file, whoever reads it and wherever it stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from command_lab import run_meshtune
from toy import SPEC

from meshtune.tuner.cli.spec_file import read_document
from meshtune.tuner.client.client import body_of
from meshtune.tuner.specs.named_files import with_own_paths

TRAIN = """\
import os
from pathlib import Path
print(os.getcwd())
"""


@pytest.fixture
def project(tmp_path):
    """project/tune/spec.yaml, whose script and configurations lie in project/code."""
    code = tmp_path / "project" / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text(TRAIN)
    (code / "base.json").write_text("{}")
    (tmp_path / "project" / "tune").mkdir()
    return tmp_path / "project"


def spec_of(place, **workload):
    file = place / "tune" / "spec.yaml"
    file.write_text(yaml.safe_dump({**SPEC, "workload": workload}))
    return file


def workload_of(file):
    return read_document(file)["workload"]


def test_folders_and_configurations_count_from_the_file(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = spec_of(
        project,
        kind="command",
        command=["python3", "train.py"],
        working_directory="../code",
        configs={"a.json": {"base": "../code/base.json"}, "b.json": {"base": {"plain": 1}}},
    )
    read = workload_of(file)
    assert read["working_directory"] == str(project / "code")
    assert read["configs"] == {
        "a.json": {"base": str(project / "code" / "base.json")},
        "b.json": {"base": {"plain": 1}},
    }
    spec_of(project, kind="deepspeed", script="train.py", directory="../code", config="../code/base.json")
    read = workload_of(file)
    assert (read["directory"], read["config"]) == (str(project / "code"), str(project / "code" / "base.json"))
    # Whole paths, empty ones and those that are nowhere stay what they are.
    spec_of(project, kind="deepspeed", script="train.py", directory="/opt/code", config={"a": "b"})
    assert workload_of(file) == yaml.safe_load(file.read_text())["workload"]
    spec_of(project, kind="deepspeed", script="train.py", directory="none/such")
    assert workload_of(file)["directory"] == str(project / "tune" / "none" / "such")
    assert capsys.readouterr().err == ""


def test_what_is_there_from_the_present_folder_alone_is_taken_with_a_warning(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = spec_of(project, kind="command", command=["python3", "train.py"], working_directory="project/code")
    assert workload_of(file)["working_directory"] == str(project / "code")
    warning = capsys.readouterr().err
    assert warning.startswith(f"{file}: project/code is taken from the present folder, since ")
    assert "write it relative to the spec" in warning
    with pytest.warns(UserWarning, match="project/code is taken from the present folder"):
        assert body_of(file)["workload"]["working_directory"] == str(project / "code")


def test_a_spec_in_a_pipe_counts_from_the_present_folder(project, monkeypatch):
    file = spec_of(project, kind="command", command=["python3", "train.py"], working_directory="code")
    monkeypatch.chdir(project)
    ends = os.pipe()
    os.write(ends[1], file.read_bytes())
    os.close(ends[1])
    assert workload_of(Path(f"/dev/fd/{ends[0]}"))["working_directory"] == str(project / "code")
    os.close(ends[0])


def test_the_text_is_kept_where_no_path_is_relative(project):
    file = spec_of(project, kind="command", command=["true"], working_directory="/tmp")
    assert body_of(file) == file.read_text()


def test_a_campaign_starts_its_script_where_the_spec_says(project, tmp_path):
    script = ["python3", "train.py", "--batch={micro_batch_size}", "--accumulation={grad_accum_steps}"]
    file = spec_of(project, kind="command", command=script, working_directory="../code", steps=5, warmup_steps=1)
    document = {**yaml.safe_load(file.read_text()), "runner": {"kind": "slurm"}}
    file.write_text(yaml.safe_dump({**document, "space": {"tp": [1], "pp": [1], "zero_stage": [0]}}))
    away = tmp_path / "away"
    away.mkdir()
    done = run_meshtune(away, "run", file, "--dry-run")
    assert str(project / "code") in done.out, done


def test_an_import_written_elsewhere_has_the_folder_of_the_launch(project, tmp_path):
    (project / "launch.sh").write_text("cd code\ntorchrun --nproc-per-node 2 train.py --batch-size 4\n")
    output = tmp_path / "elsewhere.yaml"
    done = run_meshtune(project, "import", "launch.sh", "-o", output)
    assert done.code == 0, done.err
    workload = yaml.safe_load(output.read_text())["workload"]
    assert workload["working_directory"] == str(project / "code")


def test_a_path_that_is_no_text_is_left_to_the_check_of_the_spec():
    document = {"workload": {"configs": ["a"], "working_directory": 3, "config": None}}
    assert with_own_paths(document, Path(), print) is document
