"""Knobs in the dashboard: of a campaign that the simulated runner measured, and in a spec that is being written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from service_lab import ServiceLab
from specs import simulated

LABELS = Path(__file__).parents[2] / "api" / "web" / "src" / "api" / "axes.json"
DASH = "\u2013"
AXES = {axis["name"]: axis["label"] for axis in json.loads(LABELS.read_text(encoding="utf-8"))["axes"]}
# Of names: the pairs that touch each other.
TOUCH = """
(all) => {
  const boxes = all.map((one) => one.getBoundingClientRect());
  const pairs = boxes.flatMap((a, at) => boxes.slice(at + 1).map((b) => [a, b]));
  return pairs.filter(([a, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom);
}
"""
MEGATRON = ("overlap_grad_reduce", "overlap_param_gather", "ddp_bucket_size", "tp_comm_overlap", "fp8_format")
MORE = ("cuda_graph", "attention_backend")
# Each of Megatron's names alone is longer than an axis is from the next.
TWELVE = simulated(
    name="twelve",
    model="gpt-22b",
    cluster={"preset": "dgx-h100", "nodes": 4},
    global_batch_size=512,
    space={
        "tp": [1, 2, 4, 8],
        "pp": [1, 2, 4],
        "micro_batch_size": [1, 2, 4],
        "zero_stage": [0, 1],
        "recompute": ["none", "selective", "full"],
    },
    catalogs=[f"megatron.{name}" for name in (*MEGATRON, *MORE)],
    baseline={"tp": 8, "pp": 4, "micro_batch_size": 1, "zero_stage": 0, "recompute": "full"},
    workload={"kind": "simulated", "framework": "megatron-core"},
    search="random",
    trial={"time_limit_s": 1e6},
    budget={"trials": 60},
    confirm=0,
)
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
    def only(axis: str, words: str, numbers: Iterable[int]) -> None:
        """The first level of an axis is a filter of the table too."""
        page.get_by_role("tab", name="Charts").click()
        page.get_by_test_id(f"axis-knobs.{axis}").get_by_role("slider").press("Home")
        expect(page.get_by_test_id(f"condition-knobs.{axis}")).to_contain_text(words)
        page.get_by_role("tab", name="Trials").click()
        expect_rows(page, numbers)

    only("size", "size 4194304", plans(service, campaign, "size:4194304"))
    page.get_by_test_id("clear-all").click()

    # The inactive ones are the lowest level of an axis; a link holds the filter.
    only("share", "share inactive", plans(service, campaign, "share:"))
    page.reload()
    expect(page.get_by_test_id("condition-knobs.share")).to_contain_text("share inactive")
    page.get_by_test_id("clear-all").click()

    # A cell of a knob keeps its trials.
    page.get_by_role("tab", name="Charts").click()
    heat.get_by_label("Across").select_option("knobs.memory")
    heat.get_by_label("Up").select_option("pp")
    expect(heat.get_by_role("heading")).to_contain_text("Best by memory \u00d7 pipeline")
    cell = page.get_by_test_id(f"cell-knobs.memory{BOLD}-pp2")
    cell.click()
    expect(cell).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_test_id("condition-knobs.memory")).to_contain_text(f"memory {BOLD}")
    page.get_by_role("tab", name="Trials").click()
    expect_rows(page, (number for number, knobs in every.items() if knobs["memory"] == BOLD and "share" in knobs))
    page.get_by_role("tab", name="Charts").click()
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
        changes = ", changes the numerics" if knobs[name] == 8388608 else ""
        told = [f"{knobs[name]}{changes}", str(seen[name]) if name in seen else DASH, variable]
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
    page.goto(f"{service.url}/#/campaigns/{id}?tab=charts")
    expect(page.get_by_test_id("axis-knobs.devices")).to_be_visible()
    sizes = page.get_by_test_id("sizes").get_by_role("row")
    expect(sizes).to_have_count(3)
    assert [row.get_by_role("cell").first.inner_text() for row in sizes.all()[1:]] == ["4", "8"]


@pytest.fixture(scope="module")
def twelve(service: ServiceLab) -> str:
    """The id of a campaign of twelve axes and knobs that is over."""
    return service.completed(TWELVE)


@pytest.mark.parametrize(
    ("width", "theme"), [(1440, "light"), (390, "dark"), pytest.param(1280, "dark", marks=pytest.mark.long)]
)
def test_twelve_knobs_are_legible_and_those_that_matter_are_the_axes(open_page, service, twelve, sign_in, width, theme):
    page = open_page(viewport={"width": width, "height": 900}, theme=theme)
    sign_in(page, service)
    page.goto(f"{service.url}/#/campaigns/{twelve}?tab=charts")
    analysis = service.call("GET", f"/v1/campaigns/{twelve}/analysis")
    important = [one["knob"] for one in analysis["sensitivity"]["importances"]]
    assert len(important) >= 11, "the spec varies fewer knobs now"
    parallel = page.get_by_test_id("parallel")
    drawn = [name if name in AXES else f"knobs.{name}" for name in important[:7]]
    expect(page.get_by_test_id("sensitivity").locator("dt").first).to_have_text(labels(important[:1])[0])
    found = parallel.locator("[data-testid^=axis-]")
    expect(found).to_have_count(8)
    assert [axis.get_attribute("data-testid") for axis in found.all()] == [
        *(f"axis-{name}" for name in drawn),
        "axis-objective",
    ]
    # Names are words, have their meaning beside them, and touch neither each other nor what is cut off.
    names = parallel.locator(".axis-name")
    assert names.evaluate_all("(all) => all.map((one) => one.querySelector('title').textContent.length)") > [3] * 8
    assert names.evaluate_all(TOUCH) == []
    lefts = names.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().left)")
    assert min(lefts) >= (parallel.bounding_box() or {"x": 1e9})["x"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # In What matters too, and in the effects above the tabs.
    words = page.get_by_test_id("sensitivity").inner_text()
    assert "micro_batch_size" not in words
    assert "tp " not in words
    sure = [one for one in analysis["effects"] if one["evidence"] != "predicted"]
    hoped = [one for one in analysis["effects"] if one["gain"]["value"] > 0]
    change = max(sure or hoped, key=lambda one: (one["gain"]["low"] > 0, one["pairs"] > 1, one["gain"]["low"]))
    (label,) = labels([change["knob"]])
    expect(page.get_by_test_id("why")).to_contain_text(f"{label} {change['before']} \u2192 {change['after']}")
    # The others are a click away, and stay chosen.
    eighth = important[7] if important[7] in AXES else f"knobs.{important[7]}"
    parallel.get_by_text("Axes (7 of").click()
    parallel.get_by_label(labels([important[7]])[0], exact=True).check()
    expect(page.get_by_test_id(f"axis-{eighth}")).to_be_visible()
    page.reload()
    expect(page.get_by_test_id(f"axis-{eighth}")).to_be_visible()


def labels(names: Iterable[str]) -> list[str]:
    return [AXES.get(name, name) for name in names]
