"""Every page before axe-core, in both themes and widths, and the whole story by keyboard alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from specs import simulated

AXE = Path(__file__).parents[2] / "api" / "web" / "node_modules" / "axe-core" / "axe.min.js"
WIDE, LAPTOP, PHONE = 1440, 1280, 390
# Both themes are in the first two, and two widths.
LOOKS = [("light", WIDE), ("dark", PHONE), ("dark", WIDE), ("light", PHONE), ("light", LAPTOP), ("dark", LAPTOP)]
# As a person sees it: what is wrong, of which element, and why.
CHECK = """
async () => (await axe.run()).violations.map(({ id, nodes }) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`)
"""
SPEC = simulated(
    name="story",
    model="gpt-1.4b",
    global_batch_size=64,
    baseline={"tp": 8, "pp": 1, "micro_batch_size": 1, "zero_stage": 0},
    workload={"kind": "simulated", "framework": "megatron-deepspeed"},
    trial={"time_limit_s": 1e6},
    budget={"trials": 12},
)


@pytest.mark.parametrize("looks", [LOOKS[:2], pytest.param(LOOKS, marks=pytest.mark.long)], ids=["two", "six"])
def test_axe_finds_nothing_on_any_page_in_both_themes_and_widths(open_page, service, sign_in, looks):
    if not AXE.exists():
        missing = "axe-core is not installed: npm --prefix api/web ci"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    other = {**SPEC, "name": "other", "cluster": {"preset": "dgx-h100", "nodes": 2}}
    first, second = service.completed(SPEC), service.completed(other)
    page = open_page()
    script = AXE.read_text(encoding="utf-8")
    page.goto(service.url)
    expect(page.get_by_label("Token")).to_be_visible()
    check(page, script, "sign in", looks)
    sign_in(page, service)
    trials = service.call("GET", f"/v1/campaigns/{first}/trials?view=brief")["trials"]
    oom = next(trial["number"] for trial in trials if trial["verdict"] == "oom")
    for place, whole in (
        ("", "campaign-table"),
        ("new", "launch"),
        (f"new?from={first}", "predicted-best"),
        (f"campaigns/{first}", "why-steps"),
        (f"campaigns/{first}?tab=charts", "charts"),
        (f"campaigns/{first}?tab=failures", "failures"),
        (f"campaigns/{first}?tab=about", "spec"),
        (f"campaigns/{first}?pick=0&pick=1&pick=2&beside=yes", "trial-comparison"),
        (f"campaigns/{first}/trials/0", "tiles"),
        (f"campaigns/{first}/trials/{oom}", "reason"),
        (f"compare?campaign={first}&campaign={second}", "comparison"),
    ):
        page.goto(f"{service.url}/#/{place}")
        expect(page.get_by_test_id(whole)).to_be_visible()
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        check(page, script, place, looks)
    page.goto(f"{service.url}/#/campaigns/{first}")
    page.get_by_test_id("use").click()
    expect(page.get_by_test_id("exports")).to_be_visible()
    expect(page.get_by_role("status", name="Loading")).to_have_count(0)
    check(page, script, "export", looks)


def check(page: Page, script: str, place: str, looks: list[tuple[str, int]]) -> None:
    for theme, width in looks:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(50)  # charts are drawn anew
        page.evaluate(script)
        assert page.evaluate(CHECK) == [], (place, theme, width)
    page.set_viewport_size({"width": WIDE, "height": 900})


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until it has the focus, as one does who has no mouse."""
    expect(wanted).to_be_visible()
    for _ in range(250):
        if wanted.evaluate("(element) => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"no Tab leads to {wanted}")


def press(page: Page, wanted: Locator, key: str = "Enter") -> None:
    tab_to(page, wanted)
    page.keyboard.press(key)


def write(page: Page, wanted: Locator, text: str) -> None:
    tab_to(page, wanted)
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)


def test_the_whole_story_by_keyboard_alone(open_page, service):
    page = open_page()
    page.goto(service.url)

    # Signed in, and a campaign created from one's own text.
    write(page, page.get_by_label("Token"), service.token)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("whoami")).to_contain_text("lab")
    press(page, page.get_by_role("link", name="New", exact=True))
    expect(page.locator("h1", has_text="New campaign")).to_be_focused()
    lines = [f"{key}: {value}" for key, value in SPEC.items() if not isinstance(value, dict)]
    sections = ("cluster", "baseline", "workload", "trial", "budget")
    flows = [f"{key}: {{{', '.join(f'{one}: {to}' for one, to in SPEC[key].items())}}}" for key in sections]
    press(page, page.get_by_test_id("tab-script"), "ArrowLeft")
    write(page, page.get_by_label("Campaign spec, YAML or JSON"), "\n".join(lines + flows))
    expect(page.get_by_test_id("quote")).to_contain_text("can be launched")
    press(page, page.get_by_role("button", name="Launch"))

    # Followed to its end, and filtered.
    expect(page.locator("h1", has_text="story")).to_be_focused()
    expect(page.get_by_test_id("state")).to_have_text("completed")
    press(page, page.get_by_test_id("outcome-oom"))
    rows = page.locator("[data-testid^=row-]")
    expect(rows.filter(has_text="ok")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.insert_text("tp1 ")
    press(page, page.get_by_test_id("clear-all"))

    # One trial, and back; two of them side by side.
    press(page, page.get_by_test_id("answer").get_by_role("link").first)
    expect(page.locator("h1", has_text="Trial")).to_be_focused()
    press(page, page.get_by_role("link", name="story", exact=True))
    expect(page.locator("h1", has_text="story")).to_be_focused()
    for number in (1, 2):
        press(page, page.get_by_label(f"Lay trial {number} beside others"), "Space")
    press(page, page.get_by_role("button", name="Compare 2"))
    expect(page.get_by_test_id("trial-comparison").get_by_role("link", name="trial 2")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("trial-comparison")).to_be_hidden()

    # The setting for use.
    page.keyboard.press("Home")
    press(page, page.get_by_test_id("use"))
    expect(page.get_by_test_id("exports")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("use")).to_be_focused()

    # More budget, and it goes on.
    press(page, page.get_by_test_id("more").locator("summary"))
    press(page, page.get_by_role("button", name=re.compile("extend the budget")))
    write(page, page.get_by_role("dialog").get_by_label("Trials"), "16")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("[data-testid^=row-]")).to_have_count(16)
