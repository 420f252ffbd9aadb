"""What a person does with the dashboard, from the first token to a cancelled campaign, while real trials run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from service_lab import ServiceLab

pytestmark = pytest.mark.timeout(600)
# Two processes at the most and a few steps each: trials of seconds.
SPEC = """\
name: story
model: {layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 128, seq_len: 16}
cluster: {preset: local-cpu, devices_per_node: 2}
global_batch_size: 16
baseline: {tp: 1, pp: 1, micro_batch_size: 1, zero_stage: 0}
workload: {kind: torch, measuring: {max_warmup_steps: 1, min_steps: 3, max_steps: 3}}
search: random
runner: {kind: local, idle_s: 2}
budget: {trials: 400}
confirm: 0
"""
FEW, MORE = 1, 2
# A page asks ever less often for a service that is away for long.
RECONNECTED_MS = 90_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceLab]:
    """An empty house."""
    with ServiceLab(tmp_path) as lab:
        yield lab


def test_a_campaign_from_launch_to_end(open_page, service: ServiceLab, sign_in):
    page = open_page(theme="dark")
    sign_in(page, service)

    # An empty house says how to begin; the quote is there before anything is started.
    expect(page.get_by_test_id("empty")).to_be_visible()
    page.goto(f"{service.url}/#/new")
    page.get_by_test_id("tab-yaml").click()
    editor = page.get_by_label("Campaign spec, YAML or JSON")
    editor.fill(SPEC.replace("global_batch_size: 16", "global_batch_size: -3"))
    expect(page.get_by_test_id("mistakes")).to_contain_text("global_batch_size")
    expect(page.get_by_role("button", name="Launch")).to_be_disabled()
    editor.fill(SPEC)
    expect(page.get_by_test_id("legal")).to_be_visible()
    expect(page.get_by_test_id("quote")).to_contain_text("can be launched")
    assert service.call("GET", "/v1/campaigns")["campaigns"] == []
    launch_twice(page)

    # It runs, and the page follows without being loaded again.
    page.wait_for_url(re.compile(r"#/campaigns/story-"))
    campaign = page.url.rpartition("/")[2].partition("?")[0]
    assert len(service.call("GET", "/v1/campaigns")["campaigns"]) == 1
    page.evaluate("window.notLoadedAgain = true")
    measured = page.locator("[data-testid^=row-]", has=page.locator("td", has_text="ok"))
    expect(measured.nth(FEW - 1)).to_be_visible(timeout=200_000)
    assert page.evaluate("window.notLoadedAgain")

    # Brush one axis: the table keeps what lies within, and a trial that comes later is judged by the same range.
    page.get_by_test_id("tab-charts").click()
    axis = page.get_by_test_id("axis-micro_batch_size").get_by_role("slider")
    axis.focus()
    axis.press("Home")
    kept = page.get_by_test_id("condition-micro_batch_size")
    expect(kept).to_be_visible()
    page.get_by_test_id("tab-trials").click()
    expect(page.locator("[data-testid^=row-]").first).to_be_visible()
    shown = {int(row.get_attribute("data-trial") or -1) for row in page.locator("[data-testid^=row-]").all()}
    asked = f"/v1/campaigns/{campaign}/trials?view=brief&micro_batch_size=1&page_size=1000"
    assert shown <= {trial["number"] for trial in service.call("GET", asked)["trials"]}
    assert shown
    page.get_by_test_id("clear-all").click()
    expect(kept).to_be_hidden()

    # One trial, the launch of its setting, and back.
    page.get_by_test_id("row-0").get_by_role("link").first.click()
    page.wait_for_url(re.compile(r"/trials/0"))
    expect(page.locator("h1")).to_contain_text("0")
    use_setting(page)
    page.go_back()

    # Paused, the service killed and started again, resumed: nothing lost or doubled, and the page finds its way back.
    page.get_by_role("button", name=re.compile("^Pause story")).click()
    expect(page.get_by_test_id("state")).to_have_text("paused")
    service.kill()
    expect(page.get_by_test_id("reconnecting")).to_be_visible()
    before = page.evaluate("window.notLoadedAgain")
    service.start()
    expect(page.get_by_test_id("reconnecting")).to_be_hidden(timeout=RECONNECTED_MS)
    page.get_by_role("button", name=re.compile("^Resume story")).click()
    expect(page.get_by_test_id("state")).to_have_text("running")
    expect(measured.nth(MORE - 1)).to_be_visible(timeout=200_000)
    assert page.evaluate("window.notLoadedAgain") == before

    page.get_by_role("button", name=re.compile("^Cancel story")).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Cancel")).last.click()
    expect(page.get_by_test_id("state")).to_have_text("cancelled")
    check_shows_what_is(page, service, campaign)
    page.goto(f"{service.url}/#/")
    expect(page.get_by_role("row", name=re.compile("story"))).to_contain_text("cancelled")


def launch_twice(page: Page) -> None:
    """By a double click, of which both come before the answer, which leads to another page."""
    launches: list[Route] = []
    clicked = False

    def hold(route: Route) -> None:
        if clicked or route.request.method != "POST":
            route.fallback()
        else:
            launches.append(route)

    page.route(re.compile("/v1/campaigns$"), hold)
    page.get_by_role("button", name="Launch").dblclick()
    while not launches:
        page.wait_for_timeout(10)
    clicked = True
    for route in launches:
        route.continue_()


def use_setting(page: Page) -> None:
    """To a command on the clipboard: what runs it, where, and what only its user can say."""
    page.get_by_test_id("use").click()
    dialog = page.get_by_test_id("exports")
    dialog.get_by_label("What runs it?").select_option("megatron")
    dialog.get_by_label("Where?").select_option("jobset")
    expect(dialog.get_by_test_id("missing")).to_contain_text("image")
    dialog.get_by_test_id("needed").get_by_label("image: to be set").fill("registry.example/trainer:1")
    page.keyboard.press("Tab")
    expect(dialog.get_by_test_id("export-file").filter(has_text="registry.example/trainer:1")).to_have_count(1)
    command = dialog.get_by_test_id("launch-command")
    command.get_by_role("button", name="Copy").click()
    page.wait_for_function(
        "text => navigator.clipboard.readText().then((copied) => copied === text)",
        arg=command.locator("pre").inner_text(),
    )
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def check_shows_what_is(page: Page, service: ServiceLab, campaign: str) -> None:
    """Every trial once, and with the verdict that the service has."""
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    expect(page.locator("[data-testid^=row-]")).to_have_count(len(trials))
    for trial in trials:
        assert trial["attempts"] == 1
        row = page.get_by_test_id(f"row-{trial['number']}")
        expect(row).to_contain_text(trial["verdict"].replace("_", " "), ignore_case=True)
