"""A report in a real Chromium: a file from a folder that asks for nothing, in both themes, and on paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from simulated_lab import HOSTILE, failing

from meshtune.tuner.results.report.campaigns import render_report


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("report") / "report.html"
    written.write_text(render_report([failing()]), encoding="utf-8")
    return written


@pytest.fixture
def opened(chromium: Browser, file: Path) -> Callable[..., Page]:
    """The report on a page; at the end, it asked for nothing but itself and nothing was said on the console."""
    troubles: list[str] = []

    def open_report(**options: object) -> Page:
        page = chromium.new_context(**options).new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda asked: asked.url == file.as_uri() or troubles.append(asked.url))
        page.goto(file.as_uri())
        return page

    yield open_report
    assert troubles == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_it_opens_from_a_folder_and_asks_for_nothing(opened, theme, width):
    page = opened(color_scheme=theme, viewport={"width": width, "height": 900})
    expect(page.get_by_role("heading", level=1)).to_have_text("failing")
    expect(page.get_by_role("note")).to_contain_text("Simulated")
    page.get_by_role("link", name="Every setting").click()
    expect(page.get_by_role("heading", name="Every setting")).to_be_in_viewport()
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    expect(page.get_by_role("img", name="Best so far")).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 15, 14)"
    assert dark == (theme == "dark")


def test_axe_finds_nothing(opened):
    axe = Path(__file__).parents[2] / "api" / "web" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        pytest.skip("axe-core is not installed: `make dashboard`")
    # The page's policy forbids scripts, as it should; the test's own may run.
    page = opened(bypass_csp=True)
    page.evaluate(axe.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then((told) => told.violations.map((one) => [one.id, one.nodes[0].html]))")
    assert found == []


def test_it_prints_on_several_pages_of_a4(opened, tmp_path):
    printed = opened(color_scheme="dark").pdf(prefer_css_page_size=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert 1 < pages <= 8, "figures that leave pages half empty, and a spec in one column, take 10"
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox\s*\[([^\]]*)\]", printed)}
    assert {(round(width), round(height)) for _, _, width, height in boxes} == {(595, 842)}


def test_a_setting_of_the_table_is_one_line_on_paper(opened):
    """On the width of a page of A4 between its margins."""
    page = opened(viewport={"width": 688, "height": 1000})
    page.emulate_media(media="print")
    table = page.get_by_role("region", name="By second runs where there are any").get_by_role("table")
    broken = "(rows) => rows.filter((row) => row.cells[1].getBoundingClientRect().height > 24).length"
    assert table.locator("tbody tr").evaluate_all(broken) == 0
    assert table.evaluate("(table) => table.getBoundingClientRect().right <= innerWidth")
