"""Many pages of one browser, which has six connections to a service: all are alive, and go on where others end."""

import re
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import Request as Asked
from service_fill import fill
from service_lab import ServiceLab

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

TABS = 10
LIMIT_S = 30.0
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    """With two campaigns of twenty trials that are over."""
    lab = ServiceLab(tmp_path_factory.mktemp("tabs"))
    with Store.open(Home(lab.home).database_url) as store:
        fill(store, 2, 20)
    with lab:
        yield lab


@pytest.fixture
def new_tab(service, open_page, sign_in):
    """A page of the one browser, signed in."""
    first = open_page()
    sign_in(first, service)
    first.close()

    def opened() -> Page:
        page = first.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        return page

    return opened


def open_streams(service: ServiceLab) -> int:
    request = Request(f"{service.url}/metrics", headers={"Authorization": f"Bearer {service.token}"})
    with urlopen(request, timeout=LIMIT_S) as answer:
        found = re.search(r"^meshtune_open_streams (\S+)", answer.read().decode(), re.MULTILINE)
    assert found
    return int(float(found[1]))


def ids(service: ServiceLab) -> list[str]:
    return [each["id"] for each in service.call("GET", "/v1/campaigns")["campaigns"]]


def expect_live(page: Page) -> None:
    expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")


def test_ten_pages_of_one_browser_are_live_and_hear_what_happens(new_tab, service):
    campaign, other = ids(service)
    pages = [new_tab() for _ in range(TABS)]
    for page in pages:
        page.goto(f"{service.url}/#/campaigns/{campaign}")
        expect(page.get_by_test_id("row-0")).to_be_visible()
        expect_live(page)
    pages[1].goto(f"{service.url}/#/campaigns/{other}")
    for turn, name in enumerate(("renamed", "renamed once more")):
        service.call("PATCH", f"/v1/campaigns/{campaign}", {"name": name})
        assert open_streams(service) == 1
        for page in pages[2:]:
            expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(pages[1].get_by_role("heading", level=1)).not_to_have_text(name)
        if turn == 0:
            pages.pop(0).close()  # the one that reads for all
            for page in pages:
                expect_live(page)
            pages.insert(0, pages[0])


def test_a_page_that_is_kept_for_going_back_lets_go_of_its_stream_and_is_alive_again(new_tab, service):
    """Ten times: as a browser tells a page that it keeps, which Playwright's never do."""
    page, campaign = new_tab(), ids(service)[0]
    page.goto(f"{service.url}/#/campaigns/{campaign}")
    for turn in range(TABS):
        expect_live(page)
        service.wait(lambda: open_streams(service) == 1, LIMIT_S)
        page.evaluate("dispatchEvent(new Event('pagehide'))")
        service.wait(lambda: open_streams(service) == 0, LIMIT_S)
        service.call("PATCH", f"/v1/campaigns/{campaign}", {"name": f"turn {turn}"})
        page.evaluate("dispatchEvent(new Event('pageshow'))")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"turn {turn}")


def test_a_page_is_alive_after_ten_times_back_and_forth(new_tab, service):
    page, (campaign, other) = new_tab(), ids(service)
    for path in ("", *[f"?{turn}" for turn in range(TABS)]):
        page.goto(f"{service.url}/{path}#/campaigns/{campaign if path else other}")
    for step in (page.go_back, page.go_forward):
        for _ in range(TABS):
            step()
            expect(page.get_by_test_id("row-0")).to_be_visible()
    expect_live(page)
    service.call("PATCH", f"/v1/campaigns/{campaign}", {"name": "heard"})
    expect(page.get_by_role("heading", level=1)).to_have_text("heard")


def test_every_page_says_that_the_service_is_away_and_goes_on_once_it_is_back(new_tab, service):
    campaign = ids(service)[0]
    pages = [new_tab() for _ in range(2)]
    for page in pages:
        page.goto(f"{service.url}/#/campaigns/{campaign}")
        expect_live(page)
    service.kill()
    for page in pages:
        expect(page.get_by_test_id("reconnecting")).to_be_visible()
    service.start()
    service.call("PATCH", f"/v1/campaigns/{campaign}", {"name": "while it was away"})
    for page in pages:
        expect(page.get_by_role("heading", level=1)).to_have_text("while it was away", timeout=4 * PATIENCE_MS)
        expect(page.get_by_test_id("reconnecting")).to_be_hidden()


def test_who_signs_out_is_out_in_every_page_and_asks_for_nothing_more(new_tab, service):
    asked: list[Asked] = []
    pages = [new_tab() for _ in range(2)]
    for page in pages:
        page.goto(service.url)
        expect_live(page)
        page.on("request", lambda request: asked.append(request))
    pages[0].get_by_role("button", name="Sign out").click()
    for page in pages:
        expect(page.get_by_test_id("signin")).to_be_visible()
    assert not [request.url for request in asked if "authorization" not in request.headers]


def test_a_paused_page_stays_paused_and_goes_on_where_the_campaign_is(new_tab, service):
    campaign = ids(service)[0]
    paused, other = (new_tab() for _ in range(2))
    for page in (paused, other):
        page.goto(f"{service.url}/#/campaigns/{campaign}")
        expect_live(page)
    before = paused.get_by_role("heading", level=1).inner_text()
    paused.get_by_test_id("more").locator("summary").click()
    paused.get_by_role("button", name="Pause live").click()
    for turn in range(2):
        expect_live(other)  # reads for itself now
        service.call("PATCH", f"/v1/campaigns/{campaign}", {"name": f"unseen {turn}"})
        expect(other.get_by_role("heading", level=1)).to_have_text(f"unseen {turn}")
        expect(paused.get_by_role("heading", level=1)).to_have_text(before)
        paused.evaluate("dispatchEvent(new Event('pagehide')), dispatchEvent(new Event('pageshow'))")
    paused.get_by_test_id("more").locator("summary").click()
    paused.get_by_role("button", name="Go live").click()
    expect(paused.get_by_role("heading", level=1)).to_have_text("unseen 1")


def test_a_defect_of_the_service_does_not_end_the_stream(new_tab, service):
    page = new_tab()
    page.route("**/v1/stream", lambda route: route.fulfill(status=500), times=1)
    page.goto(f"{service.url}/#/campaigns/{ids(service)[0]}")
    expect_live(page)


def test_pages_without_locks_have_each_their_own_stream(new_tab, service):
    alone, other = (new_tab() for _ in range(2))
    alone.route("**/v1/stream", lambda route: route.abort())
    for page in (other, alone):
        page.add_init_script("Object.defineProperty(navigator, 'locks', {value: undefined})")
        page.goto(f"{service.url}/#/campaigns/{ids(service)[0]}")
        if page is other:
            expect_live(page)
    expect(alone.get_by_test_id("live")).to_have_attribute("data-state", "reconnecting")
    expect_live(other)
    assert open_streams(service) == 1
