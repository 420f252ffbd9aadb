"""What the dashboard says of campaigns that are over: one word, one number; and what can be done with them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from playwright.sync_api import Locator, Page, expect
from service_lab import ServiceLab

PHONE = {"width": 390, "height": 844}
# The widest layouts run out of memory; with tensor parallelism over all of a node the baseline is slow.
SPEC = """\
# Which layout is fastest on one node?
name: gain
model: gpt-22b
cluster: {preset: dgx-h100, nodes: 2}
global_batch_size: 128
baseline: {tp: 8, pp: 2, micro_batch_size: 1, zero_stage: 0, recompute: full}
workload: {kind: simulated, framework: megatron-deepspeed}
runner: simulated
search: random  # which also meets what does not fit
trial: {time_limit_s: 1e6}
budget: {trials: 24}
parallel: 4
seed: 3
"""
TIMES = "\u00d7"
THIN_SPACE = "\u202f"


@pytest.fixture(scope="module")
def campaign(service: ServiceLab) -> str:
    """Over, with a gain, settings that ran out of memory, and second runs."""
    id = service.completed(SPEC)
    summary = service.call("GET", f"/v1/campaigns/{id}")["summary"]
    assert not summary["recommended_is_baseline"]
    assert summary["failures"]["oom"] > 0
    return id


def go(page: Page, service: ServiceLab, place: str) -> None:
    page.goto(f"{service.url}/#/{place}")
    expect(page.locator("h1")).to_be_visible()


def shown(value: float) -> str:
    """As the page writes a speed: four digits, thousands apart from five on."""
    text = f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
    return text if len(text) < 5 else f"{text[:-3]}{THIN_SPACE}{text[-3:]}"


def winners(service: ServiceLab, campaign: str) -> dict[str, dict[str, Any]]:
    """As the summary has them, by the words' short names."""
    summary = service.call("GET", f"/v1/campaigns/{campaign}")["summary"]
    return {"recommended": summary["recommended"]} | {
        name: summary[f"fastest_{name}"] for name in ("confirmed", "once")
    }


def test_list_answer_and_table_show_one_number_for_one_setting(page, service, campaign):
    found = winners(service, campaign)
    best, once = found["recommended"], found["once"]
    go(page, service, f"campaigns/{campaign}")
    expect(page.get_by_test_id("answer-speed")).to_contain_text(shown(best["objective"]["value"]))
    row = page.get_by_test_id(f"row-{best['trial']}")
    for words in ("recommended", shown(best["objective"]["value"]), f"confirmed {TIMES}{best['runs']}"):
        expect(row).to_contain_text(words)
    for other in {found[name]["trial"] for name in ("confirmed", "once")} - {best["trial"]}:
        expect(page.get_by_test_id("answer").get_by_role("link", name=f"trial {other}")).to_be_visible()
    go(page, service, "")
    row = page.locator(f"[data-id={campaign}]")
    expect(row).to_contain_text(shown(best["objective"]["value"]))
    go(page, service, f"campaigns/{campaign}?tab=charts")
    expect(page.get_by_test_id("best-so-far")).to_contain_text(
        f"tokens/s per device {shown(once['first_run']['value'])}"
    )


def test_two_to_five_settings_lie_side_by_side_with_what_differs_first(page, service, campaign):
    go(page, service, f"campaigns/{campaign}")
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    oom = next(trial for trial in trials if trial["verdict"] == "oom")
    good = [trial for trial in trials if trial["verdict"] == "ok" and trial["origin"] == "search"][:4]
    picked = [good[0], oom, *good[1:]]
    bar, table = page.get_by_test_id("compare-bar"), page.get_by_test_id("trial-comparison")
    for trial in picked:
        page.get_by_label("Filter by text").fill(f"#{trial['number']} ")
        page.get_by_label(f"Lay trial {trial['number']} beside others", exact=True).check()
        expect(bar).to_have_count(int(trial is not picked[0]))
    page.get_by_label("Filter by text").fill("")
    bar.get_by_role("button", name="Compare 5").click()
    expect(table.get_by_role("columnheader")).to_have_count(6)
    names = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    differ = [axis for axis in names if len({trial["plan"][axis] for trial in picked}) > 1]
    expect(table.get_by_role("rowheader", name="compute", exact=True)).to_be_visible()  # with the whole trials
    heads = table.get_by_role("rowheader").all_inner_texts()
    assert heads[: len(differ)] == [names[axis] for axis in differ]
    assert heads.index("outcome") < heads.index("memory of tensors, fullest rank") < heads.index("compute")
    for axis in differ:
        row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=names[axis], exact=True))
        assert row.get_by_role("cell").all_inner_texts() == [str(trial["plan"][axis]) for trial in picked]
    page.reload()  # the address holds what was picked, and that it was open
    expect(table.get_by_role("columnheader")).to_have_count(6)
    table.get_by_role("button", name=f"Take trial {oom['number']} out").click()
    expect(table.get_by_role("columnheader")).to_have_count(5)


def test_out_of_memory_and_ok_are_told_apart_by_shape_and_word(page, service, campaign):
    go(page, service, f"campaigns/{campaign}")

    def shape(outcome: str) -> str:
        chip: Locator = page.get_by_test_id(f"outcome-{outcome}")
        drawn: str = chip.locator(".dot").evaluate("(dot) => getComputedStyle(dot).clipPath")
        return drawn

    expect(page.get_by_test_id("outcome-oom")).to_contain_text("out of memory")
    assert shape("ok") != shape("oom") != "none"


def test_times_go_on_while_one_looks(page, service, campaign):
    page.clock.install()
    go(page, service, f"campaigns/{campaign}")
    head = page.get_by_test_id("campaign-head")
    expect(head.locator("time")).to_be_visible()
    before = head.locator("time").inner_text()
    page.clock.run_for(3 * 3600 * 1000)
    expect(head.locator("time")).to_have_text("3 h ago")
    assert before != "3 h ago"


def test_focus_goes_to_the_heading_of_the_page_that_one_opens(page, service, campaign):
    go(page, service, "")
    page.get_by_role("link", name="gain", exact=True).first.click()
    expect(page.locator("h1", has_text="gain")).to_be_focused()
    page.get_by_test_id("answer").get_by_role("link").first.click()
    expect(page.locator("h1", has_text="Trial")).to_be_focused()
    page.go_back()
    expect(page.locator("h1", has_text="gain")).to_be_focused()


def test_the_trials_of_a_phone_are_cards_with_what_says_most(open_page, service, campaign, sign_in):
    page = open_page(viewport=PHONE)
    sign_in(page, service)
    go(page, service, f"campaigns/{campaign}")
    best = winners(service, campaign)["recommended"]
    row = page.get_by_test_id(f"row-{best['trial']}")
    row.scroll_into_view_if_needed()
    for words in ("ok", "recommended", best["plan_key"], shown(best["objective"]["value"]), "GiB"):
        expect(row).to_contain_text(words)
    for cell in row.get_by_role("cell").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE["width"]


def test_a_trial_that_ran_out_of_memory_offers_no_launch_command(page, service, campaign):
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    oom = next(trial["number"] for trial in trials if trial["verdict"] == "oom")
    go(page, service, f"campaigns/{campaign}/trials/{oom}")
    expect(page.get_by_test_id("outcome")).to_have_text("out of memory")
    expect(page.get_by_test_id("use")).to_be_hidden()
    expect(page.get_by_test_id("badges")).to_contain_text("simulated")


def test_no_job_waited_a_negative_time(page, service, campaign):
    """Its node's clock may be behind the service's."""

    def behind(route: Any) -> None:
        answer = route.fetch()
        trial = answer.json()
        for attempt in trial["attempts"]:
            attempt["submitted_at"], attempt["started_at"] = "2026-01-01T00:00:00.083Z", "2026-01-01T00:00:00Z"
        route.fulfill(response=answer, json=trial)

    page.route(re.compile(r"/trials/0$"), behind)
    go(page, service, f"campaigns/{campaign}/trials/0")
    attempt = page.get_by_test_id("attempts").get_by_role("row").nth(1)
    expect(attempt.get_by_role("cell").nth(3)).to_have_text("0 s")
    page.unroute_all(behavior="ignoreErrors")  # else one under way ends with the page, as an error of the next test


def test_a_campaign_is_edited_found_by_its_tag_extended_and_tried_by_hand(page, service):
    id = service.completed(SPEC.replace("name: gain", "name: edited").replace("trials: 24", "trials: 4"))
    go(page, service, f"campaigns/{id}")
    more, dialog = page.get_by_test_id("more"), page.get_by_role("dialog")
    more.locator("summary").click()
    more.get_by_role("button", name=re.compile("extend the budget")).click()
    dialog.get_by_label("Name").fill("renamed")
    dialog.get_by_label("Tags").fill("paper, h100")
    dialog.get_by_label("Notes").fill("For the figure of section 4.")
    dialog.get_by_label("Trials", exact=False).fill("6")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("h1", has_text="renamed")).to_be_visible()
    expect(page.get_by_test_id("state")).to_have_text("completed")
    expect(page.locator("[data-testid^=row-]")).to_have_count(6)
    page.get_by_test_id("tab-about").click()
    expect(page.get_by_test_id("notes")).to_contain_text("For the figure of section 4.")

    # Somebody else is faster: nothing is written, nothing typed is lost, and saving again is meant.
    other = f"/v1/campaigns/{id}"
    more.locator("summary").click()
    more.get_by_role("button", name=re.compile("extend the budget")).click()
    dialog.get_by_label("Tags").fill("paper, h100, mine")
    dialog.get_by_label("Notes").fill("A long note.")
    service.call("PATCH", other, {"tags": ["theirs"], "name": "by another"})
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Somebody else has changed this campaign")
    expect(dialog.get_by_role("alert").get_by_role("listitem")).to_have_text(["name: by another", "tags: theirs"])
    assert service.call("GET", other)["tags"] == ["theirs"]
    expect(dialog.get_by_label("Notes")).to_have_value("A long note.")
    expect(dialog.get_by_label("Tags")).to_have_value("paper, h100, mine")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    now = service.call("GET", other)
    assert (now["name"], now["tags"], now["notes"]) == ("by another", ["paper", "h100", "mine"], "A long note.")

    # A second run, as a trial of the campaign.
    go(page, service, f"campaigns/{id}/trials/0")
    page.get_by_role("button", name="Measure again").click()
    expect(page.locator("h1")).not_to_have_text("Trial 0")
    expect(page.get_by_test_id("outcome")).to_have_text("ok")

    # The tag leads to the campaigns that have it.
    go(page, service, f"campaigns/{id}?tab=about")
    page.get_by_test_id("tags").get_by_role("link", name="h100").click()
    expect(page.get_by_test_id("campaign")).to_have_count(1)
    page.get_by_test_id("tag-h100").click()
    expect(page.get_by_test_id("tag-h100")).to_be_hidden()


def test_a_setting_by_hand_is_refused_with_its_rule_or_becomes_a_trial(page, service):
    spec = SPEC.replace("name: gain", "name: by-hand").replace("trials: 24", "trials: 100000")
    id = service.call("POST", "/v1/campaigns", yaml.safe_load(spec))["id"]
    service.call("POST", f"/v1/campaigns/{id}:pause")
    go(page, service, f"campaigns/{id}")
    page.get_by_test_id("more").locator("summary").click()
    page.get_by_role("button", name="Try a plan by hand").click()
    dialog = page.get_by_test_id("enqueue")
    dialog.get_by_label("tensor", exact=True).fill("3")
    dialog.get_by_role("button", name="Try it").click()
    expect(dialog.get_by_test_id("error")).to_contain_text("tp(3)")
    dialog.get_by_label("tensor", exact=True).fill("8")
    dialog.get_by_label("pipeline", exact=True).fill("1")
    dialog.get_by_label("micro-batch", exact=True).fill("16")
    dialog.get_by_role("combobox", name="recompute", exact=True).select_option(
        "none"
    )  # the baseline's is not of the space
    expect(dialog.get_by_label("data", exact=True)).to_have_value("2")
    dialog.get_by_role("button", name="Try it").click()
    expect(page.locator("h1", has_text="Trial")).to_be_visible()
    expect(page.get_by_test_id("trial-head")).to_contain_text("tp8 pp1 dp2 mbs16")
    number = page.url.rpartition("/")[2]
    go(page, service, f"campaigns/{id}?text=enqueued")
    expect(page.get_by_test_id(f"row-{number}")).to_contain_text("by hand")
    service.call("POST", f"/v1/campaigns/{id}:cancel")


def test_the_spec_as_written_and_all_trials_can_be_saved_and_a_clone_starts_from_it(page, service, campaign):
    go(page, service, f"campaigns/{campaign}?tab=about")
    expect(page.get_by_test_id("spec").locator("pre")).to_have_text(SPEC)
    saved = {}
    for name in ("spec", "CSV", "report"):
        with page.expect_download() as started:
            page.get_by_test_id("downloads").get_by_role("button", name=name).click()
        saved[name] = started.value.path().read_text(encoding="utf-8")
    assert saved["spec"] == SPEC
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    assert len(saved["CSV"].strip().splitlines()) == len(trials) + 1
    assert "<svg" in saved["report"]
    page.get_by_test_id("more").locator("summary").click()
    page.get_by_test_id("more").get_by_role("link", name="Clone").click()
    expect(page.get_by_label("Campaign spec, YAML or JSON")).to_have_value(SPEC)
