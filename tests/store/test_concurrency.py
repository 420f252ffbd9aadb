import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Origin, TrialState
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


def test_of_many_processes_that_finish_an_attempt_one_wins(shared_url: str, make):
    stores = [Store.open(shared_url) for _ in range(THREADS)]
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


def test_threads_that_plan_get_numbers_without_gap_or_repeat(store: Store, make):
    store.create_campaign(make.campaign())

    def plan(number: int) -> list[int]:
        return [
            trial.number
            for first in range(3)
            for trial in store.plan_trials(
                "c1", make.choices(2, first=1 + 6 * number + 2 * first), Origin.SEARCH, now=1.0
            )
        ]

    numbers = [number for result in race(plan) for number in result]
    assert sorted(numbers) == list(range(6 * THREADS))
    assert [trial.number for trial in store.trials("c1")] == list(range(6 * THREADS))


def test_many_processes_may_open_a_new_database_at_once(shared_url: str, make):
    stores = race(lambda _: Store.open(shared_url))
    assert all(isinstance(store, Store) for store in stores), stores
    make.running(stores[0])
    assert all(len(store.trials("c1")) == 1 for store in stores)
    for store in stores:
        store.close()


def test_a_reader_sees_each_trial_whole_while_it_is_written(store: Store, make):
    make.running(store, trials=20)
    done = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                for trial in store.trials("c1"):
                    assert (trial.state is TrialState.DONE) == (trial.outcome == make.ok())
        except BaseException as problem:
            problems.append(problem)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20):
        store.finish("c1", number, make.ok(), started_at=1.0, finished_at=2.0, now=2.0)
    done.set()
    reader.join(60)
    assert problems == []


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
