"""Streams of events: everything once and in order, whatever the client, the database and the service do meanwhile."""

import asyncio
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from stream_lab import Sent, StreamClient, soon

from meshtune.api import stream_hub
from meshtune.api.routes import stream
from meshtune.tuner import store
from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.campaign.campaign import EVENT_KINDS, CampaignState
from meshtune.tuner.store import StoreUnavailable


@pytest.fixture
def paused(service, spec, runner) -> str:
    """A campaign that nothing happens in, and its id."""
    id = service.create(spec).id
    service.pause(id)
    return id


@pytest.fixture
def during(app, monkeypatch) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run this while the application runs, without its driver: it would write events of its own about a campaign that
    a test resumes for a moment."""
    monkeypatch.setattr("meshtune.api.app._drive", lambda _driver, _service, stop: stop.wait())

    def run(body: Callable[[], Awaitable[None]]) -> None:
        async def alive() -> None:
            async with app.router.lifespan_context(app):
                await body()

        asyncio.run(alive())

    return run


def stir(service, id: str, times: int = 1) -> None:
    """Each time two events."""
    for _ in range(times):
        service.resume(id)
        service.pause(id)


def table(service, after: int = 0, campaign: str | None = None) -> list[int]:
    return [event.id for event in service.store.events(campaign, after=after)]


@pytest.mark.parametrize("last_event_id", [None, 10**9], ids=["none", "an id of another database"])
def test_a_new_client_hears_what_happens_from_now_on(app, service, token, paused, during, last_event_id):
    before = service.store.newest_event()

    async def body() -> None:
        asking = {**token(), "Accept-Encoding": "gzip"}
        async with StreamClient(app, asking, last_event_id=last_event_id) as client:
            await soon(lambda: client.ready)
            assert client.text.startswith("retry: 1000\n\n")
            assert client.answer["content-type"].startswith("text/event-stream")
            assert client.answer["cache-control"] == "no-store"
            assert client.answer["x-accel-buffering"] == "no"
            assert not {"content-length", "content-encoding"} & client.answer.keys()
            assert client.events == [Sent(before, "ready", {"id": before})]
            stir(service, paused)
            await soon(lambda: client.ids == table(service, after=before))
            event = client.events[1]
            assert (event.kind, event.data["campaign_id"], event.data["id"]) == ("campaign.running", paused, event.id)
            assert app.state.hub.open_streams == 1
            client.go()
            await soon(lambda: client.ended)
            assert app.state.hub.open_streams == 0

    during(body)


@pytest.mark.parametrize("by_header", [True, False])
def test_who_comes_again_is_told_what_was_missed_before_ready(
    app, service, token, paused, during, monkeypatch, by_header
):
    monkeypatch.setattr(stream, "MAX_READ", 3)
    stir(service, paused, 6)
    seen = table(service)[3]
    missed = table(service, after=seen)
    assert len(missed) > 3 * 3

    async def body() -> None:
        again = {"last_event_id": seen, "query": "after=0"} if by_header else {"query": f"after={seen}"}
        async with StreamClient(app, token(), **again) as client:
            await soon(lambda: client.ready)
            assert client.ids == missed
            assert client.events[-1] == Sent(missed[-1], "ready", {"id": missed[-1]})
            stir(service, paused)
            await soon(lambda: client.ids == table(service, after=seen))

    during(body)


def test_only_the_kinds_that_are_named_come_before_ready_and_after(app, service, token, paused, during):
    stir(service, paused, 3)

    def resumed() -> list[int]:
        return [event.id for event in service.store.events(None) if event.kind == "campaign.running"]

    async def body() -> None:
        asking, query = token(), "after=0&kind=campaign.running&kind=campaign.completed"
        async with StreamClient(app, asking, query=query) as client:
            await soon(lambda: client.ready)
            assert client.ids == resumed()
            stir(service, paused, 2)
            await soon(lambda: client.ids == resumed())
            assert {event.kind for event in client.events} == {"ready", "campaign.running"}
        async with StreamClient(app, asking, query="kind=campaign.complete") as client:
            await soon(lambda: client.ended)
            assert client.status == 422, "a kind that never comes"

    during(body)


def test_each_kind_that_the_store_writes_may_be_named():
    writes = re.compile(r"add_event\([^)]*?\"([a-z]+\.[a-z{}.]+)\"", re.DOTALL)
    written = {kind for file in Path(store.__file__).parent.glob("*.py") for kind in writes.findall(file.read_text())}
    moves = {kind for kind in written if "{" in kind}
    assert all(kind.startswith("campaign.{") for kind in moves)
    assert written - moves == {*EVENT_KINDS} - {f"campaign.{state}" for state in CampaignState}


def test_clients_that_come_and_go_while_others_write_miss_nothing_and_hear_nothing_twice(
    app, service, token, paused, during, monkeypatch
):
    monkeypatch.setattr(stream, "MAX_READ", 4)
    monkeypatch.setattr(stream_hub, "MAX_READ", 4)
    monkeypatch.setattr(stream_hub, "PERIOD_S", 0.005)
    over = threading.Event()

    def write() -> None:
        for _ in range(40):
            stir(service, paused)
            time.sleep(0.003)
        over.set()

    async def follow(headers: dict[str, str], chance: random.Random) -> list[int]:
        seen: list[int] = []
        while not over.is_set() or seen[-1:] != table(service)[-1:]:
            last = seen[-1] if seen else 0
            async with StreamClient(app, headers, last_event_id=last) as client:
                await asyncio.sleep(chance.uniform(0.01, 0.15))
                seen += client.ids
        return seen

    async def body() -> None:
        headers = token()
        writer = threading.Thread(target=write)
        writer.start()
        async with asyncio.timeout(60):
            heard = await asyncio.gather(*(follow(headers, random.Random(seed)) for seed in range(4)))
        writer.join()
        assert heard == [table(service)] * 4

    during(body)


def test_the_stream_of_a_campaign_tells_of_no_other(app, service, token, paused, spec, during):
    other = service.create(spec | {"name": "other"}).id
    service.pause(other)

    async def body() -> None:
        async with StreamClient(app, token(), query=f"campaign={other}", last_event_id=0) as client:
            await soon(lambda: client.ready)
            stir(service, paused, 2)
            stir(service, other)
            await soon(lambda: client.ids == table(service, campaign=other))
            assert {event.data["campaign_id"] for event in client.events if event.kind != "ready"} == {other}

    during(body)


def test_a_stream_tells_of_campaigns_that_its_token_may_read_before_and_after_it_is_ready(
    app, service, token, paused, spec, during
):
    own, shared = service.create(spec, "bob").id, service.create(spec | {"project": "llm"}, "ann").id
    heard = {own, shared}
    bob = token("bob", Scope.READ, projects=frozenset({"llm:read"}))

    async def body() -> None:
        async with StreamClient(app, bob, last_event_id=0) as client:
            await soon(lambda: client.ready)
            for id in (paused, own, shared):
                stir(service, id)
            assert service.create(spec, "ann").id
            heard.add(last := service.create(spec, "bob").id)
            await soon(lambda: client.events[-1].data.get("campaign_id") == last)
            assert {event.data["campaign_id"] for event in client.events if event.kind != "ready"} == heard
            assert client.ids == [event.id for event in service.events(None) if event.campaign_id in heard]

    during(body)


def test_an_unknown_campaign_and_a_strange_id_are_told_at_once(client, problem):
    problem(client.get("/v1/stream", params={"campaign": "no-such"}), 404, "/problems/not-found")
    problem(client.get("/v1/stream", headers={"Last-Event-ID": "x"}), 422, "/problems/malformed-request")


def test_a_client_that_takes_nothing_is_cut_off_and_goes_on_where_it_was(
    app, service, token, paused, during, monkeypatch
):
    monkeypatch.setattr(stream_hub, "MAX_WAITING", 6)
    headers = token()

    async def body() -> None:
        async with StreamClient(app, headers) as slow, StreamClient(app, headers) as quick:
            await soon(lambda: slow.ready and quick.ready)
            start = quick.events[0].id
            slow.stall = True
            for _ in range(8):  # one by one, so that who listens keeps up
                stir(service, paused)
                await soon(lambda: quick.ids == table(service, after=start))
            await soon(lambda: slow.ended)
            assert app.state.hub.cut_off._value.get() == 1
            assert app.state.hub.open_streams == 1
        async with StreamClient(app, headers, last_event_id=start) as again:
            await soon(lambda: again.ready)
            assert again.ids == table(service, after=start)

    during(body)


def test_one_token_and_all_of_them_have_a_most_of_streams(app, token, during):
    app.state.hub.max_per_token, app.state.hub.max_streams = 2, 3
    one, two = token("one"), token("two")

    async def body() -> None:
        async with StreamClient(app, one) as first, StreamClient(app, one) as second:
            await soon(lambda: first.ready and second.ready)
            async with StreamClient(app, one) as third, StreamClient(app, two) as another:
                await soon(lambda: third.ended and another.ready)
                assert third.status == 429
                assert third.answer["retry-after"]
                async with StreamClient(app, two) as fifth:
                    await soon(lambda: fifth.ended)
                    assert fifth.status == 503

    during(body)


def test_a_silent_stream_beats_and_ends_when_its_token_is_revoked(app, service, token, during, monkeypatch):
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)
    headers = token("guest")

    async def body() -> None:
        async with StreamClient(app, headers) as client:
            await soon(lambda: client.text.count(":\n\n") >= 3)
            service.store.access.revoke("guest", time.time())
            await soon(lambda: client.ended)

    during(body)


def test_an_end_that_is_near_ends_every_stream_and_opens_none(app, token, during, monkeypatch):
    monkeypatch.setattr(stream, "HEARTBEAT_S", 3600.0)  # which ends it as well
    headers = token()

    async def body() -> None:
        async with StreamClient(app, headers) as client:
            await soon(lambda: client.ready)
            app.state.end_soon()
            await soon(lambda: client.ended)
        async with StreamClient(app, headers) as late:
            await soon(lambda: late.ended)
            assert late.status == 503

    during(body)


def test_a_database_that_does_not_answer_delays_events_and_loses_none(
    app, service, token, paused, during, monkeypatch, caplog
):
    monkeypatch.setattr(stream_hub, "PAUSE_S", 0.01)
    events = service.store.events
    broken = threading.Event()

    def failing(campaign, **page):
        if broken.is_set():
            raise StoreUnavailable("the database sleeps", transient=True)
        return events(campaign, **page)

    monkeypatch.setattr(service.store, "events", failing)

    async def body() -> None:
        async with StreamClient(app, token()) as client:
            await soon(lambda: client.ready)
            start = client.events[0].id
            broken.set()
            await soon(lambda: "events are late" in caplog.text)
            stir(service, paused, 3)
            await asyncio.sleep(0.1)
            assert client.ids == []
            broken.clear()
            await soon(lambda: client.ids == table(service, after=start))
            assert caplog.text.count("events are late") == 1

    during(body)


def test_text_with_lines_stays_one_event(service, paused):
    service.store.move_campaign(paused, CampaignState.CANCELLING, reason="one\ntwo\r\nthree", now=0.0)
    frame = stream_hub.frame_of(service.store.events(None)[-1]).decode()
    assert frame.count("\n") == 4
    assert "\r" not in frame
