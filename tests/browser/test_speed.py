"""The campaign page is there at once with 300 trials, and stays smooth with 3,000.

The bounds of the issue, 600 ms to the first table and charts and 200 ms for an interaction, hold on a quiet machine:
docs/service-figures.md has the measured ones (`pytest --log-cli-level=INFO tests/browser/test_speed.py`). What is
asserted here is eight times that, for one that does other work: it tells a page that draws everything at once.
"""

import logging
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect
from service_fill import fill
from service_lab import ServiceLab

from tuner.paths import Home
from tuner.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.browser]
log = logging.getLogger(__name__)
BUSY = 8
READY_MS = 600
INTERACTION_MS = 200
# When the charts and the table's rows are painted first, counted from the start of the navigation.
WATCH = """
new MutationObserver((_, watching) => {
  if (!document.querySelector("[data-testid=charts] canvas") || !document.querySelector("[data-testid^=row-]")) return;
  watching.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.readyMs = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
# From the click to the frame that shows what came of it.
CLICK = """
async (element) => {
  const start = performance.now();
  element.click();
  for (let frame = 0; frame < 2; frame += 1) await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], tuple[ServiceLab, str]]]:
    """A service whose only campaign has so many trials, and the campaign's id."""
    labs: list[ServiceLab] = []

    def make(trials: int) -> tuple[ServiceLab, str]:
        lab = ServiceLab(tmp_path_factory.mktemp(f"trials-{trials}"))
        with Store.open(Home(lab.home).database_url) as store:
            fill(store, 1, trials)
        lab.start()
        labs.append(lab)
        return lab, lab.call("GET", "/v1/campaigns")["campaigns"][0]["id"]

    yield make
    for lab in labs:
        lab.kill()


@pytest.fixture
def opened(open_page: Callable[..., Page]) -> Callable[[ServiceLab, str], Page]:
    """The campaign's page in a profile that knows the token and has nothing in its cache."""

    def fresh(service: ServiceLab, campaign: str) -> Page:
        page = open_page()
        page.add_init_script(f"localStorage.setItem('meshtune.token', '{service.token}')")
        page.add_init_script(WATCH)
        page.goto(f"{service.url}/#/campaigns/{campaign}")
        expect(page.get_by_test_id("charts")).to_be_visible()
        expect(page.locator("[data-testid^=row-]").first).to_be_visible()
        return page

    return fresh


def test_three_hundred_trials_are_there_in_600_ms(filled, opened):
    service, campaign = filled(300)
    # What the service works out at the first look at a campaign is another figure: docs/service-figures.md.
    expect(opened(service, campaign).get_by_role("status", name="Loading")).to_have_count(0, timeout=60_000)
    took_ms = sorted(opened(service, campaign).evaluate("window.readyMs") for _ in range(3))
    log.info("300 trials: ready after %.0f ms", took_ms[1])
    assert took_ms[1] < BUSY * READY_MS


def test_three_thousand_trials_stay_smooth(filled, opened):
    service, campaign = filled(3000)
    page = opened(service, campaign)
    expect(page.get_by_test_id("shown")).to_have_text("3000 of 3000 trials")
    for name, element in {
        "an outcome": page.get_by_test_id("outcome-oom"),
        "all again": page.get_by_test_id("outcome-all"),
        "sort": page.get_by_test_id("trials-table").get_by_role("button", name="memory"),
        "more rows": page.get_by_test_id("show-more"),
    }.items():
        took_ms = element.evaluate(CLICK)
        log.info("3000 trials: %s in %.0f ms", name, took_ms)
        assert took_ms < BUSY * INTERACTION_MS, name
    expect(page.locator("[data-testid^=row-]")).to_have_count(400)
