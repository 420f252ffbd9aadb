"""Knobs in the dashboard: of a campaign that the simulated runner measured, and in a spec that is being written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from service_lab import ServiceLab
from specs import simulated

DASH = "\u2013"
# A word that would be markup.
BOLD = "<b>bold&</b>"
SPEC = simulated(
    name="knobs",
    model="gpt-1.4b",
    global_batch_size=64,
    space={"tp": [1, 2], "pp": [1, 2], "micro_batch_size": [1], "zero_stage": [1], "recompute": ["none"]},
    knobs={
        "memory": {"values": ["plain", BOLD], "env": "MEMORY", "meaning": "Called as a <measure> is."},
        "size": {"values": [4194304, 8388608], "env": "SIZE", "numerics": "changes"},
        "share": {"values": [0.5, 1.0], "env": "SHARE", "when": "pp > 1"},
    },
    workload={"kind": "simulated", "framework": "megatron-deepspeed"},
    trial={"time_limit_s": 1e6},
    budget={"trials": 16},
    confirm=0,
)
WRONG = """\
model: gpt-micro
cluster: local-cpu
global_batch_size: 16
knobs:
  fp8: {values: [off, on], env: FP8}
  channels: {values: [4, 8], env: CHANNELS, when: fp9 != off}
  tp: {values: [1, 2], env: TP}
budget: {trials: 5}
"""


@pytest.fixture(scope="module")
def campaign(service: ServiceLab) -> str:
    """The id of a campaign with knobs that is over."""
    return service.completed(SPEC)


def plans(service: ServiceLab, campaign: str, *knobs: str) -> dict[int, dict[str, Any]]:
    """The values of knobs of the trials that pass a filter, by number."""
    asked = "".join(f"&knob={knob}" for knob in knobs)
    answer = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief{asked}")
    return {trial["number"]: trial["plan"]["knobs"] for trial in answer["trials"]}


def expect_rows(page: Page, numbers: Iterable[int]) -> None:
    """The table has these trials alone; it grows as one scrolls."""
    wanted = sorted(numbers)
    assert wanted, "nothing passes the filter"
    found = page.locator("[data-testid^=row-]")
    page.get_by_test_id("trials").evaluate("(card) => card.scrollIntoView({ block: 'end' })")
    expect(found).to_have_count(len(wanted))
    assert sorted(int(row.get_attribute("data-trial") or -1) for row in found.all()) == wanted


def test_knobs_are_columns_axes_filters_and_cells_of_a_campaign(open_page, service, campaign, sign_in):
    page = open_page()
    sign_in(page, service)
    page.goto(f"{service.url}/#/campaigns/{campaign}")
    table, heat = page.get_by_test_id("trials-table"), page.get_by_test_id("heat-map")
    every = plans(service, campaign)
    for name in ("memory", "size", "share"):
        assert len({knobs.get(name) for knobs in every.values()} - {None}) == 2, f"{name} was not tried"
        expect(table.get_by_role("columnheader").filter(has_text=name).first).to_be_visible()
        expect(page.get_by_test_id(f"axis-knobs.{name}")).to_be_visible()

    expect_rows(page, every)

    # Each trial's value, as text; of a knob that its layout makes inactive a dash.
    heads = [head.strip("▲▼ ") for head in table.get_by_role("columnheader").all_inner_texts()]
    places = {name: heads.index(name) for name in ("memory", "size", "share")}  # the measure stands further right
    for number, knobs in every.items():
        cells = page.get_by_test_id(f"row-{number}").get_by_role("cell").all_inner_texts()
        said = {name: cells[place] for name, place in places.items()}
        share = str(knobs["share"]).removesuffix(".0") if "share" in knobs else DASH
        assert said == {"memory": knobs["memory"], "size": str(knobs["size"]), "share": share}
    assert page.locator("[data-testid^=row-] b").count() == 0

    # By keyboard on its axis: the least size, exactly.
    page.get_by_test_id("axis-knobs.size").get_by_role("slider").press("Home")
    expect(page.get_by_test_id("condition-knobs.size")).to_contain_text("size 4194304")
    expect_rows(page, plans(service, campaign, "size:4194304"))
    page.get_by_test_id("clear-all").click()

    # The inactive ones are the lowest level of an axis; a link holds the filter.
    page.get_by_test_id("axis-knobs.share").get_by_role("slider").press("Home")
    expect(page.get_by_test_id("condition-knobs.share")).to_contain_text("share inactive")
    expect_rows(page, plans(service, campaign, "share:"))
    page.reload()
    expect(page.get_by_test_id("condition-knobs.share")).to_contain_text("share inactive")
    page.get_by_test_id("clear-all").click()

    # A cell of a knob keeps its trials.
    heat.get_by_label("Across").select_option("knobs.memory")
    expect(heat.get_by_role("heading")).to_contain_text("Best by memory \u00d7 pp")
    cell = page.get_by_test_id(f"cell-memory{BOLD}-pp2")
    cell.click()
    expect(cell).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_test_id("condition-knobs.memory")).to_contain_text(f"memory {BOLD}")
    expect_rows(page, (number for number, knobs in every.items() if knobs["memory"] == BOLD and "share" in knobs))
    cell.click()
    expect(page.get_by_test_id("condition-knobs.memory")).to_be_hidden()


def test_the_page_of_a_trial_says_what_its_job_was_told_and_saw(open_page, service, campaign, sign_in):
    page = open_page()
    sign_in(page, service)
    found = plans(service, campaign, "size:8388608", "share:")
    number, knobs = next(iter(found.items()))
    seen = service.call("GET", f"/v1/campaigns/{campaign}/trials/{number}")["measurement"]["knobs"]
    page.goto(f"{service.url}/#/campaigns/{campaign}/trials/{number}")
    card = page.get_by_test_id("knobs")
    expect(card).to_be_visible()
    for name, variable in (("memory", "MEMORY"), ("size", "SIZE")):
        row = card.get_by_role("row").filter(has_text=variable)
        changes = "changes the numerics" if knobs[name] == 8388608 else ""
        told = [str(knobs[name]), str(seen[name]) if name in seen else DASH, changes, variable]
        assert row.get_by_role("cell").all_inner_texts() == told
    expect(card.get_by_role("row").filter(has_text="SHARE")).to_contain_text("inactive")


def test_mistakes_in_knobs_stand_at_their_lines(open_page, service, sign_in):
    page = open_page()
    sign_in(page, service)
    page.goto(f"{service.url}/#/new")
    page.get_by_test_id("tab-yaml").click()
    editor = page.get_by_label("Campaign spec, YAML or JSON")
    editor.fill(WRONG)
    mistakes = page.get_by_test_id("mistakes").get_by_role("listitem")
    expect(mistakes.filter(has_text="knobs.channels.when")).to_contain_text("line 6")
    expect(mistakes.filter(has_text="knobs.tp")).to_contain_text("line 7")
    editor.fill(WRONG.replace("fp9", "fp8").replace("tp:", "depth:"))
    expect(page.get_by_test_id("quote")).to_contain_text("can be launched")
    legal, plans = (int(page.get_by_test_id(each).inner_text().replace("\u202f", "")) for each in ("legal", "plans"))
    # Off, or on with 4 or 8 channels; twice, by the depth.
    assert plans == 6 * legal


def test_the_form_names_catalogs(open_page, service, sign_in):
    page = open_page()
    sign_in(page, service)
    page.goto(f"{service.url}/#/new")
    page.get_by_test_id("tab-form").click()
    page.get_by_label("trainer", exact=True).check()
    expect(page.get_by_label("Campaign spec, YAML or JSON")).to_have_value(re.compile(r"^catalogs: \[trainer\]$", re.M))
    expect(page.get_by_test_id("quote")).to_contain_text("can be launched")


def test_sizes_are_a_column_and_a_table_of_their_best(open_page, service, sign_in):
    page = open_page()
    sign_in(page, service)
    knobs = {"devices": {"values": [4, 8]}}
    id = service.completed({**SPEC, "name": "sizes", "knobs": knobs, "budget": {"trials": 8}})
    page.goto(f"{service.url}/#/campaigns/{id}")
    expect(page.get_by_test_id("axis-knobs.devices")).to_be_visible()
    sizes = page.get_by_test_id("sizes").get_by_role("row")
    expect(sizes).to_have_count(3)
    assert [row.get_by_role("cell").nth(1).inner_text() for row in sizes.all()[1:]] == ["4", "8"]
