"""Who may look into the home folder: its owner alone, whatever the umask, unless MESHTUNE_HOME_MODE says otherwise."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lab import run_meshtune

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.access.home_folder import HOME_MODE, home_mode
from meshtune.tuner.store import Store

CREATE = ("token", "create", "ann", "--scope", "read")
LIST = ("token", "list")


@pytest.fixture(autouse=True)
def open_to_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files of this process are everybody's."""
    for name in ("MESHTUNE_DB", "MESHTUNE_DB_FILE", "MESHTUNE_HOME", HOME_MODE):
        monkeypatch.delenv(name, raising=False)
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("meshtune.db*")}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_its_owners_and_a_database_elsewhere_too(tmp_path):
    done = run_meshtune(tmp_path, *CREATE, "--home", "deep/home")
    assert (done.code, "closed" in done.err) == (0, False)
    assert (mode(tmp_path / "deep" / "home"), modes(tmp_path / "deep" / "home")) == (0o700, {0o600})
    with Store.open(f"sqlite:///{tmp_path}/meshtune.db") as store:
        store.check()
        assert modes(tmp_path) == {0o600}
        assert (tmp_path / "meshtune.db-wal").exists()


@pytest.mark.parametrize("name", ["a%20b", "q?x=1", "#1"])
def test_a_homes_database_is_in_the_home_whatever_its_name(tmp_path, name):
    assert run_meshtune(tmp_path, *CREATE, "--home", name).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert {path.name for path in (tmp_path / name).iterdir()} >= {"meshtune.db", "meshtune.db.mark"}
    assert "ann" in run_meshtune(tmp_path, *LIST, "--home", name).out


def test_an_open_home_is_closed_once_with_a_message(tmp_path):
    run_meshtune(tmp_path, *CREATE)
    home = tmp_path / ".meshtune"
    (home / "campaigns").mkdir()
    (home / "report.key").touch()
    home.chmod(0o775)
    (home / "meshtune.db").chmod(0o644)
    done = run_meshtune(tmp_path, *LIST)
    told = "closed to other users of this machine, who had rights to .meshtune, meshtune.db, report.key"
    assert (told in done.err, mode(home), modes(home), mode(home / "report.key")) == (True, 0o700, {0o600}, 0o600)
    home.chmod(0o710)  # a group passes through to its jobs' folders
    assert (run_meshtune(tmp_path, *LIST).err, mode(home)) == ("", 0o710)


def test_a_folder_with_other_things_keeps_its_mode_and_says_so_but_its_database_is_closed(tmp_path):
    (tmp_path / "train.py").touch()
    tmp_path.chmod(0o755)
    for words in (CREATE, LIST):
        done = run_meshtune(tmp_path, *words, "--home", ".")
        assert "keeps its mode, for it holds train.py beside the files of meshtune" in done.err
    assert (mode(tmp_path), modes(tmp_path)) == (0o755, {0o600})


def test_the_setting_opens_the_home_and_its_database_to_a_group(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME_MODE, "0770")
    run_meshtune(tmp_path, *CREATE)
    assert (mode(tmp_path / ".meshtune"), modes(tmp_path / ".meshtune")) == (0o770, {0o660})
    assert run_meshtune(tmp_path, *LIST).err == ""
    monkeypatch.setenv(HOME_MODE, "0750")
    assert "had rights to .meshtune, meshtune.db" in run_meshtune(tmp_path, *LIST).err
    assert (mode(tmp_path / ".meshtune"), modes(tmp_path / ".meshtune")) == (0o750, {0o640})
    monkeypatch.setenv(HOME_MODE, "777")
    done = run_meshtune(tmp_path, *LIST)
    assert (done.code, f"{HOME_MODE}: must be an octal mode" in done.err) == (2, True)


@pytest.mark.parametrize("text", ["0777", "0500", "7", "u=rwx", "-700", "1700", "0o7000"])
def test_a_mode_that_locks_the_owner_out_or_lets_all_write_is_refused(text):
    with pytest.raises(InvalidValue, match="must be an octal mode"):
        home_mode({HOME_MODE: text})
