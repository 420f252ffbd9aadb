"""From a setting to what trains with it: what runs it and where. The page of a trial is of one run of a setting."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from launches import parse
from playwright.sync_api import Page, expect
from service_lab import ServiceLab
from specs import simulated

from meshtune.runners.base import Cause
from meshtune.runners.registry import ADVICE

STAND_IN = Path(__file__).parents[1] / "laboratories" / "megatron_stand_in.py"
LAUNCH = """\
torchrun --nproc_per_node 2 {script} --tensor-model-parallel-size 2 --num-layers 8 --hidden-size 512 \
--num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 16 \
--train-iters 100000 --lr 1e-4 --bf16 --data-path /data/x --tokenizer-type NullTokenizer --vocab-size 32000
"""
# Trials of a second, each with a second run.
FEW = {"search": "random", "runner": {"kind": "local", "idle_s": 2}, "budget": {"trials": 1}, "confirm": 0}
DEVICE = {"kind": "cpu", "name": "large", "memory_bytes": 8e10}
CLUSTER = {"preset": "local-cpu", "devices_per_node": 2, "device": DEVICE}
TRAINER = {
    "name": "trainer",
    "model": {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 128, "seq_len": 16},
    "cluster": CLUSTER,
    "global_batch_size": 16,
    "baseline": {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 0},
    "workload": {"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 3}},
    **FEW,
}
# The widest layouts run out of memory, and the winner ran again.
GAIN = """\
name: gain
model: gpt-22b
cluster: {preset: dgx-h100, nodes: 2}
global_batch_size: 128
baseline: {tp: 8, pp: 2, micro_batch_size: 1, zero_stage: 0, recompute: full}
workload: {kind: simulated, framework: megatron-deepspeed}
runner: simulated
search: random
trial: {time_limit_s: 1e6}
budget: {trials: 12}
parallel: 4
seed: 3
"""
# A plan that torchtitan has no words for, a knob that Megatron's command line has, and one that it has not.
KNOBS = simulated(
    name="told",
    space={"tp": [1], "pp": [1], "zero_stage": [1], "recompute": ["none"]},
    knobs={
        "fp8": {"values": ["mxfp8"], "argument": "--fp8 {value}"},
        "bucket": {"values": [5000], "config": "zero_optimization.reduce_bucket_size"},
    },
    workload={"kind": "simulated", "framework": "megatron-core"},
    trial={"time_limit_s": 1e6},
    budget={"trials": 1},
)


@pytest.fixture(scope="module")
def trainer(service: ServiceLab) -> str:
    return service.completed(TRAINER)


@pytest.fixture(scope="module")
def megatron(service: ServiceLab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A campaign whose spec was read from a launch of Megatron."""
    script = tmp_path_factory.mktemp("megatron") / "pretrain_gpt.py"
    shutil.copy(STAND_IN, script)
    read = parse(LAUNCH.format(script=script))
    workload = {**read.workload, "python": sys.executable, "steps": 25, "warmup_steps": 2}
    spec = {"name": "imported", "model": read.model, "cluster": CLUSTER, "global_batch_size": read.global_batch_size}
    return service.completed({**spec, "workload": workload, "baseline": read.plan, **FEW})


@pytest.fixture(scope="module")
def gain(service: ServiceLab) -> str:
    return service.completed(GAIN)


def go(page: Page, service: ServiceLab, campaign: str, trial: int) -> None:
    page.goto(f"{service.url}/#/campaigns/{campaign}/trials/{trial}")
    expect(page.locator("h1")).to_have_text(f"Trial {trial}")


def test_an_imported_launch_is_used_as_the_training_that_it_is(page, service, megatron):
    go(page, service, megatron, 0)
    page.get_by_test_id("use").click()
    dialog = page.get_by_test_id("exports")
    script = dialog.get_by_test_id("export-file").filter(has_text="launch.sh")
    expect(dialog.get_by_label("What runs it?")).to_have_value("megatron")
    expect(script).to_contain_text("--train-iters 100000")
    expect(script).to_contain_text("--data-path /data/x")
    expect(dialog).not_to_contain_text("--train-iters 25")
    # All of it is known, and nothing is to be set.
    expect(dialog.get_by_text("to be set")).to_have_count(0)
    expect(dialog.get_by_test_id("handover")).to_be_hidden()
    # A scheduler starts the same training, and not what measured it.
    dialog.get_by_label("Where?").select_option("slurm")
    expect(dialog.get_by_test_id("launch-command")).to_contain_text("sbatch job.sbatch")
    expect(script.first).to_contain_text("--train-iters 100000")
    expect(dialog.get_by_label("partition: to be set")).to_be_visible()
    dialog.get_by_label("partition: to be set").fill("h100")
    expect(dialog.get_by_test_id("export-file").filter(has_text="#SBATCH --partition=h100")).to_have_count(1)
    expect(dialog.get_by_label("partition: to be set")).to_have_count(0)
    expect(dialog).not_to_contain_text("--train-iters 25")
    # The job that measured it is there too, by its name.
    dialog.get_by_label("What runs it?").select_option(label="the trial's own job (profiling, 25 steps)")
    expect(dialog.get_by_test_id("export-note")).to_contain_text("it trains nothing")
    expect(dialog).to_contain_text("--train-iters 25")


def test_every_rank_has_its_bar_and_none_is_without_a_value(page, service, trainer):
    go(page, service, trainer, 0)
    measured = service.call("GET", f"/v1/campaigns/{trainer}/trials/0")["measurement"]
    for card, values in (
        ("rank-memory", measured["peak_held_bytes"]),
        ("own-times", measured["profile"]["own_time_s"]),
    ):
        shown = page.get_by_test_id(card)
        expect(shown.locator(".x-ticks text")).to_have_text([str(rank) for rank in range(len(values))])
        expect(shown.get_by_test_id("rail")).to_have_count(0)
        chart = shown.get_by_role("slider")
        chart.focus()
        chart.press("End")
        expect(chart).to_have_attribute("aria-valuetext", re.compile(f"^Rank {len(values) - 1}"))


def test_what_only_its_user_can_say_is_marked_and_goes_into_the_launch(page, service, trainer):
    go(page, service, trainer, 0)
    page.get_by_test_id("use").click()
    dialog = page.get_by_test_id("exports")
    script = dialog.get_by_test_id("export-file").filter(has_text="#!/bin/bash")
    # The built-in trainer trains nothing, so a program that does comes first, with what that means.
    expect(dialog.get_by_test_id("handover")).to_contain_text("Not measured with Megatron")
    expect(dialog.get_by_test_id("measured-with")).to_contain_text("number format float32")
    expect(script).to_contain_text("--train-iters STEPS")
    expect(dialog).not_to_contain_text("--train-iters 25")
    needed = dialog.get_by_test_id("needed")
    needed.get_by_label("steps: to be set").fill("5000")
    needed.get_by_label("arguments: to be set").fill("--data-path /data/mine --lr 3e-4")
    needed.get_by_label("script: to be set").fill("/home/me/pretrain_gpt.py")
    # The first click counts, and copies what was typed.
    script.get_by_role("button", name="Copy").click()
    expect(script.get_by_text("Copied")).to_be_visible()
    typed = ("--train-iters 5000", "--data-path /data/mine", "--lr 3e-4", "/home/me/pretrain_gpt.py")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert [words for words in typed if words not in copied] == []
    for words in typed:
        expect(script).to_contain_text(words)
    expect(needed.get_by_text("to be set")).to_have_count(0)
    # It stays where the dialog opens again and where the place changes.
    dialog.get_by_role("button", name="Close").click()
    page.get_by_test_id("use").click()
    dialog.get_by_label("Where?").select_option("slurm")
    expect(dialog.get_by_test_id("launch-command")).to_contain_text("sbatch job.sbatch")
    for words in typed:
        expect(script.first).to_contain_text(words)
    expect(needed.get_by_label("steps")).to_have_value("5000")
    # What cannot do without is not guessed.
    dialog.get_by_label("Where?").select_option("jobset")
    expect(dialog.get_by_test_id("missing")).to_contain_text("image")
    needed.get_by_label("image: to be set").fill("registry.example/train:1")
    expect(dialog.get_by_test_id("export-file").filter(has_text="registry.example/train:1")).to_contain_text(
        "launch.sh"
    )


def test_what_a_launch_lacks_of_the_setting_comes_first_and_a_scheduler_starts_what_was_simulated(page, service):
    go(page, service, service.completed(KNOBS), 0)
    page.get_by_test_id("use").click()
    dialog = page.get_by_test_id("exports")
    script = dialog.get_by_test_id("export-file").filter(has_text="launch.sh")
    expect(script.first).to_contain_text("--fp8 mxfp8")
    expect(dialog.get_by_role("alert")).to_have_text(
        "This launch is not the whole setting. Not in it, to be added by hand: bucket = 5000."
    )
    dialog.get_by_label("Where?").select_option("slurm")
    expect(dialog.get_by_test_id("launch-command")).to_contain_text("sbatch job.sbatch")
    expect(script.first).to_contain_text("--fp8 mxfp8")
    # The job of the simulation is for no scheduler, and that is said.
    dialog.get_by_label("What runs it?").select_option("job")
    expect(dialog.get_by_label("Where?")).to_be_disabled()
    expect(dialog).to_contain_text("nothing in it that a scheduler could start")
    # A program that cannot run the setting says why, and asking again would help nobody.
    dialog.get_by_label("What runs it?").select_option("torchtitan")
    expect(dialog.get_by_test_id("no-words")).to_contain_text("cannot run this plan: plan: zero_stage(1)")
    expect(dialog.get_by_role("button", name="Try again")).to_have_count(0)


def test_the_page_of_a_run_is_of_its_setting_and_agrees_with_the_recommendation(page, service, gain):
    found = service.call("GET", f"/v1/campaigns/{gain}")["summary"]["recommended"]
    trials = service.call("GET", f"/v1/campaigns/{gain}/trials?view=brief&page_size=1000")["trials"]
    runs = [one["number"] for one in trials if one["setting"] and one["setting"]["trial"] == found["trial"]]
    assert len(runs) > 1
    for number in runs:
        go(page, service, gain, number)
        badges = page.get_by_test_id("badges")
        expect(badges).to_contain_text("recommended")
        expect(badges).to_contain_text(f"confirmed by {found['runs']} second run")
        expect(page.get_by_test_id("tile-objective").locator(".tile-value")).to_have_text(
            f"{found['objective']['value']:.0f}"
        )
        expect(page.get_by_test_id("tile-gain").locator(".tile-value")).to_have_text(
            f"+{100 * found['gain_over_baseline']['value']:.1f} %"
        )
        for change in found["changes"]:
            expect(page.get_by_test_id("changes")).to_contain_text(f"{change['before']} → {change['after']}")
        expect(page.get_by_role("button", name="Measure again")).to_be_visible()
        others = page.get_by_test_id("runs").get_by_role("link")
        expect(others).to_have_text([f"trial {one}" for one in runs if one != number])
    expect(page.get_by_test_id("badges")).to_contain_text(f"second run of trial {found['trial']}")
    go(page, service, gain, 0)
    expect(page.get_by_test_id("badges")).to_contain_text("baseline")
    expect(page.get_by_test_id("tile-gain")).to_contain_text("the baseline")


def test_a_run_out_of_memory_says_what_was_predicted_and_shows_nothing_empty(page, service, gain):
    trials = service.call("GET", f"/v1/campaigns/{gain}/trials?view=brief&page_size=1000")["trials"]
    number, expected = next((one["number"], one["expectation"]) for one in trials if one["verdict"] == "oom")
    assert expected is None, "the search has predicted it: there is nothing to ask"
    go(page, service, gain, number)
    expect(page.get_by_test_id("reason")).to_contain_text(re.compile(r"out of memory, in \w+: "))
    expect(page.get_by_test_id("tile-predicted")).to_contain_text(re.compile(r"GiB \(.* to .*GiB\) of 80(\.0)? GiB"))
    expect(page.get_by_test_id("tile-predicted")).not_to_contain_text("simulated")
    # As the tab Failures says it.
    expect(page.get_by_test_id("mend")).to_have_text(ADVICE[Cause.OOM].words)
    # What was not measured cannot be measured again.
    expect(page.get_by_role("button", name="Measure again")).to_have_count(0)
    for card in ("step-times", "losses", "rank-memory", "own-times", "step-parts", "tile-step", "log", "job"):
        expect(page.get_by_test_id(card)).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text("-, -")
    # The tab Failures predicts the same.
    peak = page.get_by_test_id("tile-predicted").locator(".tile-value").inner_text().split(" (")[0]
    page.goto(f"{service.url}/#/campaigns/{gain}?tab=failures")
    expect(page.get_by_test_id(f"failed-{number}")).to_contain_text(f"predicted {peak} of 80 GiB")
