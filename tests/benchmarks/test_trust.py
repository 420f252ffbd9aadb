"""The benchmark of trust: its reader sees what is wrong, and a small attack leaves nothing wrong."""

from __future__ import annotations

import os
from importlib.metadata import version

import pytest
import trust_changes
import trust_kills
from service_fork import Forking
from service_process import postgres
from trust_reader import findings

from meshtune.tuner.store import Store

pytestmark = pytest.mark.postgres


@pytest.mark.slow
def test_the_reader_counts_what_the_ledger_and_the_answers_contradict(tmp_path):
    ledger = tmp_path / "ledger"
    ledger.write_text("twice\nonce\ntwice\n")
    with postgres() as url:
        with Store.open(url):
            pass
        found = findings(url, ledger, ["told-of"], 0)
    assert found == {
        "lost": ["campaign that was created and is not there: told-of"],
        "doubled": [],
        "started twice": [
            "job that started 2 times: twice",
            "job that no attempt has: twice",
            "job that no attempt has: once",
        ],
    }


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_or_started_twice_under_kills(tmp_path):
    assert trust_kills.attack(tmp_path, kills=10, seed=3)


def test_the_oplog_is_held_against_the_database(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with Store.open(url):
        pass
    asked = {"campaign": "gone", "operation": "patch", "status": 200, "budget": 2}
    assert trust_changes.lost_changes(url, []) == []
    assert trust_changes.lost_changes(url, [asked]) == [f"gone: {asked}"]


@pytest.mark.slow
def test_what_forks_services_leaves_no_pipe_open(tmp_path):
    """An open one is a warning, and that an error."""
    forking, log = Forking(), tmp_path / "log"
    forking.start(["--version"], os.environ, log).wait()
    forking.stop()
    assert log.read_text() == f"{version('meshtune')}\n"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sqlite", [True, False])
def test_no_change_that_was_accepted_is_lost_under_kills(tmp_path, sqlite):
    assert trust_changes.attack(tmp_path, kills=10, seed=3, sqlite=sqlite)
