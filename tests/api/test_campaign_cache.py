"""An answer is computed once for each version, by one of the threads that ask for it, and the cache is bounded."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshtune.api.campaign_cache import ENTRY_BYTES, CampaignCache


@pytest.fixture
def cache(service):
    return CampaignCache(service.store)


def test_of_threads_that_ask_at_once_one_computes_and_other_questions_pass(cache):
    gate, runs = threading.Event(), []

    def compute() -> str:
        runs.append(1)
        gate.wait(30)
        return "computed"

    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(cache.get, "a", 1, compute) for _ in range(7)]
        assert threads.submit(cache.get, "b", 1, lambda: "other").result(30) == "other"
        gate.set()
        assert {each.result(30) for each in waiting} == {"computed"}
    assert len(runs) == 1


def test_the_least_recently_used_entries_go_when_it_is_full(service):
    cache = CampaignCache(service.store, max_bytes=2 * ENTRY_BYTES + 200)
    for key in "ab":
        cache.get(key, 1, lambda: b"four")
    cache.get("a", 1, lambda: b"else")
    cache.get("c", 1, lambda: b"four")
    assert [cache.find(key, 1) for key in "abc"] == [b"four", None, b"four"]
    assert cache.get("d", 1, lambda: bytes(10_000)) == bytes(10_000)
    assert cache.find("d", 1) is None
