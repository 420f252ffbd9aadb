"""The answer of a campaign's page, its reason, and the evidence below it: one number, one setting, one row."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from service_lab import ServiceLab
from specs import simulated, tiny

TIMES = "\u00d7"
MINUS = "\u2212"
A4 = {"width": 794, "height": 1123}
LAPTOP = {"width": 1440, "height": 900}
SPEC = simulated(
    name="answer",
    model="gpt-22b",
    cluster={"preset": "dgx-h100", "nodes": 2},
    global_batch_size=128,
    baseline={"tp": 8, "pp": 2, "micro_batch_size": 1, "zero_stage": 0, "recompute": "full"},
    workload={"kind": "simulated", "framework": "megatron-deepspeed"},
    trial={"time_limit_s": 1e6},
    budget={"trials": 20},
    seed=3,
)
NOTES = "# Why\n\nFor *section 4*, see [the page](https://example.org/x):\n\n- one `knob`\n- <b>two</b>\n"
NUMERICS = simulated(
    name="numerics",
    model="gpt-1.4b",
    global_batch_size=64,
    baseline={"tp": 8, "pp": 1, "micro_batch_size": 1, "zero_stage": 0},
    workload={"kind": "simulated", "framework": "megatron-core"},
    trial={"time_limit_s": 1e6},
    budget={"trials": 2},
    seed=1,  # the other trial has mxfp8
    accept="numerics",
    space={"tp": [1, 2], "pp": [1], "micro_batch_size": [1, 2], "zero_stage": [0]},
    knobs={"fp8": {"values": ["off", "mxfp8"], "argument": "--fp8 {value}", "omit": "off", "numerics": "changes"}},
)
MANY = simulated(
    name="many",
    model="gpt-1.4b",
    global_batch_size=64,
    baseline={"tp": 8, "pp": 1, "micro_batch_size": 1, "zero_stage": 0},
    workload={"kind": "simulated", "framework": "megatron-core"},
    trial={"time_limit_s": 1e6},
    budget={"trials": 14},
    confirm=0,
    knobs={f"knob_{name}": {"values": [1, 2, 4], "env": f"KNOB_{name.upper()}"} for name in "abcdefgh"},
)
FAILED = tiny(
    name="fails",
    space={"tp": [1], "pp": [1], "zero_stage": [0], "recompute": ["none"], "micro_batch_size": [1, 2]},
    workload={
        "kind": "command",
        "command": ["bash", "-c", "echo a line of the log; exit 3", "{micro_batch_size}", "{grad_accum_steps}"],
    },
    runner={"kind": "local", "idle_s": 2},
    budget={"trials": 2},
)
WORDS = {"tp": "tensor", "pp": "pipeline", "zero_stage": "ZeRO", "micro_batch_size": "micro-batch"}


@pytest.fixture(scope="module")
def campaign(service: ServiceLab) -> str:
    """Over, with a confirmed winner that is not the baseline, second runs, and settings that ran out of memory."""
    return service.completed(SPEC)


def go(page: Page, service: ServiceLab, place: str) -> None:
    page.goto(f"{service.url}/#/campaigns/{place}")
    expect(page.locator("h1")).to_be_visible()


def summary_of(service: ServiceLab, campaign: str) -> dict[str, Any]:
    summary: dict[str, Any] = service.call("GET", f"/v1/campaigns/{campaign}")["summary"]
    return summary


def test_the_answer_is_a_difference_one_speed_one_gain_and_one_button(page, service, campaign):
    best = summary_of(service, campaign)["recommended"]
    go(page, service, campaign)
    answer = page.get_by_test_id("answer")
    for change in best["changes"]:
        words = f"{WORDS.get(change['knob'], change['knob'])} {change['before']} → {change['after']}"
        expect(answer.get_by_test_id("answer-setting")).to_contain_text(words)
    expect(answer).to_contain_text(best["plan_key"])
    over = best["gain_over_baseline"]
    low = f"+{100 * over['low']:.1f}" if over["low"] < 0.9995 else f"+{100 * over['low']:.0f}"
    expect(answer.get_by_test_id("answer-gain")).to_contain_text(f"({low} to")
    expect(answer.get_by_test_id("answer-memory")).to_contain_text("GiB")
    badges = answer.get_by_test_id("badges")
    expect(badges).to_contain_text("simulated")
    expect(badges).to_contain_text(f"confirmed {TIMES}{best['runs']}")
    assert page.get_by_text("tokens/s/device", exact=True).count() == 1, "one speed"
    answer.get_by_role("button", name="Use this setting").click()
    expect(page.get_by_test_id("exports")).to_be_visible()


def test_the_answer_and_the_first_rows_are_on_the_first_screen(page, service, campaign):
    go(page, service, campaign)
    expect(page.get_by_test_id("why-steps")).to_be_visible()
    row = page.locator("[data-testid^=row-]").first.bounding_box()
    assert row is not None
    assert row["y"] + row["height"] <= LAPTOP["height"]


def test_the_reason_has_both_steps_and_the_surest_effects_without_a_jump(page, service, campaign):
    analysis = service.call("GET", f"/v1/campaigns/{campaign}/analysis")
    best = summary_of(service, campaign)["recommended"]
    winner = next(one for one in analysis["winners"] if one["trial"] == best["trial"])
    release: list[Any] = []
    page.route(re.compile("/analysis$"), lambda route: release.append(route))
    go(page, service, campaign)
    tabs = page.get_by_role("tablist")
    expect(page.get_by_test_id("why")).to_be_visible()
    expect(page.locator("[data-testid^=row-]").first).to_be_visible()
    before = tabs.bounding_box()
    page.wait_for_function("() => document.querySelector('[data-testid=why] [aria-label=Loading]')")
    while not release:
        page.wait_for_timeout(10)
    for route in release:
        route.continue_()
    expect(page.get_by_test_id("why-words")).to_contain_text(winner["words"].split(": ", 1)[1])
    assert page.get_by_test_id("why-steps").get_by_role("img").count() == 2
    assert tabs.bounding_box() == before
    sure = [one for one in analysis["effects"] if one["evidence"] != "predicted"]
    first = max(sure, key=lambda one: (one["gain"]["low"] > 0, one["pairs"] > 1, one["gain"]["low"]))
    words = f"{WORDS.get(first['knob'], first['knob'])} {first['before']} → {first['after']}"
    effects = page.get_by_test_id("effects").first.locator("dt")
    expect(effects.first).to_contain_text(words)
    assert effects.count() <= 4
    page.unroute_all(behavior="ignoreErrors")


def test_a_row_is_a_setting_with_its_second_runs_in_it(page, service, campaign):
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    again = [trial for trial in trials if trial["origin"] == "confirmation"]
    settings = {trial["plan_key"] for trial in trials}
    go(page, service, campaign)
    expect(page.get_by_test_id("shown")).to_have_text(f"{len(settings)} of {len(settings)} settings")
    rows = page.locator("[data-testid^=row-]")
    page.get_by_test_id("trials").evaluate("(card) => card.scrollIntoView({ block: 'end' })")
    expect(rows).to_have_count(len(settings))
    for run in again:
        expect(page.get_by_test_id(f"row-{run['number']}")).to_have_count(0)
        first = next(trial for trial in trials if trial["plan_key"] == run["plan_key"])
        row = page.get_by_test_id(f"row-{first['number']}")
        expect(row.get_by_role("link", name=str(run["number"]), exact=True)).to_be_visible()
        expect(row).to_contain_text(f"{first['setting']['objective']['value']:.0f}")


def test_a_row_says_how_far_off_the_expected_step_was_and_sorts_by_it(page, service):
    id = service.completed({**SPEC, "name": "expects", "search": "physics", "budget": {"trials": 6}})
    trials = service.call("GET", f"/v1/campaigns/{id}/trials?view=brief&page_size=1000")["trials"]
    off = {}
    for trial in trials:
        took = (trial["setting"] or trial)["step_time_s"]
        if trial["origin"] == "search" and took and trial["expectation"]:
            off[trial["number"]] = took / trial["expectation"]["step_time_s"] - 1
    assert off
    go(page, service, id)
    page.get_by_test_id("trials-table").get_by_role("button", name="expected").click()
    worst = max(off, key=lambda number: off[number])
    first = page.locator("[data-testid^=row-]").first
    expect(first).to_have_attribute("data-trial", str(worst))
    sign = "+" if off[worst] > 0 else MINUS
    expect(first).to_contain_text(f" {sign}{abs(100 * off[worst]):.1f} %")
    expect(page.get_by_test_id("row-0")).to_contain_text("baseline")


def test_the_comparison_says_what_the_answer_says_and_has_one_baseline(page, service, campaign):
    best = summary_of(service, campaign)["recommended"]
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    again = next(one for one in trials if one["plan_key"] == trials[0]["plan_key"] and one["number"] > 0)
    # A link to a second run of the baseline is to the baseline.
    go(page, service, f"{campaign}?pick={best['trial']}&pick=0&pick={again['number']}&beside=yes")
    table = page.get_by_test_id("trial-comparison")
    expect(table.get_by_role("columnheader")).to_have_count(3)
    gains = table.get_by_role("row", name=re.compile("^gain over")).get_by_role("cell").all_inner_texts()
    assert gains[1] == "the baseline"
    assert gains[0] in page.get_by_test_id("answer-gain").inner_text().replace("\n", " ")


def test_what_changes_the_numerics_is_a_badge(page, service):
    id = service.completed(NUMERICS)
    best = summary_of(service, id)["recommended"]
    assert best["changed_numerics"] == ["fp8 = mxfp8"]
    go(page, service, id)
    expect(page.get_by_test_id("badges")).to_contain_text("changes numerics: fp8 = mxfp8")


def test_with_many_knobs_a_setting_is_its_difference_and_the_table_fits(page, service):
    id = service.completed(MANY)
    go(page, service, id)
    heads = page.get_by_test_id("trials-table").get_by_role("columnheader")
    expect(heads.filter(has_text="setting")).to_be_visible()
    expect(heads.filter(has_text="knob_a")).to_have_count(0)
    trial = service.call("GET", f"/v1/campaigns/{id}/trials?view=brief")["trials"][1]
    expect(page.get_by_test_id("row-1")).to_contain_text(f"tensor {trial['plan']['tp']}")
    frame = page.get_by_role("region", name="Trials")
    assert frame.evaluate("(frame) => frame.scrollWidth <= frame.clientWidth")


def test_a_failed_campaign_shows_its_error_log_and_way_on_and_no_charts(page, service):
    id = service.call("POST", "/v1/campaigns", FAILED)["id"]
    service.wait_state(id, "failed", "completed")
    go(page, service, id)
    answer = page.get_by_test_id("answer")
    expect(answer).to_contain_text("Nothing was measured")
    expect(answer.get_by_role("link", name="trial 0")).to_be_visible()
    expect(answer.get_by_test_id("lost-log")).to_contain_text("a line of the log")
    expect(page.get_by_test_id("tab-charts")).to_have_count(0)
    expect(page.get_by_test_id("use")).to_have_count(0)
    answer.get_by_role("button", name="What to do").click()
    expect(page.get_by_test_id("tab-failures")).to_have_attribute("aria-selected", "true")


def test_while_it_goes_on_its_progress_is_one_strip_and_nothing_is_said_twice(page, service, campaign):
    go(page, service, campaign)
    expect(page.get_by_test_id("answer")).to_be_visible()
    expect(page.get_by_test_id("run-strip")).to_have_count(0)
    assert len(re.findall("chance|probability", page.locator("main").inner_text())) <= 1
    spec = {**SPEC, "name": "goes-on", "budget": {"trials": 9000, "device_hours": 1e6, "wall_time_s": 36000}}
    id = service.call("POST", "/v1/campaigns", spec)["id"]
    service.call("POST", f"/v1/campaigns/{id}:pause")
    go(page, service, id)
    strip = page.get_by_test_id("run-strip")
    expect(strip).to_contain_text("of 9000 trials")
    expect(strip).to_contain_text("device-hours left")
    expect(strip).to_contain_text("10 h left")
    expect(strip).to_contain_text("second runs")
    service.call("POST", f"/v1/campaigns/{id}:cancel")


def test_notes_are_markdown_tags_split_at_commas_alone_and_mistakes_are_their_fields(page, service):
    id = service.completed({**SPEC, "name": "noted", "budget": {"trials": 3}, "confirm": 0})
    go(page, service, id)
    page.get_by_test_id("more").locator("summary").click()
    page.get_by_role("button", name=re.compile("extend the budget")).click()
    dialog = page.get_by_test_id("edit")
    dialog.get_by_label("Trials").fill("4.5")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator("label", has_text="Trials").locator(".mistake")).to_be_visible()
    expect(dialog).not_to_contain_text("/budget")
    dialog.get_by_label("Trials").fill("3")
    dialog.get_by_label("Tags").fill("One two, three")
    dialog.get_by_label("Notes").fill(NOTES)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    page.get_by_test_id("tab-about").click()
    notes = page.get_by_test_id("notes")
    expect(notes.get_by_role("heading", name="Why")).to_be_visible()
    expect(notes.get_by_role("listitem")).to_have_count(2)
    expect(notes.get_by_role("link", name="the page")).to_have_attribute("href", "https://example.org/x")
    expect(notes.get_by_text("<b>two</b>")).to_be_visible()
    assert page.get_by_test_id("tags").get_by_role("link").all_inner_texts() == ["one-two", "three"]


def test_on_paper_is_every_row_and_nothing_to_press(page, service, campaign):
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    go(page, service, campaign)
    expect(page.locator("[data-testid^=row-]").first).to_be_visible()
    page.set_viewport_size(A4)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    rows = page.locator("[data-testid^=row-]")
    expect(rows).to_have_count(len({trial["plan_key"] for trial in trials}))
    expect(rows.last).to_be_visible()
    box = page.get_by_test_id("trials-table").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= A4["width"]
    expect(page.get_by_role("columnheader", name="tensor")).to_be_visible()
    for hidden in (page.get_by_role("tablist"), page.get_by_test_id("use"), page.get_by_test_id("filters")):
        expect(hidden).to_be_hidden()
