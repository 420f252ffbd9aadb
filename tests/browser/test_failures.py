"""The tab Failures: what failed by cause, what to do about it, and what each job left."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from service_lab import ServiceLab
from specs import simulated, tiny

from meshtune.runners.base import Cause
from meshtune.runners.registry import ADVICE

pytestmark = pytest.mark.timeout(300)
GIB = 2**30
# The search expects memory of most plans, and is sometimes wrong.
FULL = simulated(
    name="full",
    model="gpt-22b",
    cluster={"preset": "dgx-h100", "nodes": 4},
    global_batch_size=512,
    space={"tp": [1, 2], "pp": [1, 2, 4], "micro_batch_size": [1, 2, 4], "recompute": ["none"]},
    knobs={"size": {"values": [1, 2], "env": "SIZE"}},
    baseline={"tp": 8, "pp": 4, "micro_batch_size": 1, "zero_stage": 0, "recompute": "full"},
    workload={"kind": "simulated", "framework": "megatron-deepspeed"},
    search="physics",
    trial={"time_limit_s": 1e6},
    budget={"trials": 24},
    confirm=0,
)
WORDS = "echo the job began; echo 'ModuleNotFoundError: No module named megatron' >&2; exit 3"
BROKEN = tiny(
    name="broken",
    space={"micro_batch_size": [1, 2], "zero_stage": [0]},
    workload={"kind": "command", "command": ["bash", "-c", f"{WORDS} # {{micro_batch_size}} {{grad_accum_steps}}"]},
    runner={"kind": "local", "idle_s": 1},
    budget={"trials": 2},
)


@pytest.fixture(scope="module")
def full(service: ServiceLab) -> str:
    return service.completed(FULL)


@pytest.fixture(scope="module")
def broken(service: ServiceLab) -> str:
    id: str = service.call("POST", "/v1/campaigns", BROKEN)["id"]
    service.wait_state(id, "failed")
    return id


@pytest.fixture
def opened(open_page: Callable[..., Page], service: ServiceLab) -> Callable[..., Page]:
    """The tab of a campaign; token: another than the service's of every scope."""

    def fresh(campaign: str, token: str = "", **look: Any) -> Page:
        page = open_page(**look)
        page.add_init_script(f"localStorage.setItem('meshtune.token', '{token or service.token}')")
        page.goto(f"{service.url}/#/campaigns/{campaign}?tab=failures")
        expect(page.get_by_test_id("advice").first).not_to_be_empty()
        return page

    return fresh


def failed(service: ServiceLab, campaign: str) -> list[dict[str, Any]]:
    trials = service.call("GET", f"/v1/campaigns/{campaign}/trials?view=brief&page_size=1000")["trials"]
    return [trial for trial in trials if trial["failure"]]


@pytest.mark.parametrize(
    ("width", "theme"),
    [(1440, "light"), pytest.param(390, "dark", marks=pytest.mark.long)],
)
def test_out_of_memory_stands_beside_what_was_predicted_and_what_the_device_has(opened, service, full, width, theme):
    page = opened(full, viewport={"width": width, "height": 900}, theme=theme)
    trials = failed(service, full)
    predicted = [trial for trial in trials if trial["expectation"]]
    assert predicted, "the search expects nothing of what fails"
    card = page.get_by_test_id("cause-oom")
    expect(card.get_by_role("heading")).to_contain_text(f"out of memory: {len(trials)} trial")
    expect(card.get_by_test_id("advice")).to_have_text(ADVICE[Cause.OOM].words)
    if len(trials) > 8:
        card.get_by_role("button", name=f"All {len(trials)} trials").click()
    expect(card.get_by_role("row")).to_have_count(len(trials))
    for trial in trials:
        row = card.get_by_test_id(f"failed-{trial['number']}")
        expect(row.get_by_role("link")).to_have_attribute("href", f"#/campaigns/{full}/trials/{trial['number']}")
        expect(row).to_contain_text(f"tensor 8 \u2192 {trial['plan']['tp']}")
        expect(row).to_contain_text("recompute full \u2192 none")
        expect(row).not_to_contain_text("accumulation")
        expect(row).to_contain_text(re.compile(r"out of memory in \w+"))
        if trial["expectation"] is None:
            expect(row).to_contain_text(re.compile(r"predicted [0-9.]+ GiB of 80 GiB"))
            continue
        peak = trial["expectation"]["peak_bytes"] / GIB
        said = f"{peak:#.3g}".rstrip(".")
        expect(row).to_contain_text(f"predicted {said} GiB of 80 GiB")
        ends = row.locator(".memory-room > *").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect())")
        bar, mark = ends[0]["right"] - ends[0]["left"], ends[1]["left"] - ends[0]["left"]
        # Bar to mark as the peak to the device.
        assert bar / mark == pytest.approx(peak / 80, rel=0.08)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Of a simulation there is no log.
    expect(card.get_by_role("button", name="Log")).to_have_count(0)
    # What running again cannot mend is mended first, in a copy of the spec.
    card.get_by_role("link", name="Fix and run again").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New campaign")
    expect(page.get_by_label("Spec")).to_have_value(re.compile('"name": "full"'))


def test_a_bug_of_the_job_has_its_log_and_starts_again_from_its_spec(opened, service, broken):
    page = opened(broken)
    card = page.get_by_test_id("cause-user_bug")
    expect(card.get_by_role("heading")).to_contain_text("bug in the job: 1 trial")
    expect(card.get_by_test_id("advice")).to_have_text(ADVICE[Cause.USER_BUG].words)
    # One failure says nothing over time.
    expect(page.get_by_test_id("failures")).to_have_count(0)
    card.get_by_role("button", name="Log").click()
    log = page.get_by_test_id("failure-log")
    expect(log.get_by_label("End of the log")).to_contain_text("the job began")
    expect(log.get_by_label("End of the log")).to_contain_text("No module named megatron")
    expect(log).to_contain_text("Where it failed: rank 0.")
    log.get_by_role("button", name="Close").click()
    expect(card.get_by_role("link", name="Fix and run again")).to_have_attribute("href", f"#/new?from={broken}")


def test_who_may_not_launch_is_offered_no_run(opened, service, broken):
    page = opened(broken, token=service.new_token("reader", "read:all"))
    card = page.get_by_test_id("cause-user_bug")
    expect(card.get_by_role("button", name="Log")).to_be_visible()
    expect(card.get_by_role("link", name=re.compile("run again", re.I))).to_have_count(0)


def test_failures_over_time_are_below_where_there_are_several_windows(opened, service, full):
    page = opened(full)
    failures = service.call("GET", f"/v1/campaigns/{full}/analysis")["failures"]
    assert len(failures["windows"]) > 1
    chart = page.get_by_test_id("failures").locator("svg[role=slider]")
    last = failures["windows"][-1]
    chart.focus()
    chart.press("End")
    expect(chart).to_have_attribute(
        "aria-valuetext", re.compile(f"^Trials {last['first']} to {last['last']}: {last['failed']} of {last['trials']}")
    )
    ticks = page.get_by_test_id("failures").locator(".y-ticks text").all_text_contents()
    assert len(set(ticks)) == len(ticks) > 1
    values = page.get_by_test_id("failures-by-value").get_by_role("listitem").all_inner_texts()
    rates = [int(one.split(": ")[1].split(" of ")[0]) / int(one.split(" of ")[1].split(" ")[0]) for one in values]
    assert rates == sorted(rates, reverse=True)


def test_where_nothing_has_failed_there_is_no_tab(open_page, service):
    page = open_page()
    id = service.completed(simulated(name="well", budget={"trials": 2}, confirm=0))
    assert failed(service, id) == []
    page.add_init_script(f"localStorage.setItem('meshtune.token', '{service.token}')")
    page.goto(f"{service.url}/#/campaigns/{id}?tab=failures")
    expect(page.get_by_role("tab", name="Trials")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Failures")).to_have_count(0)
