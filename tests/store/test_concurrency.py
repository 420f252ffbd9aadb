import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store import IllegalMove, Store, database

THREADS = 8
# Of the trials that the killed process finishes: it cannot have come to the last ones, see FINISH_THEM_ALL.
TRIALS = 100


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many writers at once may wait for long where the disk or the machine is slow."""
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 100)


def race(act: Callable[[int], object]) -> list[object]:
    """What each thread's act returned or raised; all start together."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> object:
        barrier.wait(120)
        try:
            return act(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS), timeout=120))


def test_of_many_processes_that_open_a_new_database_and_finish_an_attempt_one_wins(shared_url: str, make):
    stores = race(lambda _: Store.open(shared_url))  # a new database, by all at once
    make.running(stores[0])
    results = race(
        lambda number: stores[number].finish(
            "c1", 0, make.failed(Verdict.OOM), started_at=1.0, finished_at=2.0, now=2.0
        )
    )
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, IllegalMove) for result in results) == THREADS - 1
    assert [event.kind for event in stores[0].events("c1")].count("trial.done") == 1
    for store in stores:
        store.close()


# What it says of one trial takes 4 KiB, of which a pipe holds 64: it waits for its reader after so many trials.
FINISH_THEM_ALL = """
import sys
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.tuner.store import Store
outcome = Outcome(
    verdict=Verdict.OK, measurement=Measurement(step_times_s=(1.0,) * 200, tokens_per_step=1, devices=1)
)
with Store.open(sys.argv[1]) as store:
    for trial in store.trials("c1"):
        store.finish("c1", trial.number, outcome, started_at=1.0, finished_at=2.0, now=2.0)
        print(f"{trial.number:4095}", flush=True)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_trials_and_no_lock(shared_url: str, make):
    with Store.open(shared_url) as store:
        make.running(store, trials=TRIALS)
    with subprocess.Popen(
        [sys.executable, "-c", FINISH_THEM_ALL, shared_url], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            finished = [int(child.stdout.readline()) for _ in range(10)]
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate(timeout=120)
    with Store.open(shared_url) as store:
        store.check()  # writes, so it waits for what the server still does for the killed one
        trials = store.trials("c1")
        done = [trial.number for trial in trials if trial.state is TrialState.DONE]
        assert done[:10] == finished
        assert len(done) < TRIALS
        assert all(len(trials[number].measurement.step_times_s) == 200 for number in done)
        told = [event.data["number"] for event in store.events("c1", limit=5000) if event.kind == "trial.done"]
        assert told == done
        store.finish("c1", TRIALS - 1, make.ok(), started_at=1.0, finished_at=2.0, now=2.0)
        assert store.trial("c1", TRIALS - 1).state is TrialState.DONE
