"""The dashboard behind a path prefix, on a phone, and by keyboard alone."""

import re
from collections.abc import Iterator

import pytest
from nginx_lab import NginxLab
from playwright.sync_api import expect
from service_fill import fill
from service_lab import ServiceLab
from specs import simulated

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

PHONE = {"width": 390, "height": 844}
UNANSWERED = simulated(
    name="unanswered",
    model="gpt-1.4b",
    global_batch_size="free",
    workload={"kind": "simulated", "framework": "megatron-deepspeed"},
    budget={"trials": 100_000},
)

ONE_MODEL = simulated(
    name="scales",
    model="gpt-1.4b",
    global_batch_size=128,
    workload={"kind": "simulated", "framework": "megatron-deepspeed"},
    baseline={"tp": 8, "micro_batch_size": 1, "zero_stage": 0, "recompute": "full"},
    budget={"trials": 8},
)

# Two letters more, just when the first are sent.
TYPE_WHEN_SENT = """
(input) => {
  const { replaceState } = history;
  history.replaceState = function (...given) {
    replaceState.apply(history, given);
    history.replaceState = replaceState;
    queueMicrotask(() => {
      input.value += " 1";
      input.dispatchEvent(new InputEvent("input", { bubbles: true }));
    });
  };
}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    """With two campaigns of forty trials that are over."""
    lab = ServiceLab(tmp_path_factory.mktemp("places"))
    with Store.open(Home(lab.home).database_url) as store:
        fill(store, 2, 40)
    with lab:
        yield lab


@pytest.fixture(scope="module")
def scaled(service) -> list[str]:
    """One model on one node and on two."""
    return [service.completed(ONE_MODEL | {"cluster": {"preset": "dgx-h100", "nodes": nodes}}) for nodes in (1, 2)]


def test_a_link_signs_in_behind_a_proxy_with_a_prefix_and_leaves_its_token_nowhere(service, open_page, tmp_path):
    page = open_page()
    asked: list[str] = []
    missing: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.url} {request.all_headers().get('referer')}"))
    page.on("response", lambda answer: answer.status == 404 and missing.append(answer.url))
    with NginxLab(tmp_path, service.port) as proxy:
        page.goto(f"{proxy.url}/#token={service.token}")
        expect(page.get_by_test_id("whoami")).to_contain_text("lab")
        page.get_by_role("link", name="filled 1").click()
        expect(page.locator("[data-testid^=row-]").first).to_be_visible()
        expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")
        page.get_by_test_id("trials").evaluate("(card) => card.scrollIntoView({ block: 'end' })")
        page.get_by_test_id("row-0").get_by_role("link").first.click()
        expect(page.locator("h1")).to_contain_text("Trial 0")
        # A link in a page that is open already is somebody else's perhaps.
        page.evaluate("(token) => { location.hash = `token=${token}` }", service.new_token("other", "read:all"))
        expect(page.get_by_test_id("whoami")).to_contain_text("other")
        history = []
        for _ in range(4):
            history.append(page.url)
            page.go_back()
        page.goto("about:blank")  # which ends its stream
    assert missing == []
    assert not any("mt_" in text for text in (*asked, *history))
    assert len(set(history)) > 1


def test_a_link_counts_for_more_than_a_token_that_the_browser_has_kept(service, open_page):
    page = open_page()
    refused: list[str] = []
    page.on("response", lambda answer: answer.status == 401 and refused.append(answer.url))
    page.goto(f"{service.url}/v1/fit")
    page.evaluate("localStorage.setItem('meshtune.token', 'mt_of-long-ago')")
    page.goto(f"{service.url}/#token={service.token}")
    expect(page.get_by_test_id("whoami")).to_contain_text("lab")
    expect(page.get_by_role("link", name="filled 1")).to_be_visible()
    assert refused == []
    assert "mt_" not in page.url


def test_a_link_whose_token_is_refused_leaves_the_one_of_before(service, open_page, sign_in):
    page = open_page()
    sign_in(page, service)
    page.goto("about:blank")
    page.goto(f"{service.url}/#token=mt_of-nobody")
    expect(page.get_by_role("alert")).to_contain_text("The token of the link was refused")
    expect(page.get_by_role("link", name="filled 1")).to_be_visible()
    page.reload()
    expect(page.get_by_test_id("whoami")).to_contain_text("lab")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.goto(f"{service.url}/#token=mt_of-nobody")
    expect(page.get_by_test_id("signin")).to_contain_text("The token of the link was refused")


def test_a_phone_shows_every_page_without_scrolling_sideways(service, open_page, sign_in):
    page = open_page(viewport=PHONE)
    sign_in(page, service)
    campaign = service.call("GET", "/v1/campaigns")["campaigns"][0]["id"]
    for place in ("#/", "#/new", f"#/campaigns/{campaign}", f"#/campaigns/{campaign}/trials/0", "#/compare"):
        page.goto(f"{service.url}/{place}")
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], place
    page.goto(f"{service.url}/#/")
    expect(page.get_by_role("link", name="filled 1")).to_be_visible()
    assert page.get_by_test_id("campaign").first.bounding_box()["height"] < 260


def test_campaigns_are_found_opened_and_filtered_by_keyboard_alone(service, open_page, sign_in):
    page = open_page()
    sign_in(page, service)
    expect(page.get_by_role("link", name="filled 0")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("filled 1")
    link = page.get_by_role("link", name="filled 1")
    expect(page.get_by_role("link", name="filled 0")).to_be_hidden()
    for _ in range(40):
        if link.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#/campaigns/filled-"))
    page.get_by_role("tab", name="Charts").press("Enter")
    page.get_by_test_id("axis-objective").get_by_role("slider").focus()
    page.keyboard.press("End")
    expect(page.get_by_test_id("condition-objective")).to_be_visible()
    page.keyboard.press("Delete")
    expect(page.get_by_test_id("condition-objective")).to_be_hidden()


def test_a_letter_that_is_typed_while_the_list_is_filtered_stays(service, open_page, sign_in):
    page = open_page()
    sign_in(page, service)
    expect(page.get_by_role("link", name="filled 0")).to_be_visible()
    name = page.get_by_label("Name contains")
    name.evaluate(TYPE_WHEN_SENT)
    name.fill("filled")
    expect(page.get_by_role("link", name="filled 0")).to_be_hidden()
    expect(name).to_have_value("filled 1")
    expect(page.get_by_role("link", name="filled 1")).to_be_visible()


def test_the_list_fits_a_small_laptop_and_says_the_recommendation_once(service, scaled, open_page, sign_in):
    page = open_page(viewport={"width": 1280, "height": 800})
    sign_in(page, service)
    expect(page.get_by_test_id("campaign").filter(has_text="filled 0")).to_contain_text(re.compile(r"\d out of memory"))
    id = scaled[0]
    row = page.get_by_test_id("campaign").and_(page.locator(f"[data-id={id}]"))
    found = service.call("GET", f"/v1/campaigns/{id}")["summary"]["recommended"]
    percent = 100 * found["gain_over_baseline"]["value"]
    assert percent > 100
    expect(row.get_by_test_id("recommended")).to_contain_text(f"+{percent:.0f} %")
    expect(row.get_by_test_id("recommended")).to_contain_text(" → ")
    menu = row.get_by_label(f"Actions on {id}")
    menu.click()
    for inside in (menu, page.get_by_role("button", name=f"Clone {id}"), row.get_by_text(" ago")):
        expect(inside).to_be_in_viewport(ratio=1)
    frame = page.get_by_role("region", name="Campaigns")
    assert frame.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert row.locator(".cut").evaluate_all("(all) => all.every((one) => one.scrollWidth <= one.clientWidth)")
    page.get_by_role("button", name=f"Clone {id}").click()
    expect(page.get_by_role("dialog")).to_contain_text("A new campaign of the same spec")


def test_campaigns_that_are_ticked_are_compared_in_their_colours(service, open_page, sign_in):
    """Two of one model on as many devices: nothing scales."""
    page = open_page(viewport={"width": 1280, "height": 800})
    sign_in(page, service)
    for name in ("filled 0", "filled 1"):
        page.get_by_test_id("campaign").filter(has_text=name).get_by_role("checkbox").check()
    page.keyboard.press("/")  # from a box, into which nothing is written
    expect(page.get_by_label("Name contains")).to_be_focused()
    page.get_by_role("link", name="Compare 2").click()
    rows = page.get_by_test_id("compared")
    expect(rows).to_have_count(2)
    colours = rows.locator(".swatch").evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) == 2
    chart = page.get_by_test_id("progress-chart")
    lines = chart.locator(".curve").evaluate_all("(all) => all.map((one) => getComputedStyle(one.firstChild).stroke)")
    assert sorted(lines) == sorted(colours)
    expect(chart.get_by_role("slider")).to_have_attribute("aria-label", re.compile("simulated"))
    expect(page.get_by_role("heading", name="Best first run so far")).to_be_visible()
    expect(page.get_by_test_id("speed-chart")).to_be_hidden()
    expect(page.get_by_test_id("notes")).to_contain_text("simulated")
    for row in rows.all():
        expect(row).to_contain_text("simulated")
    frame = page.get_by_role("region", name="Comparison", exact=True)
    assert frame.evaluate("(box) => box.scrollWidth <= box.clientWidth")


def test_one_model_on_more_devices_is_drawn_with_where_the_specs_differ(service, scaled, open_page, sign_in):
    page = open_page()
    sign_in(page, service)
    page.goto(f"{service.url}/#/compare?campaign={scaled[0]}&campaign={scaled[1]}")
    chart = page.get_by_test_id("speed-chart")
    expect(chart.locator(".curve")).to_have_count(4)
    chart.get_by_role("slider").press("End")
    expect(chart.get_by_text(re.compile(r"tokens/s (simulated|projected) on 16 devices"))).to_be_visible()
    expect(page.get_by_test_id("differences").get_by_role("row", name="cluster.nodes")).to_have_text(
        re.compile(r"cluster\.nodes\s*1\s*2")
    )


def test_a_move_whose_answer_is_lost_is_told_by_the_campaign_s_state(service, open_page, sign_in):
    page = open_page()
    sign_in(page, service)
    campaign = service.call("POST", "/v1/campaigns", UNANSWERED)["id"]
    service.call("POST", f"/v1/campaigns/{campaign}:pause")
    page.goto(f"{service.url}/#/campaigns/{campaign}")
    expect(page.get_by_test_id("state")).to_have_text("paused")
    page.route("**/*:cancel", lambda route: route.abort())
    page.get_by_role("button", name=f"Cancel {campaign}").click()
    page.get_by_role("dialog", name="Cancel unanswered?").get_by_role("button", name="Cancel the campaign").click()
    trouble = page.get_by_role("dialog", name="That did not work")
    expect(trouble).to_contain_text("cannot be reached")
    service.call("POST", f"/v1/campaigns/{campaign}:cancel")
    expect(page.get_by_test_id("state")).to_have_text("cancelled")
    expect(trouble).to_be_hidden()
    page.get_by_role("link", name="Campaigns").click()
    row = page.get_by_test_id("campaign").and_(page.locator(f"[data-id={campaign}]"))
    expect(row.get_by_text("cancelled")).to_have_count(1)
