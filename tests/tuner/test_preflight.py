"""What is known to be missing is told before anything is queued: real files, folders and programs, by `run`, its dry
run, `spaces` and REST. What may be there for jobs is no refusal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lab import refused, run_meshtune
from specs import tiny

from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.specs.preflight import preflight

SLURM = {"kind": "slurm", "python": "/usr/bin/python3"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project, with a home for jobs beside it."""
    for name in ("train.py", "venv/bin/activate", "data/web_text_document.bin", "image.sif"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).touch()
    (tmp_path / "project" / "nvme").symlink_to("/nvme/of/nodes")
    return tmp_path / "project"


def told(folder: Path, workload: dict[str, Any], **runner: Any) -> tuple[list[str], list[str]]:
    """What jobs surely miss, and what they may; `project/` stands for the project's folder."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: whole(each) for key, each in value.items()}
        if isinstance(value, list):
            return [whole(each) for each in value]
        return value.replace("project/", f"{folder}/") if isinstance(value, str) else value

    workload, runner = whole({"kind": "command", **workload}), whole({**SLURM, **runner})
    kind, around = workload.pop("kind"), runner.pop("kind")
    found = list(
        preflight(Backend(kind=kind, options=workload), Backend(kind=around, options=runner), folder.parent / "home")
    )
    for problem, _ in found:
        assert str(folder.parent) not in problem.path
    texts = [(str(problem).replace(f"{folder}/", "project/"), sure) for problem, sure in found]
    return [text for text, sure in texts if sure], [text for text, sure in texts if not sure]


@pytest.mark.parametrize(
    ("workload", "runner", "problem"),
    [
        ({"command": ["python3", "project/trian.py"]}, {}, "workload.command.1: project/trian.py is not there"),
        ({"command": "python3 project/trian.py --lr 1"}, {}, "workload.command: project/trian.py is not there"),
        (
            {"command": ["torchrun", "train.py"]},
            {},
            "workload.command.1: train.py in the job's own folder, where it starts, is not there",
        ),
        (
            {"command": ["python3", "~/train.py"]},
            {},
            "workload.command.1: ~/train.py in the job's own folder, where it starts, is not there",
        ),
        ({"command": ["project/bin/python", "-m", "x"]}, {}, "workload.command.0: project/bin/python is not there"),
        ({"command": ["project/train.py"]}, {}, "workload.command.0: project/train.py cannot be read or started"),
        (
            {"command": ["python3", "-m", "x"], "working_directory": "project/src"},
            {},
            "workload.working_directory: project/src is not there",
        ),
        (
            {"kind": "megatron", "directory": "project/", "script": "pretrain.py"},
            {},
            "workload.script: project/pretrain.py is not there",
        ),
        ({"command": ["true"]}, {"python": "/tmp/nowhere/python"}, "runner.python: /tmp/nowhere/python is not there"),
        (
            {"command": ["true"]},
            {"setup": ["module load x", "source project/env/bin/activate"]},
            "runner.setup: project/env/bin/activate is not there",
        ),
        (
            {"command": ["true"]},
            {"setup": ["source venv/bin/activate"]},
            "runner.setup: venv/bin/activate in the job's own folder, where it starts, is not there",
        ),
        (
            {"command": ["true"]},
            {"prefix": "apptainer exec project/x.sif"},
            "runner.prefix: project/x.sif is not there",
        ),
        ({"command": ["true"]}, {"prefix": "project/bind -l"}, "runner.prefix: project/bind is not there"),
        (
            {"command": ["true"]},
            {"container_image": "project/x.sqsh"},
            "runner.container_image: project/x.sqsh is not there",
        ),
        ({"command": ["python9", "-m", "x"]}, {"kind": "local"}, "workload.command.0: python9 is no program here"),
    ],
)
def test_what_jobs_surely_miss_is_refused_by_its_key(folder, workload, runner, problem):
    if os.geteuid() == 0 and "started" in problem:
        (folder / "train.py").chmod(0o600)  # root may start what anybody may
    assert told(folder, workload, **runner)[0] == [problem]


@pytest.mark.parametrize(
    ("workload", "runner", "notes"),
    [
        ({"command": ["python3", "project/train.py", "--out", "project/new", "--lr=1"]}, {}, []),
        ({"command": ["python3", "train.py"], "working_directory": "project/"}, {}, []),
        ({"command": ["python3", "train.py"], "files": {"train.py": ""}}, {}, []),
        ({"command": ["python3", "{script}", "$HOME/x.py"]}, {}, []),
        ({"command": ["python3", "-m", "pkg.train", "conf.py"]}, {}, []),
        ({"command": "A=1 exec python3 project/train.py"}, {}, []),
        ({"command": ["bash", "-c", "cd project/src && python3 train.py"]}, {}, []),
        ({"command": ["sh", "-c", "train.py"]}, {}, []),
        ({"command": ["env", "-C", "project/", "python3", "train.py"]}, {}, []),
        ({"command": ["python3", "project/train.py", "train.py"]}, {}, []),
        ({"command": ["ls", "project/made.py"]}, {}, []),
        (
            {"command": ["python3", "project/made.py"]},
            {"kind": "flux"},
            ["workload.command.1: project/made.py is not there"],
        ),
        ({"command": ". project/venv/bin/activate"}, {"kind": "local"}, ["workload.command: . is no program here"]),
        ({"command": "cd project/src && python3 train.py"}, {}, []),
        ({"command": ["python3", "project/train.py", "--data-path", "0.5", "project/data/web_text"]}, {}, []),
        ({"kind": "megatron", "directory": "project/", "arguments": ["--data-cache-path /nowhere"]}, {}, []),
        (
            {"command": ["python3", "project/train.py", "--data-path=project/data/books"]},
            {},
            ["workload.command.2: project/data/books is not there"],
        ),
        (
            {"kind": "megatron", "arguments": ["--lr 1e-4", "--vocab-file project/vocab.json"]},
            {},
            ["workload.arguments: project/vocab.json is not there"],
        ),
        ({"command": ["python9", "-m", "x"]}, {}, ["workload.command.0: python9 is no program here"]),
        ({"command": ["/opt/site/python", "-m", "x"]}, {}, ["workload.command.0: /opt/site/python is not there"]),
        (
            {"command": ["python3", "project/made.py"]},
            {"setup": ["git clone https://example.org/made project/"]},
            ["workload.command.1: project/made.py is not there"],
        ),
        (
            {"command": ["python3", "project/nvme/train.py"]},
            {},
            ["workload.command.1: project/nvme/train.py is not there"],
        ),
        ({"command": "mkdir x; python3 project/made.py"}, {}, []),
        (
            {"command": ["python", "/workspace/train.py"]},
            {"prefix": "apptainer exec --bind /a:/b project/image.sif"},
            ["workload: not checked: what jobs find in their container"],
        ),
        (
            {"command": ["python", "/workspace/train.py"]},
            {"container_image": "nvcr.io#nvidia/pytorch:25.01-py3"},
            ["workload: not checked: what jobs find in their container"],
        ),
        (
            {"command": ["python", "/workspace/train.py"]},
            {"kind": "kubernetes", "image": "x"},
            ["workload: not checked: what jobs find in their container"],
        ),
        ({"command": ["python", "/workspace/train.py"]}, {"kind": "external"}, []),
        ({"kind": "torch"}, {"setup": ["source project/venv/bin/activate", "export A=$B"]}, []),
    ],
)
def test_what_may_be_there_for_jobs_is_a_note_at_most(folder, workload, runner, notes):
    assert told(folder, workload, **runner) == ([], notes)


def test_a_setup_that_calls_module_where_nothing_makes_it_a_command_is_noted(folder, monkeypatch):
    monkeypatch.setattr("meshtune.tuner.specs.preflight.MODULE_FILES", ("$MODULESHOME/init/bash",))
    note = ["runner.setup: no file that makes `module` a command is found here: source the site's, or set login_shell"]
    command, setup = {"command": ["python3", "project/train.py"]}, ["module load cuda"]
    for kind in ("slurm", "pbs"):
        assert told(folder, command, kind=kind, setup=setup) == ([], note)
    assert told(folder, command, setup=["export A=module"]) == ([], [])
    assert told(folder, command, setup=setup, login_shell=True) == ([], [])
    assert told(folder, command, setup=["source project/venv/bin/activate", *setup]) == ([], [])
    (folder / "init").mkdir()
    (folder / "init" / "bash").touch()
    monkeypatch.setenv("MODULESHOME", str(folder))
    assert told(folder, command, setup=setup) == ([], [])


@pytest.mark.parametrize("word", ["x" * 10_000 + ".py", "/" + "a/" * 5_000 + "x.py", "~nobody/x.py", "[*?].py"])
def test_no_path_is_too_odd_to_be_looked_up(folder, word):
    assert len(told(folder, {"command": ["python3", word]})[0]) == 1 - word.startswith("/")


def test_a_run_and_its_dry_run_are_refused_with_all_mistakes_and_spaces_notes_them(tmp_path):
    command = ["python3", "nowhere/train.py", "--tp", "{tp}", "--accumulate", "{grad_accum_steps}"]
    document = tiny(workload={"kind": "command", "command": command}, runner=SLURM, budget={"trial": 3})
    write = (tmp_path / "spec.yaml").write_text
    runner = {**SLURM, "partitions": "h100", "setup": ["source nowhere/activate"], "exclude": "n1"}
    write(yaml.safe_dump({**document, "runner": runner, "baseline": {"micro_batch_size": 3}}))
    for options in ((), ("--dry-run",)):
        said = refused(tmp_path, "run", "spec.yaml", *options)
        assert "budget.trial: is not a known key" in said
        assert "runner.partitions: is not a known key" in said
        assert "runner.exclude: must be a list, not 'n1'" in said
        assert "runner.setup: nowhere/activate in the job's own folder, where it starts, is not there" in said
        assert "baseline: micro_batch_size(3)" in said
        assert "workload.command.1: nowhere/train.py in the job's own folder, where it starts, is not there" in said
    write(yaml.safe_dump({**document, "budget": {"trials": 3}}))
    done = run_meshtune(tmp_path, "spaces", "spec.yaml")
    assert done.code == 0
    assert done.err.startswith("note: workload.command.1: nowhere/train.py in the job's own folder")
    assert not (tmp_path / "home").exists()


def test_a_dry_run_and_a_run_tell_what_is_not_sure(tmp_path):
    command = ["python3", "-m", "timeit", "--tp", "{tp}", "--data=/nowhere/books", "{grad_accum_steps}"]
    document = tiny(workload={"kind": "command", "command": command}, budget={"trials": 1})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document))
    note = "note: workload.command.5: /nowhere/books is not there"
    for options in (("run", "spec.yaml", "--dry-run"), ("run", "spec.yaml")):
        assert run_meshtune(tmp_path, *options).err.startswith(f"{note}\n")


def test_a_calibration_is_refused_alike(tmp_path):
    workload = {"kind": "command", "command": ["python3", "nowhere.py", "--tp", "{tp}", "{grad_accum_steps}"]}
    document = tiny(cluster={"preset": "dgx-h100", "nodes": 1}, workload=workload, runner=SLURM)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document))
    told = refused(tmp_path, "calibrate", "spec.yaml", "--dry-run")
    assert "workload.command.1: nowhere.py in the job's own folder, where it starts, is not there" in told
