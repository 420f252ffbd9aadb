"""The benchmark of trust: its reader sees what is wrong, and a small attack leaves nothing wrong."""

from __future__ import annotations

import pytest
import trust_kills
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
