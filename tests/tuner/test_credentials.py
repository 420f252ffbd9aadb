"""Our secrets reach neither the process list nor a job: database passwords and tokens."""

import sys
from pathlib import Path

import pytest

from meshtune.runners.base import JobSpec
from meshtune.runners.processes.gang import minimal_environment
from meshtune.runners.schedulers.batch.script import submit_host
from meshtune.runners.schedulers.pbs.runner import render_script as pbs_script
from meshtune.runners.schedulers.slurm.script import render_script as slurm_script
from meshtune.tuner.access.tokens import SECRET_VARIABLES, database_url

SECRET = "postgresql://user:hunter2@host/db"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.delenv("MESHTUNE_DB_FILE")
    monkeypatch.setattr(sys, "argv", ["meshtune", "show"])


def test_the_database_may_be_named_by_a_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "db"
    file.write_text(f"{SECRET}\n")
    monkeypatch.setenv("MESHTUNE_DB_FILE", str(file))
    assert database_url("") == SECRET
    assert database_url("sqlite://") == "sqlite://"
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("MESHTUNE_DB_FILE", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError):
        database_url("")


@pytest.mark.parametrize("arguments", [["--db", SECRET], [f"--db={SECRET}"]])
def test_a_password_among_the_arguments_gets_a_warning_that_does_not_repeat_it(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["meshtune", "show", *arguments])
    assert database_url(SECRET) == SECRET
    told = capsys.readouterr().err
    assert "the password in --db is shown by the process list" in told
    assert "hunter2" not in told


def test_no_job_inherits_our_secrets():
    seen = {**minimal_environment(), **submit_host().environment}
    assert not set(SECRET_VARIABLES) & seen.keys()
    assert "hunter2" not in str(seen)


@pytest.mark.parametrize("render", [slurm_script, pbs_script])
def test_no_job_script_holds_our_secrets(render, tmp_path: Path):
    job = JobSpec(name="x", command=("true",), directory=tmp_path, time_limit_s=60.0, env={"MESHTUNE_STEPS": "3"})
    assert "hunter2" not in render(job, {})
