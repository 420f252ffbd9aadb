"""`meshtune db`: what it says, and with which exit code."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from meshtune.tuner.cli.common import WrongCall
from meshtune.tuner.cli.main import app
from meshtune.tuner.store import Store, StoreError


@pytest.fixture
def db(tmp_path, monkeypatch):
    """Run `meshtune db ...` on a home; its output."""
    monkeypatch.delenv("MESHTUNE_DB", raising=False)
    monkeypatch.delenv("MESHTUNE_DB_FILE", raising=False)

    def run(*words: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["db", words[0], "--home", str(tmp_path), *map(str, words[1:])])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def file(tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/meshtune.db"):
        pass
    return tmp_path / "meshtune.db"


def test_a_home_without_a_database_gets_none_by_looking(db, tmp_path):
    for words in (("check",), ("upgrade",), ("backup", tmp_path / "copy")):
        with pytest.raises(WrongCall, match="there is no database yet"):
            db(*words)
    assert list(tmp_path.iterdir()) == []


def test_a_sound_database_is_said_to_be_sound(db, file):
    assert "nothing is wrong" in db("check")


def test_what_is_wrong_is_listed_and_fails(db, file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO events (campaign_id, at, kind, data) VALUES ('gone', 1.0, 'x', '{}')")
        connection.commit()
    output = db("check", code=1)
    assert "refers to a row of campaigns that is not there" in output
    assert "1 problem\n" in output


def test_a_copy_is_written_once(db, file, tmp_path):
    copy = tmp_path / "copy.db"
    assert "wrote" in db("backup", copy)
    with pytest.raises(StoreError, match="exists already"):
        db("backup", copy)
    db("backup", copy, "--force")
    with Store.open(f"sqlite:///{copy}") as store:
        store.check()


def test_an_upgrade_tells_what_it_did(db, file):
    assert "already, the newest" in db("upgrade")


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_a_job_in_flight_without_a_folder_is_wrong(db, lab, url):
    id = lab.create()
    lab.run(id, until=lambda: any(trial.state == "submitted" for trial in lab.trials(id)))
    home = ("--home", lab.home.root, "--db", url)
    assert "1 jobs in flight" in db("check", *home)
    shutil.rmtree(lab.home.job(id, lab.trials(id)[0].last.job_name))
    assert f"the job {id}-t0000-a1 is in flight, but its folder is gone" in db("check", *home, code=1)
