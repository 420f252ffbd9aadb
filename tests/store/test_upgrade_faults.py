"""Upgrades that are killed, come two at once or have no room, and a service that slept: on real processes and disks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from jobs import wait_for
from postgres_lab import PostgresLab
from recorded_home import load, require_kept, rows
from service_lab import ServiceLab

from meshtune.tuner.store import Store, StoreUnavailable, maintenance
from meshtune.tuner.store.database import Database

pytestmark = pytest.mark.slow

OPENS = """
import sys
from pathlib import Path
from meshtune.tuner.store import Store, schema
schema._MIGRATIONS = Path(sys.argv[2])
Store.open(sys.argv[1]).close()
"""


@pytest.fixture
def opening(old: str, later: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a process that opens the database, and so upgrades it, and waits in the middle while `held` exists."""
    migrations = later(held=True)
    (tmp_path / "held").touch()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", OPENS, old, str(migrations)], stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def middle(tmp_path: Path) -> list[str]:
    """The processes that came to the middle of an upgrade."""
    path = tmp_path / "middle"
    return path.read_text().split() if path.exists() else []


def test_an_upgrade_that_is_killed_in_the_middle_did_nothing_and_is_done_by_the_next(old, opening, tmp_path):
    before = rows(old)
    for turn in (1, 2):
        process = opening()
        wait_for(lambda: len(middle(tmp_path)) == turn)  # noqa: B023
        process.kill()
        process.wait()
        assert rows(old) == before
    (tmp_path / "held").unlink()
    process = opening()
    assert process.wait(60) == 0
    require_kept(before, old)


def test_of_two_that_start_at_once_one_upgrades_and_the_other_waits(old, opening, tmp_path):
    before = rows(old)
    both = [opening(), opening()]
    wait_for(lambda: middle(tmp_path))
    time.sleep(3.0)
    assert [process.poll() for process in both] == [None, None]
    (tmp_path / "held").unlink()
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(middle(tmp_path)) == 1
    require_kept(before, old)


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A disk of 16 MB, which all may write to, at this place."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=777", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def server_disk(server: PostgresLab) -> Iterator[Path]:
    """A folder for a database of the server on a disk of its own."""
    with small_disk(server.folder / "disk") as disk:
        space = disk / "space"
        space.mkdir()
        subprocess.run(["chown", "--reference", server.folder, space], check=True)
        yield space


def test_an_upgrade_of_a_file_on_a_full_disk_does_nothing_until_there_is_room(disk, home, later):
    url = f"sqlite:///{disk}/store.db"
    load(url, home.root)
    before = rows(url)
    later()
    fill(disk, but=2**17)  # with less, SQLite opens nothing
    with pytest.raises(StoreUnavailable, match=r"no copy can be made before: .*db upgrade --no-copy") as caught:
        Store.open(url)
    assert caught.value.transient
    with pytest.raises(StoreUnavailable, match="is full, or its disk is"):
        maintenance.upgrade(url, copy=False)
    assert rows(url) == before
    assert not list(disk.glob("*schema*"))
    (disk / "ballast").unlink()
    assert maintenance.upgrade(url) == ("0100", "8999")
    require_kept(before, url)


@pytest.mark.postgres
def test_an_upgrade_of_a_server_with_a_full_disk_does_nothing_until_there_is_room(server, server_disk, home, later):
    with server.connect() as admin:
        admin.execute(f"CREATE TABLESPACE small LOCATION '{server_disk}'")
        admin.execute("CREATE DATABASE small TABLESPACE small")
    try:
        url = server.url("small")
        load(url, home.root)
        before = rows(url)
        folder = later()
        with (folder / "versions" / "v8999_fills.py").open("a") as file:
            file.write("    op.execute('UPDATE events SET kind = repeat(kind, 1000)')\n")
            file.write("    op.execute('UPDATE events SET kind = left(kind, length(kind) / 1000)')\n")
        fill(server_disk.parent)
        with pytest.raises(StoreUnavailable, match="has a full disk") as caught:
            Store.open(url)
        assert caught.value.transient
        assert rows(url) == before
        (server_disk.parent / "ballast").unlink()
        assert maintenance.upgrade(url) == ("0100", "8999")
        require_kept(before, url)
    finally:
        server.drop("small")
        with server.connect() as admin:
            admin.execute("DROP TABLESPACE small")


def fill(disk: Path, but: int = 0) -> None:
    """Leave so many bytes free."""
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        with suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        ballast.truncate(ballast.tell() - but)


@pytest.mark.postgres
def test_a_service_that_slept_during_an_upgrade_ends_so_that_one_of_its_version_takes_over(
    postgres_url, tmp_path, home, later
):
    with ServiceLab(tmp_path, postgres_url) as service:
        assert service.process is not None
        service.process.send_signal(signal.SIGSTOP)
        later()
        with pytest.raises(StoreUnavailable, match="is in use by"):
            Store.open(postgres_url)
        wait_for(lambda: upgrades(postgres_url), 60)
        service.process.send_signal(signal.SIGCONT)
        assert service.wait_end() == 70
        assert "has the schema 8999, and this meshtune knows" in service.log.read_text()


@pytest.mark.postgres
def test_a_reader_that_stands_still_in_its_transaction_does_not_keep_an_upgrade_out(
    postgres_url, home, later, monkeypatch
):
    load(postgres_url, home.root)
    later()
    monkeypatch.setattr("meshtune.tuner.store.database.IDLE_READER_TIMEOUT_S", 1)
    stopped = Database(postgres_url)
    gone = pytest.raises(StoreUnavailable, match=r"stood still|cannot be reached")
    with gone as caught, stopped.reading() as connection:
        connection.exec_driver_sql("SELECT id FROM trials")
        assert maintenance.upgrade(postgres_url)[1] == "8999"
        connection.exec_driver_sql("SELECT 1")
    assert caught.value.transient
    stopped.close()


def upgrades(url: str) -> bool:
    """Whether it is upgraded now."""
    with suppress(StoreUnavailable):
        return maintenance.upgrade(url)[1] == "8999"
    return False
