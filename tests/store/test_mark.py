"""A SQLite file that is not what it was is refused before anything is written to it, and says what to do."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from meshtune.tuner.access.tokens import AuditRecord
from meshtune.tuner.store import Store, StoreError, StoreUnavailable, maintenance
from meshtune.tuner.store.mark import APPLICATION_ID, path_of

WRITES = """
import sys
from meshtune.tuner.store import Store
from meshtune.tuner.access.tokens import AuditRecord
store = Store.open(sys.argv[1])
for number in range(int(sys.argv[2])):
    store.access.record(AuditRecord(at=1.0, token="", action=f"action {number}"))
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def written(file: Path) -> Path:
    """A database of 30 records, closed well."""
    with Store.open(f"sqlite:///{file}") as store:
        _record(store, 30)
    return file


@pytest.fixture
def killed(file: Path) -> Path:
    """The same by a process that was killed: most of it is in the log."""
    _write_and_die(file, 30)
    assert _log(file).stat().st_size > 30 * 4096
    return file


def _write_and_die(file: Path, count: int) -> None:
    command = [sys.executable, "-c", WRITES, f"sqlite:///{file}", str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def _record(store: Store, count: int) -> None:
    for number in range(count):
        store.access.record(AuditRecord(at=1.0, token="", action=f"action {number}"))


def _log(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def check_refused(file: Path, *words: str) -> None:
    """By all that opens it, which changes nothing."""
    before = {path: path.read_bytes() for path in (file, _log(file)) if path.exists()}
    for act in (Store.open, maintenance.check, maintenance.upgrade):
        with pytest.raises(StoreUnavailable) as caught:
            act(f"sqlite:///{file}")
        for word in (str(file), *words):
            assert word in str(caught.value)
        assert not caught.value.transient
    assert {path: path.read_bytes() for path in before} == before


ADVICE = "restore the newest backup, or remove"


def test_a_file_of_two_names_is_refused_by_either(killed, tmp_path):
    """SQLite keeps a log beside each name, so that what one process has written is not there for another."""
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / "other.db"
    os.link(killed, other)
    for name in (killed, other):
        check_refused(name, "has other names", "find / -xdev -samefile")
    other.unlink()
    with Store.open(f"sqlite:///{killed}") as store:
        assert len(store.access.audit(limit=99)) == 30


def test_a_link_to_a_served_file_is_that_file(written, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(written)
    with Store.open(f"sqlite:///{written}") as one, one.serving(), Store.open(f"sqlite:///{link}") as other:
        assert other.file == written
        with pytest.raises(StoreUnavailable, match="is served by process"), other.serving():
            pass
    assert not path_of(link).exists()


@pytest.mark.parametrize("file_of", ["written", "killed"])
def test_what_was_written_is_found_again(request, file_of):
    file = request.getfixturevalue(file_of)
    with Store.open(f"sqlite:///{file}") as store:
        assert len(store.access.audit(limit=99)) == 30
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert maintenance.check(f"sqlite:///{file}").troubles == []


@pytest.mark.parametrize("file_of", ["written", "killed"])
def test_an_emptied_file_is_refused(request, file_of):
    file = request.getfixturevalue(file_of)
    os.truncate(file, 0)
    check_refused(file, "is empty", "it had 30 events and audit records", ADVICE)


def test_a_file_that_is_gone_is_refused_until_its_mark_is(written):
    written.unlink()
    with pytest.raises(StoreUnavailable, match="is gone: it had 30"):
        Store.open(f"sqlite:///{written}")
    assert not written.exists()
    path_of(written).unlink()
    Store.open(f"sqlite:///{written}").close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda log: os.truncate(log, 0),
        lambda log: log.unlink(),
        lambda log: _overwrite(log, 0, 32),
        lambda log: _overwrite(log, log.stat().st_size // 2, 4096),
    ],
    ids=["emptied", "gone", "header", "middle"],
)
def test_a_damaged_log_is_refused(killed, damage):
    damage(_log(killed))
    check_refused(killed, "had 30", "its log store.db-wal is damaged or gone", ADVICE)


def _overwrite(path: Path, first: int, count: int) -> None:
    with path.open("r+b") as file:
        file.seek(first)
        file.write(os.urandom(count))


def test_another_database_is_refused(written, tmp_path):
    other = tmp_path / "other.db"
    with Store.open(f"sqlite:///{other}") as store:
        _record(store, 99)
    shutil.copy(other, written)
    check_refused(written, "is another database than the one that was there", ADVICE)


@pytest.mark.parametrize("marked", [True, False])
def test_another_programs_database_is_refused(written, marked):
    written.unlink()
    if not marked:
        path_of(written).unlink()
    with closing(sqlite3.connect(written)) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
    check_refused(written, "is a database of another program")


def test_a_damaged_mark_is_named(written):
    path_of(written).write_text("")
    check_refused(written, "store.db.mark, the mark of", "is damaged", ADVICE)


def test_the_documented_restore_works_and_an_older_copy_is_refused_without_it(written, tmp_path):
    backup = tmp_path / "backup.db"
    source = maintenance.sqlite_file(f"sqlite:///{written}")
    with maintenance.new_file(backup, force=False) as partial:
        maintenance.copy_sqlite(source, partial)
    with Store.open(f"sqlite:///{written}") as store:
        _record(store, 5)
    shutil.copy(backup, written)
    check_refused(written, "has 30 events and audit records, and had 35", "older copy", ADVICE)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "service.md"
    (command,) = [line.strip() for line in page.read_text().splitlines() if line.strip().startswith("cp /backup")]
    command = command.replace("/backup/meshtune-2026-11-22.db", str(backup)).replace(
        ".meshtune/meshtune.db", str(written)
    )
    subprocess.run(["sh", "-ec", command], check=True)
    with Store.open(f"sqlite:///{written}") as store:
        assert len(store.access.audit(limit=99)) == 30
        _record(store, 1)
    assert maintenance.check(f"sqlite:///{written}").troubles == []


@pytest.mark.slow
def test_a_copy_under_the_log_of_another_day_does_not_serve(file, tmp_path):
    older = tmp_path / "older.db"
    with Store.open(f"sqlite:///{older}") as store:
        _record(store, 1000)
    _write_and_die(file, 400)  # so many that a part of it is in the file, and a part in the log
    assert file.stat().st_size > 10 * 4096 < _log(file).stat().st_size
    shutil.copy(older, file)
    path_of(file).unlink()
    with pytest.raises(StoreError, match="is damaged"), Store.open(f"sqlite:///{file}") as store, store.serving():
        pass
