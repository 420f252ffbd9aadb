"""The charts of a simulated campaign: what they draw is what the service says, by pointer and by keyboard, wide and
narrow, and none of it by colour alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from service_lab import ServiceLab
from specs import tiny

pytestmark = pytest.mark.timeout(300)
WIDTHS = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
# A third of these plans runs out of memory.
SPEC: dict[str, Any] = {
    "name": "charts",
    "model": "gpt-22b",
    "cluster": {"preset": "dgx-h100", "nodes": 8},
    "global_batch_size": 512,
    "space": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "micro_batch_size": [1, 2, 4], "recompute": ["none"]},
    "baseline": {"tp": 8, "pp": 4, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed"},
    # Without noise that would put knobs into another order now and then.
    "runner": {"kind": "simulated", "noise": 1e-5},
    "search": "random",
    "trial": {"time_limit_s": 1e6},
    "budget": {"trials": 40},
    "confirm": 2,
}
# Texts of one side of a chart that touch, or that read alike.
CLASHES = """
(ticks) => {
  const all = [...ticks.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const clash = ([a, at], [b, there]) => a === b || touch(at, there);
  return all.flatMap((one, at) => all.slice(at + 1).filter((other) => clash(one, other)).map(([b]) => [one[0], b]));
}
"""
# Of a mark: whether it is painted over the dots.
OVER_DOTS = """
(mark) => {
  const dots = document.querySelector("[data-testid=best-dots]");
  return (dots.compareDocumentPosition(mark) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0;
}
"""


# Its jobs run wherever who asks for them likes, two at a time.
ASKED = tiny(
    name="asked",
    space={"micro_batch_size": [1, 2, 4], "zero_stage": [0]},
    runner="external",
    trial={"time_limit_s": 1e9},
    parallel=2,
    budget={"trials": 2},
)


@pytest.fixture(scope="module")
def campaign(service: ServiceLab) -> str:
    return service.completed(SPEC)


@pytest.fixture(scope="module")
def trials(service: ServiceLab, campaign: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")[
        "trials"
    ]
    assert {"ok", "oom"} <= {trial["verdict"] for trial in found}, "the spec no longer runs out of memory"
    return found


@pytest.fixture(scope="module")
def asked(service: ServiceLab) -> str:
    id: str = service.call("POST", "/v1/campaigns", ASKED)["id"]
    given = [service.call("POST", f"/v1/campaigns/{id}:suggest", {"wait_s": 20})["suggestions"] for _ in range(2)]
    listed = f"/v1/campaigns/{id}/trials?view=brief"
    # What is over before the service saw it run held no device for any time.
    service.wait(lambda: all(one["state"] == "running" for one in service.call("GET", listed)["trials"]), 60)
    told = ({"step_times_s": [0.2, 0.21, 0.2]}, {"verdict": "oom"})
    for (one,), end in zip(given, told, strict=True):
        service.call("POST", f"/v1/campaigns/{id}/trials/{one['trial']}:complete", end)
    service.wait_state(id, "completed")
    return id


@pytest.fixture
def opened(open_page: Callable[..., Page], service: ServiceLab) -> Callable[..., Page]:
    """The page of a campaign with this query, once its charts are drawn."""

    def fresh(campaign: str, query: str = "", **look: Any) -> Page:
        page = open_page(**look)
        page.add_init_script(f"localStorage.setItem('meshtune.token', '{service.token}')")
        page.goto(f"{service.url}/#/campaigns/{campaign}?tab=charts{query}")
        expect(chart(page, "best-so-far")).to_be_visible()
        return page

    return fresh


def chart(page: Page, card: str) -> Locator:
    """What the keyboard reaches in a card."""
    return page.get_by_test_id(card).locator("svg[role=slider]")


def said(texts: Locator) -> list[str]:
    return [text.replace("\u202f", "") for text in texts.all_text_contents()]


def test_the_baseline_and_what_was_found_lie_over_the_dots_and_are_named(opened, service, campaign):
    page = opened(campaign)
    summary = service.call("GET", f"/v1/campaigns/{campaign}")["summary"]
    best = page.get_by_test_id("best-so-far")
    baseline = f"{summary['baseline']['objective']['value']:.0f}"
    expect(best.get_by_test_id("baseline-line")).to_contain_text(f"baseline {baseline}")
    assert best.get_by_test_id("baseline-line").evaluate(OVER_DOTS)
    for name in ("recommended", "fastest_confirmed"):
        expect(best.get_by_test_id(f"named-{summary[name]['trial']}")).to_contain_text(name.replace("_", " "))
    expect(best).to_contain_text("fastest once so far")
    # The same for those who cannot see it.
    label = chart(page, "best-so-far").get_attribute("aria-label") or ""
    assert f"fastest confirmed: trial {summary['fastest_confirmed']['trial']}" in label
    assert "The baseline: " in label


def test_what_no_device_measured_is_never_called_measured(opened, campaign):
    page = opened(campaign)
    # Its trials ran in no time of theirs, so there is nothing to see of when.
    expect(page.get_by_test_id("sensitivity").locator("dt").first).to_be_visible()
    expect(page.get_by_test_id("timeline")).to_have_count(0)
    for card in ("best-so-far", "heat-map", "scatter", "parallel"):
        expect(page.get_by_test_id(card)).to_be_visible()
        shown = page.get_by_test_id(card)
        words = shown.inner_text() + " ".join(
            shown.locator("[aria-label]").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
        )
        assert "measured" not in words, card
    for card in ("best-so-far", "scatter"):
        expect(page.get_by_test_id(card).locator(".y-title")).to_contain_text("simulated")


def test_log_scales_stay_in_the_address_and_equal_ratios_are_equally_far_apart(opened, campaign):
    page = opened(campaign)
    ticks = page.get_by_test_id("best-so-far").locator(".y-ticks text")
    gaps = "(all) => all.slice(1).map((one, at) => Math.abs(one.getAttribute('y') - all[at].getAttribute('y')))"
    linear = ticks.evaluate_all(gaps)
    assert max(linear) - min(linear) < 0.01
    page.get_by_role("button", name="log scale").click()
    expect(page).to_have_url(re.compile("log=best"))
    log = ticks.evaluate_all(gaps)
    assert max(log) - min(log) > 1
    scatter = page.get_by_test_id("scatter")
    scatter.get_by_text("Axes").click()
    scatter.get_by_role("button", name="up log").click()
    assert max(apart := scatter.locator(".y-ticks text").evaluate_all(gaps)) - min(apart) > 1
    # Levels of a plan's axis have their own places.
    scatter.get_by_label("Across axis").select_option("tp")
    expect(scatter.get_by_role("button", name="across log")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="log scale")).to_have_attribute("aria-pressed", "true")
    scatter.get_by_text("Axes").click()
    expect(scatter.get_by_role("button", name="up log")).to_have_attribute("aria-pressed", "true")
    # What is no condition on trials filters none.
    expect(page.locator("[data-testid^=condition-]")).to_have_count(0)


def test_the_best_so_far_is_drawn_by_device_hour_too(opened, service, asked):
    page = opened(asked)
    best = page.get_by_test_id("best-so-far")
    best.get_by_role("button", name="by device-hour").click()
    expect(page).to_have_url(re.compile("against=device_hours"))
    page.reload()
    expect(best.get_by_role("button", name="by device-hour")).to_have_attribute("aria-pressed", "true")
    expect(best).to_contain_text("device-hours")
    axis = chart(page, "best-so-far")
    axis.focus()
    axis.press("End")
    trials = service.call("GET", f"/v1/campaigns/{asked}/trials?view=brief")["trials"]
    spent = sum(trial["device_seconds"] for trial in trials) / 3600
    assert spent > 0
    said = re.search(r"until (\S+) device-hours", axis.get_attribute("aria-valuetext") or "")
    assert said
    assert float(said[1]) == pytest.approx(spent, rel=0.01)
    best.get_by_role("button", name="by trial").click()
    expect(page).not_to_have_url(re.compile("against="))


def test_any_number_can_be_an_axis_and_outcomes_are_told_by_shape(opened, campaign, trials):
    page = opened(campaign)
    scatter = page.get_by_test_id("scatter")
    scatter.get_by_text("Axes").click()
    scatter.get_by_label("Across axis").select_option("tp")
    scatter.get_by_label("Up axis").select_option("number")
    expect(scatter.get_by_role("heading")).to_have_text("trial against tensor")
    assert said(scatter.locator(".x-ticks text")) == ["1", "2", "4", "8"]
    # One legend is of all charts of dots.
    legend = page.get_by_test_id("best-so-far").locator(".chart-legend")
    first = [trial["verdict"] for trial in trials if trial["origin"] != "confirmation"]
    for verdict, times in Counter(first).items():
        expect(scatter.get_by_test_id(f"dots-{verdict}")).to_have_attribute("data-marks", str(times))
        expect(legend).to_contain_text(f"{times} {verdict.replace('oom', 'out of memory').replace('ok', 'simulated')}")
    shapes = {
        re.sub(r"M[-\d. ]+", "", scatter.get_by_test_id(f"dots-{verdict}").get_attribute("d") or "M")[:8]
        for verdict in ("ok", "oom")
    }
    assert len(shapes) == 2
    # What the trials have no value of lies on a rail below, and is counted.
    scatter.get_by_label("Up axis").select_option("objective")
    none = sum(trial["objective"] is None for trial in trials)
    expect(scatter.locator(".chart-note")).to_contain_text(
        f"{len(trials) - none} of {len(trials)} trials have both values"
    )
    # Dragged over: the filter of every chart and of the table.
    scatter.get_by_text("Axes").click()
    box = chart(page, "scatter").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.62, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 60, steps=4)
    page.mouse.up()
    expect(page.get_by_test_id("condition-tp")).to_contain_text("4 to 8")
    page.reload()
    expect(scatter.get_by_role("heading")).to_have_text("tokens/s per device against tensor")
    expect(page.get_by_test_id("condition-tp")).to_be_visible()


def test_failures_lie_on_a_rail_and_second_runs_are_hollow(opened, campaign, trials):
    page = opened(campaign)
    failed = sum(trial["objective"] is None for trial in trials)
    again = sum(trial["origin"] == "confirmation" for trial in trials)
    assert failed
    assert again
    best, scatter = page.get_by_test_id("best-so-far"), page.get_by_test_id("scatter")
    scatter.get_by_text("Axes").click()
    scatter.get_by_label("Across axis").select_option("number")
    for card in (best, scatter):
        rail = float(card.get_by_test_id("rail").locator("line").get_attribute("y1") or "nan")
        heights = re.findall(r"M[\d.]+ ([\d.]+)", card.get_by_test_id("dots-oom").get_attribute("d") or "")
        assert len(heights) == failed
        assert {abs(float(height) - rail) < 0.1 for height in heights} == {True}
        expect(card.get_by_test_id("dots-again")).to_have_attribute("data-marks", str(again))
        filled = card.get_by_test_id("dots-again").evaluate("(path) => getComputedStyle(path).fill")
        assert filled == "none"
    expect(best.locator(".chart-legend")).to_contain_text(f"{again} second runs")
    # The same for the keyboard: a failure is in words.
    number = next(trial["number"] for trial in trials if trial["verdict"] == "oom")
    axis = chart(page, "best-so-far")
    axis.focus()
    axis.press("Home")
    for _ in range(number):
        axis.press("ArrowRight")
    assert f"trial {number}: out of memory" in (axis.get_attribute("aria-valuetext") or "")


def test_cells_are_of_what_matters_most_and_out_of_memory_is_hatched_and_said(opened, service, campaign, trials):
    page = opened(campaign)
    heat = page.get_by_test_id("heat-map")
    important = service.call("GET", f"/v1/campaigns/{campaign}/analysis")["sensitivity"]["importances"]
    assert [one["knob"] for one in important[:2]] == ["tp", "micro_batch_size"], "the spec tells another story now"
    expect(heat.get_by_role("heading")).to_have_text("Best by tensor \u00d7 micro-batch")
    options = heat.get_by_label("Across").locator("option").all_inner_texts()
    assert options[:2] == ["tensor", "micro-batch"]
    expect(heat.get_by_label("Across")).to_have_attribute("title", "tp: tensor parallel degree")
    page.get_by_test_id("scatter").get_by_text("Axes").click()
    listed = page.get_by_test_id("scatter").get_by_label("Across axis").locator("option").all_inner_texts()
    assert listed.index("tensor") < listed.index("micro-batch") < listed.index("pipeline")
    # A filter holds another dimension at a value.
    heat.get_by_label("Up").select_option("pp")
    page.get_by_test_id("axis-micro_batch_size").get_by_role("slider").press("End")
    held = [trial for trial in trials if trial["plan"]["micro_batch_size"] == 4]
    cells = {(trial["plan"]["tp"], trial["plan"]["pp"]) for trial in held}
    expect(heat.locator("[data-testid^=cell-]")).to_have_count(len(cells))
    hatched = 0
    for tp, pp in cells:
        own = [trial["verdict"] for trial in held if (trial["plan"]["tp"], trial["plan"]["pp"]) == (tp, pp)]
        cell = page.get_by_test_id(f"cell-tp{tp}-pp{pp}")
        if set(own) == {"oom"}:
            hatched += 1
            expect(cell).to_contain_text("OOM")
            assert "gradient" in cell.evaluate("(cell) => getComputedStyle(cell).backgroundImage")
        else:
            expect(cell).to_have_attribute("title", re.compile("^best tokens/s per device [0-9]"))
        expect(cell).to_have_attribute("title", re.compile(rf"{len(own)} trials?, {own.count('oom')} out of memory"))
    assert hatched


def test_a_cell_has_the_figure_of_its_best_setting_as_the_table_has_it(opened, trials, campaign):
    page = opened(campaign)
    reached: dict[tuple[int, int], tuple[float, int]] = {}
    for trial in trials:
        if trial["origin"] == "confirmation" or trial["verdict"] != "ok":
            continue
        place = (trial["plan"]["tp"], trial["plan"]["micro_batch_size"])
        own = ((trial["setting"] or trial)["objective"]["value"], trial["number"])
        reached[place] = max(own, reached.get(place, own))
    for (tp, size), (value, number) in reached.items():
        cell = page.get_by_test_id(f"cell-tp{tp}-micro_batch_size{size}")
        expect(cell).to_have_attribute("title", re.compile(f"by trial {number};"))
        title = (cell.get_attribute("title") or "").replace("\u202f", "")
        assert f" {value:.0f} by trial" in title


def test_the_timeline_has_every_trial_of_parallel_jobs_and_leads_to_it_by_keyboard(opened, asked):
    page = opened(asked)
    timeline = page.get_by_test_id("timeline")
    for verdict in ("ok", "oom"):
        expect(timeline.get_by_test_id(f"dots-{verdict}")).to_have_attribute("data-marks", "1")
    fills = "(all) => all.map((one) => getComputedStyle(one).fill + getComputedStyle(one).opacity)"
    assert len(set(timeline.locator("path.ran").evaluate_all(fills))) == 2
    # The interval of the best lies within its chart.
    best = page.get_by_test_id("best-so-far")
    inside = "(band) => band.getBBox().y >= 0 && band.getBBox().height > 0"
    assert best.locator("path.band").evaluate(inside)
    expect(timeline.locator(".y-ticks text")).to_have_text(["slot 2", "slot 1"])
    ticks = said(timeline.locator(".x-ticks text"))
    assert len(ticks) > 1
    assert len(set(ticks)) == len(ticks)
    axis = chart(page, "timeline")
    axis.focus()
    axis.press("Home")
    assert (axis.get_attribute("aria-valuetext") or "").startswith("#")
    axis.press("Enter")
    page.wait_for_url(re.compile(r"/trials/\d+$"))


def test_arrow_keys_go_through_a_chart_and_shift_marks_a_stretch(opened, campaign, trials):
    page = opened(campaign)
    best = chart(page, "best-so-far")
    best.focus()
    best.press("ArrowRight")
    assert "trial 0" in (best.get_attribute("aria-valuetext") or "")
    for _ in range(3):
        best.press("Shift+ArrowRight")
    best.press("Enter")
    expect(page.get_by_test_id("condition-number")).to_contain_text("0 to 3")
    settings = sum(trial["origin"] != "confirmation" for trial in trials)
    expect(page.get_by_test_id("shown")).to_have_text(f"4 of {settings} settings")
    best.press("Escape")
    best.press("End")
    assert f"trial {trials[-1]['number']}" in (best.get_attribute("aria-valuetext") or "")


def test_what_is_empty_has_no_card_and_a_plot_says_why_it_is_empty(opened, service, campaign):
    alone = service.completed({**SPEC, "name": "alone", "budget": {"trials": 1}, "confirm": 0})
    page = opened(alone)
    expect(page.get_by_test_id("scatter")).to_be_visible()
    expect(page.get_by_test_id("sensitivity").get_by_role("status")).to_have_count(0)
    for card in ("parallel", "heat-map", "timeline"):
        expect(page.get_by_test_id(card)).to_have_count(0)
    page = opened(campaign, "&text=no-such-plan")
    expect(page.get_by_test_id("no-lines")).to_have_text("No trial passes the filters.")


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        ("wide", "light"),
        pytest.param("phone", "dark", marks=pytest.mark.long),
        pytest.param("wide", "dark", marks=pytest.mark.long),
        pytest.param("phone", "light", marks=pytest.mark.long),
    ],
)
def test_ticks_are_readable_and_what_one_points_at_moves_nothing(opened, campaign, width, theme):
    page = opened(campaign, viewport=WIDTHS[width], theme=theme)
    for card in ("best-so-far", "scatter"):
        for side in (".x-ticks", ".y-ticks"):
            ticks = page.get_by_test_id(card).locator(side)
            ticks.scroll_into_view_if_needed()
            assert ticks.evaluate(CLASHES) == [], f"{card} {side}"
            assert ticks.locator("text").count() > 0
        before = page.get_by_test_id(card).evaluate("(card) => card.offsetHeight")
        chart(page, card).hover()
        assert page.get_by_test_id(card).evaluate("(card) => card.offsetHeight") == before, card
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
