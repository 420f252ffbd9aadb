"""The campaign page is there at once with 300 trials, and stays smooth with 3,000.

The bounds of the issue, 600 ms to the answer and the first rows and 200 ms for an interaction, hold on a quiet machine:
benchmarks/service-figures.md has the measured ones (`pytest --log-cli-level=INFO tests/browser/test_speed.py`).
What is asserted here is five times that, for one that does other work: it tells a page that draws everything at once.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from service_fill import fill
from service_lab import ServiceLab

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

pytestmark = pytest.mark.timeout(600)
log = logging.getLogger(__name__)
BUSY = 5
READY_MS = 600
INTERACTION_MS = 200
# The analysis of a campaign is made with what processor time others leave.
ANALYSIS_MS = 300_000
# When the answer and the table's first rows are painted, counted from the start of the navigation.
WATCH = """
new MutationObserver((_, watching) => {
  if (!document.querySelector("[data-testid=answer-speed]") || !document.querySelector("[data-testid^=row-]")) return;
  watching.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.readyMs = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
# From the events to the frame that shows what came of them. Where: a text that is typed, or a height from the element's
# top (0) to its bottom (1), to which the pointer goes.
ACT = """
async (element, events) => {
  const { left, top, width, height } = element.getBoundingClientRect();
  const at = (where) => ({ bubbles: true, pointerId: 1, clientX: left + width / 2, clientY: top + height * where });
  element.setPointerCapture = () => {};
  const start = performance.now();
  for (const [name, where] of events) {
    if (name === "input") element.value = where;
    if (name === "click") element.click();
    else element.dispatchEvent(name === "input" ? new InputEvent(name, at(0)) : new PointerEvent(name, at(where)));
  }
  for (let frame = 0; frame < 2; frame += 1) await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}
"""
CLICK = (("click", 0),)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], tuple[ServiceLab, str]]]:
    """A service whose only campaign has so many trials, and the campaign's id."""
    labs: dict[int, ServiceLab] = {}

    def make(trials: int) -> ServiceLab:
        lab = ServiceLab(tmp_path_factory.mktemp(f"trials-{trials}"))
        with Store.open(Home(lab.home).database_url) as store:
            fill(store, 1, trials)
        lab.start()
        return lab

    def made(trials: int) -> tuple[ServiceLab, str]:
        if trials not in labs:
            labs[trials] = make(trials)
        return labs[trials], labs[trials].call("GET", "/v1/campaigns")["campaigns"][0]["id"]

    yield made
    for lab in labs.values():
        lab.kill()


@pytest.fixture
def opened(open_page: Callable[..., Page]) -> Callable[[ServiceLab, str], Page]:
    """The campaign's page in a profile that knows the token and has nothing in its cache; `readyMs` is known."""

    def fresh(service: ServiceLab, campaign: str) -> Page:
        page = open_page()
        page.add_init_script(f"localStorage.setItem('meshtune.token', '{service.token}')")
        page.add_init_script(WATCH)
        page.goto(f"{service.url}/#/campaigns/{campaign}")
        expect(page.get_by_test_id("answer-speed")).to_be_visible()
        expect(page.locator("[data-testid^=row-]").first).to_be_visible()
        page.wait_for_function("window.readyMs")
        return page

    return fresh


@pytest.mark.long
def test_three_hundred_trials_are_there_in_600_ms(filled, opened):
    service, campaign = filled(300)
    # What the service works out at the first look at a campaign is another figure: benchmarks/service-figures.md.
    first = opened(service, campaign)
    expect(first.get_by_test_id("why")).to_be_visible()
    expect(first.get_by_role("status", name="Loading")).to_have_count(0, timeout=ANALYSIS_MS)
    took_ms = sorted(opened(service, campaign).evaluate("window.readyMs") for _ in range(3))
    log.info("300 trials: ready after %.0f ms", took_ms[1])
    assert took_ms[1] < BUSY * READY_MS


@pytest.mark.slow
@pytest.mark.long
def test_three_thousand_trials_stay_smooth(filled, opened):
    service, campaign = filled(3000)
    page = opened(service, campaign)
    expect(page.get_by_test_id("shown")).to_have_text("2997 of 2997 settings")  # and three second runs
    table, text = page.get_by_test_id("trials-table"), page.get_by_label("Filter by text")
    act(
        ("an outcome", page.get_by_test_id("outcome-oom"), CLICK),
        ("all again", page.get_by_test_id("outcome-all"), CLICK),
        ("a text", text, [("input", "tp2")]),
        ("no text", text, [("input", "")]),
        ("sort", table.get_by_role("button", name="memory"), CLICK),
    )
    page.get_by_test_id("tab-charts").click()
    axis = page.get_by_test_id("axis-objective").get_by_role("slider")
    act(
        ("a cell", page.locator("[data-testid^=cell-]").first, CLICK),
        ("no cell", page.get_by_test_id("clear-all"), CLICK),
        ("a brush begun", axis, [("pointerdown", 0.1), ("pointermove", 0.4)]),
        ("a brush moved", axis, [("pointermove", 0.6)]),
        ("a brush", axis, [("pointerup", 0.6)]),
        ("no brush", page.get_by_test_id("clear-all"), CLICK),
        ("a line pointed at", page.get_by_test_id("parallel").locator("svg"), [("pointermove", 0.5)]),
        ("a dot pointed at", page.get_by_test_id("scatter").get_by_role("slider"), [("pointermove", 0.4)]),
    )
    assert page.evaluate("location.hash").endswith("?sort=memory&tab=charts")


def act(*acts: tuple[str, Locator, Any]) -> None:
    for name, element, events in acts:
        took_ms = element.evaluate(ACT, events)
        log.info("3000 trials: %s in %.0f ms", name, took_ms)
        assert took_ms < BUSY * INTERACTION_MS, name
